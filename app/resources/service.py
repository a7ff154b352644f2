"""The service as a whole: its state, checks, workers and settings, the tokens of its API, and its audit log."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Meta, UnsetType

from app.config.arn import TargetId, parse_arn
from app.config.settings import SCOPES
from app.events.frontends import S3_FRONTENDS
from app.quantities import format_seconds
from app.resources.declaration import (
    EXPIRY,
    MAX_NUMBER,
    TARGET,
    TEXT,
    TIME,
    After,
    Arn,
    Columns,
    Limit,
    Next,
    Query,
    Resource,
    Row,
    Time,
    about,
    list_of,
)
from app.resources.target import Counters, Seconds

PROCESS_STATES = ("running", "hindered", "silent", "ended")
FINDING_GRADES = ("ok", "note", "warning", "problem")  # the worst last


class Check(Resource):
    """A check of the service."""

    ok: bool
    reason: Annotated[str | UnsetType, about("why it is not ok")] = UNSET
    revision: Annotated[str | UnsetType | None, about("of the database's schema")] = UNSET
    needed: Annotated[str | UnsetType, about("the revision that this version needs")] = UNSET
    age: Annotated[
        Seconds | UnsetType,
        about("seconds since the drain or beat ran (null: it never ran), or of the oldest file in the spool folder"),
    ] = UNSET
    files: Annotated[int | UnsetType, about("that wait in the spool folder")] = UNSET
    quarantined: Annotated[int | UnsetType, about("damaged files of the spool folder")] = UNSET


class Readiness(Resource):
    """Whether the service is ready, by its checks."""

    ready: bool
    checks: Mapping[str, Check]


class Welcome(Resource):
    """What the address answers a sender that probes it."""

    name: str
    events: Annotated[str, about("the path to which events are posted")]
    description: Annotated[str, about("the path of the OpenAPI document")]


class Alive(Resource):
    """The process responds."""

    status: str


class Status(Resource):
    """The state of the service."""

    version: str
    region: str
    ready: bool
    checks: Mapping[str, Check]
    targets: Annotated[Mapping[str, int], about("their number by state")]
    events: Counters
    oldest_age: Annotated[Seconds, about("seconds, of the oldest undelivered event; null: none")]


class DoctorFinding(Resource):
    """What a check of the doctor says."""

    columns: ClassVar[Columns] = {"subject": "subject", "grade": "grade", "text": "text"}

    subject: Annotated[str, about("what was checked, or a target as type:name")]
    grade: Annotated[str, about("whether something has to be done", enum=list(FINDING_GRADES))]
    text: str
    command: Annotated[list[str], about("words of the `bucketwire` command that mends it or shows more; or none")]


class Diagnosis(Resource):
    """What the doctor says."""

    checked_at: Time
    problems: int
    warnings: int
    findings: list[DoctorFinding]


class Drain(Resource):
    """Whether the drain runs."""

    running: bool
    age: Annotated[Seconds, about("seconds; null: it never ran")]


class WorkerQueue(Resource):
    """The queue of a target, and whether workers serve it."""

    target: Arn
    served_at: Annotated[Time, about("the last heartbeat of a worker that serves it; null: never, as far as is known")]
    age: Annotated[float, about("seconds since then, or since the target was created")]
    served: bool
    refused: Annotated[str, about("why the broker refuses the queue to the workers that would serve it, or empty")]
    leased_partitions: int


def process_activity(row: Row) -> str:
    """Return what a process does now, for a column."""
    if row["state"] != "running":
        return f"{row['state']}: {row['problem']}" if row["problem"] else str(row["state"])
    does = [str(parse_arn(arn)[1]) for arn in row["targets"]] + row["sources"] + row["jobs"]
    return ", ".join(does) or row["address"] or "waits"


class OtherProcess(Resource):
    """A process that has partitions leased, which it delivers, and belongs to no listed worker."""

    host: str
    pid: int
    leased_partitions: int
    targets: Annotated[list[Arn], about("whose partitions it has leased")]


class Process(Resource):
    """A process of the service: an API, a beat or a worker, each by its main process."""

    columns: ClassVar[Columns] = {
        "process": "name", "at": lambda row: f"{row['host']} {row['pid']}",
        "pool": lambda row: f"{row['pool']} {len(row['processes']) or 1}", "version": "version",
        "serves": lambda row: ", ".join(row["serves"]), "does now": process_activity,
        "last heartbeat": lambda row: f"{format_seconds(row['age'])} ago",
    }  # fmt: skip

    id: str
    name: Annotated[str, about("WHAT@HOST; a worker's in Flower and in logs")]
    host: str
    pid: int
    pool: Annotated[str, about("how its processes are made: `gunicorn`, `beat`, `prefork`, `solo` or `thread`")]
    processes: Annotated[list[int], about("ids of a worker's pool's processes")]
    version: Annotated[str, about("of the code that it runs")]
    serves: Annotated[
        list[str], about("`api`, `beat`, `drain`, `targets`, `sources`, `spark`, or types and names of targets")
    ]
    address: Annotated[str, about("URL at which an API answers; else empty")]
    targets: Annotated[list[Arn], about("whose partitions its processes have leased now")]
    leased_partitions: int
    sources: Annotated[list[str], about("from which it pulls now, as type:name")]
    jobs: Annotated[list[str], about("that it ran at its last heartbeat: `JOB TARGET BUCKET`, or `tables`")]
    refused: Annotated[Mapping[str, str], about("targets whose queues the broker refuses to it, with the reasons")]
    state: Annotated[
        str,
        about(
            "`hindered`: it is there, but does not do what it serves, for the reason in `problem`; `silent`: it was "
            "killed, hangs or cannot reach the database; `ended`: no other one does its work",
            enum=list(PROCESS_STATES),
        ),
    ]
    problem: str
    started_at: Time
    heartbeat_at: Time
    age: Annotated[float, about("seconds since its last heartbeat")]
    alive: Annotated[bool, about("whether it is neither silent nor ended")]


class Processes(Resource):
    """The processes by their heartbeats and what each does now, when the drain ran, and who serves each queue."""

    flower: Annotated[str | None, about("the address of Flower, of `BUCKETWIRE_FLOWER_URL`")]
    drain: Drain
    processes: Annotated[
        list[Process],
        about("those that are there, and those that are missed: that fell silent or ended, and were not replaced"),
    ]
    queues: list[WorkerQueue]
    other_processes: Annotated[
        list[OtherProcess],
        about("that deliver events now for none of these workers: of one that has just started"),
    ]


class EffectiveSetting(Resource):
    """A setting, and what decides it."""

    value: Annotated[str, about("in effect", enum=["on", "off"])]
    origin: Annotated[str, about("where it is from", enum=["environment", "stored", "default"])]


class EffectiveApiSettings(Resource):
    """The settings of the section `api`."""

    sync_events: EffectiveSetting


MAX_LIMITS = 100  # buckets, and targets
Scope = Annotated[str, Meta(extra_json_schema={"enum": list(SCOPES)})]
Bucket = Annotated[str, Meta(min_length=1, max_length=255)]
TargetName = Annotated[str, about("type:name", pattern=TARGET.schema["pattern"])]
_FRONTENDS = ["", *sorted(S3_FRONTENDS)]


class TokenFacts(Resource):
    """What a token allows."""

    name: str
    scopes: Annotated[list[Scope], about("what it allows", minItems=1)]
    buckets: Annotated[list[Bucket], about("it is limited to events of these buckets", maxItems=MAX_LIMITS)]
    targets: Annotated[list[TargetName], about("it is limited to these targets", maxItems=MAX_LIMITS)]
    frontend: Annotated[str, about("who sends what is posted with it; empty: each record shows it")]
    tenant: Annotated[str, about("whose buckets that concerns, recorded as TENANT:BUCKET; arn: by the bucket's ARN")]
    expires_at: Annotated[Time, about("from when it is invalid; null: never")]


class Token(TokenFacts):
    """A valid token; the token itself is not stored."""

    columns: ClassVar[Columns] = {
        "name": "name", "scopes": "scopes", "buckets": "buckets", "targets": "targets", "frontend": "frontend",
        "tenant": "tenant", "from": "origin", "created": "created_at", "last used": "used_at", "expires": "expires_at",
    }  # fmt: skip

    origin: Annotated[str, about("where it is defined", enum=["environment", "stored"])]
    created_at: Time
    used_at: Annotated[Time, about("when it was used last, to a minute; null: never, or it is one of the environment")]


class Tokens(Resource):
    """The valid tokens by name."""

    tokens: list[Token]
    required: Annotated[bool, about("whether requests need a token")]


class CreatedToken(TokenFacts):
    """A new token, shown once."""

    token: Annotated[str, about("it is not stored")]


class NewToken(Query):
    """A token to create."""

    name: Annotated[str, TEXT("what the audit log calls it", pattern="^[A-Za-z0-9_.-]{1,64}$")]
    scopes: Annotated[
        Sequence[str],
        list_of(TEXT, 'write ["read"]')("what it allows", items={"type": "string", "enum": list(SCOPES)}, minItems=1),
    ]
    buckets: Annotated[
        Sequence[str],
        list_of(TEXT("", minLength=1, maxLength=255), 'write ["images"]')(
            "limit it to events of these buckets", maxItems=MAX_LIMITS
        ),
    ] = ()
    targets: Annotated[
        Sequence[TargetId],
        list_of(TARGET, 'write ["webhook:audit"]')("limit it to these targets", maxItems=MAX_LIMITS),
    ] = ()
    frontend: Annotated[str, TEXT("who sends what is posted with it", enum=_FRONTENDS)] = ""
    tenant: Annotated[
        str, TEXT("whose buckets that concerns, recorded as TENANT:BUCKET; arn: by the bucket's ARN", maxLength=64)
    ] = ""
    expires: Annotated[int, EXPIRY("from when it is invalid; never unless given")] = 0


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
