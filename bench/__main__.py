"""Run every benchmark; each prints its table and writes bench/results/<name>.json."""

import subprocess
import sys

BENCHMARKS = (
    "ingest",
    "deliver",
    "targets",
    "end_to_end",
    "scale",
    "latency",
    "idle",
    "rules",
    "versions",
    "reconcile",
)

for name in BENCHMARKS:
    print(f"--- {name}", flush=True)
    subprocess.run([sys.executable, "-m", f"bench.{name}"], check=True)
