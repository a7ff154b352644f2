"""Runs of the reconciliation and events that repair, on each database."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.listings.limits import BadListing
from app.outbox import log_head, tables
from app.outbox.declared import UnknownTarget
from app.outbox.engine.database import Database, now_ms
from app.outbox.errors import AlreadyRunning, LogLost
from app.outbox.log.append import Log, QueueFull, Receipt
from app.outbox.reconcile.log_queries import (
    LogMark,
    keys_recorded_since,
    last_seq_before,
    log_mark,
    newest_sequencers,
    unchanged_since,
)
from app.outbox.reconcile.runs import BACKFILLING, Progress, Reconciliations, latest_results
from app.resources.reconciliation import COUNTS
from tests.support import databases
from tests.support.builders import add_target, event, registry
from tests.support.older_state import older_state

pytestmark = databases.ONE

TARGET = TargetId("webhook", "x")


def test_a_target_is_reconciled_with_a_bucket_by_one_run_at_a_time(database: Database) -> None:
    runs = Reconciliations(database)
    first = runs.begin(TARGET, "b", lease=60_000)
    with pytest.raises(AlreadyRunning, match="webhook:x is already being reconciled with b"):
        runs.begin(TARGET, "b", lease=60_000)
    other = runs.begin(TARGET, "c", lease=60_000)
    runs.end(first, "drift", {"missing": 3, "objects": 7}, report="/r", problem="x" * 3000)
    dead = runs.begin(TARGET, "b", lease=-1)
    assert runs.renew(dead, lease=-1)
    after = runs.begin(TARGET, "b", lease=60_000)
    assert not runs.renew(dead, lease=60_000)
    assert runs.renew(after, lease=60_000)
    states = {each.run: each.state for each in runs.list()}
    assert states == {first: "drift", other: "running", dead: "failed", after: "running"}
    ended = runs.list()[-1]
    assert (ended.counts["missing"], ended.counts["objects"], ended.counts["stale"], ended.report) == (3, 7, 0, "/r")
    assert ended.finished_at >= ended.started_at > 0


@databases.THREE
def test_a_run_that_the_version_before_has_ended_keeps_its_numbers(database: Database) -> None:
    runs, r = Reconciliations(database), tables.reconciliations
    run = runs.begin(TARGET, "b", lease=60_000)
    runs.end(run, "drift", {"missing": 3, "objects": 7, "target_rows": 4})
    with database.writing() as connection:  # as it wrote them: in columns
        connection.execute(r.update().values(counts=None, malformed=2, objects=70, target_rows=30))
    counts = runs.get(run).counts
    assert counts == dict.fromkeys(COUNTS, 0) | {"malformed": 2, "objects": 70, "target_rows": 30}
    assert runs.last_size(TARGET, "b") == 100
    with database.reading() as connection:
        assert [drift for *_, drift in latest_results(connection)] == [2]


def test_a_run_shows_its_progress_while_it_is_running(database: Database) -> None:
    runs = Reconciliations(database)
    assert runs.last_size(TARGET, "b") == 0
    run = runs.begin(TARGET, "b", lease=60_000)
    assert [each.progress for each in runs.list()] == [None]
    for progress in (Progress("comparing", 5, 2, None), Progress("comparing", 10**12, 10**6, 10**6), None):
        assert runs.renew(run, lease=60_000, progress=progress)
        assert [each.progress for each in runs.list()] == [progress]
    for text in ('{"stage": "of another version"}', "[]", "odd"):
        with database.writing() as connection:
            connection.execute(tables.reconciliations.update().values(progress=text))
        assert [each.progress for each in runs.list()] == [None]
    runs.renew(run, lease=60_000, progress=Progress("reporting", 0, 0, None))
    runs.end(run, "drift", {"objects": 7, "target_rows": 4})
    runs.end(runs.begin(TARGET, "b", lease=60_000), "failed", {"objects": 70})
    runs.end(runs.begin(TARGET, "c", lease=60_000), "clean", {"objects": 700})
    assert [each.progress for each in runs.list()] == [None] * 3
    assert runs.last_size(TARGET, "b") == 11


@databases.TWO
def test_backfills_and_reconciliations_of_a_target_exclude_each_other(database: Database) -> None:
    runs = Reconciliations(database)
    first = runs.begin(TARGET, "b", lease=60_000, state=BACKFILLING)
    with pytest.raises(AlreadyRunning, match="webhook:x is already being backfilled from b"):
        runs.begin(TARGET, "b", lease=60_000)
    runs.end(first, "backfilled", {"repaired": 3})
    dead = runs.begin(TARGET, "b", lease=-1, state=BACKFILLING)
    assert runs.renew(dead, lease=-1)
    after = runs.begin(TARGET, "b", lease=60_000)
    assert {each.run: each.state for each in runs.list()} == {
        first: "backfilled", dead: "unfinished", after: "running",
    }  # fmt: skip


@databases.THREE
def test_old_runs_are_forgotten_but_for_the_last_of_each_state(database: Database) -> None:
    runs = Reconciliations(database)

    def ended(state: str, bucket: str = "b") -> str:
        run = runs.begin(TARGET, bucket, lease=60_000)
        runs.end(run, state, {}, report=f"/reports/{run}")
        return run

    clean, failed, newer, elsewhere = ended("clean"), ended("failed"), ended("clean"), ended("clean", "c")
    ended("clean", "c")
    running = runs.begin(TARGET, "b", lease=60_000)
    assert runs.delete_old(TARGET, "b", 1) == {}
    assert runs.delete_old(TARGET, "b", now_ms() + 60_000) == {clean: f"/reports/{clean}"}
    assert {each.run for each in runs.list()} > {failed, newer, elsewhere, running}


def _mark(database: Database, target: TargetId, **options: Any) -> tuple[LogMark, set[str]]:
    """Return a mark of the log, and the keys in flight."""
    in_flight = set[str]()
    return log_mark(database, target, "images", in_flight.update, **options), in_flight


@databases.THREE
def test_what_is_on_its_way_is_known_by_key(database: Database) -> None:
    target = add_target(database)
    log = Log(database)
    log.append([[event("before"), event("odd +%é🎉"), event("elsewhere", bucket="other")]])
    found, in_flight = _mark(database, target)
    assert in_flight == {"before", "odd +%é🎉"}
    log.append([[event("later"), event("elsewhere", bucket="other")]])
    assert set(keys_recorded_since(database, "images", found)) == {"later"}
    everything = keys_recorded_since(database, "images", found, received_at=0)
    assert set(everything) == {"before", "odd +%é🎉", "later"}
    with database.writing() as connection:  # as a worker that has delivered everything
        connection.execute(tables.cursors.update().values(position=1 << 40))
    assert _mark(database, target)[1] == set()
    with pytest.raises(UnknownTarget):
        _mark(database, TargetId("webhook", "none"))


@databases.THREE
def test_nothing_is_compared_with_an_outbox_that_has_become_an_older_state(database: Database) -> None:
    """What is recorded after a failover has seqs that the log had before the listing."""
    target = add_target(database)
    with older_state(database):
        Log(database).append([[event("lost"), event("lost")]])
        mark, _ = _mark(database, target)
    Log(database).append([[event("newer than the listing")]])
    with pytest.raises(BadListing, match="has failed over"):
        list(keys_recorded_since(database, "images", mark))
    mark, _ = _mark(database, target)
    with database.writing() as connection:
        log_head.begin_epoch(connection, "restored")
    with pytest.raises(BadListing, match="has failed over"):
        list(keys_recorded_since(database, "images", mark))


@databases.THREE
def test_the_newest_sequencer_of_a_key_is_found(database: Database) -> None:
    log = Log(database)
    log.append([[event("a", sequencer="18E8"), event("a", sequencer="18EA00"), event("b", sequencer="")]])
    log.append([[event("a", sequencer="18FF", bucket="other"), event("c", name="s3:ObjectAccessed:Get")]])
    assert newest_sequencers(database, "images", ["a", "b", "c", "d"]) == {"a": "18EA"}
    backfilled = event("a", sequencer="18EB")
    log.append([[backfilled._replace(record=backfilled.record.replace("minio:s3", "bucketwire:backfill"))]])
    assert newest_sequencers(database, "images", ["a"]) == {"a": "18EB"}
    assert newest_sequencers(database, "images", ["a"], excluding_source="bucketwire:backfill") == {"a": "18EA"}


def test_an_event_is_recorded_unless_its_object_had_a_newer_one(database: Database) -> None:
    target, _other = add_target(database), add_target(database, "other")
    log = Log(database)
    log.append([[event("a"), event("b")]])
    seq = _mark(database, target)[0].seq
    log.append([[event("b")]])
    events, guard = [event("a"), event("b"), event("new")], unchanged_since(seq)
    [receipt] = log.append([events], only_target=target, guard=guard)
    assert isinstance(receipt, Receipt)
    assert (receipt.recorded, receipt.repeated, receipt.overtaken) == (2, 0, 1)
    assert dict(receipt.matched) == {target: 2}
    # The response was lost: send the same again.
    [again] = log.append([events], only_target=target, guard=guard)
    assert isinstance(again, Receipt)
    assert (again.recorded, again.repeated, again.overtaken) == (0, 2, 1)
    with database.reading() as connection:
        query = sa.select(tables.events.c.targets).where(tables.events.c.id.in_([events[0].id, events[2].id]))
        assert connection.execute(query).scalars().all() == [f",{registry(database).target(target).row_id},"] * 2


def test_no_event_is_recorded_by_what_was_read_of_a_log_that_is_lost(database: Database) -> None:
    """A change since then may have a seq that is not after the one up to which the sender has seen all changes."""
    target, log = add_target(database), Log(database)
    with older_state(database):
        log.append([[event("other") for _ in range(3)]])
        seq = _mark(database, target)[0].seq
    log.append([[event("a")]])
    with pytest.raises(LogLost, match="ends at 1 and had reached 3"):
        log.append([[event("a")]], only_target=target, guard=unchanged_since(seq))
    assert _mark(database, target)[0].seq == 1


def test_only_what_changes_an_object_overtakes_its_event(database: Database) -> None:
    target = add_target(database)
    seq = _mark(database, target)[0].seq
    removed, kinds = "s3:ObjectRemoved:Delete", ["read", "tagged", "warned", "repaired", "older", "newest", "plain"]
    late = {key: event(key, version="" if key == "plain" else "v2") for key in kinds}
    repair = event("repaired")
    since = [
        event("read", name="s3:ObjectAccessed:Get"), event("tagged", name="s3:ObjectCreated:PutTagging"),
        event("warned", name="s3:Scanner:ManyVersions"), event("older", name=removed, version="v1"),
        repair._replace(record=repair.record.replace("minio:s3", "bucketwire:reconcile")),
        event("newest", name=removed, version="v2"), event("plain", name=removed, version="v1"),
    ]  # fmt: skip
    Log(database).append([since])
    [receipt] = Log(database).append([list(late.values())], only_target=target, guard=unchanged_since(seq))
    assert isinstance(receipt, Receipt)
    assert (receipt.recorded, receipt.overtaken) == (5, 2)
    with database.reading() as connection:
        query = sa.select(tables.events.c.key).where(tables.events.c.id.in_([one.id for one in late.values()]))
        assert set(connection.execute(query).scalars()) == {"read", "tagged", "warned", "repaired", "older"}


@databases.THREE
def test_creations_alone_can_count_as_being_on_their_way(database: Database) -> None:
    target = add_target(database)
    Log(database).append([[event("made"), event("read", name="s3:ObjectAccessed:Get")]])
    assert _mark(database, target)[1] == {"made", "read"}
    assert _mark(database, target, event_names=["s3:ObjectCreated:Put"])[1] == {"made"}


@databases.THREE
def test_the_end_of_the_log_at_a_moment_is_found(database: Database) -> None:
    assert last_seq_before(database, 1 << 60) == 0
    Log(database).append([[event("a"), event("b")]])
    with database.writing() as connection:
        connection.execute(tables.events.update().values(received_at=tables.events.c.seq * 10))
    first, second = (
        seq * 10 for seq in range(last_seq_before(database, 1 << 60) - 1, last_seq_before(database, 1 << 60) + 1)
    )
    assert [last_seq_before(database, at) for at in (first, first + 1, second + 1)] == [0, first // 10, second // 10]


def test_nothing_is_recorded_for_a_target_without_room_though_it_discards(database: Database) -> None:
    target, _other = add_target(database, queue_limit=3), add_target(database, "other", queue_limit=1)
    repair = partial(Log(database).append, only_target=target, guard=unchanged_since(0))
    some = [event(f"k{number}") for number in range(4)]
    assert repair([some]) == [QueueFull((target,))]
    [receipt] = repair([some[:2]])
    assert isinstance(receipt, Receipt)
    assert (receipt.recorded, receipt.repeated, receipt.discarded) == (2, 0, {})
    assert repair([some]) == [QueueFull((target,))]  # two of them are there, one more has room
    [receipt] = repair([some[:3]])
    assert isinstance(receipt, Receipt)
    assert (receipt.recorded, receipt.repeated, receipt.discarded) == (1, 2, {})
