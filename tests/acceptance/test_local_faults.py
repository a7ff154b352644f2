"""What goes wrong on the machine itself: a disk fills up, the clock is set, somebody holds a lock and goes for lunch.

A broker that is emptied and two drains at once are in test_end_to_end.py.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from uuid import uuid4

import httpx
import orjson
import pytest

from app.outbox.log.spool import Spool
from tests import services
from tests.services import until
from tests.services.clock import Clock
from tests.support.builders import records, some
from tests.support.properties import times
from tests.support.service_processes import System, start_all, system
from tests.support.target_readers import Expected, Record, appended, create_log, length, listed, text
from tests.support.traffic import Poster, Traffic

pytestmark = pytest.mark.promise

PATIENCE = 90
HOUR = 3600
DISK = 4 << 20  # bytes


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, which is soon full."""
    if not shutil.which("mount"):
        pytest.skip("there is no mount, to make a small disk with")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "tmpfs", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"this user may not mount a small disk: {mounted.stderr}")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def fill(disk: Path, leave: int = 0) -> None:
    """Take what room there is, but for `leave` bytes."""
    with suppress(OSError), (disk / "filler").open("ab", buffering=0) as file:
        while (room := shutil.disk_usage(disk).free - leave) > 0:
            file.write(b"\0" * min(room, 1 << 16))


def post(whole: System, *batch: Record, status: int) -> httpx.Response:
    """Post and get this answer."""
    with whole.client() as client:
        answer = client.post("/v1/events", json={"Records": list(batch)})
    assert answer.status_code == status, answer.text
    return answer


@contextmanager
def away(wire: services.Proxy) -> Iterator[None]:
    wire.cut()
    try:
        yield
    finally:
        wire.heal()


def test_a_full_disk_under_the_spool_folder_is_507_and_what_was_taken_is_recorded_once_in_order(
    postgres_server: services.Postgres, disk: Path
) -> None:
    url = postgres_server.create_database(f"full_{uuid4().hex[:12]}")
    broker = f"redis://{services.LOOPBACK}:9/0"
    with services.proxy(postgres_server.port) as wire:
        proxied = url.replace(f":{postgres_server.port}/", f":{wire.port}/")
        with system(proxied, broker, start=False, spool_dir=disk / "spool") as whole:
            whole.api.start()
            batches = [records(*some("full", 50, first=50 * number)) for number in range(60)]
            taken: list[Record] = []
            with away(wire):
                fill(disk, leave=100_000)
                for number, batch in enumerate(batches):  # noqa: B007 - used when it is over
                    with whole.client() as client:
                        answer = client.post("/v1/events", json={"Records": batch})
                    if answer.status_code != 202:
                        break
                    taken += batch
                assert number > 0
                assert answer.json()["type"] == "urn:bucketwire:problem:spool-full", answer.text
                assert answer.status_code == 507
                assert int(answer.headers["retry-after"]) > 0
                post(whole, *batches[number], status=507)
                assert not list((disk / "spool").glob("*.draft"))
                (disk / "filler").unlink()
                assert post(whole, *batches[number], status=202).json() == {"spooled": 50, "ignored": 0}
                taken += batches[number]
            until(lambda: not Spool(disk / "spool").pending(), PATIENCE, what="what was spooled recorded")
            until(lambda: bool(recorded(whole)), PATIENCE)
            assert recorded(whole) == [text(record) for record in taken]
            check_refused(whole, "spool-full")


def check_refused(whole: System, reason: str) -> None:
    """What was refused with 507 is in the log, and in the metrics once there is room."""
    assert f"refused (507, {reason}): " in whole.api.said()
    sample = f'bucketwire_refused_requests_total{{reason="{reason}",surface="intake"}} '
    with whole.client() as client:
        until(lambda: f"{sample}0.0" not in (text := client.get("/metrics").text) and sample in text, PATIENCE)


def recorded(whole: System) -> list[bytes]:
    """The records in the log, in its order."""
    whole.database.close()  # its connections were cut
    with whole.database.reading() as connection:
        return [
            text(orjson.loads(row[0])) for row in connection.exec_driver_sql("SELECT record FROM events ORDER BY seq")
        ]


def test_a_full_disk_under_sqlite_is_507_and_everything_goes_on_when_there_is_room(
    redis_server: services.Redis, disk: Path
) -> None:
    bucket = f"full-{uuid4().hex[:12]}"
    with (
        services.redis() as broker,
        system(f"sqlite:///{disk}/outbox.db", broker.url, lease_ttl="4s", lease_max_work="3s") as whole,
    ):
        place = f"{services.LOOPBACK}:{redis_server.port}"
        whole.add_target("redis:list", bucket, address=place, key=bucket, format="access")
        taken = records(*some(bucket, 20))
        post(whole, *taken, status=202)
        until(lambda: length(redis_server, bucket) == 20, PATIENCE, what="events delivered while there is room")
        fill(disk)
        for number in range(100):  # what SQLite has room for in the files that it has is still taken
            batch = records(*some(bucket, 20, first=20 * number))
            with whole.client() as client:
                answer = client.post("/v1/events", json={"Records": batch})
            if answer.status_code != 202:
                break
            taken += batch
        assert answer.status_code == 507, answer.text
        assert answer.json()["type"] == "urn:bucketwire:problem:database-full"
        assert str(disk) not in answer.text
        (disk / "filler").unlink()
        with whole.client() as client:
            until(lambda: client.post("/v1/events", json={"Records": batch}).status_code == 202, PATIENCE, what="taken")
        taken += batch
        check_refused(whole, "database-full")
        until(whole.settled, PATIENCE, what="everything delivered")
        Expected.of(taken).check(listed(redis_server, bucket), "Redis")
        assert {entry.difference for entry in whole.audits()} == {0}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def whole(postgres_server: services.Postgres, clock: Clock) -> Iterator[System]:
    """The service by a clock of its own."""
    url = postgres_server.create_database(f"clock_{uuid4().hex[:12]}")
    with services.redis() as broker, system(url, broker.url, start=False, lease_ttl="4s", lease_max_work="3s") as made:
        for role in made.roles:
            role.settings = {**role.settings, **clock.env}
        start_all(made.roles)
        yield made


def test_a_clock_that_is_set_an_hour_on_and_back_loses_nothing_and_changes_no_order(
    whole: System, clock: Clock, postgres_server: services.Postgres
) -> None:
    name = f"clock_{uuid4().hex[:12]}"
    postgres_server.create_database(name)
    create_log(postgres_server, name, "log")
    whole.add_target("postgresql:log", connection_string=postgres_server.dsn(name), table="log", format="access")
    flow, share = Traffic(whole, [Poster(number, Random(number)) for number in range(2)]), times(50, 200)
    with flow.running():
        for ahead in (0, HOUR, 0, -HOUR, 0):
            flow.allow_more(share)
            until(
                lambda: whole.counters()["postgresql:log"].delivered >= flow.taken - share // 2,
                PATIENCE,
                what=f"until {ahead}",
            )
            clock.set(ahead)  # with deliveries on their way
            flow.allow_more(share)
            until(lambda: flow.all_taken, PATIENCE, what=f"posts by a clock that is {ahead} s ahead")
            until(whole.settled, PATIENCE, what=f"everything delivered by a clock that is {ahead} s ahead")
    flow.expected().check(appended(postgres_server, name, "log"), "PostgreSQL")
    assert not flow.refused
    assert {entry.difference for entry in whole.audits()} == {0}
    whole.ask("DELETE", "/v1/targets/postgresql/log?force=true")


@pytest.mark.nightly("locks and time-outs of all four databases in tests/integration/outbox")
def test_locks_that_a_stranger_holds_refuse_in_time_and_all_goes_on_when_they_are_gone(
    whole: System, postgres_server: services.Postgres, redis_server: services.Redis
) -> None:
    bucket = f"locked-{uuid4().hex[:12]}"
    place, database = f"{services.LOOPBACK}:{redis_server.port}", str(whole.database.url.database)
    whole.add_target("redis:list", bucket, address=place, key=bucket, format="access")
    one, other = records(*some(bucket, 20)), records(*some(bucket, 20))
    with postgres_server.connection(database) as stranger, stranger.cursor() as cursor, ThreadPoolExecutor(1) as pool:
        cursor.execute("BEGIN; SELECT * FROM cursors FOR UPDATE")
        post(whole, *one, status=202)  # nobody needs a cursor for that
        cursor.execute("SELECT * FROM log_head FOR UPDATE")
        began = time.monotonic()
        answer = pool.submit(post, whole, *other, status=503).result()
        assert time.monotonic() - began < 60
        assert answer.json()["type"] == "urn:bucketwire:problem:database-unavailable"
        assert length(redis_server, bucket) == 0
        cursor.execute("ROLLBACK")
    with whole.client() as client:
        content = {"Records": other}
        until(lambda: client.post("/v1/events", json=content).status_code == 202, PATIENCE, what="taken again")
    until(lambda: length(redis_server, bucket) >= 40, PATIENCE, what="everything delivered")
    until(whole.settled, PATIENCE)
    Expected.of([*one, *other]).check(listed(redis_server, bucket), "Redis")
    assert {entry.difference for entry in whole.audits()} == {0}
