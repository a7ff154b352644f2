"""A request to a mirror that got no answer: once it can no longer arrive, the object's newest event goes out again."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from app.outbox import log_head, tables
from app.outbox.delivery import redelivery
from app.outbox.delivery.due_work import DueWork, ObjectHash
from app.outbox.delivery.leases import Lease
from app.outbox.engine.database import Database, now_ms
from app.outbox.engine.many_rows import lock_cursors
from app.outbox.log.append import Log
from app.outbox.policies import REDELIVERY
from tests.support import databases
from tests.support.builders import DELETE, add_target, event, registry
from tests.support.delivery import delivery
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance
from workers.delivery.namespace_policy import Policy
from workers.delivery.outcomes import DELIVERED, Unavailable
from workers.delivery.redelivery_requests import RedeliveryRequests
from workers.delivery.retry import RetrySchedule
from workers.targets.base import LeaseExpired

pytestmark = [pytest.mark.promise, databases.TWO]

UNKNOWN = Unavailable("no answer in time", may_arrive=True)


def courier_of(database: Database, policy: Policy = Policy.MIRROR) -> Courier:
    return Courier(database, add_target(database), policy=policy, batch=100)


def run_later(courier: Courier) -> None:
    """Work off what is due when the late request has arrived at the latest."""
    courier.clock = lambda: now_ms() + REDELIVERY.latest_arrival_ms + 1_000
    courier.run(now=courier.clock())
    courier.clock = now_ms


def requested(database: Database) -> list[tuple[int, int, int]]:
    """The oldest event, the next time and the last time of each request."""
    r = tables.redeliveries.c
    with database.reading() as connection:
        rows = connection.execute(sa.select(r.since, r.due, r.until))
        return [(row.since, row.due, row.until) for row in rows]


def place_of_the_only_object(database: Database) -> ObjectHash:
    e = tables.events.c
    with database.reading() as connection:
        [row] = connection.execute(sa.select(e.partition, e.key_hash).distinct())
    return row.partition, row.key_hash


@databases.THREE
@pytest.mark.nightly(
    "a removal in a mirror, with each statement of MySQL",
    when=lambda outbox_url, policy, removed: outbox_url == "mysql" and (policy, removed) != (Policy.MIRROR, True),
)
@pytest.mark.parametrize("policy", [Policy.MIRROR, Policy.COMPATIBLE])
@pytest.mark.parametrize("removed", [False, True], ids=["replaced", "removed"])
def test_the_newest_event_goes_out_again_after_the_latest_arrival(
    database: Database, policy: Policy, removed: bool
) -> None:
    courier = courier_of(database, policy)
    sent = courier.scripted
    old, new = event("k"), event("k", name=DELETE) if removed else event("k")
    Log(database).append([[event("other")]])
    courier.run()
    Log(database).append([[old]])
    sent.script = lambda _: UNKNOWN
    began = now_ms()
    courier.run(turns=1)
    sent.script = lambda _: DELIVERED
    Log(database).append([[new]])
    courier.clock = lambda: now_ms() + 60_000  # after the back-off
    courier.run()
    first = [new.id] if policy is Policy.MIRROR else [old.id, new.id]  # a mirror's older event is superseded
    assert [one.id for one in sent.got if one.key == "k"] == first
    [(_, due, _)] = requested(database)
    assert due >= began + REDELIVERY.latest_arrival_ms
    sent.got.append(old)  # the late request
    courier.run()
    assert sent.got[-1].id == old.id, "not before it is due"

    work = DueWork(database)
    assert work.find(now_ms() + 1_000) == []
    assert work.next_at <= due, "the drain does not sleep past it"
    assert [one.target for one in work.find(due)] == [courier.target]
    courier.clock = lambda: due
    courier.run(now=due + 60_000)
    assert [one.id for one in sent.got if one.key == "k"] == [*first, old.id, new.id]
    assert len([one for one in sent.got if one.key == "other"]) == 1
    assert requested(database) == []
    assert_counters_balance(database)


def test_without_a_newer_event_nothing_goes_out_again(database: Database) -> None:
    courier = courier_of(database)
    Log(database).append([[event("k")]])
    courier.scripted.script = lambda _: UNKNOWN
    courier.run(turns=1)
    courier.scripted.script = lambda _: DELIVERED
    courier.run()
    run_later(courier)
    assert courier.scripted.keys() == ["k"]
    assert requested(database) == []
    assert_counters_balance(database)


def test_a_call_that_fails_unexpectedly_may_arrive_late_too(database: Database) -> None:
    courier = courier_of(database)
    Log(database).append([[event("k")]])

    def broken(_: object) -> Unavailable:
        raise ZeroDivisionError

    courier.scripted.script = broken
    courier.run(turns=1)
    assert len(requested(database)) == 1


@pytest.mark.parametrize(
    ("policy", "outcome"), [(Policy.MIRROR, Unavailable("refused")), (Policy.LOG, UNKNOWN)], ids=["refused", "log"]
)
def test_a_refusal_or_a_log_asks_for_nothing(database: Database, policy: Policy, outcome: Unavailable) -> None:
    courier = courier_of(database, policy)
    Log(database).append([[event("k")]])
    courier.scripted.script = lambda _: outcome
    courier.run(turns=1)
    assert requested(database) == []


def test_several_requests_keep_the_oldest_event_and_the_first_and_the_last_time(database: Database) -> None:
    courier = courier_of(database)
    Log(database).append([[event("k")]])
    row, place = registry(database).target(courier.target).row_id, place_of_the_only_object(database)
    for since, due, expected in ((5, 10, (5, 10, 10)), (7, 20, (5, 10, 20)), (3, 5, (3, 5, 20)), (3, 20, (3, 5, 20))):
        redelivery.request(database, row, {place: since}, due)
        assert requested(database) == [expected]


def test_an_object_goes_out_at_once_and_again_when_nothing_can_arrive_any_more(database: Database) -> None:
    """A worker that has lost its lease may have overwritten a newer event, and have a request on its way."""
    courier = courier_of(database)
    Log(database).append([[event("k")], [event("k")]])
    courier.run()
    courier.scripted.got.clear()
    row, place = registry(database).target(courier.target).row_id, place_of_the_only_object(database)
    redelivery.request(database, row, {place: 1}, now_ms() + REDELIVERY.latest_arrival_ms)
    redelivery.request(database, row, {place: 1})
    courier.run()
    assert courier.scripted.keys() == ["k"]
    [(_, due, until)] = requested(database)
    assert due == until > now_ms()
    courier.run()
    assert courier.scripted.keys() == ["k"], "not before it is due"
    run_later(courier)
    assert courier.scripted.keys() == ["k", "k"]
    assert requested(database) == []
    assert_counters_balance(database)


@pytest.mark.parametrize(
    ("epoch", "seq", "is_sent"),
    [(None, 2, False), ("of the lost log", 2, True), (None, 3, True)],
    ids=["same log", "another epoch", "a shorter log"],
)
def test_a_request_from_a_log_that_is_lost_sends_the_newest_event_whichever_it_is(
    database: Database, monkeypatch: pytest.MonkeyPatch, epoch: str | None, seq: int, is_sent: bool
) -> None:
    """The seq that the request names is that of an event which the log has lost, or that of none."""
    courier = courier_of(database)
    Log(database).append([[event("k")], [event("k")]])
    courier.run()
    courier.scripted.got.clear()
    row, place = registry(database).target(courier.target).row_id, place_of_the_only_object(database)
    with database.reading() as connection:
        epoch = epoch or log_head.read_state(connection).epoch
    with monkeypatch.context() as database_is_away:
        database_is_away.setattr(RedeliveryRequests, "record", lambda *_: None)
        written = RedeliveryRequests(database)
        written.add(Lease(row, "gone", {}, epoch), "arn", {place: seq})
    written.record()
    assert len(requested(database)) == 1
    courier.run()
    assert courier.scripted.keys() == ["k"] * is_sent
    assert requested(database) == []
    assert_counters_balance(database)


def test_a_lease_that_ends_while_requests_are_on_their_way_has_them_followed(database: Database) -> None:
    """The next holder of the lease delivers at once what is newer, and a request of the last one may come after it."""
    courier = courier_of(database)
    Log(database).append([[event("k")]])

    def expired(_: object) -> Unavailable:
        raise LeaseExpired

    courier.scripted.script = expired
    with pytest.raises(LeaseExpired):
        courier.run(turns=1)
    [(_, due, _)] = requested(database)
    assert due > now_ms()


def test_a_request_that_waits_for_a_lock_keeps_no_other_target_waiting(
    database: Database, outbox_url: str, tmp_path: Path
) -> None:
    """Somebody was stopped in the middle of a transaction that has the cursors of one target."""
    if database.dialect == "sqlite":
        pytest.skip("has one lock for all that write")
    held, other = add_target(database, "held"), add_target(database, "other")
    Log(database).append([[event("k")]])
    held_id, place = registry(database).target(held).row_id, place_of_the_only_object(database)
    with delivery(outbox_url, tmp_path) as made, database.writing() as connection:
        made.serve(ScriptedTarget(), RetrySchedule())
        with pytest.MonkeyPatch.context() as stopped:
            stopped.setattr(RedeliveryRequests, "record", lambda *_: None)
            made.context.redeliveries.add(Lease(held_id, "gone", {}), "arn", {place: 1})
        lock_cursors(connection, held_id)
        assert made.context.deliverer.deliver(other) == "delivered=1"
        assert requested(database) == []
