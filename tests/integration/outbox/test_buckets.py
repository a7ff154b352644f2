"""Buckets that are known and places in the log, on each database."""

from __future__ import annotations

import sqlalchemy as sa

from app.events import own_events
from app.outbox import tables
from app.outbox.buckets import every_bucket, is_bucket, remove_bucket
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.outbox.log.reading import events_between, log_end, position_of
from tests.support import databases
from tests.support.builders import add_target, event

pytestmark = databases.TWO


def names(database: Database) -> list[str]:
    return [bucket.name for bucket in every_bucket(database)]


@databases.ALL
def test_buckets_are_known_by_events_and_rules_and_each_once(database: Database) -> None:
    first, second = Log(database), Log(database)  # as two processes have them
    first.append([[event(bucket="b"), event(bucket="B")], [event(bucket="a-ж")]])
    second.append([[event(bucket="b"), event(bucket="c")]])
    add_target(database, bucket="ruled")
    add_target(database, "every", bucket="*")
    assert names(database) == ["B", "a-ж", "b", "c", "ruled"]
    assert [is_bucket(database, name) for name in ("b", "ruled", "C", "*", "")] == [True, True, False, False, False]
    remove_bucket(database, "b")
    remove_bucket(database, "ruled")
    assert names(database) == ["B", "a-ж", "c"]
    second.append([[event(bucket="b", name="s3:BucketRemoved:*")]])
    assert not is_bucket(database, "b")
    first.append([[event(bucket="b")]])  # which knew it already
    assert is_bucket(database, "b")


def test_the_bucket_of_trials_is_none(database: Database) -> None:
    Log(database).append([[event(bucket=own_events.TEST_BUCKET), event(bucket="b")]])
    assert names(database) == ["b"]


def test_a_transaction_that_fails_makes_no_bucket_known(database: Database) -> None:
    log, known = Log(database), event(bucket="a")
    log.append([[known]])
    clash = event(bucket="new")._replace(version=None)  # type: ignore[arg-type]
    try:
        log.append([[clash]])
    except sa.exc.DBAPIError:
        pass
    else:
        raise AssertionError("a record that is null was taken")
    log.append([[event(bucket="new")]])
    assert names(database) == ["a", "new"]


def test_events_that_are_not_routed_go_to_no_target(database: Database) -> None:
    add_target(database)
    [receipt] = Log(database).append([[event()]], routed=False)
    assert (receipt.recorded, dict(receipt.matched)) == (1, {})
    with database.reading() as connection:
        assert connection.execute(sa.select(tables.events.c.targets)).scalars().all() == [""]


@databases.ALL
def test_the_log_is_read_between_two_places_in_its_order(database: Database) -> None:
    events = [event(f"{number}") for number in range(30)]
    for start in range(0, 30, 7):
        Log(database).append([events[start : start + 7]])
    head = log_end(database)
    assert head.last_seq == 30
    assert position_of(database, events[9].id) == 10
    assert position_of(database, "0" * 32) is None
    found, _ = events_between(database, head.partitions, 10, 20)
    assert [row.id for row in found] == [one.id for one in events[10:20]]
    assert events_between(database, head.partitions, 30, 40) == ([], 40)
