"""What a mirror knows of versioned keys: the same as their whole history says, and longer than the log keeps it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.events.model import Effect, Event
from app.outbox import object_versions as versions_retention
from app.outbox import tables
from app.outbox.admin.replays import Replays, Selection
from app.outbox.column_values import NEVER
from app.outbox.delivery.leases import LeaseLost
from app.outbox.engine.database import Database, now_ms
from app.outbox.engine.many_rows import lock_cursors
from app.outbox.log.append import Log
from app.outbox.log.retention import purge
from app.outbox.object_versions import UnusedProgress, drop_unused
from tests.support import databases
from tests.support.builders import DELETE, PUT, add_target, event, registry
from tests.support.mirror import Mirror
from tests.support.properties import times
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance
from tests.support.tuning import tune
from workers.delivery.namespace_policy import Policy
from workers.delivery.outcomes import DELIVERED, Failed, Unavailable

pytestmark = databases.TWO

MARKER = "s3:ObjectRemoved:DeleteMarkerCreated"


def put(version: str, **more: str) -> Event:
    return event("k", version=version, **more)


def gone(version: str, **more: str) -> Event:
    return event("k", name=DELETE, version=version, **more)


def purged(database: Database) -> int:
    return purge(database, now_ms() + 1, batch_events=3)


def rows_of(database: Database, table: sa.Table) -> int:
    with database.reading() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def kept_records(database: Database) -> int:
    with database.reading() as connection:
        query = sa.select(sa.func.count()).where(tables.object_versions.c.record != "")
        return int(connection.execute(query).scalar_one())


def test_a_version_whose_event_was_purged_comes_back_when_newer_ones_go(database: Database) -> None:
    mirror = Mirror(database, add_target(database))
    queue = Courier(database, add_target(database, "queue"))
    other = Mirror(database, add_target(database, "other"))
    mirrors = (mirror, other)

    def tell(*events: Event) -> list[dict[str, str]]:
        Log(database).append([list(events)])
        queue.run()
        return [each.deliver() for each in mirrors]

    first = put("v1")
    assert tell(first) == [{"k": "v1"}] * 2
    assert purged(database) == 1
    assert rows_of(database, tables.events) == 0, "nothing stays in the log, so nothing looks as if it were waiting"
    assert tell(put("v2")) == [{"k": "v2"}] * 2
    assert tell(gone("v2")) == [{"k": "v1"}] * 2
    restored = [one.record for one in queue.scripted.got if one.version == "v1"]
    assert restored == [first.record]
    assert purged(database) == 2
    assert tell(gone("v1")) == [{}] * 2
    assert purged(database) == 1
    assert rows_of(database, tables.object_versions) == 0, "nothing is known of a key that is gone for longer"
    assert_counters_balance(database)


def test_the_restored_row_is_the_purged_events_own_record(database: Database) -> None:
    mirror = Mirror(database, add_target(database))
    first = put("v1")
    mirror.tell(first)
    purged(database)
    Log(database).append([[put("v2"), gone("v2")]])
    mirror.run()
    assert [one.record for one in mirror.scripted.got if one.effect is Effect.UPSERT][-1] == first.record


def test_a_removal_that_was_purged_is_not_forgotten(database: Database) -> None:
    mirror = Mirror(database, add_target(database))
    mirror.tell(put("v1"), put("v2"), put("v3"))
    mirror.tell(gone("v2"))
    for _ in range(2):
        purged(database)
    assert mirror.tell(gone("v3")) == {"k": "v1"}


def test_a_marker_that_was_purged_still_covers_what_is_beneath(database: Database) -> None:
    mirror = Mirror(database, add_target(database))
    assert mirror.tell(put("v0"), put("v1"), event("k", name=MARKER, version="m1")) == {}
    purged(database)
    assert mirror.tell(gone("v0")) == {}
    assert mirror.tell(event("k", name=DELETE, version="m1")) == {"k": "v1"}


def test_what_a_purged_removal_of_everything_covered_never_comes_back(database: Database) -> None:
    mirror = Mirror(database, add_target(database))
    mirror.tell(put("v1"))
    purged(database)
    assert mirror.tell(event("k", name="s3:ObjectRemoved:DeleteAllVersions", version="v1")) == {}
    assert kept_records(database) == 1
    purged(database)
    assert rows_of(database, tables.object_versions) == 0
    assert mirror.tell(put("v2")) == {"k": "v2"}
    assert mirror.tell(gone("v2")) == {}


@databases.THREE
def test_of_many_versions_the_newest_are_kept_and_the_oldest_are_not_guessed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, versions_retention, "RETENTION", max_layers=4)
    mirror = Mirror(database, add_target(database), batch=1000)
    versions = [f"v{number}" for number in range(4 + 5)]
    mirror.tell(*(put(version) for version in versions))
    purged(database)
    assert kept_records(database) == 4
    assert rows_of(database, tables.object_versions) == 4 + 1
    for version, beneath in zip(reversed(versions[5:]), reversed(versions[4:-1]), strict=True):
        rows = mirror.tell(gone(version))
        assert rows == ({"k": beneath} if beneath != versions[4] else {}), "the row never names what is gone"
    purged(database)
    assert mirror.tell(put("w"), gone("w")) == {}


def test_a_row_whose_version_is_known_but_whose_record_is_not_kept_does_not_stay_as_it_is(database: Database) -> None:
    mirror = Mirror(database, add_target(database))
    mirror.tell(put("v1"))
    with database.writing() as connection:  # as the version before purges, which knows of no mirrors
        connection.execute(tables.events.delete())
    assert mirror.tell(put("v2")) == {"k": "v2"}
    assert mirror.tell(gone("v2")) == {}


@databases.THREE
def test_a_target_that_was_there_before_learns_from_the_log(database: Database) -> None:
    mirror = Mirror(database, add_target(database))
    mirror.tell(event("k"), put("v1"), put("v2"))
    with database.writing() as connection:  # as after the migration
        connection.execute(tables.object_versions.delete())
        connection.execute(tables.cursors.update().values(folded=0))
    assert mirror.tell(gone("v2")) == {"k": "v1"}
    assert mirror.tell(gone("v1"))["k"] not in {"v1", "v2"}, "the object from before versioning was enabled"


def test_another_policy_in_between_leaves_no_gap(database: Database) -> None:
    target = add_target(database)
    mirror, compatible = Mirror(database, target), Courier(database, target, policy=Policy.COMPATIBLE)
    mirror.tell(put("v1"), put("v2"))
    Log(database).append([[gone("v1"), put("v3")]])
    compatible.run()
    assert mirror.tell(gone("v3")) == {"k": "v2"}
    assert mirror.tell(gone("v2")) == {}, "v1 went meanwhile"


@pytest.mark.parametrize("ending", [pytest.param("removed", marks=databases.THREE), "no mirror any more"])
def test_the_purge_ends_what_was_known_for_a_target_that_is_no_mirror(database: Database, ending: str) -> None:
    target = add_target(database)
    stays = Mirror(database, add_target(database, "stays"))
    Mirror(database, target).tell(put("v1"), event("l", version="w1"))
    stays.deliver()
    if ending == "removed":
        registry(database).remove(target, force=True)
    else:
        Log(database).append([[event(f"other{number}") for number in range(40)]])
        Courier(database, target).run()
        stays.deliver()
    progress = UnusedProgress()
    with locked_cursors(database, "stays"):
        for _ in range(20):  # one place in each call, of at most four partitions of two targets
            drop_unused(database, progress, seconds=-1)
            if progress.ended:
                break
        assert progress.ended
    with database.reading() as connection:
        owners = set(connection.execute(sa.select(tables.object_versions.c.target_id)).scalars())
        mine = connection.execute(sa.select(tables.targets.c.id).where(tables.targets.c.name == "stays")).scalar_one()
    assert owners == {mine}


@contextmanager
def locked_cursors(database: Database, name: str) -> Iterator[None]:
    """A worker settles in every partition of a target; SQLite has no such locks."""
    if database.dialect == "sqlite":
        yield
        return
    row_id = registry(database).target(TargetId("webhook", name)).row_id
    with database.writing() as connection:
        lock_cursors(connection, row_id)
        yield


def test_a_search_for_unused_rows_stops_in_time_and_the_next_one_goes_on(database: Database) -> None:
    target = add_target(database)
    Mirror(database, target).tell(*[event(f"k{number}", version="v1") for number in range(12)])
    registry(database).remove(target, force=True)
    rows, progress = rows_of(database, tables.object_versions), UnusedProgress()
    assert rows >= 12
    calls = [drop_unused(database, progress, seconds=-1, batch=2)]
    while not progress.ended:
        calls.append(drop_unused(database, progress, seconds=-1, batch=2))
        assert len(calls) < 40
    assert sum(calls) == rows
    assert max(calls) <= 2, "each call ends after its first transaction"
    assert drop_unused(database, progress) == 0


def test_an_idle_partition_forgets_nothing_during_events_of_others(database: Database) -> None:
    mirror = Mirror(database, add_target(database, bucket="images"))
    mirror.tell(put("v1"), put("v2"))
    purged(database)
    Log(database).append([[event(f"o{number}", bucket="other") for number in range(1100)]])
    purged(database)
    assert mirror.tell(gone("v2")) == {"k": "v1"}


def test_who_lost_the_lease_changes_nothing_that_is_known(database: Database) -> None:
    mirror = Mirror(database, add_target(database))
    Log(database).append([[put("v1")]])
    stopped = mirror.partitions()
    assert stopped is not None
    mirror.run(now=now_ms() + 60_000)
    mirror.tell(put("v2"))
    with pytest.raises(LeaseLost):
        stopped.work_off(lambda: False)
    assert mirror.tell(gone("v2")) == {"k": "v1"}


def test_what_was_sent_is_known_also_if_its_worker_died_before_it_settled(database: Database) -> None:
    mirror = Mirror(database, add_target(database))
    Log(database).append([[put(f"v{number}") for number in range(8)]])

    def die(_: Event) -> Unavailable:
        raise KeyboardInterrupt

    dying = Mirror(database, mirror.target, ScriptedTarget(die), batch=1000)
    with pytest.raises(KeyboardInterrupt):
        dying.run()
    mirror.batch = 2
    mirror.run(now=now_ms() + 60_000)
    assert [one.version for one in mirror.scripted.got] == ["v7"], "none of those before it overwrites it again"


@databases.THREE
def test_events_behind_a_parked_one_are_known(database: Database) -> None:
    refused = put("v1")
    mirror = Mirror(
        database, add_target(database), ScriptedTarget(lambda one: Failed("no") if one == refused else DELIVERED)
    )
    mirror.schedule = replace(mirror.schedule, base=60_000, cap=60_000)
    mirror.scripted.script = lambda one: Failed("no") if one.version == "v1" else DELIVERED
    assert mirror.tell(refused) == {}
    assert mirror.tell(put("v2")) == {}
    with database.writing() as connection:
        connection.execute(tables.parked.update().where(tables.parked.c.not_before < NEVER).values(not_before=0))
    assert mirror.deliver() == {"k": "v2"}
    assert_counters_balance(database)


def test_a_replay_changes_nothing_that_is_known(database: Database) -> None:
    mirror = Mirror(database, add_target(database))
    assert mirror.tell(put("v1"), put("v2"), gone("v1"), put("v3"), gone("v3")) == {"k": "v2"}
    Replays(database).begin(mirror.target, Selection())
    with database.writing() as connection:
        connection.execute(tables.cursors.update().values(leased_until=0))
    assert mirror.deliver() == {"k": "v2"}
    assert mirror.tell(gone("v2")) == {}
    assert_counters_balance(database)


def test_two_keys_of_one_hash_are_two_keys(database: Database) -> None:
    mirror = Mirror(database, add_target(database))
    with database.writing() as connection:
        connection.execute(tables.log_head.update().values(partitions=1))
    Log(database).append([[put("v1"), event("other", version="v1"), put("v2")]])
    with database.writing() as connection:
        connection.execute(tables.events.update().values(key_hash=7, partition=0))
    assert mirror.deliver() == {"k": "v2", "other": "v1"}
    Log(database).append([[gone("v2"), event("other", name=DELETE, version="v1")]])
    with database.writing() as connection:
        connection.execute(tables.events.update().values(key_hash=7, partition=0))
    assert mirror.deliver() == {"k": "v1"}


@pytest.mark.parametrize("seed", range(times(1, 3)))
def test_rows_are_those_of_a_mirror_that_was_told_all_at_once(database: Database, seed: int) -> None:
    chance = Random(seed)
    names = [PUT, PUT, PUT, DELETE, MARKER, "s3:ObjectRemoved:DeleteAllVersions", "s3:ObjectAccessed:Get"]
    versions = ["", "null", "v1", "v2", "v3", "v4"]
    events = [
        event(
            chance.choice("abc"),
            name=chance.choice(names[: 5 if chance.random() < 0.9 else 7]),
            version=chance.choice(versions[1 if chance.random() < 0.9 else 0 :]),
            sequencer="" if chance.random() < 0.1 else f"{0x18E9E833E5D35C00 + chance.randrange(400):X}",
        )
        for _ in range(120)
    ]
    step_by_step, at_once = Mirror(database, add_target(database, "steps")), Mirror(database, add_target(database, "b"))
    at_once.batch = 1000
    left = list(events)
    while left:
        size = chance.randrange(1, 12)
        some, left = left[:size], left[size:]
        Log(database).append([some])
        step_by_step.batch = chance.randrange(1, 8)
        step_by_step.run()
    at_once.run()
    assert knowledge(database, "steps") == knowledge(database, "b")


def knowledge(database: Database, name: str) -> set[tuple[object, ...]]:
    v, t = tables.object_versions.c, tables.targets.c
    columns = (v.object, v.id, v.seq, v.sequencer, v.tie, v.placed, v.is_object, v.state)
    with database.reading() as connection:
        query = (
            sa.select(*columns)
            .join_from(tables.object_versions, tables.targets, t.id == v.target_id)
            .where(t.name == name)
        )
        return set(map(tuple, connection.execute(query)))


def test_a_purge_at_the_same_time_changes_nothing(database: Database) -> None:
    """Versions are removed in any order, their events purged at once; the newest that is left is always the row."""
    mirror, chance, alive = Mirror(database, add_target(database)), Random(5), list[str]()
    over = threading.Event()
    problems: list[Exception] = []

    def purging() -> None:
        try:
            while not over.wait(0.002):  # else it would mostly keep the other one from its turn
                purged(database)
        except Exception as error:  # noqa: BLE001 - told by the test itself
            problems.append(error)

    thread = threading.Thread(target=purging)
    thread.start()
    try:
        for number in range(times(20, 60)):
            if alive and (len(alive) > 8 or chance.random() < 0.5):
                told = gone(alive.pop(chance.choice([-1, -1, chance.randrange(len(alive))])))
            else:
                alive.append(f"v{number}")
                told = put(alive[-1])
            assert mirror.tell(told) == ({"k": alive[-1]} if alive else {})
    finally:
        over.set()
        thread.join()
    assert problems == []
    while alive:
        alive.pop()
        assert mirror.tell(gone(f"{mirror.rows['k']}")) == ({"k": alive[-1]} if alive else {})
    purged(database)
    assert rows_of(database, tables.object_versions) == 0
    assert_counters_balance(database)
