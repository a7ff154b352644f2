"""Read the audit log: who changed what, when and from where."""

from typing import Any

from flask import Blueprint, Response, request

from app.api.auth import ADMIN, needs
from app.api.serialization import bad_value, json_response, parsed_number, parsed_text, parsed_time
from app.api.services import services
from app.config.errors import did_you_mean
from app.outbox import audit
from app.outbox.audit import ACTIONS, KINDS, AuditFilter, Entry
from app.outbox.markers import NEVER
from app.resources.declaration import format_time, refuse_unknown

routes = Blueprint("audit", __name__)
_MEMBERS = ("since", "before", "actor", "action", "resource", "limit", "after")


@routes.get("/v1/audit")
@needs(ADMIN)
def ls() -> Response:
    """List changes.
    ---
    get:
      summary: List the changes of targets, rules, tokens, replays and dead letters, newest first
      description: >
        Filters are combined with AND. Continue with `after` set to the `next` of the previous page. Secrets are never
        in the entries.
      security: [{token: [admin]}]
      parameters:
        - {name: since, in: query, schema: {type: string}, description: "at or after: RFC 3339, or ms since 1970"}
        - {name: before, in: query, schema: {type: string}, description: "before: RFC 3339, or ms since 1970"}
        - {name: actor, in: query, schema: Text, description: "such as token:console or user:alice@host"}
        - {name: action, in: query, schema: Text,
           description: "an action such as target.pause, or a kind such as target for all of its actions"}
        - {name: resource, in: query, schema: Text, description: "such as target:webhook:audit or bucket:images"}
        - {name: limit, in: query, schema: {type: integer, default: 100, minimum: 1, maximum: 1000},
           description: the most entries to return}
        - {name: after, in: query, schema: {type: integer, default: 0}, description: the `next` of the previous page}
      responses:
        200: {description: a page of entries, content: {application/json: {schema: AuditLog}}}
        default: Problem
    """
    refuse_unknown(request.args, _MEMBERS)
    limit = parsed_number("limit", request.args.get("limit"), 100, least=1, most=1000)
    after = parsed_number("after", request.args.get("after"), 0, least=0, most=NEVER)
    which = AuditFilter(
        since=parsed_time("since", request.args.get("since"), 0),
        before=parsed_time("before", request.args.get("before"), NEVER),
        actor=parsed_text("actor", request.args.get("actor")),
        actions=_actions(parsed_text("action", request.args.get("action"))),
        resource=parsed_text("resource", request.args.get("resource")),
    )
    entries = audit.entries(services().database, which, limit=limit, after=after)
    more = entries[-1].entry_id if len(entries) == limit else None
    return json_response({"entries": [_entry_json(entry) for entry in entries], "next": more})


def _actions(word: str) -> tuple[str, ...]:
    actions = audit.actions_of(word)
    if word and not actions:
        raise bad_value("action", "is unknown", did_you_mean(word, [*ACTIONS, *KINDS]))
    return actions


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.entry_id,
        "at": format_time(entry.at),
        "actor": entry.actor.name,
        "address": entry.actor.address,
        "via": entry.actor.via,
        "operation": entry.actor.operation,
        "action": entry.action,
        "resource": entry.resource,
        "details": dict(entry.details),
    }
