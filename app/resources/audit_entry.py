"""Entries of the audit log: who changed what, when and from where."""

from typing import Annotated, Any, ClassVar

from app.resources.declaration import (
    MAX_NUMBER,
    TEXT,
    TIME,
    After,
    Columns,
    Limit,
    Next,
    Query,
    Resource,
    Time,
    about,
)

# Every action, by the kind of what it changes.
ACTIONS = (
    "bucket.create",
    "bucket.remove",
    "bucket.set",
    "bucket.unset",
    "dead_letter.purge",
    "dead_letter.replay",
    "log.new_epoch",
    "reconciliation.cancel",
    "reconciliation.start",
    "replay.begin",
    "replay.cancel",
    "retry.give_up",
    "retry.now",
    "rule.add",
    "rule.remove",
    "secrets.reseal",
    "service.change",
    "session.begin",
    "session.end",
    "session.refuse",
    "source.change",
    "source.create",
    "source.delete_rejected",
    "source.disable",
    "source.pause",
    "source.remove",
    "source.resume",
    "source.retry_rejected",
    "target.change",
    "target.create",
    "target.disable",
    "target.pause",
    "target.remove",
    "target.repair",
    "target.resume",
    "target.test",
    "token.create",
    "token.revoke",
)
KINDS = tuple(sorted({action.partition(".")[0] for action in ACTIONS}))


class AuditEntry(Resource):
    """One change."""

    columns: ClassVar[Columns] = {
        "time": "at", "actor": "actor", "address": "address", "action": "action", "resource": "resource", "via": "via",
    }  # fmt: skip

    id: int
    at: Time
    actor: Annotated[str, about("`token:NAME`, `key:NAME` (S3), `user:NAME@HOST`, `local`, `openid:ISSUER#SUB (NAME)`")]
    address: Annotated[str, about("of the client that sent the request; empty for a command")]
    via: Annotated[str, about("the route or the command")]
    operation: Annotated[str, about("the same for all entries of one request or command")]
    action: Annotated[str, about("what was done", enum=list(ACTIONS))]
    resource: Annotated[str, about("`kind:name`")]
    details: dict[str, Any]


class AuditPage(Resource):
    """Entries, the newest first."""

    entries: list[AuditEntry]
    next: Next


class AuditQuery(Query):
    """Which entries to read."""

    since: Annotated[int, TIME("at or after")] = 0
    before: Annotated[int, TIME("before")] = MAX_NUMBER
    actor: Annotated[str, TEXT("such as token:console or user:alice@host")] = ""
    action: Annotated[str, TEXT("an action such as target.pause, or a kind such as target for all of its actions")] = ""
    resource: Annotated[str, TEXT("such as target:webhook:audit or bucket:images")] = ""
    limit: Limit = 100
    after: After = 0
