"""Record the processes of the service and the certificates that they meet, and find out who serves what or fell silent.

The main process of each worker, of beat and of each API records a heartbeat every few seconds. With a problem it only
says that it is there. Without one it claims that it has just served, and no more than it knows:

- a worker: its loop runs, on a connection to a broker that has not failed for some seconds, and consumes the queues of
  what it serves, but those that the broker refuses to it. Not that a process of its pool is free. One that pulls from
  sources does without the broker; whether a source is pulled from is known of the source.
- beat: its loop has ended a turn, and the broker takes its messages.
- an API: one of its processes has answered a request at its address.

A process that ends says so. One that was killed falls silent.

Of certificates it is kept when those are valid that targets and sources meet and use, those of the APIs, and those that
the APIs meet. What was seen with other settings does not count: it has another revision.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.tls import Validity
from app.outbox import audit, tables
from app.outbox.column_values import clean_reason
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks, repeated_after_deadlock
from app.outbox.policies import CERTIFICATES, HEARTBEATS

# What a process serves; a worker also types and names of targets.
API, BEAT, DRAIN, ALL_TARGETS, SOURCES, SPARK = "api", "beat", "drain", "targets", "sources", "spark"
RUNNING, HINDERED, SILENT, ENDED = "running", "hindered", "silent", "ended"
STATES = (RUNNING, HINDERED, SILENT, ENDED)

_W = tables.workers.c


class Refusal(NamedTuple):
    """Why the broker refuses a target's queue to a worker, and since when (ms)."""

    since: int
    reason: str


class MetCertificate(NamedTuple):
    """A certificate that an API has met: of what it connects to, such as `broker`; "": at its own address."""

    of: str
    name: str  # the address
    valid: Validity
    seen_at: int  # when it was last met (ms)


@dataclass(frozen=True, slots=True)
class Process:
    """A process, by its last heartbeat. Times are ms by the database's clock, 0 for never."""

    id: str  # as a fencing token: it begins with `HOST:PID:` of the main process
    name: str  # WHAT@HOST; a worker's is known to Celery
    version: str
    pool: str
    serves: Sequence[str]
    processes: Sequence[int] = ()  # ids of its pool's processes
    # What it runs at the moment beside deliveries, such as a reconciliation; of an API what waits in its spool folder.
    jobs: Sequence[str] = ()
    address: str = ""  # URL at which it answers
    problem: str = ""  # why it does not serve at the moment
    refused: Mapping[str, Refusal] = field(default_factory=dict)  # by `type:name` of targets that it would serve
    started_at: int = 0
    at: int = 0
    served_at: int = 0  # of its last heartbeat without a problem
    ended_at: int = 0
    certificates: Sequence[MetCertificate] = ()  # that an API presents, and those that its connections meet

    @property
    def host(self) -> str:
        """The host's whole name; that in the id may be cut."""
        return self.name.rpartition("@")[2] if "@" in self.name else self._place[0]

    @property
    def pid(self) -> int:
        """The id of its main process."""
        return int(self._place[1])

    @property
    def holders(self) -> list[str]:
        """Its processes as the leases that they hold name them, `HOST:PID`."""
        return [f"{self._place[0]}:{pid}" for pid in sorted({self.pid, *self.processes})]

    @property
    def _place(self) -> list[str]:
        return self.id.split(":")

    @property
    def is_worker(self) -> bool:
        """Whether it is neither an API nor beat."""
        return not {API, BEAT}.intersection(self.serves)

    def age(self, now: int) -> int:
        """Return the milliseconds since its last heartbeat."""
        return max(0, now - self.at)

    def state(self, now: int) -> str:
        """Return its state; it is hindered if it is there, but has not served for some time."""
        if self.ended_at:
            return ENDED
        silence = HEARTBEATS.api_silence_ms if API in self.serves else HEARTBEATS.silence_ms
        if self.age(now) > silence:
            return SILENT
        return HINDERED if now - self.served_at > silence else RUNNING

    def serves_target(self, target: TargetId) -> bool:
        """Return whether the target is among those that it was told to serve, refused or not."""
        return not {ALL_TARGETS, target.type, str(target)}.isdisjoint(self.serves)

    def covers(self, other: "Process") -> bool:
        """Return whether it serves all that another one serves."""
        return all(serves(self.serves, what) for what in other.serves)


def serves(served: Sequence[str], what: str) -> bool:
    """Return whether a process that serves these serves something: a type serves its targets, `targets` all."""
    return what in served or what.partition(":")[0] in served or (ALL_TARGETS in served and is_targets(what))


def is_targets(served: str) -> bool:
    """Return whether something that a process serves is a type or a name of targets, or all of them."""
    return served not in (API, BEAT, DRAIN, SOURCES, SPARK)


def record_process(
    database: Database, process: Process, refused: Mapping[str, str] = MappingProxyType({}), *, age: int = 0
) -> Process:
    """Record a heartbeat; return the process with the times that were recorded. Raises `DatabaseUnavailable`.

    `refused` are the targets whose queues the broker refuses, with its reasons. `age` is how long ago (ms) that is what
    the heartbeat says.
    """
    with database.writing() as connection:
        at = database_now(connection) - age
        process = replace(
            process,
            problem=_short(process.problem),
            refused=_refusals(process.refused, refused, at),
            started_at=process.started_at or at,
            at=at,
            served_at=process.served_at if process.problem else at,
            ended_at=0,
        )
        values = _columns(process)
        if not connection.execute(tables.workers.update().where(_W.id == process.id).values(values)).rowcount:
            connection.execute(tables.workers.insert().values(id=process.id, **values))
    return process


def _columns(process: Process) -> dict[str, Any]:
    return {
        "name": process.name,
        "version": process.version,
        "pool": process.pool,
        "serves": orjson.dumps(list(process.serves)).decode(),
        "processes": orjson.dumps(list(process.processes)).decode(),
        "jobs": orjson.dumps(list(process.jobs)).decode(),
        "refused": orjson.dumps({name: [*refusal] for name, refusal in process.refused.items()}).decode(),
        "address": process.address or None,
        "problem": process.problem or None,
        "started_at": process.started_at,
        "at": process.at,
        "served_at": process.served_at,
        "ended_at": None,
        "certificates": orjson.dumps([[*one[:2], *one.valid, one.seen_at] for one in process.certificates]).decode(),
    }


def _refusals(known: Mapping[str, Refusal], refused: Mapping[str, str], at: int) -> dict[str, Refusal]:
    """Return the refusals with their times; of very many, only the first have their reasons."""
    reasons = {
        name: _short(reason) if number < HEARTBEATS.max_refused_reasons else ""
        for number, (name, reason) in enumerate(sorted(refused.items()))
    }
    return {name: Refusal(min(known.get(name, (at,))[0], at), reason) for name, reason in reasons.items()}


def _short(reason: str) -> str:
    return clean_reason(reason)[: HEARTBEATS.max_reason_characters]


def end_process(database: Database, process_id: str) -> None:
    """Record that a process ends. Raises `DatabaseUnavailable`."""
    with database.writing() as connection:
        ended = tables.workers.update().where(_W.id == process_id, _W.ended_at.is_(None))
        connection.execute(ended.values(ended_at=database_now(connection)))


@repeated_after_deadlock
def forget_host(database: Database, host: str) -> bool:
    """Forget the processes of a host that are missed; return whether there were any. Raises `DatabaseUnavailable`.

    A worker counts as ended, because it is still known since when nobody serves what it served.
    """
    with database.writing() as connection:
        now = database_now(connection)
        missed = [one for one in listed_processes(read_processes(connection), now) if one.state(now) in (SILENT, ENDED)]
        of_host = [one for one in missed if one.host == host]
        for one in of_host:
            here = _W.id == one.id
            if one.is_worker:
                connection.execute(tables.workers.update().where(here, _W.at == one.at).values(ended_at=one.at))
            else:
                connection.execute(tables.workers.delete().where(here, _W.at == one.at))
        if of_host:
            names = [one.name for one in of_host]
            audit.record(connection, "process.forget", f"host:{host}", {"processes": names})
    return bool(of_host)


def read_processes(connection: sa.Connection) -> list[Process]:
    """Return all processes that are remembered, sorted by name and id."""
    return [_process(row) for row in connection.execute(sa.select(tables.workers).order_by(_W.name, _W.id))]


def read_process(connection: sa.Connection, process_id: str) -> Process | None:
    """Return a process, None if it is not known."""
    row = connection.execute(sa.select(tables.workers).where(_W.id == process_id)).one_or_none()
    return None if row is None else _process(row)


def _process(row: Any) -> Process:
    refused = orjson.loads(row.refused or "{}")
    return Process(
        id=row.id,
        name=row.name,
        version=row.version,
        pool=row.pool,
        serves=orjson.loads(row.serves),
        processes=orjson.loads(row.processes),
        jobs=orjson.loads(row.jobs),
        address=row.address or "",
        problem=row.problem or "",
        refused={name: Refusal(*refusal) for name, refusal in refused.items()},
        started_at=row.started_at,
        at=row.at,
        # Code from before migration 0021 records workers while they serve.
        served_at=row.at if row.served_at is None else row.served_at,
        ended_at=row.ended_at or 0,
        certificates=tuple(
            MetCertificate(of, name, Validity(begins_at, ends_at), seen_at)
            for of, name, begins_at, ends_at, seen_at in orjson.loads(row.certificates or "[]")
        ),
    )


def forget_ended(database: Database, now: int) -> None:
    """Delete the processes that ended or fell silent a day ago, or as one of very many.

    The last one of those that served the same stays, because it says since when nobody serves that.
    """
    with database.reading() as connection:
        ids = forgettable(read_processes(connection), now)
    for some in chunks(ids):
        with database.committing() as connection:
            # One that was only stopped for a day is there again.
            long_ago = _W.at < now - HEARTBEATS.silence_ms
            connection.execute(tables.workers.delete().where(_W.id.in_(some), sa.or_(long_ago, _W.ended_at > 0)))


def forgettable(processes: Iterable[Process], now: int) -> list[str]:
    """Return the ids of the processes that need not be remembered any more."""
    newest: dict[tuple[str, ...], str] = {}
    gone: list[Process] = []
    for process in sorted(processes, key=lambda one: (one.served_at, one.at)):
        newest[tuple(sorted(process.serves))] = process.id
        if process.state(now) in (SILENT, ENDED):
            gone.append(process)
    gone.sort(key=lambda one: -(one.ended_at or one.at))
    is_old = [now - (one.ended_at or one.at) > HEARTBEATS.kept_ms for one in gone]
    return [
        one.id
        for number, (one, old) in enumerate(zip(gone, is_old, strict=True))
        if (old or number >= HEARTBEATS.max_ended) and one.id not in newest.values()
    ]


@dataclass(frozen=True, slots=True)
class Queue:
    """A target's queue. `served_at` is when it was last served for certain (ms), 0 for never.

    `refused` is why the broker refuses it to the workers that would serve it, "" if one of them serves it.
    """

    target: TargetId
    row_id: int
    created_at: int
    served_at: int
    refused: str = ""

    def heartbeat_age(self, now: int) -> int:
        """Return the milliseconds since a worker last served it, or since the target was created."""
        return max(0, now - max(self.served_at, self.created_at))

    def is_served(self, now: int) -> bool:
        """Return whether a worker serves it, or may only be starting again."""
        return self.heartbeat_age(now) <= HEARTBEATS.unserved_ms


def read_queues(connection: sa.Connection, processes: Iterable[Process], now: int) -> list[Queue]:
    """Return the queues that workers have to serve: those of the enabled targets, including paused ones."""
    t, service = tables.targets.c, _Serving([process for process in processes if process.is_worker], now)
    rows = connection.execute(sa.select(t.id, t.type, t.name, t.created_at).where(t.enabled).order_by(t.type, t.name))
    return [
        Queue(target, row.id, row.created_at, *service.of(target))
        for row, target in ((row, TargetId(row.type, row.name)) for row in rows)
    ]


class _Serving:
    """What workers have served, for many targets at once."""

    def __init__(self, workers: Sequence[Process], now: int) -> None:
        self._refused_to = [worker for worker in workers if worker.refused]
        self._running = {worker.id for worker in self._refused_to if worker.state(now) == RUNNING}
        self._newest: dict[str, int] = {}  # by what workers serve that serve all that they were told to serve
        for worker in workers:
            for what in () if worker.refused else worker.serves:
                self._newest[what] = max(self._newest.get(what, 0), worker.served_at)

    def of(self, target: TargetId) -> tuple[int, str]:
        """Return when a target was last served for certain (ms), 0 for never, and why the broker refuses its queue."""
        name, reason = str(target), ""
        served_at = max(self._newest.get(what, 0) for what in (ALL_TARGETS, target.type, name))
        for worker in self._refused_to:
            if worker.serves_target(target):
                refusal = worker.refused.get(name)
                at = worker.served_at if refusal is None else refusal.since
                if at > served_at:  # another worker may serve it since, as another user of the broker
                    served_at, reason = at, ""
                    if refusal is not None and worker.id in self._running:
                        reason = refusal.reason or "the worker's log has the reason"
        return served_at, reason


def has_spark_worker(connection: sa.Connection, now: int) -> bool:
    """Return whether a worker that runs reconciliations is there, also one that is busy."""
    return any(SPARK in one.serves and one.state(now) in (RUNNING, HINDERED) for one in read_processes(connection))


def is_starting(processes: Sequence[Process], now: int) -> bool:
    """Return whether the service has just begun: what has never worked may be about to, before it counts as silent."""
    began = [one.started_at for one in processes if one.state(now) in (RUNNING, HINDERED)]
    return bool(began) and now - min(began) <= HEARTBEATS.silence_ms


def silent_workers(processes: Sequence[Process], now: int) -> list[Process]:
    """Return the workers that fell silent within a day, but those that another one has replaced.

    A worker replaces one that fell silent if it began later and serves the same; one of the same host comes first.
    """
    return _silent([one for one in processes if one.is_worker], now)


def hindered_workers(processes: Iterable[Process], now: int) -> list[Process]:
    """Return the workers that are there, but have not served anything for some time."""
    return [one for one in processes if one.is_worker and one.state(now) == HINDERED]


def processes_of(service: str, processes: Sequence[Process], now: int) -> list[Process]:
    """Return the processes of `API` or `BEAT` that are there, and those that fell silent and were not replaced.

    If there is none of either, the last one.
    """
    own = [one for one in processes if service in one.serves]
    there = [one for one in own if one.state(now) in (RUNNING, HINDERED)]
    silent = _silent(own, now) if service == API or not there else []  # a second beat has nothing to do
    return [*there, *silent] or sorted(own, key=lambda one: max(one.at, one.ended_at))[-1:]


def _silent(processes: Sequence[Process], now: int) -> list[Process]:
    silent = [one for one in processes if one.state(now) == SILENT]
    recent = sorted((one for one in silent if one.age(now) < HEARTBEATS.kept_ms), key=lambda one: one.at)
    return list(_unreplaced(recent, processes))


def _unreplaced(gone: Sequence[Process], processes: Iterable[Process]) -> Iterator[Process]:
    free = sorted(processes, key=lambda one: one.started_at)
    left = list(gone)
    for same_host in (True, False):
        for one in list(left):
            for other in free:
                is_other = other.id != one.id and (other.host == one.host or not same_host)
                if is_other and other.started_at > one.at and other.covers(one):
                    free.remove(other)
                    left.remove(one)
                    break
    yield from left


def listed_processes(processes: Sequence[Process], now: int) -> list[Process]:
    """Return the processes that are there, and those that are missed."""
    found = [one for one in processes if one.is_worker and one.state(now) in (RUNNING, HINDERED)]
    found += silent_workers(processes, now)
    listed = [*processes_of(API, processes, now), *processes_of(BEAT, processes, now), *found]
    return sorted(listed, key=lambda one: (one.name, one.id))


def live_workers(processes: Iterable[Process], now: int) -> Mapping[str, int]:
    """Return how many workers run, by what they serve; 0 where one is remembered."""
    running = Counter[str]()
    for process in processes:
        if process.is_worker:
            running.update(dict.fromkeys(process.serves, int(process.state(now) == RUNNING)))
    return running


class Certificate(NamedTuple):
    """A certificate: who meets or uses it, its name there, when it is valid, and when it was last seen (ms)."""

    of: str  # `target TYPE:NAME`, `source TYPE:NAME`, `api on HOST`, or what an API connects to, as `broker`
    name: str  # a host or a file, or the address of an API or what it connects to
    valid: Validity
    seen_at: int


class _KnownCertificate(NamedTuple):
    valid: Validity
    seen_at: int


def near_end(begins_at: int, ends_at: int, notice_ms: int = CERTIFICATES.notice_ms) -> int:
    """Return from when on (ms) the end of what is valid so long is near. A beginning that is not known is 0."""
    return ends_at - min(notice_ms, max(0, ends_at - begins_at) // CERTIFICATES.notice_share)


def record_certificates_of_target(
    database: Database, row_id: int, revision: int, valid: Mapping[str, Validity], now: int
) -> None:
    """Add what the connections of a target have seen, by names. Raises `DatabaseUnavailable`."""
    _record_certificates(database, tables.targets, row_id, revision, valid, now)


def record_certificates_of_source(
    database: Database, row_id: int, revision: int, valid: Mapping[str, Validity], now: int
) -> None:
    """Add what the connections of a source have seen, as of a target."""
    _record_certificates(database, tables.sources, row_id, revision, valid, now)


@repeated_after_deadlock
def _record_certificates(
    database: Database, table: sa.Table, row_id: int, revision: int, valid: Mapping[str, Validity], now: int
) -> None:
    seen = {
        clean_reason(name)[: CERTIFICATES.max_name_characters]: _KnownCertificate(one, now)
        for name, one in valid.items()
    }
    mine = (table.c.id == row_id, table.c.revision == revision)
    with database.writing() as connection:
        row = connection.execute(sa.select(table.c.certificates).where(*mine).with_for_update()).one_or_none()
        if row is not None:
            known = {**_certificates_of_revision(row.certificates, revision), **seen}
            first = sorted(_without_gone(known, now).items(), key=lambda one: one[1].valid.ends_at)
            first = first[: CERTIFICATES.max_names]
            ends = {name: [one.valid.ends_at, one.seen_at] for name, one in first}
            begins = {name: one.valid.begins_at for name, one in first}  # apart, as older code reads the ends
            kept = orjson.dumps({"revision": revision, "ends": ends, "begins": begins}).decode()
            connection.execute(table.update().where(*mine).values(certificates=kept))


def read_certificates(connection: sa.Connection, processes: list[Process], now: int) -> list[Certificate]:
    """Return the certificates of targets and sources that are enabled, and of APIs that are there or missed.

    What several APIs connect to is returned as the last of them has met it.
    """
    found = [
        *_certificates_of_rows(connection, tables.targets, "target", now),
        *_certificates_of_rows(connection, tables.sources, "source", now),
    ]
    met = [
        Certificate(one.of or f"api on {api.host}", one.name, one.valid, one.seen_at)
        for api in processes_of(API, processes, now)
        if not api.ended_at
        for one in api.certificates
    ]
    last = {(one.of, one.name): one for one in sorted(met, key=lambda one: one.seen_at)}
    return found + [last[place] for place in sorted(last)]


def _certificates_of_rows(connection: sa.Connection, table: sa.Table, kind: str, now: int) -> Iterator[Certificate]:
    columns = (table.c.type, table.c.name, table.c.revision, table.c.certificates)
    enabled = sa.select(*columns).where(table.c.enabled, table.c.certificates.is_not(None))
    for row in connection.execute(enabled.order_by(table.c.type, table.c.name)):
        known = _without_gone(_certificates_of_revision(row.certificates, row.revision), now)
        for name, one in sorted(known.items()):
            yield Certificate(f"{kind} {row.type}:{row.name}", name, one.valid, one.seen_at)


def _certificates_of_revision(text: str | None, revision: int) -> dict[str, _KnownCertificate]:
    kept: dict[str, Any] = orjson.loads(text) if text else {}
    if kept.get("revision") != revision:
        return {}
    begins = kept.get("begins", {})
    return {
        name: _KnownCertificate(Validity(begins.get(name, 0), ends_at), seen_at)
        for name, (ends_at, seen_at) in kept["ends"].items()
    }


def _without_gone(known: dict[str, _KnownCertificate], now: int) -> dict[str, _KnownCertificate]:
    """Return what is known without those near their end that were not seen for days while others were: a former host's.

    After its end a certificate is refused, so it does not count that it is not seen then.
    """
    newest = max((one.seen_at for one in known.values()), default=0)
    return {
        name: one
        for name, one in known.items()
        if now < near_end(*one.valid) or one.seen_at >= min(newest, one.valid.ends_at) - CERTIFICATES.gone_ms
    }
