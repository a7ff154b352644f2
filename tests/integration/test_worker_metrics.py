"""The files of a worker's figures: shared by real processes, kept when one is replaced, removed when all are gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.config.fields.addresses import HostPort
from app.folders import VARIABLE, fresh_folder, own_folder, remove
from tests import services
from tests.services import until
from workers.telemetry import metrics
from workers.telemetry.metrics import server

ROOT = Path(__file__).parents[2]
# A process of a pool: takes its place, notes a call, says so, and then waits to be ended.
CHILD = """
import sys, time
from tests.support.batch_records import settled
from tests.support.builders import event
from app.outbox.delivery.logged_events import LoggedEvent
from workers.delivery.settlement import TargetCall
from workers.delivery.outcomes import DELIVERED
from workers.delivery.retry import RetrySchedule
from workers.telemetry import metrics
metrics.begin(int(sys.argv[1]))
of = metrics.of("redis:a")
of.call_ended(TargetCall((), [DELIVERED] * 10, 0.01))
events = [LoggedEvent(event(), 3, seq, seq, 0) for seq in range(10)]
batch, _ = settled(events, [DELIVERED] * 10, RetrySchedule(), {3: 9})
batch.settled_at = 700
of.batch_settled(batch)
print("noted", flush=True)
time.sleep(60)
"""
KEEPER = """
import sys, time
from pathlib import Path
from app.folders import own_folder
print(own_folder(Path(sys.argv[1])), flush=True)
time.sleep(60)
"""


@contextmanager
def running(code: str, *arguments: object, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of this code and the first line that it says; killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **environment}, cwd=ROOT, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{services.LOOPBACK}:{port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    return {
        "|".join((sample.name, *(value for _, value in sorted(sample.labels.items())))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_figures_of_all_processes_are_summed_and_go_on_when_one_is_killed_and_replaced(tmp_path: Path) -> None:
    folder, port = fresh_folder(tmp_path, "up"), services.free_port()
    serving = server(HostPort(services.LOOPBACK, port), str(folder))
    serving.start()
    try:
        for _ in range(2):
            with running(CHILD, 0, **{VARIABLE: str(folder)}) as (first, told):
                assert told == "noted"
                with running(CHILD, 1, **{VARIABLE: str(folder)}) as (_, also):
                    assert also == "noted"
                first.send_signal(signal.SIGKILL)
        until(lambda: _serves(port), 60, what="the figures")
        found = scraped(port)
    finally:
        serving.stop()
    assert found["bucketwire_worker_attempts_total|a|delivered|redis"] == 40
    assert found["bucketwire_worker_attempts_total|a|failed|redis"] == 0
    assert found["bucketwire_worker_batch_events_count|a|redis"] == 4
    assert found["bucketwire_worker_delivery_seconds_bucket|1.0|a|redis"] == 40
    assert found["bucketwire_worker_delivery_seconds_bucket|0.5|a|redis"] == 0
    assert len(list(folder.iterdir())) == 4, "two files for each place, however many processes there were"


def test_an_address_that_is_taken_is_served_as_soon_as_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_PATIENCE", 0.1)
    folder = fresh_folder(tmp_path, "up")
    with socket.create_server((services.LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        serving = server(HostPort(services.LOOPBACK, port), str(folder))
        serving.start()
    try:
        until(lambda: _serves(port), 60, what="the figures where another listened before")
    finally:
        serving.stop()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[int]:
    """The port of the metrics of a worker without any."""
    port = services.free_port()
    running = server(HostPort(services.LOOPBACK, port), str(fresh_folder(tmp_path, "up")))
    running.start()
    try:
        until(lambda: _serves(port), 60, what="the figures")
        yield port
    finally:
        running.stop()


def accepted(port: int) -> int:
    """How many connections this process has accepted on a port, and not closed."""
    return sum(one.laddr.port == port and bool(one.raddr) for one in psutil.Process().net_connections())


def test_silent_clients_keep_neither_connections_nor_threads_nor_others_from_the_metrics(serving: int) -> None:
    """Each had a thread and a socket of the worker for good, which then could start no process."""
    threads = threading.active_count()
    with ExitStack() as stack:
        ends = [
            stack.enter_context(socket.create_connection((services.LOOPBACK, serving), timeout=20)) for _ in range(100)
        ]
        assert _serves(serving)
        assert threading.active_count() - threads < 30
        until(lambda: accepted(serving) < 30, what="the others to be closed")
        assert ends[0].recv(1) == b"", "the oldest are closed"
        ends[-1].send(b"GET ")
        assert _serves(serving)
    until(lambda: threading.active_count() <= threads + 1, what="the threads to end")


def test_a_client_that_sends_nothing_more_is_closed(serving: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics._Handler, "timeout", 0.1)
    with socket.create_connection((services.LOOPBACK, serving), timeout=20) as silent:
        silent.send(b"GET /metr")
        assert silent.recv(1) == b""


@pytest.mark.parametrize("host", ["page.example", "127.0.0.1.page.example", "["])
def test_a_web_page_reads_no_metrics_by_a_name_of_its_own(serving: int, host: str) -> None:
    """Its DNS server may resolve it to this machine."""
    headers = {"Host": host}
    assert httpx.get(f"http://{services.LOOPBACK}:{serving}/metrics", headers=headers).status_code == 421
    for own in (f"localhost:{serving}", "127.0.0.1", "[::1]:1"):
        answer = httpx.get(f"http://{services.LOOPBACK}:{serving}/metrics", headers={"Host": own})
        assert answer.status_code == 200
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"


def _serves(port: int) -> bool:
    try:
        scraped(port)
    except OSError:
        return False
    return True


def test_the_folder_of_a_killed_worker_goes_with_the_next_start_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    shared = fresh_folder(tmp_path, "up")
    with running(KEEPER, tmp_path) as (living, said):
        alive = Path(said)
        with running(KEEPER, tmp_path) as (killed, also):
            dead = Path(also)
            assert dead.is_dir()
            killed.kill()
            killed.wait(20)
        assert psutil.pid_exists(living.pid)
        mine = own_folder(tmp_path)
        assert not dead.exists()
        assert alive.is_dir()
        assert mine.is_dir()
        assert shared.is_dir()
    remove(mine, tmp_path)
    assert not mine.exists()
    remove(shared, tmp_path)
    assert shared.is_dir(), "it is the supervisor's"


@pytest.mark.parametrize("full", [True, False])
def test_a_full_disk_or_a_missing_folder_keeps_no_worker_from_its_work(tmp_path: Path, *, full: bool) -> None:
    folder = tmp_path if full else tmp_path / "nowhere"
    # No file may grow beyond a page: as on a full disk, the system refuses to give more.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n" if full else ""
    code = limit + CHILD.replace('of = metrics.of("redis:a")', 'print(metrics.of("redis:a"), flush=True)')
    with running(code, 0, **{VARIABLE: str(folder)}) as (_, said):
        assert said == "None"
