"""Run every benchmark; each prints its table and writes bench/results/<name>.json. The last page has the aims."""

import subprocess
import sys

from bench.report import show_aims

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
show_aims(BENCHMARKS)
