"""Changed rules count for the next event, and are read without the lock for which every other append waits."""

import pytest
import sqlalchemy as sa

from app.outbox import log_head
from app.outbox.engine.database import Database
from app.outbox.log import append
from app.outbox.log.append import Log, QueueFull, Receipt, RoutingChanged
from tests.support.builders import add_target, event


def test_changed_rules_are_read_without_the_lock_of_the_head(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading ten thousand takes a second, for which every other append would wait."""
    add_target(database, "one", bucket="images")
    log, other = Log(database), Log(database)
    log.append([[event()]])
    other.append([[event()]])
    add_target(database, "two", bucket="images")
    load, recorded = append.load_routing, list[object]()

    def loading(connection: sa.Connection, version: int) -> object:
        monkeypatch.setattr(append, "load_routing", load)
        recorded.extend(other.append([[event()]]))  # it would wait for the lock
        return load(connection, version)

    monkeypatch.setattr(append, "load_routing", loading)
    recorded.extend(log.append([[event()]]))
    assert [len(receipt.matched) for receipt in recorded] == [2, 2]  # type: ignore[attr-defined]


def test_rules_that_change_while_changed_ones_are_read_count(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_target(database, "one", bucket="images")
    log, load = Log(database), append.load_routing

    def loading(connection: sa.Connection, version: int) -> object:
        loaded = load(connection, version)
        monkeypatch.setattr(append, "load_routing", load)
        add_target(database, "late", bucket="images")
        return loaded

    monkeypatch.setattr(append, "load_routing", loading)
    [receipt] = log.append([[event()]])
    assert len(receipt.matched) == 2  # type: ignore[union-attr]  # it is no refusal


def test_matched_events_are_recorded_while_rules_keep_changing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a script that changes rules faster than they are read would stop intake."""
    log = Log(database)
    read = log._read_routing

    def reading() -> None:
        read()
        change_routing(database)

    monkeypatch.setattr(log, "_read_routing", reading)
    for _ in range(2):
        with pytest.raises(RoutingChanged):
            append_matched(log)
    [receipt] = append_matched(log)
    assert receipt.recorded == 1  # type: ignore[union-attr]  # it is no refusal


def test_changes_of_rules_that_do_not_follow_each_other_are_matched_by_the_request(database: Database) -> None:
    log = Log(database)
    for _ in range(5):
        change_routing(database)
        with pytest.raises(RoutingChanged):
            append_matched(log)
        append_matched(log)


def append_matched(log: Log) -> list[Receipt | QueueFull]:
    """Append an event that was matched before, by the rules as they were read last."""
    events = [event()]
    return log.append([events], matches=log.routing.match(events))


def change_routing(database: Database) -> None:
    with database.writing() as connection:
        log_head.change_routing(connection)
