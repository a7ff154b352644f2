"""Read the log: an object's history, a search, one event with its attempts, and the stream of new events.

The stream is for browsers and programs, as server-sent events.
"""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from flask import Blueprint, Flask, Response, current_app, g, request
from msgspec import UNSET, UnsetType

from app.api.auth import (
    PUBLIC,
    READ,
    authorize,
    is_limited,
    may_see,
    needs,
    require_bucket,
    require_target,
    watch_token,
)
from app.api.description import answers
from app.api.errors import ApiProblem
from app.api.listen import stream as listen
from app.api.listen.broadcaster import SocketHandedOver, Streams
from app.api.listen.stream import MAX_FILTER_BYTES, NO_TARGET, SERVER_SENT_EVENTS
from app.api.s3.errors import S3Error
from app.api.services import reserve, reserve_rows, services
from app.config.errors import BadValue
from app.config.secrets import Sealer
from app.events.model import EVENT_ID, origin_of, trace_fields
from app.events.model import Origin as EventOrigin
from app.events.names import EVERY, UnknownEventName, expand
from app.outbox.admin import event_states
from app.outbox.admin.event_states import RecordedEvent, find_event, object_history
from app.outbox.admin.replays import Selection, checked
from app.outbox.engine.database import Database
from app.outbox.search import EventFilter, search
from app.resources.declaration import MAX_PAGE, TEXT, BadMember, format_time, parse_query, refuse_unknown
from app.resources.event import Attempt, DeliveryState, Event, Events, EventsQuery, Exchange, Origin, StreamQuery
from app.resources.undelivered import failed_attempts
from app.rules.model import EVERY_BUCKET, Rule

routes = Blueprint("event_log", __name__)
_HISTORY = ("bucket", "key", "limit", "after", "brief")
_SEARCH = ("since", "before", "bucket", "prefix", "events", "target", "state", "limit", "after")
_STREAMS = "bucketwire_streams"
_PING = 15  # seconds
_SEALED_ID = "event:"  # before a sealed id, so that nothing else that is sealed is taken for one


@routes.get("/v1/events")
@needs(PUBLIC)
@answers(Events, "the events", query=EventsQuery, parses=False, security=[{"token": [READ]}, {}])
def events() -> Events:
    """Return an object's last events, oldest first, or search the log, newest first.

    With `key`, the history of the object: only `bucket`, `limit`, `after` and `brief` go with it. A page of it has at
    most 16 MiB of records, or one event; continue with `after` set to its `next` for the events before it. Otherwise a
    search, whose filters are combined with AND. A search reads a bounded part of the log: a page may have few events,
    or none, and still have a `next`. Continue with `after` set to it until it is null. Without any parameter, the
    answer is 200 and needs no token, as senders that probe the address expect.
    """
    if not request.args:
        return Events(status="ok")
    authorize(request, READ)
    refuse_unknown(request.args, _HISTORY if "key" in request.args else _SEARCH)
    query = parse_query(EventsQuery, request.args)
    require_bucket(query.bucket)
    return _history(query) if "key" in request.args else _search(query)


@routes.get("/v1/events/<event_id>")
@needs(READ, limited=True)
@answers(Event, "the event", path={"event_id": "the event's id"})
def show_event(event_id: str) -> Event:
    """Return an event with its delivery state and the recorded attempts at each target."""
    event = find_event(services().database, TEXT.read("event_id", event_id), reserve)
    require_bucket("" if event is None else event.bucket)  # a limited token does not learn which ids there are
    if event is None:
        raise ApiProblem(
            "not-found", "the log has no event of this id; BUCKETWIRE_RETENTION sets how long it keeps them"
        )
    return _event(event, has_attempts=True)


def _history(query: EventsQuery) -> Events:
    for name, value in (("bucket", query.bucket), ("key", query.key)):
        if not value:
            raise BadMember(name, "is missing", "give the bucket and the key of an object")
    bucket, key, limit = query.bucket, query.key or "", query.limit or 1000
    reserve_rows(limit)
    page = object_history(
        services().database, bucket, key, limit=limit, after=query.after, records=not query.brief, reserve=reserve
    )
    return Events(bucket=bucket, key=key, events=[_event(event) for event in page.events], next=page.next)


def _search(query: EventsQuery) -> Events:
    if (limit := query.limit or 100) > MAX_PAGE:
        raise BadMember("limit", "is not in range", f"give a whole number from 1 to {MAX_PAGE}")
    reserve_rows(limit)
    selection = Selection(query.since, query.before, query.bucket, query.prefix, tuple(query.events))
    if query.target or query.state:
        require_target(query.target)
    which = EventFilter(checked(selection), query.target, query.state)
    page = search(services().database, which, limit=limit, after=query.after)
    return Events(
        events=[_event(event) for event in page.events], next=page.next, searched_to=format_time(page.searched_to)
    )


def _event(event: RecordedEvent, *, has_attempts: bool = False) -> Event:
    return Event.of(
        event,
        id=event.event_id,
        event=event.name,
        delivery_states=[
            _state(state, has_attempts=has_attempts) for state in event.delivery_states if may_see(state.target)
        ],
        **dict(trace_fields(event.trace)),
        origin=_origin(origin_of(event.origin)),
        record=msgspec.Raw(event.record) if event.record else UNSET,
    )


def _origin(origin: EventOrigin) -> Origin | UnsetType:
    """Return what the request's token may know of an origin: one that is limited learns no names of others."""
    if not origin.kind:
        return UNSET
    if is_limited():
        return Origin(kind=origin.kind, frontend=origin.frontend)
    return Origin(
        kind=origin.kind,
        frontend=origin.frontend,
        token=(origin.name or UNSET) if origin.kind == "request" else UNSET,
        source=origin.name if origin.kind == "source" else UNSET,
        share=origin.share or UNSET,
        position=origin.position or UNSET,
    )


def _state(state: event_states.DeliveryState, *, has_attempts: bool) -> DeliveryState:
    arn = state.target.arn(services().settings.region)
    if not has_attempts:
        return DeliveryState.of(state, target=arn)
    return DeliveryState.of(
        state,
        target=arn,
        attempts=state.attempts,
        history=failed_attempts(state.history),
        waits=state.state == "parked" and state.next_try is None,
        next_try=format_time(state.next_try or 0),
        timeline=[_attempt(attempt) for attempt in state.timeline],
        exchange=_exchange(state),
    )


def _exchange(state: event_states.DeliveryState) -> Exchange | None:
    if not state.exchange:
        return None
    exchange = msgspec.json.decode(state.exchange, type=Exchange)
    return msgspec.structs.replace(exchange, at=format_time(state.exchange_at))


def _attempt(attempt: event_states.Attempt) -> Attempt:
    return Attempt.of(
        attempt,
        attempt=attempt.attempt or None,
        duration=attempt.duration / 1000,
        replay=attempt.replay_id or None,
    )


class _HandOver(Response):
    """A response that hands its connection over, once Flask has ended the request."""

    handed_over: SocketHandedOver

    def __call__(self, environ: Any, start_response: Any) -> Any:  # noqa: ARG002 - WSGI's signature
        """Leave gunicorn's worker with the connection. Raises `SocketHandedOver`."""
        raise self.handed_over


def install_streams(app: Flask, database: Database, *, tls: bool = False) -> Streams:
    """Add the streams of this process to the app, and return them; over TLS there are fewer."""
    streams: Streams = app.extensions.setdefault(_STREAMS, Streams(database, tls=tls))
    return streams


@routes.get("/v1/events/stream")
@needs(READ, limited=True)
@answers(None, "the stream", query=StreamQuery, media_type="text/event-stream")
def stream(query: StreamQuery) -> Response:
    """Stream events as they are recorded, as server-sent events.

    Each event has its `id`, and as `data` the JSON object `{"Records": […], "EventId": …}`, as the stream of the S3
    API. A reader that is too slow gets an event of the type `gap` for those that it missed. A stream ends within
    seconds of its token's revocation, and after five minutes; `EventSource` connects again, and resumes after the last
    event that was looked at for it.
    """
    require_bucket(query.bucket)
    for name, text in (("prefix", query.prefix), ("suffix", query.suffix)):
        if len(text.encode(errors="replace")) > MAX_FILTER_BYTES:
            raise BadMember(name, f"has more than {MAX_FILTER_BYTES:,} bytes", "no key is longer")
    if query.target is not None:
        require_target(query.target)
    target_id = None if query.target is None else services().registry.target(query.target).row_id
    rule = Rule(
        bucket=query.bucket or EVERY_BUCKET, events=_names(query.events), target=NO_TARGET, prefix=query.prefix,
        suffix=query.suffix,
    )  # fmt: skip
    after_id, after_sealed = _event_id(query.after)
    if query.after and not after_id:
        raise BadMember("after", "is not the id of an event", "give 32 hexadecimal digits, or an id of a stream")
    last = request.headers.get("Last-Event-ID", "")
    last_id, last_sealed = _event_id(last)
    resume, sealed = (last_id, last_sealed) if last_id else (after_id, after_sealed)
    if request.method == "HEAD":
        return Response(mimetype="text/event-stream")
    response = _HandOver()
    asked = listen.StreamQuery(rule, _PING, resume, SERVER_SENT_EVENTS, target_id, is_allowed=watch_token())
    if is_limited():  # it learns no event of another bucket, nor whether there is one of an id
        asked = replace(
            asked, seal=partial(_seal, services().sealer), resume_bucket="" if sealed else query.bucket,
            holder=g.token.name,
        )  # fmt: skip
    try:
        response.handed_over = _begin(asked)
    except S3Error as error:
        if error.code == "SlowDown":
            raise ApiProblem(
                "too-many-streams",
                "this process has as many streams as it can, or as many of this token as one may have; try again later",
            ) from None
        if last:  # a browser that was away for longer than the retention must not stop for ever
            response.handed_over = _begin(replace(asked, resume_after=""))
        else:
            raise BadMember("after", "is not in the event log (any more)", "leave it out to begin now") from None
    return response


def _begin(query: listen.StreamQuery) -> SocketHandedOver:
    streams: Streams = current_app.extensions[_STREAMS]
    chunked = request.environ.get("SERVER_PROTOCOL") != "HTTP/1.0"
    return streams.begin(query, chunked=chunked, number=secrets.token_hex(8).upper())


def _seal(sealer: Sealer, event_id: str) -> str:
    return sealer.seal(_SEALED_ID + event_id)


def _event_id(text: str) -> tuple[str, bool]:
    """Return the id of an event in a text that a stream has sent or a client knows, "" for none; whether it was sealed.

    A sealed one was sent by a stream, which had looked at that event.
    """
    try:
        event_id = services().sealer.unseal(text)
    except BadValue:
        return "", False
    sealed = event_id != text
    if sealed != event_id.startswith(_SEALED_ID):
        return "", False
    event_id = event_id.removeprefix(_SEALED_ID)
    return (event_id, sealed) if EVENT_ID.fullmatch(event_id) else ("", False)


def _names(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        try:
            expand(name)
        except UnknownEventName:
            raise BadMember("events", "has a name that is unknown", "write s3:ObjectCreated:*, or omit it") from None
    return tuple(names) or (EVERY,)
