"""Stream events to browsers and programs as server-sent events."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from flask import Blueprint, Flask, Response, current_app, g, request

from app.api.auth import watch_token
from app.api.description import answers
from app.api.errors import ApiProblem
from app.api.listen import query as listen
from app.api.listen.query import MAX_FILTER_BYTES, NO_TARGET
from app.api.listen.streams import SocketHandedOver, Streams
from app.api.listen.wire_format import SERVER_SENT_EVENTS
from app.api.s3.errors import S3Error
from app.api.services import services
from app.api.token_scopes import READ, is_limited, needs, require_bucket, require_target
from app.config.errors import BadValue
from app.config.secrets import Sealer
from app.events.model import EVENT_ID
from app.events.names import EVERY, UnknownEventName, expand
from app.outbox.engine.database import Database
from app.resources.declaration import BadMember
from app.resources.event import StreamQuery
from app.rules.model import EVERY_BUCKET, Rule

routes = Blueprint("stream", __name__)
_STREAMS = "bucketwire_streams"
_PING = 15  # seconds
_SEALED_ID = "event:"  # before a sealed id, so that nothing else that is sealed is taken for one


class _HandOver(Response):
    """A response that hands its connection over, once Flask has ended the request."""

    handed_over: SocketHandedOver

    def __call__(self, environ: Any, start_response: Any) -> Any:  # noqa: ARG002 - WSGI's signature
        """Leave gunicorn's worker with the connection. Raises `SocketHandedOver`."""
        raise self.handed_over


def install(app: Flask, database: Database, *, tls: bool = False) -> Streams:
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
