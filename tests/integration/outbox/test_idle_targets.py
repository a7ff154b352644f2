"""What idle targets cost: nothing in statements, and no delay for a target that has work."""

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from app.outbox import log_head, tables
from app.outbox.delivery import due_work, heartbeats, idle_cursors
from app.outbox.delivery.due_work import DueWork
from app.outbox.delivery.leases import Leases
from app.outbox.delivery.policies import DUE_WORK, IDLE_CURSORS
from app.outbox.delivery.replays import Replays, Selection
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from tests.support.builders import add_idle_targets, add_target, event, registry
from tests.support.scripted_target import Courier, ScriptedTarget
from tests.support.tuning import tune
from workers.delivery.outcomes import DELIVERED, Failed

IDLE = 300


@pytest.fixture
def statements(database: Database) -> Callable[[Callable[[], object]], int]:
    """Count the statements that a function sends."""

    def count(run: Callable[[], object]) -> int:
        sent: list[str] = []

        def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            sent.append(statement)

        for engine in (database.engine, database._reader):
            sa.event.listen(engine, "before_cursor_execute", note)
        try:
            run()
        finally:
            for engine in (database.engine, database._reader):
                sa.event.remove(engine, "before_cursor_execute", note)
        return len(sent)

    return count


def record(database: Database, count: int, bucket: str = "images") -> None:
    Log(database).append([[event(f"k{number}", bucket=bucket) for number in range(count)]])


def due_targets(work: DueWork, now: int) -> set[str]:
    return {str(due.target) for due in work.find(now)}


def test_idle_targets_add_no_statements_to_a_search_for_work(
    database: Database, statements: Callable[[Callable[[], object]], int]
) -> None:
    add_target(database, "busy", bucket="images")
    add_idle_targets(database, IDLE)
    record(database, 50)
    assert statements(lambda: due_targets(DueWork(database), now_ms())) < 40


def test_cursors_of_idle_targets_move_together(
    database: Database, statements: Callable[[Callable[[], object]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, idle_cursors, "IDLE_CURSORS", run_seconds=60.0)  # this is about the number of statements
    add_target(database, "busy", bucket="images")
    add_idle_targets(database, IDLE)
    record(database, IDLE_CURSORS.many_lag_seqs + 100)
    assert statements(lambda: Leases(database, 10_000).advance_idle(now_ms())) < 40
    c = tables.cursors.c
    with database.reading() as connection:
        head = log_head.read(connection).last_seq
        positions = connection.execute(sa.select(c.position).where(c.position > 0).distinct()).scalars().all()
    assert head in positions


def test_while_nothing_is_recorded_no_cursor_is_looked_at(
    database: Database, statements: Callable[[Callable[[], object]], int]
) -> None:
    add_idle_targets(database, 3)
    leases, now = Leases(database, 10_000), now_ms()
    record(database, IDLE_CURSORS.lag_seqs + 10)
    assert leases.advance_idle(now)
    while leases.advance_idle(now):
        pass
    looks = statements(lambda: Leases(database, 10_000).advance_idle(now))
    assert statements(lambda: leases.advance_idle(now)) < looks
    record(database, IDLE_CURSORS.lag_seqs + 10)
    assert leases.advance_idle(now)


def test_a_cursor_that_was_leased_when_it_lagged_is_moved_when_it_is_free(database: Database) -> None:
    add_idle_targets(database, 1)
    leases, now = Leases(database, 10_000), now_ms()

    def lease(until: int) -> None:
        leased = tables.cursors.update().where(tables.cursors.c.partition == 0)
        with database.writing() as connection:
            connection.execute(leased.values(leased_until=until, lease_token="w" if until else ""))

    lease(now + 10_000)
    record(database, IDLE_CURSORS.lag_seqs + 10)
    while leases.advance_idle(now):
        pass
    lease(0)
    assert leases.advance_idle(now)


@pytest.mark.parametrize("kind", ["new", "far", "parked", "replay", "expired"])
def test_work_among_idle_targets_is_found(database: Database, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, due_work, "DUE_WORK", near_seqs=20)
    monkeypatch.setattr(due_work, "WINDOW_SEQS", 60)
    target = add_target(database, "one", bucket="rare")
    add_target(database, "busy", bucket="images")
    add_idle_targets(database, 40)
    work, now = DueWork(database), now_ms()
    record(database, 8, "rare")
    if kind == "parked":
        Courier(database, target, ScriptedTarget(lambda _: Failed("500", retry_after=5))).run()
        assert "webhook:one" not in due_targets(work, now)
        assert now < work.next_at < now + 60_000
        now += 60_000
    if kind == "replay":
        Courier(database, target, ScriptedTarget(lambda _: DELIVERED)).run()
        record(database, 100)
        Replays(database).begin(target, Selection(since=0))
    if kind == "far":
        record(database, 100)
    if kind == "expired":
        row_id = registry(database).target(target).row_id
        assert Leases(database, 10_000).claim_due(row_id, "gone", now) is not None
        assert "webhook:one" not in due_targets(work, now + 1)
        assert now < work.next_at <= now + 10_001
        now = work.next_at
    assert "webhook:one" in due_targets(work, now)


def test_of_many_targets_that_are_far_behind_all_are_found_in_the_end(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, due_work, "DUE_WORK", near_seqs=5)
    monkeypatch.setattr(due_work, "WINDOW_SEQS", 10)
    tune(monkeypatch, due_work, "DUE_WORK", max_far_targets=4)
    names = {f"webhook:t{number}" for number in range(20)}
    for name in names:
        add_target(database, name.removeprefix("webhook:"), bucket="images")
    record(database, 100)
    work, found, now = DueWork(database), set[str](), now_ms()
    for _ in range(100):
        found |= due_targets(work, now)
        if found == names:
            break
        assert work.next_at <= now + DUE_WORK.far_interval_ms
        now = work.next_at
    assert found == names


def test_probes_of_many_queues_are_recorded_together_and_spread(
    database: Database, statements: Callable[[Callable[[], object]], int]
) -> None:
    add_idle_targets(database, IDLE)
    now, most = now_ms(), heartbeats._MAX_PROBES
    for later, unanswered in ((0, False), (3_600_000, True), (3 * 3_600_000, True)):
        probed: list[heartbeats.Queue] = []

        def probe(at: int = now + later, probed: list[heartbeats.Queue] = probed) -> None:
            probed.extend(heartbeats.queues_to_probe(database, at))

        for _ in range(IDLE // most):
            assert statements(probe) < 20
        assert len({queue.row_id for queue in probed}) == len(probed) == IDLE
        assert all((queue.asked > queue.answered) is unanswered for queue in probed)
        probe()
        assert len(probed) == IDLE, "each of them once"
    with database.reading() as connection:
        assert {queue.unanswered for queue in heartbeats.queues(connection)} == {now}
