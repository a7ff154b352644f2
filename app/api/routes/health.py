"""Whether this process lives, and whether the service can do its work."""

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
    """What readiness asks of the database; a database that hangs holds up no more than one thread."""
    return CachedProbe(lambda: _asked(database), age=0.5, patience=2.0)


def install(app: Any, database: Database) -> None:
    """Give the app its glance at the database."""
    app.extensions[_PROBE] = health_probe(database)


@routes.get("/healthz")
@needs(PUBLIC)
def healthz() -> Response:
    """Say that the process lives.
    ---
    get:
      summary: The process lives; says nothing of the database
      responses:
        200: {description: it lives, content: {application/json: {schema: Alive}}}
    """
    return json_response({"status": "ok"})


@routes.get("/readyz")
@needs(PUBLIC)
def readyz() -> Response:
    """Say whether the service can do its work.
    ---
    get:
      summary: Database, schema and drain, each with what is wrong with it
      description: >
        With a spool folder the API takes events also while this says 503.
      responses:
        200: {description: everything works, content: {application/json: {schema: Readiness}}}
        503: {description: something does not, content: {application/json: {schema: Readiness}}}
    """
    look = current_app.extensions[_PROBE].look()
    checks = checked(look.value, look.error, schema_version.head(), now_ms())
    feeder = services().feeder
    if feeder is not None:
        waiting, damaged = len(feeder.spool.files()), feeder.spool.damaged()
        checks["spool"] = {"ok": not damaged, "files": waiting, "quarantined": damaged}
    ready = all(check["ok"] for check in checks.values())
    return json_response({"ready": ready, "checks": checks}, 200 if ready else 503)


def checked(found: Mapping[str, Any] | None, error: Exception | None, head: str, now: int) -> dict[str, Any]:
    """The checks, from what the database said last and the error since. Names no address: anyone may ask."""
    if error is not None or found is None:
        reason = str(error) if isinstance(error, NoAnswer) else "it cannot be reached; the log says more"
        unknown = {"ok": False, "reason": "the database is away"}
        return {"database": {"ok": False, "reason": reason}, "schema": unknown, "drain": unknown}
    # While a new version is rolled out, those of the version before go on at its schema, and have to stay in service.
    fits = found["revision"] == head or found["later"]
    schema_check = {"ok": fits, "revision": found["revision"], "needed": head}
    if not schema_check["ok"]:
        schema_check["reason"] = "run `bucketwire migrate`"
    age = heartbeats.drain_age(found["drained"], now)
    drain_check: dict[str, Any] = {"ok": not heartbeats.drain_stopped(found["drained"], now)}
    drain_check["age"] = None if age is None else age / 1000
    if not drain_check["ok"]:
        drain_check["reason"] = "nothing is delivered: is a beat running, and a worker that drains?"
    return {"database": {"ok": True}, "schema": schema_check, "drain": drain_check}


def _asked(database: Database) -> Mapping[str, Any]:
    revision = schema_version.current(database)
    drained = None
    if revision is not None:
        with database.reading() as connection:
            drained = heartbeats.last_drain(connection)
            if drained is not None:  # noted by the database's clock
                drained += now_ms() - database_now(connection)
    return {
        "revision": revision,
        "later": revision is not None and schema_version.is_later(revision),
        "drained": drained,
    }
