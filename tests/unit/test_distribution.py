"""Which tests run one after the other in one process."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

from tests.support import distribution

ROOT = Path(__file__).parents[2]
SESSION = re.compile(r"\b(spark: SparkSession|job: Job)\b")


def test_two_processes_at_most_start_a_spark_session() -> None:
    modules = sorted((ROOT / "tests/spark").glob("test_*.py"))
    groups = {path.name: distribution.group(f"{path.relative_to(ROOT)}::test_it") for path in modules}
    with_a_session = {path.name for path in modules if SESSION.search(path.read_text())}
    assert {groups[name] for name in with_a_session} == {"tests/spark/services", "tests/spark/frames"}
    assert {name for name, group in groups.items() if group.endswith(".py")} == groups.keys() - with_a_session


def test_every_file_that_is_named_is_there() -> None:
    files = (distribution._CASES, distribution._PROBES, distribution._ELASTIC)
    named = {*chain(*files, distribution._OF_SERVICES, distribution._WITHOUT_A_SESSION)}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
