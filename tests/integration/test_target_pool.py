"""The open targets of a process: those that were removed do not stay open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.config.arn import TargetId
from app.config.settings import Settings
from app.outbox.engine.database import Database
from tests.support.builders import migrated, registry
from tests.support.scripted_target import ScriptedTarget
from workers.delivery import pooled_target
from workers.delivery.pooled_target import PooledTarget, TargetPool


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = migrated(f"sqlite:///{tmp_path}/outbox.db", partitions=2)
    yield opened
    opened.close()


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The targets that were closed, by their endpoints' last letter."""
    names: list[str] = []

    class Noting(ScriptedTarget):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def close(self) -> None:
            names.append(self.name)

    monkeypatch.setattr(pooled_target, "create", lambda _, settings: Noting(str(settings.endpoint)[-1]))
    return names


def added(database: Database, name: str, letter: str) -> TargetId:
    target = TargetId("webhook", name)
    registry(database).put(target, {"endpoint": f"http://127.0.0.1:9/{letter}"})
    return target


def opened(pool: TargetPool, database: Database, target: TargetId) -> PooledTarget:
    return pool.target(registry(database).target(target))


def test_a_target_that_was_removed_and_set_again_closes_its_predecessor(database: Database, closed: list[str]) -> None:
    pool = TargetPool(registry(database), Settings.from_environ({}))
    for letter in "abc":
        opened(pool, database, target := added(database, "same", letter))
        registry(database).remove(target, force=True)
    assert closed == ["a", "b"]
    pool.close()
    assert closed == ["a", "b", "c"]


def test_removed_targets_are_closed_from_time_to_time(
    database: Database, closed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = TargetPool(registry(database), Settings.from_environ({}))
    first, second, third = (added(database, name, name) for name in "xyz")
    for target in (first, second, third):
        opened(pool, database, target)
    for target in (first, second):
        registry(database).remove(target, force=True)
    work = opened(pool, database, third)
    assert closed == [], "not at each delivery"
    monkeypatch.setattr(pooled_target, "_REMOVED_SECONDS", -1.0)
    assert opened(pool, database, third) is work
    assert sorted(closed) == ["x", "y"]
    pool.close()
