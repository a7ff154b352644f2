"""Manage who may call the API, by bearer tokens, and read the audit log: who changed what, when and from where."""

from flask import Blueprint

from app.api.auth import ADMIN, needs
from app.api.description import answers
from app.api.errors import ApiProblem
from app.api.services import services
from app.config.errors import did_you_mean
from app.outbox import audit
from app.outbox.audit import AuditFilter, Entry
from app.outbox.errors import UnknownToken
from app.resources.declaration import TEXT, BadMember, format_time
from app.resources.service import (
    ACTIONS,
    KINDS,
    AuditEntry,
    AuditPage,
    AuditQuery,
    CreatedToken,
    NewToken,
    Token,
    Tokens,
)

routes = Blueprint("access", __name__)


@routes.get("/v1/tokens")
@needs(ADMIN)
@answers(Tokens, "the tokens")
def ls_tokens() -> Tokens:
    """List the tokens by name, also those that have expired; the tokens themselves are not stored.

    `required`: whether requests need a token; from the first one on, also after the last is revoked.
    """
    tokens = [Token.of(stored, scopes=sorted(stored.scopes)) for stored in services().tokens.list()]
    return Tokens(tokens=tokens, required=services().tokens.required())


@routes.post("/v1/tokens")
@needs(ADMIN)
@answers(CreatedToken, "the token", body=NewToken, status=201)
def create_token(body: NewToken) -> CreatedToken:
    """Create a token and return it; it cannot be shown again.

    Valid within a second. After the first token has been created, every request needs one. With `buckets` or `targets`
    it is limited to what concerns only these. `frontend` names the sender of the events that are posted with it, where
    they do not show it. `tenant` says whose buckets they concern, to which it is limited then; `arn` has each bucket's
    ARN say it, and is no limit. From `expires` on it is refused, and its sessions and streams end.
    """
    token = services().tokens.create(
        body.name,
        body.scopes,
        buckets=body.buckets,
        targets=body.targets,
        frontend=body.frontend,
        tenant=body.tenant,
        expires_at=body.expires,
    )
    return CreatedToken(
        name=body.name,
        scopes=sorted(set(body.scopes)),
        buckets=sorted(set(body.buckets)),
        targets=sorted(set(map(str, body.targets))),
        frontend=body.frontend,
        tenant=body.tenant,
        expires_at=format_time(body.expires),
        token=token,
    )


@routes.delete("/v1/tokens/<name>")
@needs(ADMIN)
@answers(None, "the token is revoked", status=204, path={"name": "the token's name"})
def revoke_token(name: str) -> None:
    """Revoke a token; effective within a second.

    After the last one is revoked, no client can use the API until `bucketwire token create` is run.
    """
    try:
        services().tokens.revoke(TEXT.read("name", name))
    except UnknownToken as error:
        raise ApiProblem("not-found", str(error)) from None


@routes.get("/v1/audit")
@needs(ADMIN)
@answers(AuditPage, "a page of entries", query=AuditQuery)
def ls_audit(query: AuditQuery) -> AuditPage:
    """List the changes of targets, rules, tokens, replays and dead letters, newest first.

    Filters are combined with AND. Continue with `after` set to the `next` of the previous page. Secrets are never in
    the entries.
    """
    actions = audit.actions_of(query.action)
    if query.action and not actions:
        raise BadMember("action", "is unknown", did_you_mean(query.action, [*ACTIONS, *KINDS]))
    which = AuditFilter(query.since, query.before, query.actor, actions, query.resource)
    entries = audit.entries(services().database, which, limit=query.limit, after=query.after)
    more = entries[-1].entry_id if len(entries) == query.limit else None
    return AuditPage(entries=[_entry(entry) for entry in entries], next=more)


def _entry(entry: Entry) -> AuditEntry:
    actor = entry.actor
    return AuditEntry.of(
        entry, id=entry.entry_id, actor=actor.name, address=actor.address, via=actor.via, operation=actor.operation
    )
