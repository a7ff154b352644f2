"""An endpoint that answers one object as if it were down and takes every other, over the real partitions and
breakers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from uuid import uuid4

import psycopg2
import pytest

from app.events.model import Event
from app.outbox.admin.counters import read_counters
from app.outbox.admin.undelivered import DeadLetters
from app.outbox.engine.database import Database
from app.outbox.log.append import Log, key_hash
from app.resources.undelivered import DeadLetter, DeadLetterFilter
from tests import services
from tests.contract.probes.elasticsearch import Access
from tests.services import Answer, Receiver
from tests.services.refusing_proxy import refusing_proxy
from tests.support.builders import add_target, event, migrated
from tests.support.delivery import Delivery, delivery
from tests.support.properties import times

PARTITIONS = 4
HEALTHY = times(20, 50)  # objects in each
RETRIES = {"max_attempts": 3, "retry_base": "100ms", "retry_max_delay": "200ms"}
_numbers = count()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = migrated(f"sqlite:///{tmp_path}/outbox.db", partitions=PARTITIONS)
    yield opened
    opened.close()


@pytest.fixture
def at_work(database: Database, tmp_path: Path) -> Iterator[Delivery]:
    with delivery(database.url.render_as_string(hide_password=False), tmp_path, allow_private="on") as made:
        yield made


def keys(partition: int, wanted: int, name: str) -> list[str]:
    """Names of objects that have their place in this partition, never the same."""
    names = (f"{name}-{number}" for number in _numbers)
    fitting = (key for key in names if key_hash("images", key) % PARTITIONS == partition)
    return [next(fitting) for _ in range(wanted)]


def record(database: Database, names: list[str]) -> list[Event]:
    events = [event(name) for name in names]
    Log(database).append([events])
    return events


def letters(database: Database) -> list[DeadLetter]:
    return DeadLetters(database).list(DeadLetterFilter())


def delivered(database: Database) -> int:
    with database.reading() as connection:
        [counters] = read_counters(connection)
    return counters.delivered


def assert_only_the_refused_die(database: Database, at_work: Delivery, refused: int, healthy: int) -> None:
    """The healthy ones arrive; the refused ones count attempts and die, as long as anything else passes."""
    at_work.until(lambda: delivered(database) >= healthy, what="every healthy event delivered")

    def dead() -> bool:
        record(database, keys(3, 1, "later"))
        return len(letters(database)) == refused

    at_work.until(dead, what="the refused events dead")
    assert {letter.attempts for letter in letters(database)} == {3}


def paths(receiver: Receiver) -> list[str]:
    """The keys of what was answered 200, in order."""
    return [request.json()["Key"].partition("/")[2] for request in receiver.requests() if request.status == 200]


STATUSES = pytest.mark.parametrize("status", [401, 403, 407, 429, 502, 503, 504, 410])
SYNC = pytest.mark.parametrize("sync", ["on", "off"])


@pytest.mark.nightly(
    "401, 410 and 503: to a worker the target is unavailable, whatever the status",
    when=lambda status, sync: (status, sync) not in {(503, "on"), (401, "on"), (410, "off")},
)
@SYNC
@STATUSES
def test_a_webhook_that_refuses_one_object_gets_all_others(
    database: Database, at_work: Delivery, receiver: Receiver, status: int, sync: str
) -> None:
    receiver.set(Answer(status=status, containing="poison", headers={"Retry-After": "0"}))
    add_target(database, endpoint=receiver.url, sync=sync, **RETRIES)
    poison, healthy = (
        keys(0, 1, "poison"),
        [key for partition in range(PARTITIONS) for key in keys(partition, HEALTHY, "healthy")],
    )
    record(database, poison + healthy)
    assert_only_the_refused_die(database, at_work, 1, len(healthy))
    assert sorted(set(paths(receiver)) & set(healthy)) == sorted(healthy)


@pytest.mark.nightly(
    "each number, and each way of sending, with one of the other",
    when=lambda sync, number: (sync, number) not in {("on", 1), ("off", 2)},
)
@SYNC
@pytest.mark.parametrize("number", [1, 2])
def test_refused_objects_alone_in_their_partition_hold_up_no_other_partition(
    database: Database, at_work: Delivery, receiver: Receiver, number: int, sync: str
) -> None:
    receiver.set(Answer(status=503, containing="poison"))
    add_target(database, endpoint=receiver.url, sync=sync, **RETRIES)
    healthy = [key for partition in range(1, PARTITIONS) for key in keys(partition, 30, "healthy")]
    record(database, keys(0, number, "poison") + healthy)
    assert_only_the_refused_die(database, at_work, number, len(healthy))


@pytest.mark.parametrize("per_post", ["1", "20"])
def test_two_refused_objects_in_one_partition_hold_up_nothing_of_it(
    database: Database, at_work: Delivery, receiver: Receiver, per_post: str
) -> None:
    receiver.set(Answer(status=503, containing="poison"))
    add_target(database, endpoint=receiver.url, events_per_post=per_post, **RETRIES)
    first, second = keys(0, 2, "poison")
    healthy = keys(0, 60, "healthy")
    record(database, [first, *healthy[:7], second, *healthy[7:]])
    assert_only_the_refused_die(database, at_work, 2, len(healthy))


def test_an_outage_of_a_webhook_costs_no_attempt_and_keeps_the_order(
    database: Database, at_work: Delivery, receiver: Receiver
) -> None:
    receiver.set(Answer(status=503))
    add_target(database, endpoint=receiver.url, max_attempts=1)
    events = record(database, [f"object-{number % 20}" for number in range(100)])
    at_work.until(lambda: len(receiver.requests()) > 40, what="many looks whether it is back")
    assert letters(database) == []
    receiver.forget()
    receiver.set()
    at_work.until(lambda: delivered(database) == len(events), what="everything delivered")
    assert letters(database) == []
    arrived = [request.json()["Records"][0] for request in receiver.requests()]
    for name in {one.key for one in events}:
        sent = [one.record for one in events if one.key == name]
        mine = [made for made in arrived if made["s3"]["object"]["key"] == name]
        numbers = [made["responseElements"]["x-amz-request-id"] for made in mine]
        assert len(numbers) == len(sent)
        assert numbers == sorted(numbers, key=int)


@pytest.mark.nightly("objects that webhooks and Elasticsearch refuse")
def test_a_postgresql_with_one_locked_row_gets_all_others(
    database: Database, at_work: Delivery, postgres_server: services.Postgres
) -> None:
    """A call is one transaction: it says of no event that it was the one that waited in vain."""
    name = f"locked_{uuid4().hex[:12]}"
    postgres_server.create_database(name)
    dsn = postgres_server.dsn(name)
    values = {"connection_string": dsn, "table": "rows", "format": "namespace", "timeout": "1s"}
    add_target(database, "rows", type_name="postgresql", values=values, **RETRIES)
    poison = keys(0, 1, "poison")
    record(database, poison)
    at_work.until(lambda: delivered(database) == 1, what="the row that will be locked")
    with contextlib.closing(psycopg2.connect(dsn)) as other, other.cursor() as cursor:
        cursor.execute("SELECT 1 FROM rows FOR UPDATE")
        healthy = [key for partition in range(PARTITIONS) for key in keys(partition, 20, "healthy")]
        record(database, [*healthy[:3], *poison, *healthy[3:]])
        assert_only_the_refused_die(database, at_work, 1, 1 + len(healthy))
        cursor.execute("SELECT key FROM rows")
        assert {f"images/{key}" for key in healthy} <= {key for (key,) in cursor.fetchall()}


@pytest.mark.nightly(
    "502 for a whole request, 403 for a document: to a worker the target is unavailable, whatever the status",
    when=lambda status, per_item, format_: (
        (status, per_item, format_) not in {(502, False, "access"), (403, True, "namespace")}
    ),
)
@pytest.mark.parametrize("format_", ["access", "namespace"])
@pytest.mark.parametrize(("status", "per_item"), [(503, False), (403, False), (502, False), (429, True), (403, True)])
def test_an_elasticsearch_that_refuses_one_object_gets_all_others(
    database: Database, at_work: Delivery, elastic: services.Elasticsearch, status: int, per_item: bool, format_: str
) -> None:
    probe = Access(elastic)
    probe.renew()
    with refusing_proxy(elastic.port) as proxy:
        values = probe.at_port(proxy.port) | {"format": format_, "timeout": "10s"}
        add_target(database, "es", type_name="elasticsearch", values=values, **RETRIES)
        poison, healthy = (
            keys(0, 1, "poison"),
            [key for partition in range(PARTITIONS) for key in keys(partition, HEALTHY, "healthy")],
        )
        proxy.refuse("poison", status, per_item=per_item)
        record(database, [*healthy[:3], *poison, *healthy[3:]])
        assert_only_the_refused_die(database, at_work, 1, len(healthy))
        held = {path.partition("/")[2] for path, _ in probe.held()}
    assert set(healthy) <= held
    assert not set(poison) & held


@pytest.mark.nightly(
    "one: the access format's requests are in test_elasticsearch.py",
    when=lambda sync, format_: (sync, format_) != ("on", "namespace"),
)
@pytest.mark.parametrize("format_", ["access", "namespace"])
@pytest.mark.parametrize(("sync", "most"), [("on", 1), ("off", 40)])
def test_in_sync_mode_an_elasticsearch_gets_one_document_in_a_request(
    database: Database, at_work: Delivery, elastic: services.Elasticsearch, sync: str, most: int, format_: str
) -> None:
    probe = Access(elastic)
    probe.renew()
    with refusing_proxy(elastic.port) as proxy:
        values = probe.at_port(proxy.port) | {"format": format_, "timeout": "10s", "sync": sync}
        add_target(database, "es", type_name="elasticsearch", values=values)
        record(database, keys(0, 40, "object"))
        at_work.until(lambda: delivered(database) == 40, what="everything delivered")
        assert max(proxy.bulks) <= most
        assert (len(proxy.bulks) == 40) == (sync == "on")
