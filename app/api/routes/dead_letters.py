"""List, replay and delete dead letters: events that are no longer retried."""

from collections.abc import Mapping
from typing import Any

import orjson
from flask import Blueprint, Response, request

from app.api.auth import ADMIN, READ, needs, require_target
from app.api.request_body import json_object
from app.api.serialization import (
    bad_value,
    explicit_filter,
    format_time,
    json_response,
    parsed_number,
    parsed_query_filter,
    parsed_target,
    parsed_text,
    parsed_time,
    refuse_unknown,
)
from app.api.services import services
from app.outbox.delivery.dead_letters import DeadLetter, Filter
from app.outbox.markers import NEVER

routes = Blueprint("dead_letters", __name__)
_FILTERS = ("ids", "target", "bucket", "prefix", "reason", "since", "before")
_MOST = 1000
_MOST_COUNTED, _MOST_REASONS = 20_000, 200


@routes.get("/v1/dead-letters")
@needs(READ, limited=True)
def ls() -> Response:
    """List dead letters.
    ---
    get:
      summary: List dead letters, sorted by number
      description: >
        Filters are combined with AND. Continue with `after` set to the `next` of the previous page until it is null: a
        page reads a bounded number of dead letters, so it may be empty and still have a next one.
      security: [{token: [read]}]
      parameters:
        - {name: ids, in: query, schema: {type: string}, description: "numbers, comma-separated"}
        - {name: target, in: query, schema: {type: string}, description: "the target, as an ARN or type:name"}
        - {name: bucket, in: query, schema: Text, description: the object's bucket}
        - {name: prefix, in: query, schema: Text, description: the key's prefix}
        - {name: reason, in: query, schema: Text, description: a part of the reason}
        - {name: since, in: query, schema: {type: string},
           description: "last attempt at or after: RFC 3339, or ms since 1970"}
        - {name: before, in: query, schema: {type: string},
           description: "last attempt before: RFC 3339, or ms since 1970"}
        - {name: limit, in: query, schema: {type: integer, default: 100, minimum: 1, maximum: 1000},
           description: the most dead letters to return}
        - {name: after, in: query, schema: {type: integer, default: 0}, description: the `next` of the previous page}
      responses:
        200: {description: a page of dead letters, content: {application/json: {schema: DeadLetters}}}
        default: Problem
    """
    arguments = parsed_query_filter(request.args.to_dict())
    limit = parsed_number("limit", arguments.pop("limit", None), 100, least=1, most=_MOST)
    after = parsed_number("after", arguments.pop("after", None), 0, least=0, most=NEVER)
    page = services().dead_letters.page(_filter(arguments), limit=limit, after=after)
    return json_response({"dead_letters": [_letter_json(letter) for letter in page.letters], "next": page.next})


@routes.get("/v1/dead-letters/reasons")
@needs(READ, limited=True)
def reasons() -> Response:
    """Count dead letters by reason.
    ---
    get:
      summary: Count dead letters by target and reason, the most frequent first
      description: >
        Of the newest 20,000 dead letters; `complete` says whether these are all. At most 200 reasons.
      security: [{token: [read]}]
      parameters:
        - {name: target, in: query, schema: {type: string}, description: "the target, as an ARN or type:name"}
      responses:
        200: {description: the reasons, content: {application/json: {schema: DeadLetterReasons}}}
        default: Problem
    """
    refuse_unknown(request.args, ("target",))
    target = request.args.get("target")
    which = parsed_target("target", target) if target else None
    require_target(which)
    counts, looked_at = services().dead_letters.reasons(which, newest=_MOST_COUNTED, limit=_MOST_REASONS)
    region = services().settings.region
    return json_response(
        {
            "reasons": [
                {
                    "target": count.target.arn(region),
                    "reason": count.reason,
                    "dead_letters": count.dead_letters,
                    "last_tried": format_time(count.last_tried),
                }
                for count in counts
            ],
            "looked_at": looked_at,
            "complete": looked_at < _MOST_COUNTED,
        }
    )


@routes.post("/v1/dead-letters/replay")
@needs(ADMIN, limited=True)
def replay() -> Response:
    """Replay dead letters.
    ---
    post:
      summary: Deliver dead letters again, in order per object
      description: >
        They keep their ids and history, their attempts are counted from 0 again, and they do not count against the
        target's `queue_limit`. Needs a filter, or `all`.
      security: [{token: [admin]}]
      requestBody: {required: true, content: {application/json: {schema: DeadLetterFilter}}}
      responses:
        200: {description: the number of dead letters, content: {application/json: {schema: Replayed}}}
        default: Problem
    """
    return json_response(
        {"replayed": services().dead_letters.replay(_filter(explicit_filter(json_object(request), _FILTERS)))}
    )


@routes.post("/v1/dead-letters/purge")
@needs(ADMIN, limited=True)
def purge() -> Response:
    """Delete dead letters.
    ---
    post:
      summary: Delete dead letters permanently; the target's counters count them as purged
      description: Needs a filter, or `all`.
      security: [{token: [admin]}]
      requestBody: {required: true, content: {application/json: {schema: DeadLetterFilter}}}
      responses:
        200: {description: the number of dead letters, content: {application/json: {schema: Purged}}}
        default: Problem
    """
    return json_response(
        {"purged": services().dead_letters.purge(_filter(explicit_filter(json_object(request), _FILTERS)))}
    )


def _filter(filters: Mapping[str, Any]) -> Filter:
    refuse_unknown(filters, _FILTERS)
    ids = filters.get("ids", [])
    if not isinstance(ids, list):
        raise bad_value("ids", "is not a list", "write [17, 18]")
    target = parsed_target("target", filters["target"]) if filters.get("target") else None
    require_target(target)
    return Filter(
        ids=[parsed_number("ids", each, 0, least=1, most=NEVER) for each in ids],
        target=target,
        bucket=parsed_text("bucket", filters.get("bucket")),
        prefix=parsed_text("prefix", filters.get("prefix")),
        reason=parsed_text("reason", filters.get("reason")),
        since=parsed_time("since", filters.get("since"), 0),
        before=parsed_time("before", filters.get("before"), NEVER),
    )


def _letter_json(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.letter_id,
        "target": letter.target.arn(services().settings.region),
        "event_id": letter.event_id,
        "name": letter.name,
        "bucket": letter.bucket,
        "key": letter.key,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "first_tried": format_time(letter.first_tried),
        "last_tried": format_time(letter.last_tried),
        "history": [{"at": format_time(at), "reason": reason} for at, reason in letter.history],
        "record": orjson.Fragment(letter.record),
    }
