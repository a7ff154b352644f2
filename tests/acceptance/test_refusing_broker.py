"""A task broker that answers and refuses: each process waits and says so once, and all is delivered in the end."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

from app.outbox.engine.clock import database_now
from app.outbox.processes import HINDERED, RUNNING, read_processes
from tests import services
from tests.services import until
from tests.support.builders import body, some
from tests.support.flower import Flower
from tests.support.rabbitmq import evaluated
from tests.support.service_processes import Role, System, source_worker, start_all, stop_all, system

PATIENCE = 90
SECONDS = 6  # for which a process that says something once a second would be heard several times
FAILS, WORKS = "cannot be used", "the broker works again"
USUAL = {"full", "demoted"}  # of Redis
LINE = re.compile(r"\d{4}-\d\d-\d\d [\d:,]{12} \[\d+\] WARNING bucketwire\.(api|beat|worker|wakeups): ")
_COMMAND = re.compile(rb"\*\d+\r\n\$\d+\r\n([A-Z]+)\r\n")
NIGHTLY = pytest.mark.nightly("a Redis at its memory limit, and one that becomes a replica")


class Refusal(NamedTuple):
    """How a Redis comes to refuse, and what mends it."""

    begin: Callable[[services.Redis, redis.Redis], object]
    end: Callable[[services.Redis, redis.Redis], object]
    says: str
    extra: tuple[str, ...] = ()


class Answer(NamedTuple):
    """An error that a Redis, or a cluster of them, answers to all commands but a few, which a proxy does for it."""

    error: str
    passes: frozenset[bytes] = frozenset((b"HELLO", b"AUTH", b"CLIENT", b"SELECT", b"INFO"))

    @property
    def says(self) -> str:
        return self.error.partition(" ")[2]

    def __call__(self, said: bytes) -> bytes:
        """The answers to the commands in what a client says; none if they pass."""
        commands = _COMMAND.findall(said)
        if self.passes.issuperset(commands):
            return b""
        aborted = "EXECABORT Transaction discarded because of previous errors."
        return b"".join([f"-{aborted if each == b'EXEC' else self.error}\r\n".encode() for each in commands])


class AmqpRefusal(NamedTuple):
    """The same of a RabbitMQ, in Erlang's words."""

    begin: tuple[str, ...]
    end: str
    says: str


def demote(server: services.Redis, client: redis.Redis) -> None:
    client.replicaof(services.LOOPBACK, str(services.free_port()))


def lose_master(server: services.Redis, client: redis.Redis) -> None:
    client.config_set("replica-serve-stale-data", "no")
    demote(server, client)


def fill_disk(server: services.Redis, client: redis.Redis) -> None:
    """Have it fail to save, as on a full disk: a folder has the name of its file."""
    (server.folder / "dump.rdb").mkdir()
    client.config_set("save", "3600 1")
    client.bgsave()
    until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", 30, what="a failed save")


def free_disk(server: services.Redis, client: redis.Redis) -> None:
    (server.folder / "dump.rdb").rmdir()
    client.bgsave()
    until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "ok", 30, what="a save")


def forbid(*rules: str) -> Callable[[services.Redis, redis.Redis], object]:
    return lambda _, client: client.execute_command("ACL", "SETUSER", "default", *rules)


def take_password(server: services.Redis, client: redis.Redis) -> None:
    client.config_set("requirepass", "another")
    client.auth("another")
    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def give_password(server: services.Redis, client: redis.Redis) -> None:
    client.config_set("requirepass", "")


REFUSALS: Mapping[str, Refusal] = {
    "full": Refusal(
        lambda _, client: client.config_set("maxmemory", "1mb"), lambda _, client: client.config_set("maxmemory", 0),
        "when used memory > 'maxmemory'", ("--maxmemory-policy", "noeviction"),
    ),
    "demoted": Refusal(demote, lambda _, client: client.replicaof("NO", "ONE"), "read only replica"),
    "without its master": Refusal(
        lose_master, lambda _, client: client.replicaof("NO", "ONE"), "Link with MASTER is down"
    ),
    "unsaved": Refusal(fill_disk, free_disk, "MISCONF"),
    "no permission": Refusal(forbid("-@all", "+acl", "+ping", "+client"), forbid("+@all"), "no permissions"),
    "no acknowledgement": Refusal(forbid("-zrem"), forbid("+zrem"), "no permissions"),
    "wrong password": Refusal(take_password, give_password, "Authentication required"),
    "no replica": Refusal(
        lambda _, client: client.config_set("min-replicas-to-write", 1),
        lambda _, client: client.config_set("min-replicas-to-write", 0), "NOREPLICAS",
    ),
}  # fmt: skip

_WITH_PING = Answer("").passes | {b"PING"}
ANSWERS: Mapping[str, Answer] = {
    "loading": Answer("LOADING Redis is loading the dataset in memory"),
    "busy": Answer("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."),
    "cluster is down": Answer("CLUSTERDOWN The cluster is down", _WITH_PING),
    "slot moves": Answer("TRYAGAIN Multiple keys request during rehashing of slot", _WITH_PING),
}

USER = "rabbit_auth_backend_internal:change_password"
OVER_RABBITMQ: Mapping[str, AmqpRefusal] = {
    "rabbitmq full": AmqpRefusal(
        ("vm_memory_monitor:set_vm_memory_high_watermark(0.00001)",),
        "vm_memory_monitor:set_vm_memory_high_watermark(0.8)", "no answer in time",
    ),
    "rabbitmq with another password": AmqpRefusal(
        (f'{USER}(<<"alice">>, <<"other">>, <<"test">>)', 'rabbit_networking:close_all_connections("moved")'),
        f'{USER}(<<"alice">>, <<"{services.PASSWORD}">>, <<"test">>)', "ACCESS_REFUSED",
    ),
}  # fmt: skip
KINDS = {**REFUSALS, **ANSWERS, **OVER_RABBITMQ}


@contextmanager
def refused(kind: str, **options: Any) -> Iterator[Stage]:
    with ExitStack() as stack:
        over = over_rabbitmq if kind in OVER_RABBITMQ else over_proxy if kind in ANSWERS else over_redis
        begin, end, url = stack.enter_context(over(kind))
        outbox = f"sqlite:///{services.new_folder('outbox')}/outbox.db"
        whole = stack.enter_context(system(outbox, url, concurrency=1, **options))
        sources = source_worker(whole.settings)
        stack.callback(stop_all, [sources])
        yield Stage(whole, [*whole.roles, sources], begin, end)


Broker = tuple[Callable[[], object], Callable[[], object], str]  # how it begins and ends to refuse, and its URL


@contextmanager
def over_redis(kind: str) -> Iterator[Broker]:
    refusal = REFUSALS[kind]
    with services.redis(extra=refusal.extra) as server, server.client() as client:
        client.ping()  # so that it has its connection before anything is refused
        yield lambda: refusal.begin(server, client), lambda: refusal.end(server, client), server.url


@contextmanager
def over_proxy(kind: str) -> Iterator[Broker]:
    with services.redis() as server, services.proxy(server.port) as wire:
        url = server.url.replace(f":{server.port}", f":{wire.port}")
        yield lambda: wire.reply(ANSWERS[kind]), wire.heal, url


@contextmanager
def over_rabbitmq(kind: str) -> Iterator[Broker]:
    refusal = OVER_RABBITMQ[kind]
    with services.rabbitmq() as server:
        yield (
            lambda: [evaluated(server, each) for each in refusal.begin],
            lambda: evaluated(server, refusal.end),
            server.url,
        )


class ListeningFlower(Flower):
    """Flower, ready when it has heard of a worker: what it asks workers it asks once, and then for each page."""

    def ping(self) -> None:
        assert self.ask("/workers?json=1")["data"]


@dataclass
class Stage:
    """The service, and how its broker begins and ends to refuse."""

    whole: System
    roles: list[Role]
    begin: Callable[[], object]
    end: Callable[[], object]
    posted: int = 0

    def post(self) -> None:
        assert self.whole.post(body(*some("images", 2, first=self.posted)))["recorded"] == 2
        self.posted += 2

    def delivered(self) -> bool:
        return self.whole.counters()["webhook:all"].delivered == self.posted

    def lines(self, text: str) -> dict[str, int]:
        return {" ".join(role.arguments): role.said().count(text) if role.log.exists() else 0 for role in self.roles}

    def works_again(self) -> bool:
        return self.lines(WORKS) == self.lines(FAILS)

    def check(self) -> None:
        """Nobody has ended, or has said more than once what is wrong."""
        assert all(role.running for role in self.roles)
        assert sum(self.lines("Traceback").values()) == 0
        for role in self.roles:
            said = [line for line in role.said().splitlines() if FAILS in line]
            assert all(LINE.match(line) for line in said), said
        failed = self.lines(FAILS)
        assert failed.pop("api") <= 2, "one for each process"
        assert max(failed.values()) == 1


@pytest.mark.promise
@pytest.mark.parametrize("kind", [kind if kind in USUAL else pytest.param(kind, marks=NIGHTLY) for kind in KINDS])
def test_a_broker_that_refuses_ends_no_process_and_all_is_delivered_when_it_does_not(
    kind: str, receiver: services.Receiver
) -> None:
    with refused(kind) as stage:
        start_all(stage.roles[-1:])
        stage.whole.add_target("webhook:all", endpoint=receiver.url)
        stage.post()
        until(stage.delivered, PATIENCE, what="the first events delivered")
        stage.begin()
        began = time.monotonic()
        until(lambda: stage.post() or time.monotonic() - began > SECONDS, PATIENCE, what="several attempts")
        until(lambda: sum(stage.lines(FAILS).values()), PATIENCE, what="what is wrong")
        assert KINDS[kind].says.removesuffix(".") in "".join(role.said() for role in stage.roles)
        stage.end()
        until(stage.works_again, PATIENCE, what="that it works again")
        until(stage.delivered, PATIENCE, what="everything delivered")
        stage.check()


@NIGHTLY
@pytest.mark.parametrize("kind", ["demoted", "loading", "no permission", "unsaved"])
def test_processes_that_start_while_the_broker_refuses_wait_for_it(kind: str, receiver: services.Receiver) -> None:
    with refused(kind, start=False) as stage, ThreadPoolExecutor() as pool, ExitStack() as stack:
        stage.roles.append(flower := ListeningFlower([], stage.whole.settings))
        stack.callback(stop_all, [flower])
        stage.begin()
        waiting = [pool.submit(role.start) for role in stage.roles]
        workers = {name for name in stage.lines("") if name.startswith("worker")}
        try:
            until(lambda: all(stage.lines(FAILS)[name] for name in workers), PATIENCE, what="what is wrong")
        finally:
            stage.end()
        for started in waiting:
            started.result()
        stage.whole.add_target("webhook:all", endpoint=receiver.url)
        stage.post()  # once: a busy machine may never have delivered all of what is posted again and again
        until(stage.delivered, PATIENCE, what="everything delivered")
        assert all(role.running for role in stage.roles)
        assert sum(stage.lines("Traceback").values()) == 0
        assert max(stage.lines(FAILS).values()) == 1


@pytest.mark.nightly("what Celery sends from the loop is tried once: tests/unit/workers")
def test_a_redis_that_stands_still_is_said_by_workers_that_go_on_recording_that_they_are_there(tmp_path: Path) -> None:
    with (
        services.redis() as server,
        system(f"sqlite:///{tmp_path}/outbox.db", server.url, concurrency=1, start=False) as whole,
    ):
        workers = [whole.drain, *whole.workers]
        start_all(workers)
        server.freeze()
        until(lambda: all(FAILS in role.said() for role in workers), PATIENCE, what="what is wrong")

        def problems() -> list[tuple[str, str]]:
            with whole.database.reading() as connection:
                known, now = read_processes(connection), database_now(connection)
            return [(one.state(now), one.problem) for one in known]

        until(lambda: {state for state, _ in problems()} == {HINDERED}, PATIENCE, what="heartbeats with a reason")
        assert all("cannot be used" in problem for _, problem in problems())
        server.thaw()
        until(lambda: all(WORKS in role.said() for role in workers), PATIENCE, what="that it works again")
        until(lambda: {state for state, _ in problems()} == {RUNNING}, PATIENCE, what="that they serve again")
        assert [role.said().count(FAILS) for role in workers] == [1] * len(workers)


@NIGHTLY
def test_workers_can_be_stopped_while_the_broker_refuses() -> None:
    with refused("demoted") as stage:
        start_all(stage.roles[-1:])
        stage.begin()
        workers = [role for role in stage.roles if role.arguments[-1] in ("drain", "sources")]
        until(lambda: all(FAILS in role.said() for role in workers), PATIENCE, what="what is wrong")
        stop_all(stage.roles)
        assert sum(stage.lines("Traceback").values()) == 0
