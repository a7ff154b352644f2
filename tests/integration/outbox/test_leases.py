"""What is due, claims, and what becomes of them when processes die or run twice."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.column_values import NEVER
from app.outbox.delivery import due_work, transitions
from app.outbox.delivery.availability import close_breaker, open_breaker
from app.outbox.delivery.due_work import DueTarget, DueWork
from app.outbox.delivery.leases import Lease, LeaseLost, Leases, lease_holders
from app.outbox.delivery.settlement_store import Settlement, SettlementStore
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log, key_hash
from tests.support import databases
from tests.support.builders import add_target, event, registry
from tests.support.tuning import tune

pytestmark = [pytest.mark.promise, databases.THREE]


@pytest.fixture
def leases(database: Database) -> Leases:
    return Leases(database, 10_000)


@pytest.fixture
def work(database: Database) -> DueWork:
    return DueWork(database)


def _targets(due: Sequence[DueTarget]) -> list[str]:
    return [str(target.target) for target in due]


def _partitions(due: DueTarget) -> list[int]:
    return [partition.partition for partition in due.partitions]


def _record(database: Database, count: int = 40) -> None:
    Log(database).append([[event(f"k{number}") for number in range(count)]])


def _row_id(database: Database, target: TargetId) -> int:
    return registry(database).target(target).row_id


@databases.ALL
def test_a_claim_that_cannot_read_what_it_has_claimed_holds_nothing(
    database: Database, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = add_target(database)

    def fail(*_: object) -> None:
        raise sa.exc.OperationalError("SELECT", None, Exception("the connection is lost"))

    with monkeypatch.context() as patched:
        patched.setattr("app.outbox.delivery.leases._read_claimed", fail)
        with pytest.raises(sa.exc.OperationalError):
            leases.claim(_row_id(database, target), range(4), "first", now_ms())
    lease = leases.claim(_row_id(database, target), range(4), "second", now_ms())
    assert lease is not None
    assert len(lease.positions) == 4


def test_who_has_which_partitions_is_known_and_nobody_has_a_revoked_one(database: Database) -> None:
    leases = Leases(database, 600_000)
    here, there = (_row_id(database, add_target(database, name)) for name in ("here", "there"))
    for row_id, partition, token in ((here, 0, "a:1:x"), (here, 1, "a:1:y"), (there, 1, "a:1:z"), (here, 2, "b:1:x")):
        assert leases.claim(row_id, [partition], token, now_ms()) is not None
    with database.writing() as connection:
        transitions.revoke_leases(connection, here, [2])
        assert lease_holders(connection, now_ms()) == {"a:1": {here: 2, there: 1}}
        assert lease_holders(connection, now_ms() + 700_000) == {}


def test_free_partitions_with_due_work_are_found_until_a_worker_has_them(
    database: Database, leases: Leases, work: DueWork
) -> None:
    target = add_target(database)
    assert work.find(now_ms()) == []
    _record(database)
    [due] = work.find(now_ms())
    assert (due.target, _partitions(due), due.wake_ups) == (target, [0, 1, 2, 3], 1)
    now = now_ms()
    assert leases.claim_due(due.row_id, "first", now) is not None
    assert work.find(now + 9_999) == []
    [due] = work.find(now + 10_001)
    assert _partitions(due) == [0, 1, 2, 3], "its worker is gone"


def test_busy_partitions_are_shared_among_workers_and_quiet_ones_go_together(
    database: Database, leases: Leases, work: DueWork
) -> None:
    add_target(database)
    keys = [f"k{number}" for number in range(400)]
    apart = {place: [key for key in keys if key_hash("images", key) % 4 == place] for place in range(4)}
    Log(database).append([[event(key) for place, some in apart.items() for key in some[: 30 if place < 2 else 5]]])
    busy, quiet = {0, 1}, {2, 3}
    now, claimed, leaves_work = now_ms(), list[set[int]](), list[bool]()
    [due] = work.find(now)
    assert due.wake_ups == 3
    while (lease := leases.claim_due(due.row_id, f"worker {len(claimed)}", now, with_free=True)) is not None:
        claimed.append(set(lease.positions))
        leaves_work.append(lease.leaves_work)
    assert leaves_work == [True, True, False]
    assert sorted(map(sorted, claimed)) == sorted([*([place] for place in busy), sorted(quiet)])


def test_a_partition_whose_worker_was_killed_is_leased_alone_until_one_gets_through(
    database: Database, leases: Leases, work: DueWork
) -> None:
    """Or an event that kills each worker would keep those of other partitions from being delivered."""
    add_target(database)
    _record(database)
    now = now_ms()
    [due] = work.find(now)
    assert leases.claim(due.row_id, [0, 1], "killed", now) is not None
    now += 10_001
    [due] = work.find(now)
    claimed = [leases.claim_due(due.row_id, f"worker {number}", now, with_free=True) for number in range(4)]
    assert due.wake_ups == 3
    assert sorted(sorted(lease.positions) for lease in claimed if lease is not None) == [[0], [1], [2, 3]]
    for lease in claimed:
        if lease is not None:
            leases.release(lease)
    [due] = work.find(now)
    assert due.groups() == [[0, 1, 2, 3]], "each was released by its holder"


def test_of_very_many_partitions_the_rest_is_left_for_the_next_wakeup(
    database: Database, leases: Leases, work: DueWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, due_work, "DUE_WORK", max_quiet_partitions=3)
    add_target(database)
    _record(database)
    now = now_ms()
    [due] = work.find(now)
    assert due.wake_ups == 2
    sizes = [len(lease.positions) for n in range(3) if (lease := leases.claim_due(due.row_id, f"worker {n}", now))]
    assert sorted(sizes) == [1, 3]


@databases.ALL
def test_workers_that_are_woken_at_once_get_different_partitions(database: Database) -> None:
    row_id = _row_id(database, add_target(database))
    _record(database, 400)
    now = now_ms()

    def claim(number: int) -> Lease | None:
        return Leases(database, 10_000).claim_due(row_id, f"worker {number}", now)

    with ThreadPoolExecutor(4) as threads:
        claimed = [place for lease in threads.map(claim, range(4)) if lease is not None for place in lease.positions]
    assert sorted(claimed) == sorted(set(claimed))
    rest = [place for number in range(4, 9) if (lease := claim(number)) is not None for place in lease.positions]
    assert sorted([*claimed, *rest]) == [0, 1, 2, 3]


@databases.ALL
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


def test_a_paused_or_disabled_target_is_not_due_and_holds_no_other_up(
    database: Database, leases: Leases, work: DueWork
) -> None:
    paused, off, running = (add_target(database, name) for name in ("paused", "off", "running"))
    _record(database)
    registry(database).pause(paused, "for a test")
    registry(database).put(off, {"endpoint": "http://127.0.0.1:9/", "enable": "off"})
    assert [due.target for due in work.find(now_ms())] == [running]
    for target in (paused, off):
        assert leases.claim_due(_row_id(database, target), "token", now_ms(), with_free=True) is None
    registry(database).resume(paused)
    assert paused in [due.target for due in work.find(now_ms())]
    assert leases.claim_due(_row_id(database, paused), "token", now_ms()) is not None


def test_an_open_breaker_lets_one_partition_probe_when_its_time_has_come(
    database: Database, leases: Leases, work: DueWork
) -> None:
    row = _row_id(database, add_target(database))
    _record(database, 400)
    now = now_ms()
    open_breaker(database, row, "refused", now + 500, probing=False)
    assert work.find(now) == []
    assert work.next_at == now + 500
    assert leases.claim_due(row, "early", now) is None
    [due] = work.find(now + 501)
    assert due.wake_ups == 1
    lease = leases.claim_due(row, "probe", now + 502, with_free=True)
    assert lease is not None
    assert lease.probing
    assert len(lease.positions) == 1
    for later in (503, 5_000, 9_000):
        assert work.find(now + later) == []
        assert leases.claim_due(row, "stale wakeup", now + later) is None
    close_breaker(database, row)
    leases.release(lease)
    [due] = work.find(now + 504)
    assert due.wake_ups == 4


@databases.ALL
def test_of_workers_that_are_woken_at_once_one_probes(database: Database) -> None:
    row = _row_id(database, add_target(database))
    _record(database, 400)
    for resume_at in range(1_000, 11_000, 1_000):
        with database.writing() as connection:
            connection.execute(tables.targets.update().values(breaker="open", resume_at=resume_at))
            connection.execute(tables.cursors.update().values(lease_token="", leased_until=0))
        with ThreadPoolExecutor(4) as threads:
            claims = [
                threads.submit(Leases(database, 10_000).claim_due, row, f"worker {number}", resume_at + 1)
                for number in range(4)
            ]
            [lease] = [lease for claim in claims if (lease := claim.result()) is not None]
        assert lease.probing
        assert len(lease.positions) == 1


def test_a_worker_that_dies_before_its_probe_keeps_others_from_probing_for_a_moment(
    database: Database, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = _row_id(database, add_target(database))
    _record(database)
    now = now_ms()
    open_breaker(database, row, "refused", now, probing=False)
    with monkeypatch.context() as patched:
        patched.setattr(leases, "claim", lambda *_: None)
        assert leases.claim_due(row, "dies", now) is None
    assert leases.claim_due(row, "too early", now + 500) is None
    assert leases.claim_due(row, "later", now + 2_000) is not None


def test_a_lease_of_which_one_partition_was_revoked_is_lost(database: Database, leases: Leases) -> None:
    row, now = _row_id(database, add_target(database)), now_ms()
    lease = leases.claim(row, range(4), "token", now)
    assert lease is not None
    assert leases.renew(lease, now + 1)
    with database.writing() as connection:
        transitions.revoke_leases(connection, row, [2])
    assert not leases.renew(lease, now + 2)


def test_a_settlement_of_which_one_partition_was_revoked_writes_nothing(database: Database, leases: Leases) -> None:
    row, now = _row_id(database, add_target(database)), now_ms()
    lease = leases.claim(row, range(4), "token", now)
    assert lease is not None
    with database.writing() as connection:
        transitions.revoke_leases(connection, row, [2])
    settlement = Settlement()
    for partition in (1, 2):
        settlement.partition(partition).position = lease.positions[partition]
        settlement.deliver_many(partition, 1)
    with pytest.raises(LeaseLost):
        SettlementStore(database, 10_000).settle(lease, settlement, now)
    with database.reading() as connection:
        assert connection.execute(sa.select(sa.func.sum(tables.cursors.c.delivered))).scalar_one() == 0


@databases.ALL
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


def test_the_drain_knows_when_more_is_due_without_a_new_event(
    database: Database, leases: Leases, work: DueWork
) -> None:
    target = add_target(database)
    row, now = _row_id(database, target), now_ms()
    assert (work.find(now), work.next_at) == ([], NEVER)
    _record(database)
    lease = leases.claim_due(row, "token", now + 1_000)
    assert lease is not None
    assert (work.find(now + 1_000), work.next_at) == ([], now + 11_001), "the lease expires"
    leases.release(lease)
    open_breaker(database, row, "refused", now + 3_000, probing=False)
    assert (work.find(now + 1_000), work.next_at) == ([], now + 3_000), "a probe is due"
    registry(database).pause(target, "for a test")
    assert (work.find(now + 1_000), work.next_at) == ([], NEVER), "but not of a paused target"


def test_the_drain_knows_when_the_next_retry_is_due(database: Database, work: DueWork) -> None:
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
    [due] = work.find(now)
    assert (_partitions(due), work.next_at) == ([3], now + 5_000)


def test_what_came_while_a_lease_was_held_is_left_for_the_drain(database: Database, leases: Leases) -> None:
    target = add_target(database, bucket="images")
    add_target(database, "other", bucket="elsewhere")
    row, now = _row_id(database, target), now_ms()
    lease = leases.claim(row, range(4), "token", now)
    assert lease is not None
    leases.release(lease)
    assert not leases.has_work(lease)
    Log(database).append([[event("k", bucket="elsewhere")]])
    assert not leases.has_work(lease), "events of other targets"
    _record(database, 1)
    assert leases.has_work(lease)


def test_a_parked_event_is_left_for_the_drain_that_has_to_know_its_time(database: Database, leases: Leases) -> None:
    row, now = _row_id(database, add_target(database)), now_ms()
    lease = leases.claim(row, [1], "token", now)
    assert lease is not None
    parked = {"target_id": row, "seq": 1, "key_hash": 1, "not_before": now + 60_000}
    with database.writing() as connection:
        connection.execute(tables.parked.insert().values(partition=2, **parked))
    assert not leases.has_work(lease), "it is in a partition of somebody else's"
    with database.writing() as connection:
        connection.execute(tables.parked.insert().values(partition=1, **parked))
    assert leases.has_work(lease)
