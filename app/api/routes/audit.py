"""Read the audit log: who changed what, when and from where."""

from flask import Blueprint

from app.api.description import answers
from app.api.services import services
from app.api.token_scopes import ADMIN, needs
from app.config.errors import did_you_mean
from app.outbox import audit
from app.outbox.audit import AuditFilter, Entry
from app.resources.audit_entry import ACTIONS, KINDS, AuditEntry, AuditPage, AuditQuery
from app.resources.declaration import BadMember

routes = Blueprint("audit", __name__)


@routes.get("/v1/audit")
@needs(ADMIN)
@answers(AuditPage, "a page of entries", query=AuditQuery)
def ls(query: AuditQuery) -> AuditPage:
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
