"""Sum up the service: its checks, targets and counters, and its processes by their heartbeats."""

from collections import Counter
from collections.abc import Iterable, Mapping

from flask import Blueprint

from app.api.description import answers
from app.api.errors import ApiProblem
from app.api.routes.health import readiness
from app.api.services import services
from app.api.token_scopes import ADMIN, READ, needs
from app.outbox import heartbeats
from app.outbox.admin.counters import read_status
from app.outbox.delivery.leases import lease_holders, leased_partitions
from app.outbox.engine.clock import database_now
from app.outbox.processes import ENDED, SILENT, forget_host, listed_processes, read_processes, read_queues
from app.outbox.processes import Process as KnownProcess
from app.outbox.sources.stored import read_sources
from app.release import VERSION
from app.resources.declaration import TEXT, format_time
from app.resources.service import Drain, OtherProcess, Process, Processes, Status, WorkerQueue
from app.resources.target import Counters

routes = Blueprint("status", __name__)


@routes.get("/v1/status")
@needs(READ)
@answers(Status, "the state of the service")
def status() -> Status:
    """Return the version, the checks of /readyz, the targets by state, and the sums of their counters."""
    with services().database.snapshot() as connection:
        statuses = read_status(connection)
        now = database_now(connection)
    ready, checks = readiness()
    sums = {name: sum(getattr(one.counters, name) for one in statuses) for name in Counters.__struct_fields__}
    oldest = [one.counters.oldest for one in statuses if one.counters.oldest]
    return Status(
        version=VERSION,
        region=services().settings.region,
        ready=ready,
        checks=checks,
        targets=Counter(one.stored.state for one in statuses),
        events=Counters(**sums),
        oldest_age=max(0, now - min(oldest)) / 1000 if oldest else None,
    )


@routes.get("/v1/processes")
@needs(READ)
@answers(Processes, "the processes")
def processes() -> Processes:
    """Return the processes by their heartbeats, when the drain ran, and since when each target's queue is served.

    Each records a heartbeat every 5 seconds, with its version and what it serves. One that was killed is silent after
    30 seconds, an API after 20, and is listed until another one has replaced it, for a day at most. One that lost the
    broker, and an API that does not answer at its address, is hindered. `served` is false 45 seconds after the last
    heartbeat of a worker that serves the queue.
    """
    with services().database.snapshot() as connection:
        drained = heartbeats.last_drain(connection)
        now = database_now(connection)
        known = read_processes(connection)
        queues = read_queues(connection, known, now)
        leased = leased_partitions(connection, now)
        holders = lease_holders(connection, now)
        sources = read_sources(connection)
    pulling = [(stored.holder, str(stored.source)) for stored in sources if stored.leased_until > now]
    own = {holder for one in known for holder in one.holders}
    age = heartbeats.drain_age(drained, now)
    arns = {queue.row_id: queue.target.arn(services().settings.region) for queue in queues}
    return Processes(
        flower=services().settings.flower_url or None,
        drain=Drain(running=not heartbeats.drain_stopped(drained, now), age=None if age is None else age / 1000),
        processes=[_process(one, holders, arns, pulling, now) for one in listed_processes(known, now)],
        queues=[
            WorkerQueue(
                target=queue.target.arn(services().settings.region),
                served_at=format_time(queue.served_at),
                age=queue.heartbeat_age(now) / 1000,
                served=queue.is_served(now),
                refused=queue.refused,
                leased_partitions=leased.get(queue.row_id, 0),
            )
            for queue in queues
        ],
        other_processes=[_other_process(name, held, arns) for name, held in sorted(holders.items()) if name not in own],
    )


@routes.delete("/v1/processes/<name>")
@needs(ADMIN)
@answers(None, "they are forgotten", status=204, path={"name": "of their host"})
def forget(name: str) -> None:
    """Forget the processes of a host that fell silent, and an API or a beat of it that ended: they are missed no more.

    One that is there after all is listed again with its next heartbeat.
    """
    if not forget_host(services().database, TEXT.read("name", name)):
        raise ApiProblem("not-found", f"no process of {name} is silent; `bucketwire process ls` lists them")


def _process(
    process: KnownProcess,
    holders: Mapping[str, Mapping[int, int]],
    arns: Mapping[int, str],
    pulling: Iterable[tuple[str, str]],
    now: int,
) -> Process:
    own, state = set(process.holders), process.state(now)
    leased = Counter[int]()
    for holder in own & holders.keys():
        leased.update(holders[holder])
    return Process.of(
        process,
        processes=list(process.processes),
        serves=list(process.serves),
        jobs=list(process.jobs),
        refused={target: refusal.reason for target, refusal in process.refused.items()},
        state=state,
        targets=[arns[row_id] for row_id in sorted(leased) if row_id in arns],
        leased_partitions=leased.total(),
        sources=[source for holder, source in pulling if holder in own],
        heartbeat_at=format_time(process.at),
        age=process.age(now) / 1000,
        alive=state not in (SILENT, ENDED),
    )


def _other_process(name: str, held: Mapping[int, int], arns: Mapping[int, str]) -> OtherProcess:
    host, _, pid = name.rpartition(":")
    return OtherProcess(
        host=host,
        pid=int(pid) if pid.isdigit() else 0,
        leased_partitions=sum(held.values()),
        targets=[arns[row_id] for row_id in sorted(held) if row_id in arns],
    )
