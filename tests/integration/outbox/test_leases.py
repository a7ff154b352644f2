"""Offers, claims and what becomes of them when processes die or run twice."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.delivery import due_work, isolation
from app.outbox.delivery.breaker_state import close_breaker, open_breaker
from app.outbox.delivery.leases import Leases, grouped
from app.outbox.delivery.log_ahead import Look
from app.outbox.delivery.transitions.settlement import Settlement
from app.outbox.delivery.transitions.settlement_store import SettlementStore
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.markers import NEVER
from tests.support.builders import add_target, event, registry

pytestmark = pytest.mark.promise


@pytest.fixture
def leases(database: Database) -> Leases:
    return Leases(database, 10_000)


def _record(database: Database, count: int = 40) -> None:
    Log(database).append([[event(f"k{number}") for number in range(count)]])


def _row_id(database: Database, target: TargetId) -> int:
    return registry(database).target(target).row_id


def test_a_claim_that_cannot_read_what_it_has_claimed_holds_nothing(
    database: Database, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = add_target(database)

    def fail(*_: object) -> None:
        raise sa.exc.OperationalError("SELECT", None, Exception("the connection is lost"))

    with monkeypatch.context() as patched:
        patched.setattr("app.outbox.delivery.leases.read_work_kinds", fail)
        with pytest.raises(sa.exc.OperationalError):
            leases.claim(_row_id(database, target), range(4), "first", now_ms())
    lease = leases.claim(_row_id(database, target), range(4), "second", now_ms())
    assert lease is not None
    assert len(lease.positions) == 4


def test_only_partitions_with_due_work_are_offered_and_only_once(database: Database, leases: Leases) -> None:
    target = add_target(database)
    assert leases.offer(now_ms()) == []
    _record(database)
    [offer] = leases.offer(now_ms())
    assert (offer.target, offer.partitions) == (target, (0, 1, 2, 3))
    assert leases.offer(now_ms()) == []


def test_an_offer_whose_wakeup_was_lost_is_made_again_after_one_lease_time(database: Database, leases: Leases) -> None:
    add_target(database)
    _record(database)
    now = now_ms()
    assert len(leases.offer(now)) == 1
    assert leases.offer(now + 9_999) == []
    assert len(leases.offer(now + 10_001)) == 1


def test_an_offer_is_not_made_again_while_its_wakeup_waits_for_a_worker(database: Database, leases: Leases) -> None:
    add_target(database)
    _record(database, 400)  # more in each partition than share a wake-up
    now = now_ms()
    assert len(leases.offer(now, lambda _: pytest.fail("nothing was offered before"))) == 4
    assert leases.offer(now + 10_100, lambda _: 4) == []
    assert leases.offer(now + 20_200, lambda _: 4) == []
    assert leases.offer(now + 20_300, lambda _: 0) == [], "what was not said again has a lease's time, too"
    assert len(leases.offer(now + 30_300, lambda _: 3)) == 1, "as many as are missing"
    assert len(leases.offer(now + 40_400, lambda _: 0)) == 4


def test_partitions_of_one_wakeup_are_not_offered_again_while_it_waits(database: Database, leases: Leases) -> None:
    add_target(database)
    _record(database)
    now = now_ms()
    [offer] = leases.offer(now)
    assert len(offer.partitions) == 4
    assert leases.offer(now + 10_100, lambda _: 1) == []
    assert leases.offer(now + 20_200, lambda _: 0) == [offer]


def test_a_lost_wakeup_is_made_up_for_also_while_others_wait(database: Database, leases: Leases) -> None:
    """The wake-ups of partitions 1 to 3 are read, and these have work again each time; that of the last was lost."""
    target = add_target(database)
    _record(database, 400)
    now = now_ms()
    queue = [offer.partitions for offer in leases.offer(now)]
    queue.remove((3,))
    for _ in range(40):  # one wake-up is read each four seconds, and the queue is never empty
        partitions = queue.pop(0)
        taken = leases.claim(_row_id(database, target), partitions, "taken", now)
        now += 4_000
        if taken is not None:
            leases.release(taken)
        queue.extend([offer.partitions for offer in leases.offer(now, lambda _: len(queue))])
        assert 0 < len(queue) <= 2 * 4
        if (3,) in queue:
            return
    pytest.fail("the partition that lost its wake-up never got another")


def test_a_postponed_wakeup_is_made_again_after_a_pause_or_at_its_end(database: Database, leases: Leases) -> None:
    row_id, now = _row_id(database, add_target(database)), now_ms()
    _record(database, 400)
    offers = {offer.partitions for offer in leases.offer(now)}
    assert offers == {(0,), (1,), (2,), (3,)}
    assert leases.claim(row_id, [0], "first", now) is not None
    leases.postpone(row_id, [1], now + 1)
    leases.postpone(row_id, [2], now + 2)
    leases.postpone(row_id, [0], now + 2)  # it has a worker
    assert leases.offer(now + 900, lambda _: 1) == []
    assert [offer.partitions for offer in leases.offer(now + 1_500, lambda _: 1)] == [(1,), (2,)]
    leases.postpone(row_id, [2], now + 1_501)
    leases.postpone(row_id, [1], now + 1_502)
    leases.end_pause(row_id, now + 1_600)
    assert [offer.partitions for offer in leases.offer(now + 1_600, lambda _: 1)] == [(2,), (1,)]
    assert leases.claim(row_id, [0], "second", now + 1_600) is None, "its worker has it still"


def test_two_drains_at_once_offer_each_partition_to_one_wakeup_only(database: Database) -> None:
    for name in ("a", "b", "c"):
        add_target(database, name)
    _record(database)
    now = now_ms()
    both = [Leases(database, 10_000), Leases(database, 10_000)]
    with ThreadPoolExecutor(2) as threads:
        offers = [offer for found in threads.map(lambda one: one.offer(now), both) for offer in found]
    assert sorted(str(offer.target) for offer in offers) == ["webhook:a", "webhook:b", "webhook:c"]


def test_a_partition_has_one_worker_at_a_time_with_many_wakeups(database: Database, leases: Leases) -> None:
    target = add_target(database)
    _record(database)
    now = now_ms()
    first = leases.claim(_row_id(database, target), range(4), "first", now)
    assert first is not None
    assert leases.claim(_row_id(database, target), range(4), "second", now) is None
    assert leases.renew(first, now + 9_000)
    assert leases.claim(_row_id(database, target), range(4), "second", now + 11_000) is None
    taken = leases.claim(_row_id(database, target), range(4), "second", now + 19_001)
    assert taken is not None
    assert not leases.renew(first, now + 19_002)


def test_who_looked_a_target_up_before_it_was_made_anew_gets_nothing_of_the_new_one(
    database: Database, leases: Leases
) -> None:
    target = add_target(database)
    before = _row_id(database, target)
    registry(database).remove(target, force=True)
    add_target(database)
    _record(database)
    assert leases.claim(before, range(4), "late", now_ms()) is None
    assert leases.claim(_row_id(database, target), range(4), "new", now_ms()) is not None


def test_a_late_wakeup_takes_partitions_that_were_offered_anew(database: Database, leases: Leases) -> None:
    target = add_target(database)
    _record(database)
    now = now_ms()
    leases.offer(now)
    leases.offer(now + 10_001)
    assert leases.claim(_row_id(database, target), range(4), "late", now + 10_002) is not None


def test_a_paused_or_disabled_target_gets_no_offer_and_holds_no_other_up(database: Database, leases: Leases) -> None:
    paused, off, running = (add_target(database, name) for name in ("paused", "off", "running"))
    _record(database)
    registry(database).pause(paused, "for a test")
    registry(database).put(off, {"endpoint": "http://127.0.0.1:9/", "enable": "off"})
    assert [offer.target for offer in leases.offer(now_ms())] == [running]
    assert leases.claim(_row_id(database, paused), range(4), "token", now_ms()) is None
    registry(database).resume(paused)
    assert [offer.target for offer in leases.offer(now_ms())] == [paused]


def test_an_open_breaker_lets_one_partition_probe_when_its_time_has_come(database: Database, leases: Leases) -> None:
    target = add_target(database)
    _record(database)
    row = registry(database).target(target).row_id
    now = now_ms()
    open_breaker(database, row, "refused", now + 500, probing=False)
    assert leases.offer(now) == []
    [offer] = leases.offer(now + 501)
    [partition] = offer.partitions
    lease = leases.claim(_row_id(database, target), [partition], "probe", now + 502)
    assert lease is not None
    assert lease.probing
    assert leases.offer(now + 503) == []
    assert (
        leases.claim(_row_id(database, target), [(partition + 1) % 4, (partition + 2) % 4], "stale wakeup", now + 503)
        is None
    )
    close_breaker(database, row)
    leases.release(lease)
    assert sum(len(one.partitions) for one in leases.offer(now + 504)) == 4


def test_idle_cursors_move_over_events_of_other_targets(database: Database, leases: Leases) -> None:
    quiet = add_target(database, "quiet", bucket="elsewhere")
    add_target(database, "busy")
    _record(database, 1_200)
    leases.advance_idle(now_ms())
    lease = leases.claim(_row_id(database, quiet), range(4), "token", now_ms())
    assert lease is not None
    assert set(lease.positions.values()) == {1_200}


def test_busy_partitions_are_shared_out_and_quiet_ones_go_together() -> None:
    partitions = [(0, False), (1, True), (2, False), (3, True)]
    assert grouped(partitions) == [(1,), (3,), (0, 2)]


def test_neither_a_renewal_nor_a_settlement_moves_the_end_of_a_lease_back(database: Database, leases: Leases) -> None:
    """A worker that was stopped after it had read its clock, or that waited for a lock, comes with an old time."""
    target = add_target(database)
    now = now_ms()
    lease = leases.claim(_row_id(database, target), range(4), "token", now)
    assert lease is not None
    store = SettlementStore(database, 10_000)
    assert leases.renew(lease, now + 5_000)
    assert leases.renew(lease, now - 20_000)
    settlement = Settlement()
    settlement.partition(1).position = 0
    store.settle(lease, settlement, now - 20_000)
    assert _lease_ends(database) == {now + 15_000}
    settlement.partition(0).position = 0
    store.settle(lease, settlement, now + 6_000)
    assert _lease_ends(database) == {now + 15_000, now + 16_000}


def _lease_ends(database: Database) -> set[int]:
    with database.reading() as connection:
        return set(connection.execute(sa.select(tables.cursors.c.leased_until)).scalars())


@pytest.mark.parametrize("outbox_url", ["sqlite"], indirect=True)
def test_a_target_whose_look_fails_costs_the_others_nothing(
    database: Database, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [add_target(database, name) for name in ("a", "bad", "c")]
    bad = _row_id(database, names[1])
    _record(database)
    looked_at: list[int] = []
    look = due_work.events_ahead

    def refuse(connection: sa.Connection, looks: Sequence[Look], most: int) -> Mapping[tuple[int, int], list[int]]:
        looked_at.extend({each.target_id for each in looks})
        if any(each.target_id == bad for each in looks):
            raise sa.exc.OperationalError("SELECT", {}, Exception("canceling statement due to statement timeout"))
        return look(connection, looks, most)

    monkeypatch.setattr(due_work, "events_ahead", refuse)
    assert [str(offer.target) for offer in leases.offer(now_ms())] == ["webhook:a", "webhook:c"]
    later = now_ms() + 20_000
    looked_at.clear()
    assert [str(offer.target) for offer in leases.offer(later)] == ["webhook:a", "webhook:c"]
    assert bad not in looked_at, "its failure costs time, so it is not repeated at once"
    monkeypatch.setattr(due_work, "events_ahead", look)
    monkeypatch.setattr(isolation.time, "monotonic", lambda: 1e12)
    assert "webhook:bad" in [str(offer.target) for offer in leases.offer(later + 20_000)]


@pytest.mark.parametrize("outbox_url", ["sqlite"], indirect=True)
def test_a_database_that_answers_nobody_is_no_target_s_fault(
    database: Database, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_target(database)
    _record(database)

    def away(*_: object) -> None:
        database.engine.dispose()
        monkeypatch.setattr(database, "reading", lambda: pytest.fail("no check") if checked else check())
        raise sa.exc.OperationalError("SELECT", {}, Exception("gone"))

    checked: list[bool] = []

    def check() -> None:
        checked.append(True)
        raise sa.exc.OperationalError("SELECT", {}, Exception("still gone"))

    monkeypatch.setattr(due_work, "events_ahead", away)
    with pytest.raises(sa.exc.OperationalError, match="still gone"):
        leases.offer(now_ms())


def test_the_drain_knows_when_more_is_due_without_a_new_event(database: Database, leases: Leases) -> None:
    target = add_target(database)
    now = now_ms()
    assert (leases.offer(now), leases.next_at) == ([], NEVER)
    _record(database)
    leases.offer(now)
    leases.offer(now)
    assert leases.next_at == now + 10_001, "the offer expires"
    row = _row_id(database, target)
    lease = leases.claim(row, range(4), "token", now + 1_000)
    assert lease is not None
    leases.offer(now + 1_000)
    assert leases.next_at == now + 11_001, "the lease expires"
    leases.release(lease)
    open_breaker(database, row, "refused", now + 3_000, probing=False)
    leases.offer(now + 1_000)
    assert leases.next_at == now + 3_000, "a probe is due"
    registry(database).pause(target, "for a test")
    leases.offer(now + 1_000)
    assert leases.next_at == NEVER, "but not of a paused target"


def test_the_drain_knows_when_the_next_retry_is_due(database: Database, leases: Leases) -> None:
    target = add_target(database)
    _record(database)
    now = now_ms()
    with database.writing() as connection:
        connection.execute(tables.cursors.update().values(position=1_000))
        rows = [
            {"target_id": _row_id(database, target), "partition": place, "seq": place + 1, "key_hash": place}
            for place in range(4)
        ]
        due = [now + 7_000, now + 5_000, NEVER, now - 1]
        connection.execute(
            tables.parked.insert(), [row | {"not_before": at} for row, at in zip(rows, due, strict=True)]
        )
    [offer] = leases.offer(now)
    assert (offer.partitions, leases.next_at) == ((3,), now + 5_000)


def test_what_came_while_a_lease_was_held_is_left_for_the_drain(database: Database, leases: Leases) -> None:
    target = add_target(database, bucket="images")
    add_target(database, "other", bucket="elsewhere")
    row, now = _row_id(database, target), now_ms()
    lease = leases.claim(row, range(4), "token", now)
    assert lease is not None
    leases.release(lease)
    assert not leases.left(lease)
    Log(database).append([[event("k", bucket="elsewhere")]])
    assert not leases.left(lease), "events of other targets"
    _record(database, 1)
    assert leases.left(lease)


def test_a_parked_event_is_left_for_the_drain_that_has_to_know_its_time(database: Database, leases: Leases) -> None:
    row, now = _row_id(database, add_target(database)), now_ms()
    lease = leases.claim(row, [1], "token", now)
    assert lease is not None
    parked = {"target_id": row, "seq": 1, "key_hash": 1, "not_before": now + 60_000}
    with database.writing() as connection:
        connection.execute(tables.parked.insert().values(partition=2, **parked))
    assert not leases.left(lease), "it is in a partition of somebody else's"
    with database.writing() as connection:
        connection.execute(tables.parked.insert().values(partition=1, **parked))
    assert leases.left(lease)
