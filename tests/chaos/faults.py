"""Carry out a fault: kill or stop a process, hurt the network or a queue, and bring it back."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import amqp
import psutil

from app.broker import queue_name
from app.config.arn import TargetId
from tests.chaos.plan import DELAY, DRIP, HANG, KILL, MEMORY, NETWORK, PULLER, QUEUE, STANDBY, Fault
from tests.services import RabbitMQ, Redis, Server, reaper, until
from tests.services.proxy_process import FarProxy
from tests.services.sql import Postgres
from tests.support.fault_injection import Failover, Servers
from tests.support.pulled_traffic import pullers
from tests.support.rabbitmq import evaluated
from tests.support.service_processes import Role, System

MEANWHILE = 10
SECONDS_PER_BYTE = 1.0  # of a target that drips


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
    if fault.action in NETWORK:
        return _network(fault.action, servers.proxies[fault.part])
    if fault.part in (QUEUE, MEMORY):
        return _refusing(fault.part, servers.broker)
    if fault.part == STANDBY:
        return _failed_over(servers)
    if fault.part.endswith("child"):
        role = whole.api if fault.part.startswith("API") else worker
        return _child(role, fault, signal.SIGKILL if kill else signal.SIGSTOP)
    if fault.part == "worker's parent":
        return started_again(worker.kill_alone, worker) if kill else _stopped(lambda: worker.pid)
    server = _puller(whole, servers) if fault.part == PULLER else _servers(whole, servers, worker)[fault.part]
    assert server is not None, f"there is no {fault.part}"
    return started_again(server.kill, server) if kill else Effect(server.freeze, _once(server.thaw))


def _network(action: str, wire: FarProxy) -> Effect:
    """Swallow everything, pass answers byte by byte, or keep one connection's bytes back."""
    begins = {HANG: wire.swallow, DRIP: lambda: wire.drip(SECONDS_PER_BYTE), DELAY: wire.hold_next}
    return Effect(begins[action], _once(wire.release if action == DELAY else wire.heal))


def _refusing(part: str, broker: Redis | RabbitMQ) -> Effect:
    if part == MEMORY:
        return _full(broker)
    assert isinstance(broker, RabbitMQ)
    return _refused(broker, queue_name(TargetId("redis", "list")))


def _refused(broker: RabbitMQ, queue: str) -> Effect:
    """Replace a queue by one of the same name that the service may not declare as its own."""

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
        for step in (
            Step(fault.at * seconds, effect.begin),
            Step((fault.at + fault.lasts) * seconds, effect.end),
        )
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
