"""Answer health checks: liveness of this process, and readiness of the service."""

from collections.abc import Mapping
from typing import Any

from flask import Blueprint, Response, current_app

from app.api.auth import PUBLIC, needs
from app.api.serialization import json_response
from app.api.services import services
from app.outbox.delivery import heartbeats
from app.outbox.engine import schema_version
from app.outbox.engine.cached_probe import CachedProbe, NoAnswer
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database, now_ms

routes = Blueprint("health", __name__)
_PROBE = "bucketwire_readiness"


def health_probe(database: Database) -> CachedProbe[Mapping[str, Any]]:
    """Return the probe for `/readyz`; a hanging database blocks no more than one thread."""
    return CachedProbe(lambda: _read(database), age=0.5, patience=2.0)


def install(app: Any, database: Database) -> None:
    """Add the readiness probe to the app."""
    app.extensions[_PROBE] = health_probe(database)


@routes.get("/healthz")
@needs(PUBLIC)
def healthz() -> Response:
    """Report liveness.
    ---
    get:
      summary: Report that the process responds; the database is not checked
      responses:
        200: {description: the process responds, content: {application/json: {schema: Alive}}}
    """
    return json_response({"status": "ok"})


@routes.get("/readyz")
@needs(PUBLIC)
def readyz() -> Response:
    """Report readiness.
    ---
    get:
      summary: Check the database, its schema, the drain and the spool folder
      description: >
        With a spool folder, the API also accepts events while the answer is 503. An unavailable target or a queue
        without a worker does not make the service unready.
      responses:
        200: {description: every check is ok, content: {application/json: {schema: Readiness}}}
        503: {description: a check is not ok; see its reason, content: {application/json: {schema: Readiness}}}
    """
    ready, checks = readiness()
    return json_response({"ready": ready, "checks": checks}, 200 if ready else 503)


def readiness() -> tuple[bool, dict[str, Any]]:
    """Return whether every check is ok, and the checks; a hanging database costs two seconds at most."""
    result = current_app.extensions[_PROBE].get()
    checks = make_checks(result.value, result.error, schema_version.head(), now_ms())
    feeder = services().feeder
    if feeder is not None:
        waiting, damaged = len(feeder.spool.files()), feeder.spool.damaged()
        checks["spool"] = {"ok": not damaged, "files": waiting, "quarantined": damaged}
    return all(check["ok"] for check in checks.values()), checks


def make_checks(state: Mapping[str, Any] | None, error: Exception | None, head: str, now: int) -> dict[str, Any]:
    """Return the checks from the database's last state and the error since. Names no address: the route is public."""
    if error is not None or state is None:
        reason = str(error) if isinstance(error, NoAnswer) else "it cannot be reached; see the API's log"
        unknown = {"ok": False, "reason": "the database is unavailable"}
        return {"database": {"ok": False, "reason": reason}, "schema": unknown, "drain": unknown}
    # During a rolling upgrade, processes of the previous version work with the new schema and must stay in service.
    fits = state["revision"] == head or state["later"]
    schema_check = {"ok": fits, "revision": state["revision"], "needed": head}
    if not schema_check["ok"]:
        schema_check["reason"] = "run `bucketwire migrate`"
    age = heartbeats.drain_age(state["drained"], now)
    drain_check: dict[str, Any] = {"ok": not heartbeats.drain_stopped(state["drained"], now)}
    drain_check["age"] = None if age is None else age / 1000
    if not drain_check["ok"]:
        drain_check["reason"] = "nothing is delivered: is a beat running, and a worker that drains?"
    return {"database": {"ok": True}, "schema": schema_check, "drain": drain_check}


def _read(database: Database) -> Mapping[str, Any]:
    revision = schema_version.current(database)
    drained = None
    if revision is not None:
        with database.reading() as connection:
            drained = heartbeats.last_drain(connection)
            if drained is not None:  # recorded by the database's clock
                drained += now_ms() - database_now(connection)
    return {
        "revision": revision,
        "later": revision is not None and schema_version.is_later(revision),
        "drained": drained,
    }
