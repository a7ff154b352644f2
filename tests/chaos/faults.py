"""Carry out a fault: kill or stop a process, hurt the network or a queue, and bring it back."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import amqp
import httpx
import psutil

from app.broker import queue_name
from app.config.arn import TargetId
from tests.chaos.plan import (
    BODIES,
    CONNECTIONS,
    DELAY,
    DRIP,
    HANG,
    INTERIM,
    KILL,
    MEMORY,
    NETWORK,
    PULLER,
    QUEUE,
    SINGLE,
    SNAPSHOT,
    STANDBY,
    Fault,
)
from tests.services import RabbitMQ, Redis, Server, reaper, until
from tests.services.proxy_process import FarProxy
from tests.services.sql import Postgres
from tests.support.fault_injection import Failover, Servers
from tests.support.growing_bodies import bodies_that_grow
from tests.support.pulled_traffic import pullers
from tests.support.rabbitmq import evaluated
from tests.support.service_processes import Role, System

MEANWHILE = 10
SECONDS_PER_BYTE = 1.0  # of a target that drips
INTERIM_SHARE = 0.5  # of the answers that others come before


@dataclass
class Effect:
    """A fault that can be carried out: `end` brings back what `begin` took, and does nothing a second time.

    `wait` returns when it is back.
    """

    begin: Callable[[], None]
    end: Callable[[], None]
    wait: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Step:
    """Something to do `at` so many seconds after the first; `last` brings back the last thing that is away."""

    at: float
    act: Callable[[], None]
    last: bool = False


def effects(faults: Sequence[Fault], whole: System, servers: Servers) -> list[Effect]:
    """What the faults of one round are in this system; two that meet a worker meet different ones."""
    first = int(faults[0].pick * len(whole.workers))
    workers = [whole.workers[(first + number) % len(whole.workers)] for number in range(len(faults))]
    return [_effect(fault, worker, whole, servers) for fault, worker in zip(faults, workers, strict=True)]


def _effect(fault: Fault, worker: Role, whole: System, servers: Servers) -> Effect:
    kill = fault.action == KILL
    if fault.action in (*NETWORK, INTERIM):
        return _network(fault.action, servers.proxies[fault.part])
    if fault.part in SINGLE:
        return _single(fault.part, whole, servers)
    if fault.part.endswith("child"):
        role = whole.api if fault.part.startswith("API") else worker
        return _child(role, fault, signal.SIGKILL if kill else signal.SIGSTOP)
    if fault.part == "worker's parent":
        return started_again(worker.kill_alone, worker) if kill else _stopped(lambda: worker.pid)
    server = _puller(whole, servers) if fault.part == PULLER else _servers(whole, servers, worker)[fault.part]
    assert server is not None, f"there is no {fault.part}"
    return started_again(server.kill, server) if kill else Effect(server.freeze, _once(server.thaw))


def _network(action: str, wire: FarProxy) -> Effect:
    """Swallow everything, pass answers byte by byte or after others, or keep one connection's bytes back."""
    begins = {
        HANG: wire.swallow,
        DRIP: lambda: wire.drip(SECONDS_PER_BYTE),
        DELAY: wire.hold_next,
        INTERIM: lambda: wire.precede(INTERIM_SHARE),
    }
    return Effect(begins[action], _once(wire.release if action == DELAY else wire.heal))


def _single(part: str, whole: System, servers: Servers) -> Effect:
    effects: dict[str, Callable[[], Effect]] = {
        BODIES: lambda: _growing(whole),
        CONNECTIONS: lambda: _network(HANG, servers.proxies["database"]),
        MEMORY: lambda: _full(servers.broker),
        QUEUE: lambda: _refused(servers.broker),
        SNAPSHOT: lambda: _old_snapshot(servers),
        STANDBY: lambda: _failed_over(servers),
    }
    return effects[part]()


def _growing(whole: System) -> Effect:
    """Post bodies that have to be refused, one after the other; `wait` fails for one that was not."""
    over, answers, bodies = threading.Event(), Counter[int](), cycle(bodies_that_grow())
    posting: list[Future[None]] = []

    def post() -> None:
        with httpx.Client(timeout=60, trust_env=False) as client:
            while not over.wait(0.1):
                content, headers = next(bodies)
                answers[client.post(f"{whole.api.url}/v1/events", content=content, headers=headers).status_code] += 1

    def begin() -> None:
        threads = ThreadPoolExecutor(1)
        posting.append(threads.submit(post))
        threads.shutdown(wait=False)

    def wait() -> None:
        while posting:
            posting.pop().result()
            assert answers[413], f"no body that grows was refused: {dict(answers)}"
            assert set(answers) <= {413, 503}, f"bodies that grow were answered {dict(answers)}"

    return Effect(begin, over.set, wait)


def _old_snapshot(servers: Servers) -> Effect:
    """Hold a snapshot of the outbox open, as a dump does, and see at the end that it was."""
    connections, counts = ExitStack(), list[object]()
    assert servers.database is not None
    database = servers.database
    begins = "BEGIN ISOLATION LEVEL REPEATABLE READ" if isinstance(database, Postgres) else "START TRANSACTION"

    def begin() -> None:
        cursor = connections.enter_context(database.connection("outbox")).cursor()
        cursor.execute(begins)
        connections.callback(count, cursor)
        count(cursor)

    def count(cursor: Any) -> None:
        cursor.execute("SELECT COUNT(*) FROM events")
        counts.append(cursor.fetchone())

    def end() -> None:
        connections.close()
        assert len(set(counts)) == 1, f"the snapshot was not held: it had {counts} events"

    return Effect(begin, _once(end))


def _refused(broker: Redis | RabbitMQ) -> Effect:
    """Replace a queue by one of the same name that the service may not declare as its own."""
    assert isinstance(broker, RabbitMQ)
    queue = queue_name(TargetId("redis", "list"))

    def replace() -> None:
        with broker.connection() as connection:
            connection.channel().queue_delete(queue)
            connection.channel().queue_declare(queue, durable=True, auto_delete=False)

    def remove() -> None:
        with broker.connection() as connection, contextlib.suppress(amqp.NotFound):
            connection.channel().queue_delete(queue)

    return Effect(replace, _once(remove))


def _full(broker: Redis | RabbitMQ) -> Effect:
    """Have the broker reach its memory limit, at which Redis refuses what it would have to store."""

    def limit(share: float, size: int) -> None:
        if isinstance(broker, RabbitMQ):
            evaluated(broker, f"vm_memory_monitor:set_vm_memory_high_watermark({share:.5f})")
        else:
            with broker.client() as client:
                client.config_set("maxmemory", size)

    return Effect(lambda: limit(0.00001, 1), _once(lambda: limit(0.4, 0)))


def _failed_over(servers: Servers) -> Effect:
    """Stop a standby of the outbox's database, which lags behind from then on, and let it take over in the end."""
    primary = servers.database
    assert isinstance(primary, Postgres)
    standbys: list[Postgres] = []

    def lag() -> None:
        standbys.append(Postgres(primary.durable, primary).start())
        until(standbys[0].caught_up, 60, what="a standby that has caught up")
        standbys[0].stop()

    def take_over() -> None:
        if standbys:
            primary.kill()
            standbys[0].port = primary.port
            servers.database = standbys[0].start()
            with standbys[0].connection("outbox") as connection, connection.cursor() as cursor:
                cursor.execute("SELECT id FROM events")
                event_ids = frozenset(event_id for (event_id,) in cursor)
            servers.failovers.append(Failover(event_ids, time.monotonic()))
            standbys[0].promote()

    return Effect(lag, _once(take_over))


def _servers(whole: System, servers: Servers, worker: Role) -> dict[str, Server | None]:
    return {
        "API": whole.api,
        "beat": whole.beat,
        "drain": whole.drain,
        "worker": worker,
        "broker": servers.broker,
        "database": servers.database,
        "Redis target": servers.redis,
        "PostgreSQL target": servers.postgres,
        "webhook target": servers.receiver,
        **servers.queues,
    }


def _puller(whole: System, servers: Servers) -> Role:
    """The worker that pulls from most sources: another one has to take them over."""
    holders = pullers(whole)
    return max(servers.source_workers, key=lambda role: sum(holders[each.pid] for each in reaper.family(role.pid)))


def _child(role: Role, fault: Fault, number: signal.Signals) -> Effect:
    def pick() -> int:
        children = sorted(role.children(), key=lambda process: process.pid)
        some = _at_work(children) or children
        return some[int(fault.pick * len(some))].pid

    if number is signal.SIGSTOP:
        return _stopped(pick)
    return Effect(lambda: os.kill(pick(), number), lambda: None)


def _at_work(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those that are doing something: what is stopped shall have something in hand."""
    before = [process.cpu_times() for process in processes]
    time.sleep(0.05)
    return [process for process, then in zip(processes, before, strict=True) if process.cpu_times() != then]


def _stopped(pick: Callable[[], int]) -> Effect:
    """SIGSTOP one process alone, and SIGCONT it if it still lives."""
    stopped: list[psutil.Process] = []

    def begin() -> None:
        stopped.append(psutil.Process(pick()))
        stopped[0].suspend()

    def end() -> None:
        while stopped:
            with contextlib.suppress(psutil.NoSuchProcess):  # by its number and its start: never another process
                stopped.pop().resume()

    return Effect(begin, end)


def started_again(kill: Callable[[], None], server: Server) -> Effect:
    """Start it in a thread: what it needs may be stopped until a later step."""
    starts: list[Future[object]] = []

    def start() -> None:
        threads = ThreadPoolExecutor(1)
        starts.append(threads.submit(server.start))
        threads.shutdown(wait=False)

    def wait() -> None:
        while starts:
            starts.pop().result()

    return Effect(kill, _once(start), wait)


def _once(act: Callable[[], object]) -> Callable[[], None]:
    left = [act]

    def end() -> None:
        if left:
            left.pop()()

    return end


def timeline(faults: Sequence[Fault], effects: Sequence[Effect], seconds: float) -> list[Step]:
    """What to do and when, `seconds` being three leases; the last step is the last that brings something back."""
    steps = [
        step
        for fault, effect in zip(faults, effects, strict=True)
        for length in [fault.lasts * seconds if fault.seconds is None else fault.seconds]
        for step in (Step(fault.at * seconds, effect.begin), Step(fault.at * seconds + length, effect.end))
    ]
    steps.sort(key=lambda step: step.at)  # stable: each begins before it ends
    steps[-1] = Step(steps[-1].at, steps[-1].act, last=True)
    return steps


def carry_out(steps: Sequence[Step], meanwhile: Callable[[], None], before_last: Callable[[], None]) -> None:
    """Take the steps at their times; `meanwhile` is called `MEANWHILE` times while something is away."""
    began, length, called = time.monotonic(), max(step.at for step in steps), 0
    for step in steps:
        while (left := began + step.at - time.monotonic()) > 0:
            time.sleep(min(left, length / MEANWHILE / 2))
            while called < MEANWHILE * min(1.0, (time.monotonic() - began) / length) - 1:
                called += 1
                meanwhile()
        if step.last:
            before_last()
        step.act()
