"""Run every benchmark; each prints its table and writes bench/results/<name>.json. The last page has the aims."""

import subprocess
import sys

from bench.report import show_aims

BENCHMARKS = (
    "ingest",
    "sources",
    "minio",
    "deliver",
    "telemetry",
    "targets",
    "end_to_end",
    "scale",
    "latency",
    "idle",
    "rules",
    "versions",
    "reconcile",
    "listing",
    "tables",
    "console",
)
WITH_AIMS = (
    "ingest",
    "sources",
    "minio_stored",
    "minio_busy",
    "end_to_end",
    "scale_workers",
    "scale_api",
    "latency",
    "idle",
    "telemetry",
    "tables",
)

for name in BENCHMARKS:
    print(f"--- {name}", flush=True)
    subprocess.run([sys.executable, "-m", f"bench.{name}"], check=True)
show_aims(WITH_AIMS)
