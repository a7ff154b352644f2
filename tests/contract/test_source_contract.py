"""The contract of every source, on real servers: what is in the queue is recorded, in order, whatever happens."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import os
import signal
from collections.abc import Iterator, Sequence
from typing import TypeVar

import pytest
import sqlalchemy as sa

from app.config.arn import SourceId
from app.config.declared_types import source_type
from app.config.target_settings import load
from app.events.limits import Limits
from app.events.model import Event
from app.outbox import tables
from app.outbox.engine.database import Database, now_ms
from app.outbox.policies import DATABASE
from tests import services
from tests.contract.source_probes.base import SourceProbe
from tests.services import until
from tests.support.builders import SECRET_KEY, add_target, body, event, long_event, migrated, registry
from tests.support.growing_bodies import messages_that_grow, texts_that_grow
from tests.support.host_of_worker import HostOfWorker, without_secrets
from tests.support.process_memory import growth
from tests.support.properties import times
from tests.support.pulled_events import (
    Sources,
    by_key,
    count_recorded,
    messages,
    numbered,
    pull,
    recorded,
    recorded_by_key,
    running,
    url,
    wait_for,
)
from tests.support.recording_proxy import Wiretap
from tests.support.service_processes import Role, source_worker, start_all, stop_all
from workers.sources import create
from workers.sources.base import SourceUnavailable
from workers.targets.tls import SeenCertificates

NIGHTLY = pytest.mark.nightly(
    "a queue of SQS with groups: a source does not know which of the two it is", when=lambda served: served == "sqs"
)

pytestmark = pytest.mark.promise

LEASE_SECONDS = 3
T = TypeVar("T", str, bytes)


@pytest.fixture
def probe(served: SourceProbe) -> SourceProbe:
    """Every type of queue in turn, running and empty."""
    served.renew()
    return served


@pytest.fixture
def sources(database: Database) -> Sources:
    return Sources(database)


def assert_complete(probe: SourceProbe, database: Database, events: Sequence[Event]) -> None:
    """The log has these events, and those of each object in their order if the queue keeps it."""
    if probe.keeps_order:
        assert recorded_by_key(database) == by_key(events)
    else:
        assert sorted(recorded(database)) == sorted(one.id for one in events)


def in_order(probe: SourceProbe, found: Sequence[T]) -> Sequence[T]:
    """What was found, as it is to be compared."""
    return found if probe.is_sequence else sorted(found)


def bodies(sources: Sources, source: SourceId) -> list[bytes]:
    """The rejected messages that are kept."""
    stored = sources.stored(source)
    numbers = [one.number for one in sources.rejected.page(stored, limit=100)]
    return [sources.rejected.message(stored, number).body for number in numbers]


@NIGHTLY
def test_what_a_source_pulls_is_recorded_in_its_tenant(probe: SourceProbe, database: Database) -> None:
    sources = Sources(database)
    source = sources.put(probe.type, {**probe.values(), "tenant": "acme"})
    sent = body(event("a.txt"))
    foreign = body(event("b.txt", bucket="other:images"))
    probe.send([sent, foreign])
    with running(database):
        until(lambda: sources.stored(source).messages == 2, what="both messages")
    e = tables.events.c
    with database.reading() as connection:
        assert [tuple(row) for row in connection.execute(sa.select(e.bucket, e.key))] == [("acme:images", "a.txt")]
    [rejected] = sources.rejected.page(sources.stored(source), limit=9)
    assert "which is not of the tenant acme" in rejected.reason
    sources.put(probe.type, {**probe.values(), "tenant": "other"})
    stored = sources.stored(source)
    sources.rejected.retry(stored, rejected.number, Limits(), None, stored.values["tenant"])
    with database.reading() as connection:
        assert set(connection.execute(sa.select(e.bucket)).scalars()) == {"acme:images", "other:images"}


@NIGHTLY
def test_nothing_of_the_host_is_used_with_a_login_or_without(probe: SourceProbe, host_of_worker: HostOfWorker) -> None:
    probe.send([body(event("a.txt"))])
    given = {name: str(value) for name, value in probe.values().items()}
    used = host_of_worker.connect("source", kind=probe.type, values=given)
    used.assert_nothing()
    assert "ok=False" not in used.outcome
    with Wiretap(probe.target) as tap:
        there = {name: value.replace(f":{probe.target.port}", f":{tap.port}") for name, value in given.items()}
        if (values := without_secrets(source_type(probe.type), there)) is None:
            pytest.skip("its settings need a login")
        used = host_of_worker.connect("source", kind=probe.type, values=values)
        used.assert_nothing()
        used.assert_not_sent(bytes(tap.said))


def test_messages_are_recorded_in_the_order_of_each_share(probe: SourceProbe, database: Database) -> None:
    sources = Sources(database)
    source = sources.put(probe.type, probe.values())
    events = numbered(times(100, 500))
    probe.send(messages(events[:40]))
    with running(database):
        wait_for(database, events[:40])
        later = messages(events[40:])
        probe.send([gzip.compress(body) for body in later] if probe.is_binary else later)
        wait_for(database, events)
        until(lambda: sources.stored(source).lag == 0, what="no lag")
        assert sources.state(source) == "running"
    assert_complete(probe, database, events)
    stored = sources.stored(source)
    assert (stored.messages, stored.recorded, stored.repeated, stored.rejected) == (len(events), len(events), 0, 0)
    assert (stored.lease_token, stored.error) == ("", "")


def test_one_that_is_connected_to_again_for_a_certificate_that_ends_soon_takes_each_message_once(
    probe: SourceProbe, database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sources, asked = Sources(database), itertools.count(1)
    monkeypatch.setattr(SeenCertificates, "is_stale", lambda _: next(asked) in (2, 4))
    caplog.set_level("INFO", "bucketwire.sources")
    source = sources.put(probe.type, probe.values())
    events = numbered(40)
    probe.send(messages(events[:20]))
    with running(database):
        until(lambda: caplog.text.count("is connected to again") == 2, what="two other connections")
        probe.send(messages(events[20:]))
        wait_for(database, events)
    assert_complete(probe, database, events)
    stored = sources.stored(source)
    assert (stored.messages, stored.repeated, stored.notice, stored.error) == (len(events), 0, "", "")


@pytest.mark.nightly(
    "four; positions in the outbox are put to it when it is away, and SQS gives out again what AMQP does",
    when=lambda served: served not in {"amqp", "jetstream", "kafka", "redis_list"},
)
def test_what_was_recorded_before_a_restart_is_not_recorded_again(probe: SourceProbe, database: Database) -> None:
    source = Sources(database).put(probe.type, probe.values())
    events = numbered(60)
    probe.send(messages(events[:30]))
    with running(database):
        wait_for(database, events[:30])
    probe.send(messages(events[30:]))
    with running(database):
        wait_for(database, events)
    assert len(recorded(database)) == 60
    assert Sources(database).stored(source).recorded == 60
    if probe.keeps_positions:
        assert Sources(database).stored(source).repeated == 0


def test_a_stored_position_that_is_none_is_named(probe: SourceProbe) -> None:
    if not probe.keeps_positions:
        pytest.skip("the queue has the positions")
    probe.send([b"{}"])
    source = create(probe.type, load(source_type(probe.type), probe.values()))
    with contextlib.closing(source):
        source.open({})
        [message] = pull(source, 1)
        for position in ("x", {"kafka": "1:2:3", "jetstream": "1:x@3", "redis": "1-2/x"}.get(probe.type, ":1")):
            with pytest.raises(SourceUnavailable, match=f"the stored position '{position}' is none"):
                source.open({message.share: position})


def test_messages_without_valid_events_are_kept_and_hold_up_nothing(probe: SourceProbe, database: Database) -> None:
    sources = Sources(database)
    source = sources.put(probe.type, probe.values())
    events = numbered(3)
    hostile = list(probe.hostile)
    good = messages(events)
    probe.send([good[0], *hostile[:3], good[1], *hostile[3:], good[2]])
    with running(database):
        wait_for(database, events)
        until(lambda: sources.stored(source).rejected == len(hostile), what="rejected messages")
        assert sources.state(source) == "running"
    kept = sources.rejected.page(sources.stored(source), limit=100)
    assert in_order(probe, bodies(sources, source)) == in_order(probe, hostile)
    assert all(one.reason for one in kept)
    assert in_order(probe, recorded(database)) == in_order(probe, [one.id for one in events])


@pytest.mark.nightly(
    "a list of Redis: a worker asks a source for nothing meanwhile", when=lambda served: served != "redis_list"
)
def test_a_full_shelf_pauses_the_source_and_loses_nothing(probe: SourceProbe, database: Database) -> None:
    sources = Sources(database)
    source = sources.put(probe.type, {**probe.values(), "rejected_limit": "2"})
    events = numbered(2)
    good = messages(events)
    probe.send([good[0], b"one", b"two", b"three", good[1]])
    with running(database):
        until(lambda: sources.state(source) == "paused", what="a pause")
        stored = sources.stored(source)
        assert "rejected_limit=2" in stored.reason
        kept = bodies(sources, source)
        assert len(kept) == 2
        if probe.is_sequence:
            assert (kept, recorded(database)) == ([b"one", b"two"], [events[0].id])
        sources.rejected.delete(stored, None)
        sources.registry.resume(source)
        wait_for(database, events)
        until(lambda: len(bodies(sources, source)) == 1, what="the third rejected message")
    assert sorted([*kept, *bodies(sources, source)]) == [b"one", b"three", b"two"]


@pytest.mark.nightly(
    "two: a worker asks a source for nothing meanwhile, and gives back what it has not recorded",
    when=lambda served: served not in {"amqp", "redis_list"},
)
def test_a_target_without_room_pauses_pulling_and_nothing_is_lost(probe: SourceProbe, database: Database) -> None:
    sources = Sources(database)
    target = add_target(database, queue_limit="10", queue_full="reject")
    source = sources.put(probe.type, probe.values())
    events = numbered(25)
    probe.send([b"{", *messages(events)])
    with running(database):
        until(lambda: sources.state(source) == "failing", what="a source that waits")
        assert "queue of webhook:x is full" in sources.stored(source).error
        some = recorded(database)
        assert len(some) <= 10
        if probe.is_sequence:
            assert some == [one.id for one in events[: len(some)]]
        registry(database).put(target, {"endpoint": "http://127.0.0.1:9/"})
        wait_for(database, events)
        until(lambda: sources.state(source) == "running", what="a running source")
    assert_complete(probe, database, events)
    stored = sources.stored(source)
    assert (stored.messages, stored.repeated, stored.rejected) == (26, 0, 1)


@pytest.mark.nightly(
    "a stream of Redis: a worker asks a source for nothing meanwhile", when=lambda served: served != "redis_stream"
)
def test_an_operators_pause_holds_until_the_source_is_resumed(probe: SourceProbe, database: Database) -> None:
    sources = Sources(database)
    source = sources.put(probe.type, probe.values())
    events = numbered(20)
    with running(database):
        probe.send(messages(events[:10]))
        wait_for(database, events[:10])
        sources.registry.pause(source, "maintenance")
        until(lambda: sources.stored(source).lease_token == "", what="a released source")
        probe.send(messages(events[10:]))
        other = sources.put(probe.type, {**probe.values(), "enable": "off"}, name="other")
        assert sources.state(other) == "disabled"
        assert (sources.state(source), sources.stored(source).reason) == ("paused", "maintenance")
        assert len(recorded(database)) == 10
        sources.registry.resume(source)
        wait_for(database, events)


@pytest.mark.nightly(
    "two; what nobody has confirmed, in the modules of the other sources",
    when=lambda served: served not in {"amqp", "redis_list"},
)
def test_a_broker_that_is_away_is_named_and_pulled_from_again(probe: SourceProbe, database: Database) -> None:
    sources = Sources(database)
    source = sources.put(probe.type, {**probe.values(), "timeout": "1s"})
    events = numbered(20)
    probe.send(messages(events[:10]))
    with running(database):
        wait_for(database, events[:10])
        probe.server.stop()
        until(lambda: sources.state(source) == "failing", 60, what="a failing source")
        assert sources.stored(source).error
        probe.server.start()
        probe.send(messages(events[10:]))
        wait_for(database, events, 90)
        until(lambda: sources.state(source) == "running", 60, what="a running source")
    assert_complete(probe, database, events)


# Whole processes


@pytest.fixture
def outbox(postgres_server: services.Postgres) -> Iterator[Database]:
    name = f"sources_{os.getpid()}_{now_ms()}"
    opened = migrated(postgres_server.create_database(name), partitions=4)
    yield opened
    opened.close()
    postgres_server.drop_database(name)


@contextlib.contextmanager
def pulling(database: Database, redis_server: services.Redis, count: int = 2) -> Iterator[list[Role]]:
    """Workers that pull."""
    settings = {
        "BUCKETWIRE_DATA_DIR": str(services.new_folder("var")),
        "BUCKETWIRE_DATABASE_URL": url(database),
        "BUCKETWIRE_BROKER_URL": redis_server.url,
        "BUCKETWIRE_SECRET_KEYS": SECRET_KEY,
        "BUCKETWIRE_LEASE_TTL": f"{LEASE_SECONDS}s",
        "BUCKETWIRE_LEASE_MAX_WORK": "1s",
    }
    workers = [source_worker(settings) for _ in range(count)]
    try:
        start_all(workers)
        yield workers
    finally:
        stop_all(workers)


@pytest.fixture
def workers(outbox: Database, redis_server: services.Redis) -> Iterator[list[Role]]:
    with pulling(outbox, redis_server) as pair:
        yield pair


def forget_stopped(outbox: Database) -> None:
    """End transactions that a stopped worker has begun, as PostgreSQL does of itself, but after a minute."""
    seconds = LEASE_SECONDS + 1  # for which the other worker finds the source held, or locked
    with outbox.engine.connect() as connection:
        connection.execute(
            sa.text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                f" AND state LIKE 'idle in transaction%' AND state_change < now() - interval '{seconds} s'"
            )
        )


def holder(sources: Sources, workers: list[Role]) -> Role | None:
    """The worker that pulls."""
    [stored] = sources.registry.sources()
    pid = stored.holder.rpartition(":")[2]
    return next((role for role in workers if role.running and str(role.pid) == pid), None)


@pytest.mark.nightly(
    "AMQP; what nobody has confirmed, in the modules of the other sources", when=lambda served: served != "amqp"
)
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_and_stopped_workers_lose_nothing_and_keep_the_order(
    probe: SourceProbe, outbox: Database, workers: list[Role]
) -> None:
    sources = Sources(outbox)
    batch, victims, events, before = times(5, 100), times(2, 4), list[Event](), 0
    # A part, 20 batches of each share, is in the queue at the beginning, and another comes whenever nobody pulls.
    parts = [[numbered(20 * batch, share=share, keys=50) for share in range(2)] for _ in range(victims + 1)]

    def send_part() -> None:
        for share, part in enumerate(parts.pop()):
            events.extend(part)
            probe.send(messages(part), share)

    send_part()
    values = {**probe.impatient(), "batch_size": str(batch)}
    source = sources.put(probe.type, values)  # now, or little is left to be hurt
    for victim in range(victims):
        until(lambda: count_recorded(outbox) > before + 5 * batch, 60, what="progress")  # noqa: B023 - called at once
        until(lambda: holder(sources, workers) is not None, what="a holder")
        role = holder(sources, workers)
        assert role is not None
        if victim % 2:
            os.kill(role.pid, signal.SIGSTOP)
        else:
            role.kill()
        before = count_recorded(outbox)
        send_part()
        if victim % 2:

            def taken_over() -> bool:
                forget_stopped(outbox)
                return holder(sources, workers) not in (None, role)  # noqa: B023 - called at once

            until(taken_over, 60, what="another holder")
            os.kill(role.pid, signal.SIGCONT)
        else:
            role.start()
    wait_for(outbox, events, 120)
    assert_complete(probe, outbox, events)
    assert count_recorded(outbox) == len(events) == 40 * batch * (victims + 1)
    stored = sources.stored(source)
    assert stored.recorded == len(events)
    if probe.keeps_positions:
        assert (stored.messages, stored.repeated) == (len(events), 0)


@pytest.mark.nightly(
    "AMQP, which takes a consumer that is not heard for gone: the others wait longer, or for nobody",
    when=lambda served: served != "amqp",
)
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_messages_that_grow_take_bounded_memory_and_interrupt_nothing(
    probe: SourceProbe, outbox: Database, redis_server: services.Redis
) -> None:
    """Those that take longest come as often as it needs for a queue to take its consumer for gone."""
    sources = Sources(outbox)
    grown = messages_that_grow() if probe.is_binary else texts_that_grow()
    hostile = [grown[0][0]] * 10 + [body for body, _ in grown]
    size, count = (12_000, 4000) if probe.is_binary else (20_000, 10)
    large = b"\n".join(long_event(f"large-{number}", size).record.encode() for number in range(count))
    events = numbered(40)
    source = sources.put(probe.type, probe.impatient())
    with pulling(outbox, redis_server, 1) as [worker]:
        probe.send(messages(events[:20]))
        wait_for(outbox, events[:20])
        with growth(worker.pid) as held:
            probe.send([*hostile, gzip.compress(large) if probe.is_binary else large, *messages(events[20:])])
            wait_for(outbox, events, 120)
            until(lambda: sources.stored(source).lag == 0, 60, what="no lag")
        said = worker.said()
    assert held.grown < 600
    stored = sources.stored(source)
    assert (stored.rejected, stored.recorded, stored.repeated) == (len(hostile), len(events) + count, 0)
    assert "cannot be pulled from" not in said
    reasons = [one.reason for one in sources.rejected.page(stored, limit=100)]
    assert all(any(why in reason for reason in reasons) for _, why in grown), reasons


def test_postgresql_ends_what_a_stopped_worker_has_begun(outbox: Database) -> None:
    with outbox.reading() as connection:
        seconds = connection.execute(sa.text("SHOW idle_in_transaction_session_timeout")).scalar_one()
    assert seconds == f"{DATABASE.idle_transaction_seconds}s"


@pytest.mark.nightly(
    "a stream of Redis, whose positions the outbox has; the next worker's source begins again, as after any end",
    when=lambda served: served != "redis_stream",
)
@pytest.mark.slow
def test_a_database_that_is_away_loses_nothing(probe: SourceProbe, redis_server: services.Redis) -> None:
    events = numbered(times(500, 2_000))
    with services.postgres() as server, contextlib.closing(migrated(server.create_database("own"))) as outbox:
        Sources(outbox).put(probe.type, {**probe.values(), "batch_size": str(len(events) // 40)})
        with pulling(outbox, redis_server) as workers:
            probe.send(messages(events))
            until(lambda: count_recorded(outbox) > 20, 60, what="progress")
            server.kill()
            server.start()
            wait_for(outbox, events, 60)
            assert_complete(probe, outbox, events)
            assert all(role.running for role in workers)
