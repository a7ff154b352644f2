"""Appending: once each, in order, counted, within limits."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from app.config.errors import BadValue
from app.outbox import log_head, tables
from app.outbox.admin.counters import read_counters
from app.outbox.admin.event_states import object_history
from app.outbox.admin.undelivered import DeadLetters
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log, QueueFull, Receipt
from app.outbox.log.group_commit import GroupCommit
from app.resources.undelivered import DeadLetterFilter
from app.rules.model import Rule
from tests.support import databases
from tests.support.builders import add_target, event, registry
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance
from workers.delivery.outcomes import DELIVERED, Failed, Rejected
from workers.delivery.retry import RetrySchedule

pytestmark = [pytest.mark.promise, databases.TWO]


def database_time(database: Database) -> int:
    with database.reading() as connection:
        return database_now(connection)


def _seqs(database: Database) -> list[int]:
    with database.reading() as connection:
        return list(connection.execute(sa.select(tables.events.c.seq).order_by(tables.events.c.seq)).scalars())


def test_a_receipt_says_where_a_few_events_are_due(database: Database) -> None:
    one, two = add_target(database, "one"), add_target(database, "two", bucket="other")
    log = Log(database)
    for _ in range(3):  # PostgreSQL: the first under the lock, later ones at once
        events = [event("a"), event("b"), event("c", bucket="other")]
        [receipt] = log.append([events])
        assert isinstance(receipt, Receipt)
        with database.reading() as connection:
            e = tables.events.c
            rows = connection.execute(
                sa.select(e.bucket, e.partition).where(e.id.in_([each.id for each in events]))
            ).all()
        others = {row.partition for row in rows if row.bucket == "other"}
        assert receipt.due == {one: {row.partition for row in rows}, two: others}
        assert log.append([events]) == [Receipt(repeated=3)]
    [unmatched, many] = log.append([[event("d", bucket="third")], [event(f"{number}") for number in range(17)]])
    assert isinstance(unmatched, Receipt)
    assert unmatched.due.keys() == {one}
    assert isinstance(many, Receipt)
    assert {target: len(partitions) for target, partitions in many.due.items()} == {one: 4}


def test_an_event_is_recorded_once_however_often_it_comes(database: Database) -> None:
    target = add_target(database)
    log, one, two = Log(database), event(), event()
    first, again = log.append([[one, one, two], [two]])
    assert first == Receipt(recorded=2, repeated=1, matched={target: 2})
    assert again == Receipt(recorded=0, repeated=1)
    assert log.append([[one]]) == [Receipt(recorded=0, repeated=1)]
    assert len(_seqs(database)) == 2


@databases.ALL
def test_the_same_events_sent_at_the_same_time_are_recorded_once(database: Database) -> None:
    add_target(database)
    events = [event(f"k{number}") for number in range(50)]
    logs = [Log(database) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda log: log.append([events])[0], logs))
    assert sum(answer.recorded for answer in answers if isinstance(answer, Receipt)) == 50
    assert len(_seqs(database)) == 50
    with database.reading() as connection:
        assert read_counters(connection)[0].recorded == 50


def test_requests_that_come_together_share_a_commit_and_get_their_own_answers(database: Database) -> None:
    add_target(database)
    commits = GroupCommit(database)
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda number: commits.append([event(f"k{number}")]), range(64)))
    assert all(isinstance(answer, Receipt) and answer.recorded == 1 for answer in answers)
    assert len(_seqs(database)) == 64


@databases.THREE
def test_a_target_at_its_limit_is_left_out_and_the_discards_are_counted(database: Database) -> None:
    full = add_target(database, "full", queue_limit=3)
    free = add_target(database, "free")
    log, began = Log(database), database_time(database)
    [receipt] = log.append([[event(f"k{number}") for number in range(5)]])
    assert receipt == Receipt(recorded=5, matched={full: 5, free: 5}, discarded={full: 2})
    [receipt] = log.append([[event("later")]])
    assert isinstance(receipt, Receipt)
    assert receipt.discarded == {full: 1}
    with database.reading() as connection:
        counters = {entry.target: entry for entry in read_counters(connection)}
    assert (counters[full].recorded, counters[full].discarded, counters[full].pending) == (3, 3, 3)
    assert (counters[free].recorded, counters[free].discarded) == (6, 0)
    targets = registry(database)
    assert began <= (targets.target(full).discarded_at or 0) <= database_time(database)
    assert targets.target(free).discarded_at is None
    targets.acknowledge_discards(full, 2)
    targets.acknowledge_discards(full, 1)  # by somebody who has looked before
    assert targets.target(full).acknowledged == 2
    with pytest.raises(BadValue, match="are more than the 3 discarded so far"):
        targets.acknowledge_discards(full, 4)


def test_an_event_says_where_it_was_discarded_and_is_never_delivered_there(database: Database) -> None:
    full, free = add_target(database, "full", queue_limit=1), add_target(database, "free")
    log = Log(database)
    log.append([[event("a")]])
    log.append([[event("b")]])
    [one] = object_history(database, "images", "b").events
    states = {state.target: (state.state, state.reason) for state in one.delivery_states}
    assert states == {full: ("discarded", "its queue was full; queue_limit is 1 now"), free: ("pending", "")}
    for target, keys in ((full, ["a"]), (free, ["a", "b"])):
        got = ScriptedTarget()
        Courier(database, target, got).run()
        assert sorted(got.keys()) == keys
    [one] = object_history(database, "images", "b").events
    assert {state.target: state.state for state in one.delivery_states} == {full: "discarded", free: "settled"}
    registry(database).remove(full, force=True)
    [one] = object_history(database, "images", "b").events
    assert [state.target for state in one.delivery_states] == [free]
    assert_counters_balance(database)


def test_a_target_with_neither_a_limit_nor_a_queue_dir_takes_any_number_of_events(database: Database) -> None:
    free = add_target(database, "free")
    named = add_target(database, "named", queue_limit=0)  # as MinIO writes it into every target's settings
    stored = add_target(database, "stored", queue_dir="/var/events")
    refusing = add_target(database, "refusing", queue_full="reject")
    log = Log(database)
    log.append([[event("before")]])
    with database.writing() as connection:  # as if so many had been recorded
        connection.execute(tables.targets.update().values(recorded=100_000))
    [receipt] = log.append([[event("after")]])
    assert receipt == Receipt(recorded=1, matched={free: 1, named: 1, stored: 1, refusing: 1}, discarded={stored: 1})


@databases.ALL
def test_the_limit_is_exact_also_between_two_writers(database: Database) -> None:
    full = add_target(database, "full", queue_limit=30)
    logs = [Log(database) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda log: [log.append([[event(f"k{number}")]]) for number in range(20)], logs))
    with database.reading() as connection:
        [counters] = [entry for entry in read_counters(connection) if entry.target == full]
    assert (counters.recorded, counters.discarded) == (30, 50)


def test_no_live_event_is_discarded_for_replayed_dead_letters(database: Database) -> None:
    target = add_target(database, queue_limit=4)
    courier = Courier(database, target, ScriptedTarget(lambda one: Rejected("no")))
    log = Log(database)
    log.append([[event(f"k{number}") for number in range(4)]])
    courier.run()
    log.append([[event("fills"), event("the"), event("writer's memory")]])
    assert DeadLetters(database).replay(DeadLetterFilter()) == 4
    [receipt] = log.append([[event("one more")]])
    assert isinstance(receipt, Receipt)
    assert receipt.discarded == {}
    courier.scripted.script = lambda one: DELIVERED if one.key.startswith("k") else Failed("later")
    courier.schedule = RetrySchedule(base=3_600_000, cap=3_600_000)
    courier.run()
    [receipt] = log.append([[event("one too many")]])
    assert isinstance(receipt, Receipt)
    assert receipt.discarded == {target: 1}


def test_a_target_that_rejects_when_full_refuses_the_request_as_a_whole(database: Database) -> None:
    full = add_target(database, "full", queue_limit=2, queue_full="reject")
    log = Log(database)
    small, large = log.append([[event("a")], [event("b"), event("c")]])
    assert isinstance(small, Receipt)
    assert large == QueueFull((full,))
    assert len(_seqs(database)) == 1


def test_events_for_one_target_alone_are_recorded_for_it_or_not_at_all(database: Database) -> None:
    full, other = add_target(database, "full", queue_limit=2, bucket="elsewhere"), add_target(database, "other")
    log = Log(database)
    assert log.append([[event("a")]], only_target=full) == [Receipt(recorded=1, matched={full: 1})]
    assert log.append([[event("b"), event("c")]], only_target=full) == [QueueFull((full,))]
    assert log.append([[event("d")]]) == [Receipt(recorded=1, matched={other: 1})]
    registry(database).put(full, {"endpoint": "http://127.0.0.1:9/", "enable": "off"})
    assert log.append([[event("e")]], only_target=full) == [Receipt(recorded=1)]
    assert len(_seqs(database)) == 3


def test_a_rule_counts_for_every_event_after_it_was_stored(database: Database) -> None:
    target = add_target(database, bucket="other")
    log = Log(database)
    [before] = log.append([[event("a")]])
    number = registry(database).add_rule(
        Rule(bucket="images", events=("s3:ObjectCreated:*",), prefix="", suffix=".txt", target=target, rule_id="new")
    )
    [after] = log.append([[event("b.txt"), event("b.png")]])
    registry(database).remove_rules([number])
    [gone] = log.append([[event("c.txt")]])
    matched = [answer.matched for answer in (before, after, gone) if isinstance(answer, Receipt)]
    assert matched == [{}, {target: 1}, {}]


def test_events_of_an_object_share_a_partition_and_stand_in_the_order_they_came(database: Database) -> None:
    add_target(database)
    events = [event(f"k{number % 7}") for number in range(70)]
    Log(database).append([events])
    e = tables.events.c
    with database.reading() as connection:
        rows = connection.execute(sa.select(e.id, e.key, e.partition, e.seq).order_by(e.seq)).all()
    assert [row.id for row in rows] == [one.id for one in events]
    assert len({(row.key, row.partition) for row in rows}) == 7


@databases.ALL
def test_events_are_dated_by_the_database_whatever_the_clock_of_the_host(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database.dialect == "sqlite":
        pytest.skip("SQLite has no other clock than the host's")
    before = now_ms()
    for module in ("app.outbox.log.append", "app.outbox.engine.clock"):
        monkeypatch.setattr(f"{module}.now_ms", lambda: before + 365 * 86_400_000, raising=False)
    log = Log(database)
    for one in (event("first"), event("next")):  # on PostgreSQL, the second takes the short way
        log.append([[one]])
    with database.reading() as connection:
        received = connection.execute(sa.select(tables.events.c.received_at)).scalars().all()
    assert [abs(each - before) < 60_000 for each in received] == [True, True]


@databases.ALL
@pytest.mark.nightly(
    "MariaDB: only it and MySQL have a type of text that is too short for as many ids",
    when=lambda outbox_url: outbox_url != "mariadb",
)
@pytest.mark.slow
def test_an_event_goes_to_any_number_of_targets(database: Database) -> None:
    """On MySQL, a TEXT of their ids would be too short for these."""
    add_target(database)
    log = Log(database)
    log.append([[event()]])
    t, r, numbers = tables.targets, tables.rules, range(2_000_000_000, 2_000_006_000)
    with database.writing() as connection:
        log_head.change_routing(connection)
        [target] = connection.execute(sa.select(t)).mappings()
        [rule] = connection.execute(sa.select(r)).mappings()
        connection.execute(
            t.insert(), [{**target, "id": number, "name": f"t{number}", "recorded": 0} for number in numbers]
        )
        connection.execute(r.insert(), [{**rule, "id": number, "target_id": number} for number in numbers])
    [receipt] = log.append([[event()]])
    assert isinstance(receipt, Receipt)
    assert len(receipt.matched) == 6001
    with database.reading() as connection:
        assert connection.execute(sa.select(t.c.recorded).distinct().where(t.c.id >= numbers[0])).scalars().all() == [1]
