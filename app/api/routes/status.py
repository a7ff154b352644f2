"""Sum up the service: its checks, targets and counters, and the workers' heartbeats."""

from collections import Counter
from importlib.metadata import version

from flask import Blueprint, Response

from app.api.auth import READ, needs
from app.api.routes.health import readiness
from app.api.routes.targets import counters_json
from app.api.serialization import json_response
from app.api.services import services
from app.outbox.delivery import heartbeats
from app.outbox.delivery.counters import read_status
from app.outbox.delivery.leases import leased_partitions
from app.outbox.engine.clock import database_now
from app.resources.declaration import format_time

routes = Blueprint("status", __name__)


@routes.get("/v1/status")
@needs(READ)
def status() -> Response:
    """Sum up the service.
    ---
    get:
      summary: Return the version, the checks of /readyz, the targets by state, and the sums of their counters
      security: [{token: [read]}]
      responses:
        200: {description: the state of the service, content: {application/json: {schema: Status}}}
        default: Problem
    """
    with services().database.snapshot() as connection:
        statuses = read_status(connection)
        now = database_now(connection)
    ready, checks = readiness()
    states = Counter(each.stored.state for each in statuses)
    events: Counter[str] = Counter()
    for each in statuses:
        events.update(counters_json(each.counters))
    oldest = [each.counters.oldest for each in statuses if each.counters.oldest]
    return json_response(
        {
            "version": version("bucketwire"),
            "region": services().settings.region,
            "ready": ready,
            "checks": checks,
            "targets": states,
            "events": events,
            "oldest_age": max(0, now - min(oldest)) / 1000 if oldest else None,
        }
    )


@routes.get("/v1/workers")
@needs(READ)
def workers() -> Response:
    """Return heartbeats.
    ---
    get:
      summary: Return the heartbeats of the drain and of the workers that serve each target's queue
      description: >
        A queue is probed every 15 seconds, less often while no worker answers; `served` is false after five minutes
        without an answer.
      security: [{token: [read]}]
      responses:
        200: {description: the heartbeats, content: {application/json: {schema: Workers}}}
        default: Problem
    """
    with services().database.snapshot() as connection:
        drained = heartbeats.last_drain(connection)
        queues = heartbeats.queues(connection)
        now = database_now(connection)
        leased = leased_partitions(connection, now)
    age = heartbeats.drain_age(drained, now)
    return json_response(
        {
            "flower": services().settings.flower_url or None,
            "drain": {
                "running": not heartbeats.drain_stopped(drained, now),
                "age": None if age is None else age / 1000,
            },
            "queues": [
                {
                    "target": queue.target.arn(services().settings.region),
                    "answered_at": format_time(queue.answered),
                    "age": queue.heartbeat_age(now) / 1000,
                    "served": queue.heartbeat_age(now) <= heartbeats.UNSERVED,
                    "leased_partitions": leased.get(queue.row_id, 0),
                }
                for queue in queues
            ],
        }
    )
