"""What idle targets cost: nothing in statements, and no delay for a target that has work."""

from collections.abc import Callable
from unittest.mock import Mock

import pytest
import sqlalchemy as sa

from app.outbox.admin.replays import Replays, Selection
from app.outbox.delivery import due_work
from app.outbox.delivery.availability import open_breaker
from app.outbox.delivery.due_work import DueWork
from app.outbox.delivery.leases import Leases
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from tests.support import databases
from tests.support.builders import add_idle_targets, add_target, event, registry
from tests.support.scripted_target import Courier, ScriptedTarget
from workers.delivery.outcomes import DELIVERED, Failed

pytestmark = databases.TWO

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
    work = DueWork(database)
    for _ in range(2):  # the first search looks at all targets
        assert statements(lambda: due_targets(work, now_ms())) <= 12  # on SQLite each counts twice


@pytest.mark.parametrize("kind", [pytest.param("new", marks=databases.THREE), "again", "parked", "replay", "expired"])
def test_work_among_idle_targets_is_found(database: Database, kind: str) -> None:
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
    if kind == "again":
        assert "webhook:one" in due_targets(work, now)
        Courier(database, target, ScriptedTarget(lambda _: DELIVERED)).run()
        assert "webhook:one" not in due_targets(work, now)
        record(database, 100)
        record(database, 1, "rare")
    if kind == "expired":
        row_id = registry(database).target(target).row_id
        assert Leases(database, 10_000).claim_due(row_id, "gone", now) is not None
        assert "webhook:one" not in due_targets(work, now + 1)
        assert now < work.next_at <= now + 10_001
        now = work.next_at
    assert "webhook:one" in due_targets(work, now)


def test_targets_that_cannot_be_delivered_to_are_found_when_they_can(database: Database) -> None:
    paused, down = add_target(database, "paused", bucket="images"), add_target(database, "down", bucket="images")
    work, now = DueWork(database), now_ms()
    registry(database).pause(paused, "for a test")
    open_breaker(database, registry(database).target(down).row_id, "refused", now + 5_000, probing=False)
    record(database, 8)
    for _ in range(2):
        assert due_targets(work, now) == set()
    registry(database).resume(paused)
    assert due_targets(work, now) == {"webhook:paused"}
    assert work.next_at == now + 5_000
    assert due_targets(work, now + 5_000) == {"webhook:paused", "webhook:down"}


def test_a_search_that_failed_is_followed_by_one_of_all_targets(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_target(database, "one", bucket="images")
    work, now = DueWork(database), now_ms()
    assert due_targets(work, now) == set()
    record(database, 8)
    gone = sa.exc.OperationalError("SELECT", {}, Exception("gone"))
    with monkeypatch.context() as broken:
        broken.setattr(due_work, "first_due", Mock(side_effect=gone))
        with pytest.raises(sa.exc.OperationalError):
            work.find(now)
    assert due_targets(work, now) == {"webhook:one"}
