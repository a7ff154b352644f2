"""List, change and pause sources, and see to the messages that they have rejected."""

from base64 import b64encode
from collections.abc import Mapping

from flask import Blueprint, g, request
from msgspec import UNSET

from app.api.auth import ADMIN, READ, needs
from app.api.description import answers
from app.api.request_body import json_object
from app.api.routes.events import queue_problem
from app.api.services import begin_reading, reserve, services
from app.config.arn import SourceId
from app.config.declared_types import SOURCE_TYPES, source_type
from app.config.sources.base import Tenant
from app.config.target_settings import with_kept_secrets
from app.events.frontends import S3_FRONTENDS
from app.outbox import log_head
from app.outbox.engine.clock import database_now
from app.outbox.errors import UnknownSource
from app.outbox.log.append import QueueFull
from app.outbox.series import REQUESTS, incoming_rates, of_source
from app.outbox.sources.rows import StoredSource, read_sources
from app.outbox.sources.watched import Watched, read_watched
from app.resources.declaration import Nothing, format_time
from app.resources.source import (
    BucketListing,
    Incoming,
    Intake,
    RejectedBody,
    RejectedChoice,
    RejectedDeleted,
    RejectedMessage,
    RejectedPage,
    RejectedQuery,
    RejectedRetried,
    Source,
    SourceCounters,
    SourceRemoved,
    SourceRemoveQuery,
    Sources,
)
from app.resources.target import Pause

routes = Blueprint("sources", __name__)
_SETTINGS = {
    "required": True,
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/SourceSettings"}}},
}
_PATH = {
    "type_name": ({"enum": list(SOURCE_TYPES)}, "the source's type"),
    "name": ({"pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"}, "its name"),
    "number": "of the message",
}


@routes.get("/v1/sources")
@needs(READ)
@answers(Sources, "the sources")
def ls() -> Sources:
    """List every source with its settings, state and counters."""
    kept = services().rejected.counts()
    with services().database.reading() as connection:
        now, watched = database_now(connection), read_watched(connection)
    return Sources(
        sources=[
            _resource(stored, now, kept.get(stored.row_id, 0), watched.get(stored.row_id))
            for stored in services().sources.sources()
        ]
    )


@routes.get("/v1/intake")
@needs(READ)
@answers(Intake, "what came in")
def intake() -> Intake:
    """Return how many events requests and each source have recorded, and their rates.

    The rates come from the samples that a running drain takes every ten seconds.
    """
    with services().database.snapshot() as connection:
        posted, stored = log_head.read_posted(connection), read_sources(connection)
        ids = [REQUESTS, *(of_source(one.row_id) for one in stored)]
        rates = incoming_rates(connection, ids, database_now(connection))
    by_source = [
        Incoming(kind="source", source=str(one.source), recorded=one.recorded, rate=rates.get(of_source(one.row_id)))
        for one in stored
    ]
    return Intake(intake=[Incoming(kind="request", recorded=posted, rate=rates.get(REQUESTS)), *by_source])


@routes.get("/v1/sources/<type_name>/<name>")
@needs(READ)
@answers(Source, "the source", path=_PATH)
def show(type_name: str, name: str) -> Source:
    """Return a source with its settings, state, counters and positions."""
    return _one(_source_of(type_name, name))


@routes.put("/v1/sources/<type_name>/<name>")
@needs(ADMIN)
@answers(Source, "the changed source", content=_SETTINGS, other_answers={201: ("the new source", Source)}, path=_PATH)
def put(type_name: str, name: str) -> tuple[Source, int]:
    """Create a source, or replace its settings.

    The body has the settings by name, as strings or JSON values. An omitted setting gets its default; a secret that is
    sent as `*redacted*` is kept. A worker takes the source up within seconds; its positions are kept,
    unless it is another queue than before.
    """
    source, status = _source_of(type_name, name), 200
    settings: Mapping[str, object] = json_object(request)
    try:
        stored = services().sources.source(source)
        settings = with_kept_secrets(source_type(source.type), lambda: services().sources.texts(stored), settings)
    except UnknownSource:
        status = 201
    services().sources.put(source, settings)
    return _one(source), status


@routes.delete("/v1/sources/<type_name>/<name>")
@needs(ADMIN)
@answers(SourceRemoved, "the source is removed", query=SourceRemoveQuery, path=_PATH)
def remove(type_name: str, name: str, query: SourceRemoveQuery) -> SourceRemoved:
    """Remove a source and its positions; what it recorded stays.

    Refused with 409 while it has rejected messages, unless `force` is set.
    """
    return SourceRemoved(rejected_messages=services().sources.remove(_source_of(type_name, name), force=query.force))


@routes.post("/v1/sources/<type_name>/<name>/pause")
@needs(ADMIN)
@answers(Source, "the source", body=Pause, path=_PATH)
def pause(type_name: str, name: str, body: Pause) -> Source:
    """Stop pulling from a source until it is resumed; its messages wait in the queue."""
    source = _source_of(type_name, name)
    services().sources.pause(source, body.reason or "paused through the API")
    return _one(source)


@routes.post("/v1/sources/<type_name>/<name>/resume")
@needs(ADMIN)
@answers(Source, "the source", body=Nothing, path=_PATH)
def resume(type_name: str, name: str, body: Nothing) -> Source:  # noqa: ARG001 - nothing else is accepted
    """End a source's pause, forget the notice of what was lost, and try at once to pull from it, or list it.

    A bucket that was paused because too many objects were gone is listed with so many removals approved.
    """
    source = _source_of(type_name, name)
    services().sources.resume(source)
    return _one(source)


@routes.get("/v1/sources/<type_name>/<name>/rejected")
@needs(READ)
@answers(RejectedPage, "a page of rejected messages", query=RejectedQuery, path=_PATH)
def rejected(type_name: str, name: str, query: RejectedQuery) -> RejectedPage:
    """List the messages that had no valid events, the oldest first."""
    page = services().rejected.page(_stored(type_name, name), limit=query.limit, after=query.after)
    rows = [RejectedMessage.of(one, id=one.number) for one in page]
    return RejectedPage(rejected=rows, next=rows[-1].id if len(rows) == query.limit else None)


@routes.get("/v1/sources/<type_name>/<name>/rejected/<int:number>")
@needs(READ)
@answers(RejectedBody, "the message", path=_PATH)
def rejected_body(type_name: str, name: str, number: int) -> RejectedBody:
    """Return a rejected message as it was pulled."""
    message = services().rejected.message(_stored(type_name, name), number, reserve)
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        text = None
    return RejectedBody(id=number, headers=message.headers, body=text, base64=b64encode(message.body).decode())


@routes.post("/v1/sources/<type_name>/<name>/rejected/<int:number>/retry")
@needs(ADMIN)
@answers(RejectedRetried, "its events are recorded", body=Nothing, path=_PATH)
def retry_rejected(type_name: str, name: str, number: int, body: Nothing) -> RejectedRetried:  # noqa: ARG001 - as above
    """Record the events of a rejected message, and delete it.

    They come after everything that was recorded meanwhile. Refused with 409 while the message has no valid events.
    """
    stored = _stored(type_name, name)
    sender, tenant = S3_FRONTENDS.get(stored.values.get("frontend", "")), stored.values.get("tenant", "")
    if tenant:
        Tenant().parse(tenant)  # the environment's settings may be invalid
    begin_reading()  # a message of some KB may take hundreds of MB
    receipt = services().rejected.retry(stored, number, services().limits, sender, tenant, reserve)
    if isinstance(receipt, QueueFull):
        raise queue_problem(receipt)
    g.receipt = receipt  # for the wake-up after the request
    return RejectedRetried(recorded=receipt.recorded, repeated=receipt.repeated)


@routes.post("/v1/sources/<type_name>/<name>/rejected/delete")
@needs(ADMIN)
@answers(RejectedDeleted, "the number of messages", change=RejectedChoice, path=_PATH)
def delete_rejected(type_name: str, name: str, change: RejectedChoice) -> RejectedDeleted:
    """Delete rejected messages permanently. Needs `ids`, or `all`."""
    stored = _stored(type_name, name)
    return RejectedDeleted(deleted=services().rejected.delete(stored, change.ids or None))


def _source_of(type_name: str, name: str) -> SourceId:
    source_type(type_name)
    return SourceId(type_name, name)


def _stored(type_name: str, name: str) -> StoredSource:
    return services().sources.source(_source_of(type_name, name))


def _one(source: SourceId) -> Source:
    stored = services().sources.source(source)
    kept = services().rejected.counts().get(stored.row_id, 0)
    with services().database.reading() as connection:
        now, watched = database_now(connection), read_watched(connection).get(stored.row_id)
    return _resource(stored, now, kept, watched, services().sources.positions(stored))


def _resource(
    stored: StoredSource, now: int, kept: int, watched: Watched | None, positions: Mapping[str, str] | None = None
) -> Source:
    failing = stored.state(now) == "failing"
    return Source.of(
        stored,
        type=stored.source.type,
        name=stored.source.name,
        state=stored.state(now),
        reason=stored.state_reason(now),
        settings=services().sources.redacted_texts(stored),
        counters=SourceCounters.of(stored),
        rejected_messages=kept,
        error_at=format_time(stored.error_at if failing else 0),
        resume_at=format_time(stored.resume_at if failing else 0),
        holder=stored.holder if stored.leased_until > now else None,
        positions=UNSET if positions is None else positions,
        listing=_listing(watched or Watched(stored.row_id)) if stored.lists else UNSET,
    )


def _listing(watched: Watched) -> BucketListing:
    return BucketListing.of(
        watched,
        listed_at=format_time(watched.began_at if watched.complete else 0),
        due_at=format_time(watched.due_at),
        to_approve=watched.asked,
    )
