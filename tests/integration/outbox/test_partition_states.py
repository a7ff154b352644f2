"""What is read of a target's partitions: what waits, how far it was counted, and which worker has each."""

from __future__ import annotations

import os
import socket

import pytest

from app.outbox.admin import counters
from app.outbox.admin.counters import FREE, LEASED, lease_of, read_partitions
from app.outbox.column_values import REVOKED
from app.outbox.declared import UnknownTarget
from app.outbox.delivery.leases import Leases, new_token
from app.outbox.engine import many_rows
from app.outbox.engine.database import Database, now_ms
from app.outbox.log import arrivals
from app.outbox.log.append import Log
from tests.support import databases
from tests.support.builders import add_target, event, registry
from tests.support.delivery import failing
from tests.support.scripted_target import Courier, ScriptedTarget
from workers.delivery.outcomes import DELIVERED, Failed, Outcome

pytestmark = databases.TWO


def test_partitions_show_what_waits_in_them_for_their_target(database: Database) -> None:
    target = add_target(database, "mine", bucket="images")
    add_target(database, "other", bucket="docs")
    names = ("a", "b", "again", "again", "again")
    Log(database).append([[*(event(name) for name in names), event("c", bucket="docs")]])
    found = read_partitions(database, target)
    assert [each.partition for each in found] == list(range(len(found)))
    assert sum(each.pending for each in found) == len(names)
    assert {(each.parked, each.lease, each.more) for each in found} == {(0, FREE, False)}

    def script(given: object) -> Outcome:
        return Failed("500", retry_after=600) if getattr(given, "key", "") == "again" else DELIVERED

    Courier(database, target, ScriptedTarget(script)).run()
    found = read_partitions(database, target)
    assert sum(each.pending for each in found) == 0
    [busy] = [each for each in found if each.parked]
    assert (busy.parked, busy.parked_objects) == (3, 1)
    with pytest.raises(UnknownTarget):
        read_partitions(database, type(target)("webhook", "none"))


def test_what_is_counted_is_bounded_and_says_so(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    target = failing(database, 1, events=5).target
    Log(database).append([[event("k0") for _ in range(9)]])
    monkeypatch.setattr(counters, "MAX_COUNTED_EVENTS", 3)
    [busy] = [each for each in read_partitions(database, target) if each.parked]
    assert (busy.parked, busy.pending, busy.more) == (3, 3, True)
    monkeypatch.setattr(counters, "MAX_COUNTED_EVENTS", 1000)
    monkeypatch.setattr(arrivals, "WINDOW_SEQS", 4)
    [busy] = [each for each in read_partitions(database, target) if each.parked]
    assert (busy.parked, busy.pending, busy.more) == (5, 4, True)
    monkeypatch.setattr(arrivals, "WINDOW_SEQS", 10_000)
    for name in ("MAX_SEARCHES", "_MAX_PLANNED_ONCE"):
        monkeypatch.setattr(many_rows, name, 1)
    [busy] = [each for each in read_partitions(database, target) if each.parked]
    assert (busy.parked, busy.pending, busy.more) == (5, 9, False)


@databases.THREE
def test_a_leased_partition_shows_the_worker_that_has_it(database: Database) -> None:
    target = add_target(database)
    row_id = registry(database).target(target).row_id
    Leases(database, 600_000).claim(row_id, [1], new_token(), now_ms())
    holders = {each.partition: (each.lease, each.holder) for each in read_partitions(database, target)}
    host, _, process = new_token().rpartition(":")[0].rpartition(":")
    assert holders.pop(1) == (LEASED, f"{host}:{process}")
    assert (host[:1], process) == (socket.gethostname()[:1], str(os.getpid()))
    assert set(holders.values()) == {(FREE, "")}


@pytest.mark.parametrize(
    ("token", "until", "shown"),
    [
        ("host.example:17:abcdef", 100, (LEASED, "host.example:17")),
        ("host:17:abcdef", 99, (FREE, "")),
        ("", 100, (FREE, "")),
        (REVOKED, 100, (REVOKED, "")),
    ],
)
def test_a_lease_is_free_when_it_has_expired(token: str, until: int, shown: tuple[str, str]) -> None:
    assert lease_of(token, until, 100) == shown


def test_a_fencing_token_fits_its_column_whatever_the_host_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "hôst:" + "x" * 300)
    monkeypatch.setattr("os.getpid", lambda: 4_194_304)
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert {len(token) for token in tokens} == {64}
    assert {token.count(":") for token in tokens} == {2}
