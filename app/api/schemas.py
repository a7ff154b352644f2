"""The schemas of the API's bodies, for its OpenAPI description."""

from typing import Any

from app.api.errors import PROBLEM_TYPES
from app.config.settings import SCOPES
from app.config.targets.registry import TYPES
from app.events.frontends import S3_FRONTENDS
from app.events.names import AGGREGATES, EVERY, KNOWN
from app.manifest.document import schema as document_schema
from app.outbox.audit import ACTIONS
from app.outbox.delivery.attempts import OUTCOMES
from app.outbox.delivery.event_states import STATES
from app.outbox.delivery.partition_states import LEASE_STATES
from app.outbox.reconcile.runs import COUNTS
from app.outbox.targets import OPENED, OPENING_DUE, OPENING_FAILED
from app.resources.declaration import MAX_TEXT_CHARACTERS
from app.resources.drift import DRIFT_KINDS, DriftKind
from app.rules.filters import MAX_SIZE

_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
_FLAG = {"type": "boolean"}
_TARGET = {
    **_TEXT,
    "pattern": rf"^({'|'.join(TYPES)}):[A-Za-z0-9_][A-Za-z0-9_.-]{{0,63}}$"
    rf"|^arn:minio:sqs:[A-Za-z0-9_-]{{0,64}}:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,63}}:({'|'.join(TYPES)})$",
    "description": "an ARN or type:name",
}
_TIME = {"type": ["string", "null"], "format": "date-time"}
_OPTIONAL_TEXT = {"type": ["string", "null"]}
_OPTIONAL_NUMBER = {"type": ["integer", "null"]}
_SECONDS = {"type": ["number", "null"]}
_COUNTS = {"type": "object", "additionalProperties": _NUMBER, "description": "by ARN"}
_COUNTERS = ("matched", "recorded", "delivered", "superseded", "pending", "parked", "dead", "purged", "discarded")


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _with(required: str, described: dict[str, Any]) -> dict[str, Any]:
    return described | {"required": required.split()}


def _list(of: str) -> dict[str, Any]:
    return {"type": "array", "items": {"$ref": f"#/components/schemas/{of}"}}


_FILTER: dict[str, Any] = {
    "ids": {"type": "array", "items": _NUMBER},
    "target": _TARGET,
    "bucket": _TEXT,
    "prefix": _TEXT,
    "reason": {**_TEXT, "description": "a part of the reason"},
    "since": {**_TEXT, "format": "date-time"},
    "before": {**_TEXT, "format": "date-time"},
    "all": {**_FLAG, "description": "required if no filter is given"},
}
_PAIRS = {"type": ["object", "null"], "additionalProperties": _TEXT}
_SIZE = {"type": ["integer", "string", "null"]}
_RULE: dict[str, Any] = {
    "bucket": {**_TEXT, "minLength": 1, "maxLength": 255, "description": "the bucket's name; * for every bucket"},
    "events": {
        "type": "array",
        "items": {**_TEXT, "enum": [EVERY, *sorted(AGGREGATES), *sorted(KNOWN)]},
        "minItems": 1,
        "uniqueItems": True,
        "description": '["*"] for every event, known or not',
    },
    "prefix": _TEXT,
    "suffix": _TEXT,
    "target": _TARGET,
    "rule_id": _TEXT,
    "regex": {**_OPTIONAL_TEXT, "description": "a regular expression (RE2) that the whole key must match"},
    "metadata": {**_PAIRS, "description": "entries of the object's metadata that the event must carry"},
    "tags": {**_PAIRS, "description": "tags of the object that the event must carry"},
    "min_size": {**_SIZE, "description": "least size of the object in bytes, or a text such as 1MiB"},
    "max_size": {**_SIZE, "description": "greatest size of the object in bytes, or a text such as 1MiB"},
}
_EVENT: dict[str, Any] = {
    "id": _TEXT, "seq": _NUMBER, "name": _TEXT, "bucket": _TEXT, "key": _TEXT, "version": _TEXT, "time": _TIME,
    "received_at": _TIME,
    "delivery_states": {
        "type": "array",
        "items": _object(
            target=_TEXT,
            state={**_TEXT, "enum": list(STATES)},
            reason={**_TEXT, "description": "of the last attempt, if it is parked or dead"},
            attempts={**_NUMBER, "description": "of one event: attempts that failed, while it is parked or dead"},
            history={
                "type": "array", "items": _object(at=_TIME, reason=_TEXT),
                "description": "of one event: the last ten attempts, while it is parked or dead",
            },
            waits={**_FLAG, "description": "of one event: it is parked behind an earlier event of its object"},
            next_try={**_TIME, "description": "of one event: null for one that is due, waits, or is not parked"},
            timeline={
                "type": "array", "items": _object(
                    at={**_TIME, "description": "when it was settled"},
                    outcome={**_TEXT, "enum": list(OUTCOMES)},
                    attempt={"type": ["integer", "null"], "description": "its number, if it counts as one"},
                    events={**_NUMBER, "description": "how many had this outcome in the same call"},
                    duration={"type": "number", "description": "seconds that the target took for the call"},
                    replay={"type": ["integer", "null"], "description": "the number of the replay that made it"},
                    reason=_TEXT,
                ),
                "description": "of one event: the recorded attempts, oldest first; the record is bounded",
            },
        ),
    },
    "traceparent": {**_TEXT, "description": "W3C Trace Context, if the event had one"},
    "tracestate": _TEXT,
    "record": {"type": "object", "description": "not in a search"},
}  # fmt: skip
_SCOPES = {"type": "array", "items": {**_TEXT, "enum": list(SCOPES)}, "minItems": 1}
_LIMITS: dict[str, Any] = {
    "buckets": {
        "type": "array", "items": {**_TEXT, "minLength": 1, "maxLength": 255}, "maxItems": 100,
        "description": "it is limited to events of these buckets",
    },
    "targets": {
        "type": "array", "items": _TARGET, "maxItems": 100, "description": "it is limited to these targets",
    },
}  # fmt: skip
_NAME = {**_TEXT, "minLength": 1, "maxLength": MAX_TEXT_CHARACTERS, "pattern": "^[^\\u0000]+$"}
_TOKEN_NAME = {**_TEXT, "pattern": "^[A-Za-z0-9_.-]{1,64}$"}


def _changed_keys() -> dict[str, Any]:
    """Return the schema of a declaration's targets and section `api`, of which any key may be left out."""
    document = document_schema()
    types = document["properties"]["targets"]["patternProperties"]
    optional = {name: {**settings, "required": []} for name, settings in types.items()}
    targets = {**document["properties"]["targets"], "patternProperties": optional}
    properties = {"targets": targets, "api": document["properties"]["api"]}
    return {"type": "object", "additionalProperties": False, "properties": properties}


SCHEMAS: dict[str, dict[str, Any]] = {
    "Problem": _object(
        type={**_TEXT, "enum": [f"urn:bucketwire:problem:{kind}" for kind in PROBLEM_TYPES]},
        title=_TEXT,
        status=_NUMBER,
        detail=_TEXT,
        field={**_TEXT, "description": "the invalid parameter or member"},
        offset={**_NUMBER, "description": "the byte at which the JSON is invalid"},
        index={**_NUMBER, "description": "the invalid record, from 0"},
        errors={"type": "array", "items": _object(field=_TEXT, value=_TEXT, problem=_TEXT, hint=_TEXT)},
        targets={"type": "array", "items": _TEXT},
        id={**_TEXT, "description": "the id of an unexpected error in the API's log"},
    ),
    "Receipt": _object(
        recorded=_NUMBER,
        repeated={**_NUMBER, "description": "recorded before"},
        ignored={**_NUMBER, "description": "records that are no events: a sender's test messages, folders"},
        matched=_COUNTS,
        discarded={**_COUNTS, "description": "not recorded for a target because its queue is full, by ARN"},
        refused={"type": "array", "items": _object(index=_NUMBER, field=_TEXT, problem=_TEXT)},
        more_refused={**_NUMBER, "description": "invalid records that `refused` does not list"},
        spooled={**_NUMBER, "description": "events kept in the spool folder; then the other counts are not known yet"},
    ),
    "Event": _object(**_EVENT),
    "Events": _object(
        bucket={**_TEXT, "description": "of an object's history"},
        key={**_TEXT, "description": "of an object's history"},
        events=_list("Event"),
        next={
            "type": ["integer", "null"],
            "description": "the `after` of the next page; null: there are no older events",
        },
        searched_to={**_TIME, "description": "of a search: when the oldest event was recorded that was looked at"},
    ),
    "Text": {**_TEXT, "maxLength": MAX_TEXT_CHARACTERS, "pattern": "^[^\\u0000]*$"},
    "Frontend": {**_TEXT, "enum": sorted(S3_FRONTENDS)},
    "Settings": {"type": "object", "additionalProperties": True, "description": "the settings of the type, by name"},
    "Target": _object(
        arn=_TEXT, type={**_TEXT, "enum": list(TYPES)}, name=_TEXT,
        state={**_TEXT, "enum": ["running", "paused", "disabled", "unavailable", "broken"]},
        reason=_TEXT, resume_at=_TIME,
        opening=_object(
            state={**_TEXT, "enum": [OPENING_DUE, OPENED, OPENING_FAILED],
                   "description": "whether a worker could open it with its present settings"},
            at=_TIME, reason=_TEXT,
        ),
        mode={**_TEXT, "enum": ["sync", "async"]},
        origin={**_TEXT, "enum": ["environment", "stored", "sample"]},
        settings={"type": "object", "additionalProperties": _TEXT, "description": "secrets are *redacted*"},
        events=_object(**dict.fromkeys(_COUNTERS, _NUMBER)),
        oldest_age={
            "type": ["number", "null"],
            "description": "seconds since its oldest undelivered event was recorded; null: there is none",
        },
    ),
    "ApiSettings": _object(
        sync_events={
            "enum": ["on", "off", "", "true", "false", "1", "0", True, False, 1, 0, None],
            "description": "empty or null: the default; `MINIO_API_SYNC_EVENTS` overrides it",
        }
    ) | {"additionalProperties": False},
    "EffectiveApiSettings": _object(
        sync_events=_object(
            value={**_TEXT, "enum": ["on", "off"]},
            origin={**_TEXT, "enum": ["environment", "stored", "default"]},
        )
    ),
    "TargetTest": _object(
        target=_TEXT,
        ids={"type": "array", "items": _TEXT, "description": "of the test's events"},
        bucket=_TEXT,
        key=_TEXT,
        history={**_TEXT, "description": "the address of their delivery state"},
    ),
    "Targets": _object(targets=_list("Target")),
    "Partitions": _object(
        target=_TEXT,
        partitions={"type": "array", "items": _object(
            partition=_NUMBER,
            position={**_NUMBER, "description": "the sequence number up to which its events are settled or parked"},
            pending={**_NUMBER, "description": "events after the position, as far as they were counted"},
            parked={**_NUMBER, "description": "events that are retried, or wait behind one of their object"},
            parked_objects={**_NUMBER, "description": "objects that have parked events"},
            more={**_FLAG, "description": "there may be more of these than were counted"},
            lease={**_TEXT, "enum": list(LEASE_STATES),
                   "description": "revoked: no worker may have it until the lease has expired"},
            holder={**_OPTIONAL_TEXT, "description": "the worker process that has leased it, as HOST:PID"},
            leased_until=_TIME,
        )},
    ),
    "Reason": _object(reason=_TEXT) | {"additionalProperties": False},
    "Nothing": _object() | {"additionalProperties": False},
    "Empty": _object(),
    "NewRule": _with("bucket events target", _object(**_RULE)) | {"additionalProperties": False},
    "Rule": _object(number=_NUMBER, **_RULE),
    "Rules": _object(rules=_list("Rule")),
    "Declaration": document_schema(),
    "Plan": _object(
        dry_run=_FLAG,
        targets={"type": "array", "items": _object(
            target=_TEXT, new=_FLAG,
            changes={"type": "array", "items": _TEXT, "description": "`-` a setting's old value, `+` its new one"},
            warnings={"type": "array", "items": _TEXT, "description": "settings that have no effect"},
        )},
        rules_added={"type": "array", "items": _object(**_RULE)},
        rules_removed={"type": "array", "items": _object(number=_NUMBER, **_RULE)},
        api={"type": "array", "items": _TEXT, "description": "the changes of the section `api`"},
        targets_removed={"type": "array", "items": _TEXT},
        not_declared=_object(targets={"type": "array", "items": _TEXT}, rules=_NUMBER),
    ),
    "Removed": _object(
        lost={"type": "array", "items": _TEXT, "description": "what was deleted with it, such as `2 rule(s) name it`"}
    ),
    "NewReplay": _with("target", _object(
        **{name: _FILTER[name] for name in ("target", "since", "before", "bucket", "prefix", "all")},
        events={
            "type": ["array", "null"], "maxItems": 1000, "items": _RULE["events"]["items"],
            "description": "event names, with wildcards such as `s3:ObjectCreated:*`; none: every event",
        },
    )),
    "Replay": _object(
        id=_NUMBER, target=_TEXT, since=_TIME, before=_TIME, bucket=_TEXT, prefix=_TEXT,
        events={"type": "array", "items": _TEXT}, created_at=_TIME,
        replayed={**_NUMBER, "description": "events delivered, superseded, parked or made dead letters so far"},
        progress={
            "type": "number", "minimum": 0, "maximum": 1,
            "description": "the share of the log that it has passed",
        },
        finished={**_FLAG, "description": "true also for a cancelled replay"},
        cancelled_at=_TIME,
    ),
    "Replays": _object(replays=_list("Replay")),
    "RepairReceipt": _object(
        recorded=_NUMBER,
        repeated={**_NUMBER, "description": "recorded before"},
        overtaken={**_NUMBER, "description": "events left out because their objects changed after `after`"},
        refused={
            **_NUMBER,
            "description": "events left out because the database refuses them; the API's log has its reasons",
        },
    ),
    "Reconciliation": _object(
        run=_TEXT,
        target=_TARGET,
        bucket=_TEXT,
        job={**_TEXT, "enum": ["reconcile", "scan"]},
        state={
            **_TEXT,
            "enum": [
                "waiting", "running", "clean", "drift", "repaired", "failed", "cancelled", "backfilling", "backfilled",
                "unfinished",
            ],
        },
        repair={
            "type": ["boolean", "null"],
            "description": "whether its request wants repairs; null: the target's settings decide, or an option",
        },
        started_at=_TIME,
        finished_at=_TIME,
        **dict.fromkeys(COUNTS, _NUMBER),
        report={**_TEXT, "description": "the folder with the findings, on the host of the job"},
        problem=_TEXT,
        progress={
            **_object(
                stage=_TEXT,
                keys={**_NUMBER, "description": "entries of the listing and rows of the target that have been read"},
                rate={**_NUMBER, "description": "of them per second"},
                remaining={"type": ["integer", "null"], "description": "seconds; null: not known"},
            ),
            "type": ["object", "null"],
            "description": "of a run that is running, every 15 s",
        },
    ),
    "NewReconciliation": _with("target bucket", _object(
        target=_TARGET, bucket={**_TEXT, "pattern": "^[A-Za-z0-9_][A-Za-z0-9._-]{2,254}$"},
        repair={**_FLAG, "default": False},
    )) | {"additionalProperties": False},
    "DriftKind": {
        **_TEXT,
        "enum": list(DRIFT_KINDS),
        "description": "; ".join(f"{kind}: {kind.about}" for kind in DriftKind),
    },
    "Findings": _object(
        findings={"type": "array", "items": _object(
            number=_NUMBER, kind={"$ref": "#/components/schemas/DriftKind"}, key=_TEXT,
            differs={**_TEXT, "description": "of a stale row: what differs, comma-separated"},
            **dict.fromkeys(("etag", "version"), _OPTIONAL_TEXT),
            **dict.fromkeys(("row_name", "row_etag", "row_version", "row_sequencer"), _OPTIONAL_TEXT),
            **dict.fromkeys(("size", "modified", "row_size", "row_time"), _OPTIONAL_NUMBER),
        )},
        next={"type": ["integer", "null"], "description": "the `after` of the next page; null: there is none"},
    ),
    "Reconciliations": _object(reconciliations=_list("Reconciliation")),
    "AuditLog": _object(
        entries={"type": "array", "items": _object(
            id=_NUMBER,
            at=_TIME,
            actor={
                **_TEXT,
                "description": "`token:NAME`, `key:NAME` (S3), `user:NAME@HOST`, `local`, `openid:ISSUER#SUB (NAME)`",
            },
            address={**_TEXT, "description": "of the client that sent the request; empty for a command"},
            via={**_TEXT, "description": "the route or the command"},
            operation={**_TEXT, "description": "the same for all entries of one request or command"},
            action={**_TEXT, "enum": list(ACTIONS)},
            resource={**_TEXT, "description": "`kind:name`"},
            details={"type": "object", "additionalProperties": True},
        )},
        next={"type": ["integer", "null"], "description": "the `after` of the next page; null: there is none"},
    ),
    "AllSeries": _object(
        step={**_NUMBER, "enum": [10, 300]},
        series={"type": "array", "items": _object(
            target=_TARGET,
            samples={"type": "array", "items": _object(
                at={**_TIME, "description": "when the step begins"},
                **dict.fromkeys(("recorded", "delivered", "superseded", "dead_lettered", "discarded"), _NUMBER),
                failed={**_NUMBER, "description": "attempts that failed or were rejected; a total, as those above"},
                backlog={**_NUMBER, "description": "undelivered events without replayed ones; for step 300 the most"},
                oldest_age={
                    "type": ["number", "null"],
                    "description": "seconds since the oldest undelivered event was recorded; 0: none, null: unknown",
                },
                p50={**_SECONDS, "description": "seconds from recording to delivery of half of the step's deliveries"},
                p99={**_SECONDS, "description": "of 99 % of them; both at most 19 % too high; null: no deliveries"},
            )},
        )},
    ),
    "ChangedKeys": _changed_keys(),
    "RuleNumbers": _with("numbers", _object(
        numbers={"type": "array", "items": {**_NUMBER, "minimum": 1, "maximum": 2**31 - 1}, "minItems": 1,
                 "maxItems": 10_000},
    ))
    | {"additionalProperties": False},
    "RemovedRules": _object(removed={"type": "array", "items": _NUMBER}),
    "Tokens": _object(
        required={**_FLAG, "description": "whether requests need a token"},
        tokens={"type": "array", "items": _object(
            name=_TEXT, scopes=_SCOPES, **_LIMITS, frontend=_TEXT, origin={**_TEXT, "enum": ["environment", "stored"]},
            created_at=_TIME,
        )},
    ),
    "NewToken": _with("name scopes", _object(
        name=_TOKEN_NAME, scopes=_SCOPES, **_LIMITS, frontend={**_TEXT, "enum": ["", *sorted(S3_FRONTENDS)]},
    ))
    | {"additionalProperties": False},
    "CreatedToken": _object(
        name=_TEXT, scopes=_SCOPES, **_LIMITS, frontend=_TEXT, token={**_TEXT, "description": "it is not stored"}
    ),
    "MatchedEvent": _with("bucket event", _object(
        bucket=_NAME, key={"$ref": "#/components/schemas/Text"},
        event={**_NAME, "description": "its name, such as s3:ObjectCreated:Put"},
        metadata=_PAIRS, tags=_PAIRS, size={**_OPTIONAL_NUMBER, "minimum": 0, "maximum": MAX_SIZE},
    )) | {"additionalProperties": False},
    "Match": _object(
        rules=_list("Rule"),
        targets={"type": "array", "items": _object(target=_TEXT, state=_TEXT)},
    ),
    "Status": _object(
        version=_TEXT, region=_TEXT, ready=_FLAG,
        checks={"type": "object", "additionalProperties": _object(ok=_FLAG, reason=_TEXT)},
        targets={"type": "object", "additionalProperties": _NUMBER, "description": "their number by state"},
        events=_object(**dict.fromkeys(_COUNTERS, _NUMBER)),
        oldest_age={"type": ["number", "null"], "description": "seconds, of the oldest undelivered event; null: none"},
    ),
    "Diagnosis": _object(
        checked_at=_TIME,
        problems=_NUMBER,
        findings={"type": "array", "items": _object(
            subject={**_TEXT, "description": "what was checked, or a target as type:name"},
            grade={**_TEXT, "enum": ["ok", "note", "problem"]},
            text=_TEXT,
        )},
    ),
    "Workers": _object(
        flower={"type": ["string", "null"], "description": "the address of Flower, of `BUCKETWIRE_FLOWER_URL`"},
        drain=_object(running=_FLAG, age={"type": ["number", "null"], "description": "seconds; null: it never ran"}),
        queues={"type": "array", "items": _object(
            target=_TEXT, answered_at=_TIME,
            age={"type": "number", "description": "seconds since a worker answered, or the target was created"},
            served=_FLAG, leased_partitions=_NUMBER,
        )},
    ),
    "Alive": _object(status=_TEXT),
    "Readiness": _object(
        ready=_FLAG,
        checks={"type": "object", "additionalProperties": _object(ok=_FLAG, reason=_TEXT)},
    ),
}  # fmt: skip
