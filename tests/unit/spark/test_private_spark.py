"""Spark's private interfaces are used where it has no public one, and nowhere else: a Connect session has none."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

JOBS = Path(__file__).parents[3] / "spark_jobs"
PRIVATE = re.compile(
    r"(?<![\w\"'])[\w.()]+\.(_jvm|_gateway|_jsc|_jdf|_jsparkSession|_jconf|_lock|_ensure_initialized)\b"
)
# What each is used for; a new one needs a reason, or a public interface.
USES = {
    "folders.py": {"_jvm", "_jsc"},  # write and delete files in any file system
    # Register the driver of a JDBC catalog, read the summary of a snapshot, and commit on a known one.
    "iceberg.py": {"_jvm", "_jsparkSession"},
    "listings/inventory.py": {"_jvm"},  # the time zone in which this JVM reads ORC
    "listings/source_inventory.py": {"_jvm", "_jsparkSession"},  # the snapshot of a table, and its operation
    "progress.py": {"_jsc"},  # the records that a stage has written so far
    # Start the JVM so that its output is kept, and end it, so that it writes its archive; whether this process has one.
    "session.py": {"_gateway", "_jvm", "_lock", "_ensure_initialized"},
}


def test_private_interfaces_of_spark_are_known() -> None:
    used = defaultdict(set)
    for path in JOBS.rglob("*.py"):
        for line in path.read_text().splitlines():
            if not line.lstrip().startswith("#"):
                used[str(path.relative_to(JOBS))] |= set(PRIVATE.findall(line))
    assert {name: uses for name, uses in used.items() if uses} == USES
