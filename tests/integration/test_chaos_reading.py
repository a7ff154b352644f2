"""What `make chaos` reads of targets is taken once, also if a read was interrupted; and what it says of a backlog."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import psycopg2
import pytest
import redis as redis_py

from app.outbox.delivery import redelivery
from app.outbox.delivery.leases import Leases, new_token
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.policies import REDELIVERY
from tests import services
from tests.chaos import verification
from tests.chaos.rounds import hasten_redeliveries, redeliveries
from tests.chaos.verification import Verification
from tests.support.backlog import waiting
from tests.support.builders import add_target, event, migrated, registry
from tests.support.ledger import Ledger
from tests.support.target_readers import create_log


def reading(**servers: Any) -> Verification:
    nothing: Any = SimpleNamespace()
    return Verification(nothing, SimpleNamespace(**servers), nothing, Ledger(), nothing)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "READ_EVERY", 0)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with contextlib.closing(migrated(f"sqlite:///{tmp_path}/outbox.db")) as made:
        yield made


def test_a_list_is_taken_once_whatever_step_got_no_answer(
    redis_server: services.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def push(*numbers: int) -> None:
        with redis_server.client() as client:
            client.rpush("chaos-log", *[orjson.dumps([{"Event": [{"number": number}]}]) for number in numbers])

    def unanswered(name: str) -> None:
        """The next such command is carried out, and what comes after it before anybody knows."""
        carry_out = getattr(redis_py.Redis, name)

        def lose(*given: Any) -> None:
            monkeypatch.setattr(redis_py.Redis, name, carry_out)
            carry_out(*given)
            push(9)
            raise redis_py.TimeoutError

        monkeypatch.setattr(redis_py.Redis, name, lose)

    look = reading(redis=redis_server)
    assert look._listed("chaos-log") == []
    push(1, 2)
    unanswered("rename")
    assert look._listed("chaos-log") == [{"number": 1}, {"number": 2}]
    unanswered("delete")
    assert look._listed("chaos-log") == [{"number": 9}]
    assert look._listed("chaos-log") == [{"number": 9}]
    assert look._listed("chaos-log") == []


def test_a_table_is_taken_once_whatever_step_got_no_answer(
    postgres_server: services.Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "chaos_reading"
    postgres_server.create_database(name)
    create_log(postgres_server, name, "log")
    connect, calls = type(postgres_server).connection, []

    def connection(server: services.Postgres, _: str) -> Any:
        calls.append(name)
        if len(calls) in (1, 3):
            raise psycopg2.OperationalError("busy")
        return connect(server, name)

    with postgres_server.connection(name) as made, made.cursor() as cursor:
        cursor.execute(
            "INSERT INTO log SELECT now(), json_build_object('Records', json_build_array(n))"
            " FROM generate_series(1, 3) AS n"
        )
    monkeypatch.setattr(type(postgres_server), "connection", connection)
    look = reading(postgres=postgres_server)
    assert look._logged() == [1, 2, 3]
    assert look._logged() == []


def test_interim_answers_come_before_the_answer_until_the_network_heals() -> None:
    def answered() -> bytes:
        with socket.create_connection((services.LOOPBACK, wire.port), 30) as connection:
            connection.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))

    with services.receiver() as receiver, services.proxy(receiver.port) as wire:
        wire.precede(1.0)
        before, _, answer = answered().rpartition(b"HTTP/1.1 200")
        assert before.startswith((b"HTTP/1.1 102 ", b"HTTP/1.1 103 "))
        assert answer
        wire.heal()
        assert answered().startswith(b"HTTP/1.1 200")


def test_a_backlog_names_its_target_what_waits_and_who_has_its_partitions(database: Database) -> None:
    whole: Any = SimpleNamespace(database=database, workers=[])
    target = add_target(database, "mine")
    assert waiting(whole) == "nothing waits"
    Log(database).append([[event(name) for name in ("a", "a", "a")]])
    [free] = waiting(whole).split("; ")
    assert free.startswith(f"{target} pending 3 parked 0 dead 0, the oldest for ")
    assert free.endswith(", 1 partitions free")
    Leases(database, 600_000).claim(registry(database).target(target).row_id, range(16), new_token(), now_ms())
    assert waiting(whole).endswith(f", 1 partitions leased by process {os.getpid()}, which is no worker")
    worker: Any = SimpleNamespace(running=True, pid=os.getpid())
    whole.workers.append(worker)
    assert f"leased by process {os.getpid()} (running) of worker 1" in waiting(whole)


def test_what_a_late_request_may_have_overwritten_goes_out_again_before_it_is_compared(database: Database) -> None:
    target = add_target(database, "mine")
    row_id = registry(database).target(target).row_id
    assert hasten_redeliveries(database) == 0
    redelivery.request(database, row_id, {(0, 7): 1, (1, 8): 2}, now_ms() + REDELIVERY.latest_arrival_ms)
    assert redeliveries(database, due=True) == 0
    assert hasten_redeliveries(database) == 2
    assert redeliveries(database, due=True) == 2
