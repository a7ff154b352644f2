"""Any two operations of the outbox at once, in any order of their statements, keep what the outbox promises."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from app.outbox.delivery import transitions
from app.outbox.engine.database import Database
from app.outbox.log import retention
from tests.support.builders import migrated, registry
from tests.support.interleaving import Done, Explorer, LockWaits, Operations, Share
from tests.support.outbox_operations import (
    OPERATIONS,
    Operation,
    Worker,
    World,
    append,
    begin_replay,
    bring_back_times,
    build,
    deliver,
    pairs,
    purge_log,
    recreate_and_append,
    replay_dead_letters,
    settle_parked_event,
    violations,
)
from tests.support.properties import times

pytestmark = pytest.mark.promise

on_servers = pytest.mark.parametrize("outbox_url", ["postgresql", "mysql"], indirect=True)
PAIRS = [*pairs(), (deliver, recreate_and_append)]
OF = times(3, 1)
# Defects of these are seen in few orders: they are tried in all of them.
WHOLE = [{settle_parked_event, replay_dead_letters}, {purge_log, begin_replay}, {deliver, recreate_and_append}]
Orders = Callable[[Explorer, Operations], Iterator[Done]]


@pytest.fixture
def database(outbox_url: str) -> Iterator[Database]:
    """An empty log of two partitions."""
    opened = migrated(outbox_url, partitions=2)
    yield opened
    opened.close()


@pytest.fixture
def workers(database: Database, outbox_url: str, tmp_path: Path) -> Iterator[Sequence[Worker]]:
    """The two sides; the database is migrated already."""
    made = [Worker(name, outbox_url, tmp_path) for name in ("A", "B")]
    yield made
    for worker in made:
        worker.close()


def broken(
    workers: Sequence[Worker], world: World, first: Operation, second: Operation, orders: Orders
) -> Iterator[str]:
    """For each order after which something did not hold: what that was, and the order."""

    def operations() -> list[partial[None]]:
        world.reset()
        for worker in workers:
            worker.world = world
            worker.forget()
        return [partial(one, worker, world) for one, worker in zip((first, second), workers, strict=True)]

    explorer = Explorer([worker.side for worker in workers], LockWaits(world.database))
    for done in orders(explorer, operations):
        world.written.update(*(step.writes for _, step in done))
        if wrong := violations(world, workers):
            steps = [f"  {workers[number].side.name}: {step.text[:180]}" for number, step in done]
            yield "\n".join([f"A {first.__name__}, B {second.__name__}", *wrong, *steps])


@pytest.mark.nightly(
    "all pairs on PostgreSQL; locks, leases and appends on MySQL: statements and their order are one code",
    when=lambda outbox_url: outbox_url == "mysql",
)
@on_servers
@pytest.mark.timeout(600)
def test_two_operations_of_which_one_interrupts_the_other_keep_every_promise(
    database: Database, workers: Sequence[Worker]
) -> None:
    """Of each pair a part of the interruptions; of all operations together there are interruptions at any place."""
    world = build(database)
    for part, (first, second) in enumerate(PAIRS):
        share = Share(1) if {first, second} in WHOLE else Share(OF, part)
        orders = partial(Explorer.interrupted_once, share=share)
        assert next(broken(workers, world, first, second, orders), "") == ""


@pytest.mark.nightly(
    "all pairs on PostgreSQL; locks, leases and appends on MySQL: statements and their order are one code",
    when=lambda outbox_url: outbox_url == "mysql",
)
@on_servers
@pytest.mark.parametrize("first", OPERATIONS, ids=attrgetter("__name__"))
@pytest.mark.heavy
@pytest.mark.timeout(7200)
def test_two_operations_in_every_order_of_their_statements_keep_every_promise(
    database: Database, workers: Sequence[Worker], first: Operation
) -> None:
    """One that writes each row by itself has too many orders: it and the other are interrupted once, at each place."""
    orders: Orders = Explorer.interrupted_once if first is bring_back_times else Explorer.every_order
    world = build(database)
    for one, second in PAIRS:
        if one is first:
            assert next(broken(workers, world, first, second, orders), "") == ""


@pytest.mark.parametrize("outbox_url", ["postgresql"], indirect=True)
def test_the_explorer_stops_before_an_append_that_is_one_statement(
    database: Database, workers: Sequence[Worker]
) -> None:
    world = build(database)

    def operations() -> list[partial[None]]:
        world.reset()
        return [partial(append, worker, world) for worker in workers]

    explorer = Explorer([worker.side for worker in workers], LockWaits(database))
    runs = list(explorer.interrupted_once(operations))
    assert runs
    assert all([step.both for _, step in done] == [True, True] for done in runs)


@on_servers
def test_the_explorer_finds_a_dead_letter_that_is_replayed_without_the_locks_of_its_cursors(
    database: Database, workers: Sequence[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transitions, "lock_cursors", lambda *_: [])
    found = broken(workers, build(database), settle_parked_event, replay_dead_letters, Explorer.interrupted_once)
    assert any("is ever due" in text for text in found)


@on_servers
def test_the_explorer_finds_a_purge_that_does_not_see_a_replay_begin(
    database: Database, workers: Sequence[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "try_lock_tail", lambda _: True)
    monkeypatch.setattr(retention, "Random", partial(Random, 1))  # the same order of the partitions in every run
    found = broken(workers, build(database), purge_log, begin_replay, Explorer.interrupted_once)
    assert any("a running replay lost events" in text for text in found)


@on_servers
def test_the_explorer_finds_a_claim_by_the_name_of_a_target(
    database: Database, workers: Sequence[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = build(database)
    for worker in workers:

        def by_name(
            _row_id: int, *rest: Any, worker: Worker = worker, claim: Any = worker.context.leases.claim, **options: bool
        ) -> Any:
            return claim(registry(worker.context.database).target(world.target).row_id, *rest, **options)

        monkeypatch.setattr(worker.context.leases, "claim", by_name)
    found = broken(workers, world, deliver, recreate_and_append, Explorer.interrupted_once)
    assert any("was sent to target" in text for text in found)
