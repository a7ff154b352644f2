"""Read the log: an object's history, a search, and one event with its attempts at each target."""

import msgspec
from flask import Blueprint, request
from msgspec import UNSET, UnsetType

from app.api.description import answers
from app.api.errors import ApiProblem
from app.api.services import reserve, reserve_rows, services
from app.api.token_scopes import PUBLIC, READ, authorize, is_limited, may_see, needs, require_bucket, require_target
from app.events.model import Origin as EventOrigin
from app.events.model import origin_of, trace_fields
from app.outbox.admin import attempts, event_states
from app.outbox.admin.event_states import RecordedEvent, find_event, object_history
from app.outbox.admin.replays import Selection, checked
from app.outbox.search import EventFilter, search
from app.resources.dead_letter import failed_attempts
from app.resources.declaration import MAX_PAGE, TEXT, BadMember, format_time, parse_query, refuse_unknown
from app.resources.event import Attempt, DeliveryState, Event, Events, EventsQuery, Exchange, Origin

routes = Blueprint("search", __name__)
_HISTORY = ("bucket", "key", "limit", "after", "brief")
_SEARCH = ("since", "before", "bucket", "prefix", "events", "target", "state", "limit", "after")


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
def show(event_id: str) -> Event:
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


def _attempt(attempt: attempts.Attempt) -> Attempt:
    return Attempt.of(
        attempt,
        attempt=attempt.attempt or None,
        duration=attempt.duration / 1000,
        replay=attempt.replay_id or None,
    )
