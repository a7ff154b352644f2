"""A whole service for a benchmark, of this code or of an older commit, used over its public interfaces alone."""

import io
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import redis

from bench.idle import spent
from bench.load import BATCH, drive, makers
from tests import services
from tests.services.server_process import run_to_end
from tests.support.builders import SECRET_KEY
from tests.support.service_processes import (
    BUCKETWIRE,
    OTHER_CODE,
    Api,
    Role,
    drain_worker,
    source_worker,
    start_all,
    stop_all,
)

BASE = "2604878"  # the commit that rows of progress are measured beside
_ROOT = Path(__file__).parents[1]
PACKAGES = ("app", "bucketwire", "workers", "migrations", "spark_jobs")  # those that a commit has
KEY = "arrived"  # the target's Redis list or hash


def checkout(commit: str) -> Path | None:
    """Return a new folder with the service's code as of a commit; None where the history does not have it."""
    git = ["git", "-C", str(_ROOT)]
    listed = subprocess.run([*git, "ls-tree", "--name-only", commit, *PACKAGES], capture_output=True, check=False)
    packed = subprocess.run(
        [*git, "archive", commit, *listed.stdout.decode().split()], capture_output=True, check=False
    )
    if packed.returncode:
        print(f"no code of {commit}: {packed.stderr.decode().strip()}", file=sys.stderr)
        return None
    folder = services.new_folder("base")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


class Service:
    """API, beat, a worker that drains and one that delivers, over a database and a broker; stopped with the stack.

    Its only target is a Redis, as a list (`access`) or as a hash (`namespace`).
    """

    def __init__(
        self,
        stack: ExitStack,
        database_url: str,
        *,
        code: Path | None = None,
        target_format: str = "access",
        apis: int = 1,
        api_options: Sequence[str] = (),
    ) -> None:
        self.broker, self.redis = (stack.enter_context(services.redis()) for _ in range(2))
        settings = {
            "BUCKETWIRE_DATABASE_URL": database_url,
            "BUCKETWIRE_BROKER_URL": self.broker.url,
            "BUCKETWIRE_ALLOW_PRIVATE": "on",
            "BUCKETWIRE_SECRET_KEYS": SECRET_KEY,
        } | ({"PYTHONPATH": str(code)} if code else {})
        command = OTHER_CODE if code else [BUCKETWIRE]
        run_to_end([*command, "migrate"], services.new_folder("migrate") / "log", env=settings)
        self.apis = [Api(["api", *api_options], settings) for _ in range(apis)]
        self.beat = Role(["beat"], settings, "is starting.")
        targets = ["worker", "--only", "targets", "--concurrency", "2"]
        self.workers = [drain_worker(settings), Role(targets, settings, " ready.")]
        stack.callback(lambda: stop_all([*self.apis, self.beat, *self.workers]))
        start_all(self.apis)
        self.client = redis.Redis(port=self.redis.port)
        stack.callback(self.client.close)
        self._add_target({"address": f"127.0.0.1:{self.redis.port}", "key": KEY, "format": target_format})
        self._taken = 0

    def _add_target(self, values: Mapping[str, str]) -> None:
        with httpx.Client(base_url=self.apis[0].url, timeout=30, trust_env=False) as client:
            client.put("/v1/targets/redis/all", json=dict(values)).raise_for_status()
            rule = {"bucket": "*", "events": ["*"], "target": "redis:all"}
            client.post("/v1/rules", json=rule).raise_for_status()

    def start_delivery(self) -> None:
        """Start the workers, then beat, so that all are ready when the first drain runs."""
        start_all(self.workers)
        self.beat.start()

    def pull(self, type_name: str, values: Mapping[str, Any]) -> None:
        """Start a worker that pulls from a queue."""
        worker = source_worker(self.workers[0].settings)
        self.workers.append(worker)
        worker.start()
        with httpx.Client(base_url=self.apis[0].url, timeout=30, trust_env=False) as client:
            client.put(f"/v1/sources/{type_name}/all", json=dict(values)).raise_for_status()

    def post(self, events: int) -> None:
        """Post so many events, in requests of `BATCH`."""
        _, batch, _ = makers()
        for _ in range(events // BATCH):
            drive(self.apis[0].port, 1, batch, 0)

    def taken(self) -> int:
        """Return how many events have arrived in the list, and remove them from it, so that it stays small."""
        with self.client.pipeline(transaction=True) as pipeline:
            pipeline.llen(KEY)
            pipeline.unlink(KEY)
            self._taken += pipeline.execute()[0]
        return self._taken

    def held(self) -> int:
        """Return how many objects the hash has."""
        return int(self.client.hlen(KEY))

    def processor_time(self) -> float:
        """Return the processor time of the API processes so far, in seconds."""
        return sum(processor_time(api.pid) for api in self.apis)


def processor_time(pid: int) -> float:
    """Return the processor time of a process and of its children so far, in seconds."""
    process = psutil.Process(pid)
    return sum(spent(one) for one in (process, *process.children(recursive=True)))


def arrival_rate(start: Callable[[], object], arrived: Callable[[], int], events: int, timeout: float = 600) -> float:
    """Start what delivers; return the events per second from the last look without arrivals to the last arrival.

    The looks begin before the start, because deliveries begin before a process has said that it is ready.
    """
    began = time.perf_counter()
    deadline = began + timeout
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(start)
        while (count := arrived()) < events:
            now = time.perf_counter()
            began = began if count else now
            if now > deadline:
                raise RuntimeError(f"only {count:,} of {events:,} events arrived within {timeout:.0f} s")
            if starting.done():
                starting.result()
            time.sleep(0.005)
        rate = events / (time.perf_counter() - began)
        starting.result()
    return rate
