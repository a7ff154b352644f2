"""Answer health checks: liveness of this process, and readiness of the service."""

from collections.abc import Mapping
from typing import Any

from flask import Blueprint, current_app
from msgspec import UNSET

from app.api.description import answers
from app.api.probes import stopping
from app.api.services import services
from app.api.token_scopes import PUBLIC, needs
from app.cached_probe import CachedProbe, NoAnswer
from app.outbox import heartbeats
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database, now_ms
from app.outbox.heartbeats import read_beat_at
from app.outbox.log.spool import waiting_files
from app.outbox.policies import HEARTBEATS
from app.outbox.schema import schema_version
from app.outbox.schema.schema_version import SchemaState
from app.quantities import count_noun
from app.resources.service import Alive, Check, Readiness

routes = Blueprint("health", __name__)
_NOT_READY = ("a check is not ok; see its reason", Readiness)
_PROBE = "bucketwire_readiness"


def health_probe(database: Database) -> CachedProbe[Mapping[str, Any]]:
    """Return the probe for `/readyz`; a hanging database blocks no more than one thread."""
    return CachedProbe(lambda: _read(database), age=0.5, patience=2.0)


def install(app: Any, database: Database) -> None:
    """Add the readiness probe to the app."""
    app.extensions[_PROBE] = health_probe(database)


@routes.get("/healthz")
@needs(PUBLIC)
@answers(Alive, "the process responds", other_answers={503: ("it stops soon, and still answers", Alive)})
def healthz() -> tuple[Alive, int]:
    """Report that the process responds; the database is not checked.

    After SIGTERM the answer is 503 for the time of `BUCKETWIRE_STOP_DELAY`, in which the API answers other requests as
    before.
    """
    return (Alive(status="stopping"), 503) if stopping.begun else (Alive(status="ok"), 200)


@routes.get("/readyz")
@needs(PUBLIC)
@answers(Readiness, "every check is ok", other_answers={503: _NOT_READY})
def readyz() -> tuple[Readiness, int]:
    """Check the database, its schema, the drain, beat and the spool folder.

    With a spool folder, the API also accepts events while the answer is 503. An unavailable target or a queue without a
    worker does not make the service unready.
    """
    ready, checks = readiness()
    if stopping.begun:
        ready, checks = False, checks | {"process": Check(ok=False, reason="this API stops soon")}
    return Readiness(ready=ready, checks=checks), 200 if ready else 503


def readiness() -> tuple[bool, dict[str, Check]]:
    """Return whether every check is ok, and the checks; a hanging database costs two seconds at most."""
    if _PROBE not in current_app.extensions:  # a command's app
        install(current_app, services().database)
    result = current_app.extensions[_PROBE].get()
    checks = make_checks(result.value, result.error, schema_version.head(), now_ms())
    feeder = services().feeder
    if feeder is not None:
        waiting, damaged = waiting_files(feeder.spool.folder), feeder.spool.damaged()
        age = waiting.age(now_ms()) / 1000 if waiting.number else UNSET
        reason = f"{count_noun(damaged, 'file')} in quarantine" if damaged else UNSET
        checks["spool"] = Check(ok=not damaged, reason=reason, age=age, files=waiting.number, quarantined=damaged)
    return all(check.ok for check in checks.values()), checks


def make_checks(state: Mapping[str, Any] | None, error: Exception | None, head: str, now: int) -> dict[str, Check]:
    """Return the checks from the database's last state and the error since. Names no address: the route is public."""
    if error is not None or state is None:
        reason = str(error) if isinstance(error, NoAnswer) else "it cannot be reached; see the API's log"
        unknown = Check(ok=False, reason="the database is unavailable")
        return {"database": Check(ok=False, reason=reason), "schema": unknown, "drain": unknown, "beat": unknown}
    # During a rolling upgrade, processes of the previous version work with the new schema and must stay in service.
    schema: SchemaState = state["schema"]
    age, runs = heartbeats.drain_age(state["drained"], now), not heartbeats.drain_stopped(state["drained"], now)
    drain_reason = UNSET if runs else "nothing is delivered: do the broker, a beat and a worker that drains run?"
    return {
        "database": Check(ok=True),
        "schema": Check(ok=not schema.problem, revision=schema.revision, needed=head, reason=schema.hint or UNSET),
        "drain": Check(ok=runs, age=None if age is None else age / 1000, reason=drain_reason),
        "beat": _check_beat(state["beat"], now),
    }


def _check_beat(worked_at: int | None, now: int) -> Check:
    """Check whether beat has worked lately; of one that never has, an earlier version may run."""
    if worked_at is None:
        return Check(ok=True, age=None)
    age = max(0, now - worked_at)
    runs = age <= HEARTBEATS.silence_ms
    return Check(ok=runs, age=age / 1000, reason=UNSET if runs else "nothing runs by time: does a beat run?")


def _read(database: Database) -> Mapping[str, Any]:
    schema = schema_version.check(database)
    if schema.revision is None:
        return {"schema": schema, "drained": None, "beat": None}
    with database.reading() as connection:
        times = {"drained": heartbeats.last_drain(connection)}
        times["beat"] = None if schema.problem else read_beat_at(connection)
        ahead = now_ms() - database_now(connection)  # they were recorded by the database's clock
    return {"schema": schema} | {name: None if at is None else at + ahead for name, at in times.items()}
