"""Reconciliations: runs that compare a target with a bucket, backfills and scans, and what they found."""

from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import UNSET, UnsetType

from app.config.arn import TargetId
from app.resources.declaration import (
    FLAG,
    MAX_PAGE,
    TARGET,
    TEXT,
    TEXT_OR_EMPTY,
    Arn,
    Columns,
    Limit,
    Next,
    Query,
    Resource,
    Row,
    Time,
    about,
    choice,
    number,
    short_target,
)
from app.resources.drift import DRIFT_KINDS, DriftKind

MAX_FINDINGS = 10_000  # of a run that are stored; the report has all of them
JOBS = ("reconcile", "incremental", "scan", "backfill")
STATES = (
    "waiting", "running", "clean", "drift", "repaired", "failed", "cancelled", "backfilling", "backfilled",
    "unfinished",
)  # fmt: skip
# The numbers of a run; `unreadable` are entries of the listing.
COUNTS = ("objects", "target_rows", *DRIFT_KINDS, "unmatched", "in_flight", "unreadable", "repaired")

if TYPE_CHECKING:

    class _Counts(Resource):
        """The numbers of a run, each a member."""

else:
    members = {"__module__": __name__, "__annotations__": dict.fromkeys(COUNTS, int)}
    _Counts = type(Resource)("_Counts", (Resource,), members)


class RunProgress(Resource):
    """How far a run is, every 15 s."""

    stage: str
    keys: Annotated[int, about("entries of the listing and rows of the target that have been read")]
    rate: Annotated[int, about("of them per second")]
    remaining: Annotated[int | None, about("seconds; null: not known")]


def _describe_place(run: Row) -> str:
    """Return what a run is about: a bucket, or a part of one."""
    return f"{run['bucket']}/{run['prefix']}" if run["prefix"] else run["bucket"]


class Reconciliation(_Counts):
    """A run, with its numbers: those of each kind of drift, and others."""

    columns: ClassVar[Columns] = {
        "run": "id", "target": short_target, "bucket": _describe_place, "job": "job", "state": "state",
        "started at": "started_at", **{kind: kind for kind in DRIFT_KINDS}, "repaired": "repaired",
        "problem": lambda run: run["problem"] or run["note"],
    }  # fmt: skip

    id: Annotated[str, about("of the run")]
    target: Arn
    bucket: str
    prefix: Annotated[str, about("the run is about the keys below it only; empty: about the whole bucket")]
    job: Annotated[
        str, about("what the run does; `incremental`: compare what events named since the last run", enum=list(JOBS))
    ]
    state: Annotated[str, about("`drift`: it left some", enum=list(STATES))]
    repair: Annotated[
        bool | None, about("whether its request wants repairs; null: the target's settings decide, or an option")
    ]
    started_at: Time
    finished_at: Time
    report: Annotated[str, about("the folder with the findings: a path on the host of the job, or a URL")]
    problem: str
    note: Annotated[str, about("why a run that waits may wait for long: no Spark worker is there; else empty")]
    progress: Annotated[RunProgress | None, about("of a run that is running, every 15 s")]


class Reconciliations(Resource):
    """Runs, the newest first."""

    reconciliations: list[Reconciliation]


class RunsQuery(Query):
    """How many runs to list."""

    limit: Annotated[int, number(1, MAX_PAGE)("the most runs to return")] = 100


class NewReconciliation(Query):
    """What to compare."""

    target: Annotated[TargetId, TARGET]
    bucket: Annotated[str, TEXT("a bucket that the target mirrors", pattern="^[A-Za-z0-9_][A-Za-z0-9._-]{2,254}$")]
    repair: Annotated[bool, FLAG("repair the drift that is found")] = False
    prefix: Annotated[str, TEXT_OR_EMPTY("only keys that begin with it")] = ""
    incremental: Annotated[bool, FLAG("only keys that events have named since the last run")] = False
    unknown_bucket: Annotated[bool, FLAG("also if no event, rule, setting or run has named the bucket")] = False


def _describe_differences(finding: Row) -> str:
    """Return what differs, and of a size the object's and the row's."""
    names = (finding.get("differs") or "").split(",")
    return ", ".join(f"size {_bytes(finding, 'size')}, row {_bytes(finding, 'row_size')}" if name == "size" else name
                     for name in names)  # fmt: skip


def _bytes(finding: Row, name: str) -> str:
    size = finding.get(name)
    return "unknown" if size is None else f"{size:,} B"


class Finding(Resource):
    """A difference between an object and its row: the object's properties, and the row's."""

    columns: ClassVar[Columns] = {"number": "number", "kind": "kind", "key": "key", "differs": _describe_differences}

    number: int
    kind: Annotated[str, about("; ".join(f"{kind}: {kind.about}" for kind in DriftKind), enum=list(DRIFT_KINDS))]
    key: str
    differs: Annotated[str | UnsetType, about("of a stale row: what differs, comma-separated")] = UNSET
    etag: str | UnsetType | None = UNSET
    size: int | UnsetType | None = UNSET
    modified: Annotated[int | UnsetType | None, about("ms since 1970")] = UNSET
    version: str | UnsetType | None = UNSET
    row_name: str | UnsetType | None = UNSET
    row_etag: str | UnsetType | None = UNSET
    row_size: int | UnsetType | None = UNSET
    row_version: str | UnsetType | None = UNSET
    row_sequencer: str | UnsetType | None = UNSET
    row_time: Annotated[int | UnsetType | None, about("ms since 1970")] = UNSET


class Findings(Resource):
    """What a run found."""

    findings: list[Finding]
    next: Next


class FindingsQuery(Query):
    """Which findings of a run to list."""

    kind: Annotated[str, choice(DRIFT_KINDS, "is not a kind of difference")("only those of this kind")] = ""
    limit: Limit = 100
    after: Annotated[int, number(0, MAX_FINDINGS)("the `next` of the previous page")] = 0


class Repair(Query):
    """Until when the repair's view of the objects is valid."""

    after: Annotated[int, number(0, 2**63 - 1)("the log's last sequence number when the objects were read")]


class RepairReceipt(Resource):
    """What became of the events of a repair."""

    recorded: int
    repeated: Annotated[int, about("recorded before")]
    overtaken: Annotated[int, about("events left out because their objects changed after `after`")]
    refused: Annotated[int, about("events left out because the database refuses them; the API's log has its reasons")]
