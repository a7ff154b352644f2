"""List the events that are retried, have them tried at once, or give them up."""

from collections.abc import Mapping
from typing import Any

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
    refuse_unknown,
)
from app.api.services import services
from app.outbox.delivery.retries import Retries, Retry, RetryFilter, RetryPlace
from app.outbox.markers import NEVER

routes = Blueprint("retries", __name__)
_FILTERS = ("ids", "target", "bucket", "prefix")
_MOST_IDS = 1000


@routes.get("/v1/retries")
@needs(READ, limited=True)
def ls() -> Response:
    """List retried events.
    ---
    get:
      summary: List the events that are retried, by target and time of the next attempt
      description: >
        Of each object the oldest undelivered event that has failed; later events of the object wait behind it. Filters
        are combined with AND. Continue with `after` set to the `next` of the previous page until it is null: a page
        reads a bounded number of events, so it may be empty and still have a next one.
      security: [{token: [read]}]
      parameters:
        - {name: ids, in: query, schema: {type: string}, description: "ids of events, comma-separated"}
        - {name: target, in: query, schema: {type: string}, description: "the target, as an ARN or type:name"}
        - {name: bucket, in: query, schema: Text, description: the object's bucket}
        - {name: prefix, in: query, schema: Text, description: the key's prefix}
        - {name: limit, in: query, schema: {type: integer, default: 100, minimum: 1, maximum: 1000},
           description: the most events to return}
        - {name: after, in: query, schema: {type: string}, description: the `next` of the previous page}
      responses:
        200: {description: a page of events, content: {application/json: {schema: Retries}}}
        default: Problem
    """
    arguments = parsed_query_filter(request.args.to_dict())
    limit = parsed_number("limit", arguments.pop("limit", None), 100, least=1, most=1000)
    after = _place(arguments.pop("after", ""))
    page = Retries(services().database).page(_filter(arguments), limit=limit, after=after)
    more = ".".join(map(str, page.next)) if page.next else None
    return json_response({"retries": [_retry_json(retry) for retry in page.retries], "next": more})


@routes.post("/v1/retries/now")
@needs(ADMIN, limited=True)
def now() -> Response:
    """Try events now.
    ---
    post:
      summary: Make retried events due at once
      description: Their attempts stay counted. Those of an unavailable target wait for it. Needs a filter, or `all`.
      security: [{token: [admin]}]
      requestBody: {required: true, content: {application/json: {schema: RetryFilter}}}
      responses:
        200: {description: the number of events, content: {application/json: {schema: Due}}}
        default: Problem
    """
    return json_response(
        {"due": Retries(services().database).try_now(_filter(explicit_filter(json_object(request), _FILTERS)))}
    )


@routes.post("/v1/retries/give-up")
@needs(ADMIN, limited=True)
def give_up() -> Response:
    """Give events up.
    ---
    post:
      summary: Make dead letters of retried events; the next event of each object is tried at once
      description: >
        Deliveries from the partitions of these events pause for up to the time of a lease. Needs a filter, or `all`.
      security: [{token: [admin]}]
      requestBody: {required: true, content: {application/json: {schema: RetryFilter}}}
      responses:
        200: {description: the number of events, content: {application/json: {schema: GivenUp}}}
        default: Problem
    """
    return json_response(
        {"given_up": Retries(services().database).give_up(_filter(explicit_filter(json_object(request), _FILTERS)))}
    )


def _filter(filters: Mapping[str, Any]) -> RetryFilter:
    refuse_unknown(filters, _FILTERS)
    ids = filters.get("ids", [])
    if not isinstance(ids, list) or len(ids) > _MOST_IDS:
        raise bad_value("ids", "is not a list of ids", f"give at most {_MOST_IDS} ids of events")
    target = parsed_target("target", filters["target"]) if filters.get("target") else None
    require_target(target)
    return RetryFilter(
        ids=[parsed_text("ids", each) for each in ids],
        target=target,
        bucket=parsed_text("bucket", filters.get("bucket")),
        prefix=parsed_text("prefix", filters.get("prefix")),
    )


def _place(text: str) -> RetryPlace | None:
    if not text:
        return None
    try:
        numbers = [int(part) if part.isascii() and part.isdigit() else -1 for part in text[:100].split(".")]
    except ValueError:
        numbers = []
    if len(numbers) != len(RetryPlace._fields) or not all(0 <= number <= NEVER for number in numbers):
        raise bad_value("after", "is not the `next` of a page", "leave it out for the first page")
    return RetryPlace(*numbers)


def _retry_json(retry: Retry) -> dict[str, Any]:
    return {
        "target": retry.target.arn(services().settings.region),
        "event_id": retry.event_id,
        "name": retry.name,
        "bucket": retry.bucket,
        "key": retry.key,
        "attempts": retry.attempts,
        "first_tried": format_time(retry.first_tried),
        "last_tried": format_time(retry.last_tried),
        "next_try": format_time(retry.next_try),
        "history": [{"at": format_time(at), "reason": reason} for at, reason in retry.history],
    }
