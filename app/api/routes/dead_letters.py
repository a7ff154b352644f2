"""Dead letters: events that a target will not get by itself any more. Look, replay, throw away."""

from collections.abc import Mapping
from typing import Any

import orjson
from flask import Blueprint, Response, request

from app.api.auth import ADMIN, READ, needs
from app.api.request_body import json_object
from app.api.serialization import (
    bad_value,
    format_time,
    json_response,
    parsed_number,
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


@routes.get("/v1/dead-letters")
@needs(READ)
def ls() -> Response:
    """List dead letters.
    ---
    get:
      summary: Dead letters in order of their numbers
      security: [{token: [read]}]
      parameters:
        - {name: ids, in: query, schema: {type: string}, description: "numbers, divided by commas"}
        - {name: target, in: query, schema: {type: string}, description: an ARN or type:name}
        - {name: bucket, in: query, schema: Text}
        - {name: prefix, in: query, schema: Text, description: of the key}
        - {name: reason, in: query, schema: Text, description: contained in the reason}
        - {name: since, in: query, schema: {type: string}, description: last tried at or after}
        - {name: before, in: query, schema: {type: string}, description: last tried before}
        - {name: limit, in: query, schema: {type: integer, default: 100, minimum: 1, maximum: 1000}}
        - {name: after, in: query, schema: {type: integer, default: 0}, description: the `next` of the page before}
      responses:
        200: {description: a page of them, content: {application/json: {schema: DeadLetters}}}
        default: Problem
    """
    given: dict[str, Any] = request.args.to_dict()
    limit = parsed_number("limit", given.pop("limit", None), 100, least=1, most=_MOST)
    after = parsed_number("after", given.pop("after", None), 0, least=0, most=NEVER)
    if "ids" in given:
        given["ids"] = [part.strip() for part in given["ids"].split(",") if part.strip()]
    found = services().dead_letters.list(_filter(given), limit=limit, after=after)
    more = found[-1].letter_id if len(found) == limit else None
    return json_response({"dead_letters": [_letter_json(letter) for letter in found], "next": more})


@routes.post("/v1/dead-letters/replay")
@needs(ADMIN)
def replay() -> Response:
    """Replay dead letters.
    ---
    post:
      summary: Send dead letters on their way again, in the order of their objects
      security: [{token: [admin]}]
      requestBody: {required: true, content: {application/json: {schema: DeadLetterFilter}}}
      responses:
        200: {description: how many, content: {application/json: {schema: Replayed}}}
        default: Problem
    """
    return json_response({"replayed": services().dead_letters.replay(_explicit(json_object(request)))})


@routes.post("/v1/dead-letters/purge")
@needs(ADMIN)
def purge() -> Response:
    """Throw dead letters away.
    ---
    post:
      summary: Throw dead letters away; the target's counters count them as purged
      security: [{token: [admin]}]
      requestBody: {required: true, content: {application/json: {schema: DeadLetterFilter}}}
      responses:
        200: {description: how many, content: {application/json: {schema: Purged}}}
        default: Problem
    """
    return json_response({"purged": services().dead_letters.purge(_explicit(json_object(request)))})


def _explicit(given: Mapping[str, Any]) -> Filter:
    """A filter that says what it wants: an empty one is a slip, unless it says that it means all."""
    refuse_unknown(given, (*_FILTERS, "all"))
    chosen = {name: value for name, value in given.items() if name != "all" and value not in (None, "", [])}
    if given.get("all") is True:
        if chosen:
            raise bad_value("all", "contradicts the rest of the filter", "leave one of them out")
        return Filter()
    if not chosen:
        raise bad_value("all", "is not set and nothing else is", 'name which, or say {"all": true}')
    return _filter(chosen)


def _filter(given: Mapping[str, Any]) -> Filter:
    refuse_unknown(given, _FILTERS)
    ids = given.get("ids", [])
    if not isinstance(ids, list):
        raise bad_value("ids", "is no list", "write [17, 18]")
    target = given.get("target")
    return Filter(
        ids=[parsed_number("ids", each, 0, least=1, most=NEVER) for each in ids],
        target=parsed_target("target", target) if target else None,
        bucket=parsed_text("bucket", given.get("bucket")),
        prefix=parsed_text("prefix", given.get("prefix")),
        reason=parsed_text("reason", given.get("reason")),
        since=parsed_time("since", given.get("since"), 0),
        before=parsed_time("before", given.get("before"), NEVER),
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
