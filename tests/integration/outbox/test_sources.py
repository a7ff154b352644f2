"""Sources in the outbox: one holder, whose commits move the positions with the events, and what operators change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from threading import Barrier
from typing import Any

import pytest
import sqlalchemy as sa

from app.config.arn import SourceId
from app.config.secrets import Sealer
from app.config.target_settings import BadSettings
from app.events.limits import Limits
from app.events.model import Event
from app.events.parsing import Message, ReadMessage, read_message
from app.manifest import plan
from app.manifest.document import Manifest
from app.manifest.plan import set_keys
from app.outbox import tables
from app.outbox.delivery.leases import LeaseLost
from app.outbox.engine.clock import DatabaseClock
from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.errors import ReadOnlySource, SourceInUse, StillRejected, UnknownMessage, UnknownSource
from app.outbox.log.append import Receipt
from app.outbox.registry import Registry
from app.outbox.sources.intake import ShelfFull, SourceIntake, TargetFull
from app.outbox.sources.registry import SourceRegistry
from app.outbox.sources.rows import SourceLease, SourceLeases
from tests.support import databases
from tests.support.builders import add_target, body, registry
from tests.support.pulled_events import Sources, numbered, recorded
from tests.support.refused_events import refuse_poison

pytestmark = databases.TWO

VALUES = {"brokers": "127.0.0.1:9", "topic": "t"}
LEASE_MS = 60_000
OVERTAKING_SECONDS = 0.5  # that another transaction has to overtake one in; it never does if a lock keeps it
MOST = {"most": 1000, "most_bytes": 1 << 20}


class Outbox:
    """The sources of an outbox, and one that a worker has leased."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = DatabaseClock(database)
        self.sources = Sources(database)
        self.source = self.sources.put("kafka", VALUES)
        self.leases = SourceLeases(database, LEASE_MS)
        self.intake = SourceIntake(database, self.clock, LEASE_MS)
        self.taken: list[int] = []  # messages of each commit of the last `record`

    def claim(self) -> SourceLease | None:
        return self.leases.claim(self.sources.stored(self.source), self.clock())

    def lease(self) -> SourceLease:
        lease = self.claim()
        assert lease is not None
        return lease

    def record(self, lease: SourceLease, read: Sequence[ReadMessage], **most: int) -> Receipt:
        """What became of all events."""
        self.taken.clear()
        recorded = repeated = 0
        for count, receipt in self.intake.record(lease, read, **{**MOST, **most}):
            self.taken.append(count)
            recorded, repeated = recorded + receipt.recorded, repeated + receipt.repeated
        return Receipt(recorded, repeated)

    @property
    def positions(self) -> dict[str, str]:
        return self.sources.registry.positions(self.sources.stored(self.source))


@pytest.fixture
def outbox(database: Database) -> Outbox:
    return Outbox(database)


def reads(events: Sequence[Event], share: str = "0", first: int = 0) -> list[ReadMessage]:
    """Messages of one share with an event each; the position after one is the next one's number."""
    return [ReadMessage(Message(body(one), share, str(number + 1)), (one,)) for number, one in enumerate(events, first)]


def bad(position: int, text: bytes = b"?", share: str = "0") -> ReadMessage:
    return read_message(Message(text, share, str(position)), Limits(), None)


def test_events_positions_and_rejected_messages_are_one_commit(outbox: Outbox) -> None:
    lease, events = outbox.lease(), numbered(3)
    receipt = outbox.record(lease, [*reads(events[:2]), bad(3), *reads(events[2:], "1")])
    assert (receipt.recorded, recorded(outbox.database)) == (3, [one.id for one in events])
    assert outbox.positions == lease.positions == {"0": "3", "1": "1"}
    stored = outbox.sources.stored(outbox.source)
    assert (stored.messages, stored.recorded, stored.rejected) == (4, 3, 1)
    outbox.leases.release(lease)
    assert outbox.lease().positions == {"0": "3", "1": "1"}


def test_a_source_of_a_type_that_only_a_newer_version_knows_is_left_to_its_workers(outbox: Outbox) -> None:
    with outbox.database.writing() as connection:
        connection.execute(tables.sources.update().values(type="carrier-pigeon"))
    assert outbox.leases.free(outbox.clock()) == []
    with outbox.database.writing() as connection:
        connection.execute(tables.sources.update().values(type=outbox.source.type))
    assert [one.source for one in outbox.leases.free(outbox.clock())] == [outbox.source]


@databases.ALL
def test_a_source_has_one_holder(outbox: Outbox) -> None:
    first = outbox.lease()
    assert outbox.claim() is None
    assert outbox.leases.free(outbox.clock()) == []
    outbox.leases.release(first)
    second = outbox.lease()
    with pytest.raises(LeaseLost):
        outbox.record(first, reads(numbered(1)))
    with pytest.raises(LeaseLost):
        outbox.leases.renew(first, outbox.clock())
    outbox.leases.release(first)  # releases nothing of the second
    assert outbox.claim() is None
    outbox.leases.renew(second, outbox.clock())
    assert recorded(outbox.database) == []


def test_a_lease_that_was_not_renewed_is_another_workers(outbox: Outbox) -> None:
    first = outbox.leases.claim(outbox.sources.stored(outbox.source), outbox.clock() - 2 * LEASE_MS)
    assert first is not None
    second = outbox.lease()
    outbox.record(second, reads(numbered(1)))
    with pytest.raises(LeaseLost):
        outbox.record(first, reads(numbered(1)))
    assert len(recorded(outbox.database)) == 1


@pytest.mark.parametrize("change", ["put", pytest.param("pause", marks=databases.ALL), "remove"])
def test_what_an_operator_changes_ends_the_lease(outbox: Outbox, change: str) -> None:
    lease = outbox.lease()
    outbox.record(lease, reads(numbered(1)))
    change_source = {
        "put": lambda: outbox.sources.put("kafka", {**VALUES, "brokers": "127.0.0.1:9,127.0.0.1:8"}),
        "pause": lambda: outbox.sources.registry.pause(outbox.source, "by hand"),
        "remove": lambda: outbox.sources.registry.remove(outbox.source),
    }
    change_source[change]()
    for write in (
        lambda: outbox.record(lease, reads(numbered(1), first=1)),
        lambda: outbox.leases.fail(lease, outbox.clock(), "a reason", 0),
        lambda: outbox.leases.pause(lease, "a reason"),
        lambda: outbox.leases.report(lease, outbox.clock(), 0),
    ):
        with pytest.raises(LeaseLost):
            write()
    assert len(recorded(outbox.database)) == 1
    if change == "put":
        assert outbox.lease().positions == {"0": "1"}
    elif change == "pause":
        assert (outbox.sources.stored(outbox.source).reason, outbox.claim()) == ("by hand", None)
    else:
        with pytest.raises(UnknownSource):
            outbox.sources.stored(outbox.source)


def test_a_source_that_was_changed_since_it_was_read_is_not_claimed(outbox: Outbox) -> None:
    stored = outbox.sources.stored(outbox.source)
    outbox.sources.put("kafka", {**VALUES, "topic": "other"})
    assert outbox.leases.claim(stored, outbox.clock()) is None


def test_a_source_of_another_queue_begins_as_a_new_one(outbox: Outbox) -> None:
    outbox.record(outbox.lease(), reads(numbered(1)))
    outbox.sources.put("kafka", {**VALUES, "topic": "other"})
    assert outbox.lease().positions == {}


def test_a_default_that_is_written_out_names_no_other_queue(outbox: Outbox) -> None:
    values = {"address": "127.0.0.1:9", "key": "k", "format": "stream"}
    outbox.source = outbox.sources.put("redis", values)
    outbox.record(outbox.lease(), reads(numbered(1)))
    for default in ("0", "", None):
        outbox.sources.put("redis", {**values, "db": default})
        assert outbox.positions == {"0": "1"}
    outbox.sources.put("redis", {**values, "db": "1"})
    assert outbox.positions == {}


def test_an_older_state_of_the_outbox_is_noticed_before_anything_is_skipped(outbox: Outbox) -> None:
    lease, events = outbox.lease(), numbered(3)
    outbox.record(lease, reads(events[:1]))
    outbox.record(lease, reads(events[1:2], first=1))
    p = tables.source_positions
    with outbox.database.writing() as connection:  # the second commit is lost by a restore
        connection.execute(p.update().values(position="1"))
        connection.execute(tables.events.delete().where(tables.events.c.id == events[1].id))
    with pytest.raises(LeaseLost, match="positions"):
        outbox.record(lease, reads(events[2:], first=2))
    outbox.leases.release(lease)
    again = outbox.lease()
    assert again.positions == {"0": "1"}
    outbox.record(again, reads(events[1:], first=1))
    assert sorted(recorded(outbox.database)) == sorted(one.id for one in events)


def test_an_older_state_is_noticed_whatever_share_has_messages(outbox: Outbox) -> None:
    """What was lost of a quiet share is pulled again, too, and not only when its next message comes."""
    lease, events = outbox.lease(), numbered(3)
    outbox.record(lease, [*reads(events[:1]), *reads(events[1:2], "1")])
    outbox.leases.report(lease, outbox.clock(), 0)
    p = tables.source_positions
    with outbox.database.writing() as connection:
        connection.execute(p.update().values(position="0").where(p.c.share == "0"))
    with pytest.raises(LeaseLost, match="positions"):
        outbox.record(lease, reads(events[2:], "1", first=1))
    with pytest.raises(LeaseLost, match="positions"):
        outbox.leases.report(lease, outbox.clock(), 0)


def test_what_is_pulled_again_is_recorded_once(outbox: Outbox) -> None:
    lease, events = outbox.lease(), numbered(4)
    outbox.record(lease, reads(events[:3]))
    receipt = outbox.record(lease, reads(events, first=3))
    assert (receipt.recorded, receipt.repeated) == (1, 3)
    stored = outbox.sources.stored(outbox.source)
    assert (stored.recorded, stored.repeated) == (4, 3)


@databases.ALL
def test_the_database_refuses_one_event_and_records_the_others(outbox: Outbox) -> None:
    refuse_poison(outbox.database)
    lease, events = outbox.lease(), numbered(6)
    poison = events[2]._replace(key="poison")
    outbox.record(lease, reads([*events[:2], poison, *events[3:]]))
    assert recorded(outbox.database) == [one.id for one in events if one.id != poison.id]
    [kept] = outbox.sources.rejected.page(outbox.sources.stored(outbox.source), limit=9)
    assert "the outbox database refuses it" in kept.reason
    assert outbox.positions == {"0": "6"}


def test_a_database_that_is_away_rejects_nothing(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = outbox.lease()

    def away(*_: object) -> None:
        raise sa.exc.OperationalError("x", None, Exception("away"))

    monkeypatch.setattr("app.outbox.sources.intake.check_writable", away)
    monkeypatch.setattr("app.outbox.sources.intake.may_be_a_value", lambda _: True)
    monkeypatch.setattr(outbox.intake, "_commit", away)
    with pytest.raises(DatabaseUnavailable):
        outbox.record(lease, reads(numbered(3)))
    assert outbox.sources.stored(outbox.source).rejected == 0


def test_a_target_without_room_takes_what_fits_and_refuses_the_rest(outbox: Outbox) -> None:
    add_target(outbox.database, queue_limit="3", queue_full="reject")
    lease, events = outbox.lease(), numbered(8)
    with pytest.raises(TargetFull, match="webhook:x"):
        outbox.record(lease, reads(events))
    there = recorded(outbox.database)
    assert there == [one.id for one in events[: len(there)]]
    assert len(there) == 3
    assert outbox.positions == {"0": "3"}
    assert outbox.taken == [2, 1]


def test_a_message_with_more_events_than_a_target_ever_takes_is_rejected(outbox: Outbox) -> None:
    """To wait for room would stop the source for ever, and no command could skip the message."""
    target = add_target(outbox.database, queue_limit="3", queue_full="reject")
    lease, events = outbox.lease(), numbered(5)
    large = ReadMessage(Message(b"[]", "0", "1"), tuple(events[:4]))
    outbox.record(lease, [large, *reads(events[4:], first=1)])
    assert recorded(outbox.database) == [events[4].id]
    [kept] = outbox.sources.rejected.page(outbox.sources.stored(outbox.source), limit=9)
    assert kept.reason == f"it has more events than the queue_limit of {target}, which is set to reject"
    assert outbox.positions == {"0": "2"}
    with pytest.raises(TargetFull, match="is full"):
        outbox.record(lease, [ReadMessage(Message(b"[]", "0", "3"), tuple(numbered(3, share=1)))])


@pytest.mark.parametrize(
    ("place", "where"),
    [
        pytest.param(("0", "1"), "the queue may still have it at position 1", marks=databases.ALL),
        (("", ""), "the queue has it no more"),
    ],
)
def test_a_message_that_the_database_refuses_whole_is_kept_without_its_body(
    outbox: Outbox, place: tuple[str, str], where: str
) -> None:
    """The position is empty for a queue that forgets what was taken from it, such as one of AMQP."""
    refuse_poison(outbox.database, "rejected_messages", "size", 1000)
    lease, events = outbox.lease(), numbered(1)
    refused = read_message(Message(b"x" * 1000, *place), Limits(), None)
    outbox.record(lease, [refused, bad(2), *reads(events, first=2)])
    stored = outbox.sources.stored(outbox.source)
    kept, whole = outbox.sources.rejected.page(stored, limit=9)
    assert (kept.size, kept.position, whole.size) == (0, place[1], 1)
    assert "its body of 1,000 bytes is not kept" in kept.reason
    assert "it is refused" in kept.reason
    assert (recorded(outbox.database), outbox.positions) == ([events[0].id], {"0": "3"})
    with pytest.raises(StillRejected, match=f"its body is not kept; {where}"):
        outbox.sources.rejected.retry(stored, kept.number, Limits(), None)
    assert outbox.sources.rejected.delete(stored, [kept.number]) == 1


def test_what_is_no_message_counts_as_none(outbox: Outbox) -> None:
    lease = outbox.lease()
    outbox.record(lease, [*reads(numbered(1)), read_message(Message(b"", "0", "4", is_gap=True), Limits(), None)])
    assert (outbox.positions, outbox.sources.stored(outbox.source).messages) == ({"0": "4"}, 1)


@databases.THREE
def test_a_failing_source_that_no_worker_tries_again_waits_for_one(outbox: Outbox) -> None:
    now = outbox.clock()
    outbox.leases.fail(outbox.lease(), now, "no answer", now)
    stored = outbox.sources.stored(outbox.source)
    assert stored.state(now + 1000) == "failing"
    assert stored.state(now + LEASE_MS) == "waiting"
    assert "no worker pulls it" in stored.state_reason(now + LEASE_MS)
    assert "before that: no answer" in stored.state_reason(now + LEASE_MS)
    lease = outbox.lease()
    outbox.leases.wait(lease, outbox.clock(), "no room")
    assert outbox.sources.state(outbox.source) == "failing"
    outbox.leases.release(lease)
    assert outbox.sources.stored(outbox.source).state(outbox.clock() + LEASE_MS) == "waiting"


def test_the_shelf_is_bounded_by_number_and_by_bytes(outbox: Outbox) -> None:
    lease, events = outbox.lease(), numbered(2)
    with pytest.raises(ShelfFull, match="rejected_limit=2"):
        outbox.record(lease, [*reads(events[:1]), bad(2), bad(3), bad(4), *reads(events[1:], first=4)], most=2)
    assert (outbox.positions, recorded(outbox.database)) == ({"0": "3"}, [events[0].id])
    assert sum(outbox.taken) == 3
    with pytest.raises(ShelfFull, match="rejected_size=1000"):
        outbox.record(lease, [bad(4, b"x" * 1000)], most_bytes=1000)
    assert outbox.sources.stored(outbox.source).rejected == 2


@pytest.mark.parametrize("name", [pytest.param("x-other", marks=databases.ALL), "traceparent"])
def test_long_headers_of_a_rejected_message_stop_nothing(outbox: Outbox, name: str) -> None:
    headers = {"content-type": "application/x-ndjson", name: "é" * 70_000}
    outbox.record(outbox.lease(), [read_message(Message(b"?", "0", "1", headers=headers), Limits(), None)])
    rejected, stored = outbox.sources.rejected, outbox.sources.stored(outbox.source)
    [kept] = rejected.page(stored, limit=9)
    needed = {"content-type": "application/x-ndjson"} if name == "x-other" else {}
    assert rejected.message(stored, kept.number).headers == needed
    with pytest.raises(UnknownMessage):
        rejected.message(stored, 10**30)


@pytest.mark.parametrize("wraps", [0, 1, 2])
def test_credentials_are_not_kept_with_a_rejected_message(outbox: Outbox, wraps: int) -> None:
    """As events of Baidu AI Cloud BOS have them, which are not accepted."""
    secrets = {"accessKeyId": "id", "secretAccessKey": "s3/cr+et==", "sessionToken": "t0\\x9x9", "expiration": "soon"}
    content = {"bucket": "b", "object": "o", "credentials": secrets}
    event: object = {"events": [{"eventOrigin": "bos:realtime", "eventType": "PutObject", "content": content}]}
    for _ in range(wraps):
        event = {"Message": json.dumps(event).replace("/", r"\/")}
    read = bad(1, text := json.dumps(event).encode())
    assert "Baidu" in read.problem or wraps
    outbox.record(outbox.lease(), [read])
    rejected, stored = outbox.sources.rejected, outbox.sources.stored(outbox.source)
    [kept] = rejected.page(stored, limit=9)
    found = rejected.message(stored, kept.number).body
    assert found.count(b"*redacted*") == 2
    assert len(found) == kept.size
    assert not any(word in found for word in (b"s3", b"cr+et", b"t0", b"x9x9"))
    assert found.partition(b"secretAccessKey")[0] == text.partition(b"secretAccessKey")[0]
    inner: Any = json.loads(found)
    for _ in range(wraps):
        inner = json.loads(inner["Message"])
    assert inner["events"][0]["content"]["credentials"]["expiration"] == "soon"


@databases.THREE
def test_a_rejected_message_is_read_back_retried_and_deleted(outbox: Outbox) -> None:
    rejected, lease, [event] = outbox.sources.rejected, outbox.lease(), numbered(1)
    outbox.record(lease, [bad(1, b"\x00\xff"), bad(2, b"[1]"), bad(3)])
    stored = outbox.sources.stored(outbox.source)
    first, second, third = (one.number for one in rejected.page(stored, limit=9))
    assert rejected.message(stored, first).body == b"\x00\xff"
    assert [one.number for one in rejected.page(stored, limit=1, after=first)] == [second]
    assert rejected.counts() == {stored.row_id: 3}
    with pytest.raises(StillRejected):
        rejected.retry(stored, first, Limits(), None)
    with outbox.database.writing() as connection:  # as if a newer version could read it
        change = tables.rejected_messages.update().where(tables.rejected_messages.c.id == second)
        connection.execute(change.values(body=body(event)))
    receipt = rejected.retry(stored, second, Limits(), None)
    assert isinstance(receipt, Receipt)
    assert (receipt.recorded, recorded(outbox.database)) == (1, [event.id])
    with pytest.raises(UnknownMessage):
        rejected.retry(stored, second, Limits(), None)
    with pytest.raises(SourceInUse):
        outbox.sources.registry.remove(outbox.source)
    assert outbox.sources.registry.source(outbox.source) == stored
    assert rejected.delete(stored, [third]) == 1
    assert outbox.sources.registry.remove(outbox.source, force=True) == 1
    assert rejected.counts() == {}


def test_failures_are_counted_until_messages_are_pulled(outbox: Outbox) -> None:
    for number in (1, 2):
        outbox.leases.fail(outbox.lease(), outbox.clock(), "no\nanswer", 0)
        stored = outbox.sources.stored(outbox.source)
        assert (stored.failures, stored.error, stored.lease_token) == (number, "no answer", "")
    lease = outbox.lease()
    assert outbox.sources.state(outbox.source) == "failing"
    outbox.leases.report(lease, outbox.clock(), 7)
    stored = outbox.sources.stored(outbox.source)
    assert (stored.failures, stored.error, stored.lag) == (0, "", 7)
    assert outbox.sources.state(outbox.source) == "running"
    outbox.leases.fail(lease, outbox.clock(), "away", outbox.clock() + LEASE_MS)
    assert outbox.leases.free(outbox.clock()) == []
    outbox.sources.registry.resume(outbox.source)
    assert [one.source for one in outbox.leases.free(outbox.clock())] == [outbox.source]


@databases.THREE
def test_a_notice_of_lost_messages_ends_with_the_next_resume_or_another_queue(outbox: Outbox) -> None:
    def lose() -> None:
        lease = outbox.lease()
        outbox.leases.begin(lease, outbox.clock(), {"0": str(len(outbox.positions) + 1)}, "5 messages were removed")
        outbox.leases.release(lease)
        assert outbox.sources.stored(outbox.source).notice == "5 messages were removed"

    lose()
    outbox.sources.put("kafka", {**VALUES, "batch_size": "10"})
    assert outbox.sources.stored(outbox.source).notice
    outbox.sources.registry.resume(outbox.source)
    assert (outbox.sources.stored(outbox.source).notice, outbox.positions) == ("", {"0": "1"})
    lose()
    outbox.sources.put("kafka", {**VALUES, "topic": "other"})
    assert (outbox.sources.stored(outbox.source).notice, outbox.positions) == ("", {})


@databases.THREE
def test_invalid_settings_of_the_environment_for_a_while_lose_no_position(outbox: Outbox) -> None:
    registry, source = outbox.sources.registry, SourceId("kafka", "env")
    valid, misspelt = {"enable": "on", **VALUES}, {"enable": "on", "brokers": VALUES["brokers"], "topc": "t"}
    registry.sync_environment({source: misspelt}, {source})
    assert (outbox.sources.stored(source).enabled, outbox.sources.stored(source).origin) == (True, "environment")
    registry.sync_environment({source: valid}, ())
    lease = outbox.leases.claim(outbox.sources.stored(source), outbox.clock())
    assert lease is not None
    outbox.record(lease, reads(numbered(1)))
    for _ in range(2):
        registry.sync_environment({source: misspelt}, {source})
        stored = outbox.sources.stored(source)
        assert (stored.state(outbox.clock()), stored.holder) == ("disabled", "")
        assert stored.state_reason(outbox.clock()) == "its settings in the environment are invalid"
    registry.sync_environment({source: valid}, ())
    stored = outbox.sources.stored(source)
    assert (stored.state(outbox.clock()), stored.reason) == ("waiting", "")
    assert registry.positions(stored) == {"0": "1"}
    registry.sync_environment({source: {**valid, "topic": "other"}}, ())
    assert registry.positions(stored) == {}


def test_a_source_that_the_environment_no_longer_names_is_taken_over_with_its_positions(outbox: Outbox) -> None:
    """As it is tried, so it is done."""
    sources, source = outbox.sources.registry, SourceId("kafka", "env")
    values = {"enable": "on", **VALUES}
    sources.sync_environment({source: values}, ())
    lease = outbox.leases.claim(outbox.sources.stored(source), outbox.clock())
    assert lease is not None
    outbox.record(lease, reads(numbered(1)))
    comment = {source: {"comment": "mine"}}

    def is_refused() -> bool:
        refusals = 0
        for dry_run in (True, False):
            try:
                set_keys(registry(outbox.database), comment, dry_run=dry_run)
            except ReadOnlySource:
                refusals += 1
        assert refusals in (0, 2)
        return refusals == 2

    assert is_refused()
    sources.sync_environment({source: {"enable": "on", "topc": "t"}}, {source})
    assert is_refused(), "its variables are there, and only invalid"
    sources.sync_environment({}, ())
    sources.sync_environment({source: values | {"enable": "off"}}, ())
    assert is_refused(), "its variables are there, and disable it"
    sources.sync_environment({source: values}, ())
    sources.sync_environment({}, ())
    assert not is_refused()
    stored = outbox.sources.stored(source)
    assert (stored.origin, stored.enabled, stored.values["comment"], stored.reason) == ("stored", True, "mine", "")
    assert sources.positions(stored) == {"0": "1"}


@databases.ONE
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_setting_without_effect_is_a_warning_to_who_sets_keys_leniently(outbox: Outbox, dry_run: bool) -> None:
    source = SourceId("amqp", "x")
    values = {source: {"url": "amqp://127.0.0.1:9", "queue": "q", "tls_skip_verify": "on"}}
    with pytest.raises(BadSettings, match="no effect"):
        set_keys(registry(outbox.database), values, lenient=False, dry_run=dry_run)
    plan = set_keys(registry(outbox.database), values, lenient=True, dry_run=dry_run)
    assert [len(change.warnings) for change in plan.changes] == [1]
    assert [stored.source for stored in outbox.sources.registry.sources()] == ([] if dry_run else [source]) + [
        outbox.source
    ]


@databases.ALL
def test_processes_that_start_at_once_store_a_new_source_of_the_environment_once(outbox: Outbox) -> None:
    source, starts = SourceId("kafka", "env"), Barrier(4)

    def start(_: int) -> None:
        with closing(Database(outbox.database.url.render_as_string(hide_password=False))) as own:
            registry = Sources(own).registry
            starts.wait(60)
            registry.put(source, VALUES, origin="environment")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(start, range(4)))
    assert outbox.sources.stored(source).origin == "environment"


@databases.THREE
def test_a_source_that_is_removed_while_a_declaration_is_applied_is_removed_after_it(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the declaration, which has read that the source is there, is refused although it asks for the same."""
    planned, removals = plan.make_plan, []

    def remove() -> None:
        with closing(Database(outbox.database.url.render_as_string(hide_password=False))) as own:
            Sources(own).registry.remove(outbox.source)

    def overtaken(given: Registry, *rest: Any, **options: Any) -> plan.Plan:
        made = planned(given, *rest, **options)
        if given is not before:
            removals.append(threads.submit(remove))
            wait(removals, OVERTAKING_SECONDS)
        return made

    before = registry(outbox.database)
    monkeypatch.setattr(plan, "make_plan", overtaken)
    with ThreadPoolExecutor(1) as threads:
        applied = plan.apply(before, Manifest(), prune=True)
        assert applied.pruned == (outbox.source,)
        with pytest.raises(UnknownSource):
            removals[0].result()
    assert outbox.sources.registry.sources() == []


def test_secrets_are_sealed_and_shown_to_the_worker_only(outbox: Outbox) -> None:
    login = {"sasl": "on", "sasl_username": "u", "sasl_password": "hush-hush"}
    source = outbox.sources.put("kafka", {**VALUES, **login}, "sealed")
    stored = outbox.sources.stored(source)
    assert stored.values["sasl_password"].startswith("enc:")
    assert "hush-hush" not in str(outbox.sources.registry.settings(stored))
    assert outbox.sources.registry.texts(stored)["sasl_password"] == "hush-hush"
    stranger = SourceRegistry(outbox.database, Sealer(["vEJ3V5Y9dGQ1y0zW3bX6kq7m8n9o0p1q2r3s4t5u6v8="]))
    with pytest.raises(BadSettings, match="sasl_password"):
        stranger.settings(stored)


@databases.ONE
@pytest.mark.parametrize("values", [{}, {**VALUES, "topc": "x"}, {**VALUES, "sasl": "on"}, {**VALUES, "group": "a\nb"}])
def test_bad_settings_change_nothing(outbox: Outbox, values: dict[str, str]) -> None:
    before = outbox.sources.registry.sources()
    with pytest.raises(BadSettings):
        outbox.sources.registry.put(SourceId("kafka", "new"), values)
    assert outbox.sources.registry.sources() == before
