"""Reconciliations: runs that compare a target with a bucket, backfills and scans; the drift and findings of a run.

A new kind of drift is a member here, and what finds it in `spark_jobs/jobs/comparison.py`. The lines for other programs
are a manifest of S3 Batch Operations, or a list as rclone writes one.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from urllib.parse import quote

from msgspec import UNSET, UnsetType

from app.config.arn import TargetId
from app.quantities import count_noun
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


class DriftKind(StrEnum):
    """How a target's row and an object of its bucket differ. The value has at most 16 characters, `about` is for docs.

    The numbers of a run are JSON by kind in the outbox, so a kind needs no migration.
    """

    about: str

    def __new__(cls, value: str, about: str) -> "DriftKind":
        """Make a kind of its value and of what it means."""
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.about = about
        return kind

    MISSING = "missing", "the object exists and the rules would have sent its event, but there is no row"
    STALE = "stale", "the row has another content, another version, or an older write; `differs` names each"
    ORPHANED = "orphaned", "there is a row, but no such object, and the rules would have sent its removal"
    MALFORMED = "malformed", "the row's document is not an event, or the event of another object"


DRIFT_KINDS = tuple(kind.value for kind in DriftKind)


def drift_of(counts: Mapping[str, int]) -> int:
    """Return how many differences a run found, of all kinds."""
    return sum(counts[kind] for kind in DRIFT_KINDS)


def describe_drift(drift: int, in_flight: int) -> str:
    """Return what a comparison has left: differences, and keys of which it could not say whether they differ."""
    left = count_noun(drift, "difference") if drift else "no drift"
    if not in_flight:
        return left
    waits = "key with events in flight is" if in_flight == 1 else "keys with events in flight are"
    return f"{left}; {in_flight:,} {waits} left to the next run"


CSV, CSV_VERSIONS, COMBINED = "csv", "csv-versions", "combined"
FORMATS = {
    CSV: "bucket,key of each object that the target lacks or has wrongly, keys URL-encoded",
    CSV_VERSIONS: "the same with the version id",
    COMBINED: "a sign and the key, as `rclone check --combined`: + not in the target, - not in the bucket, * differs, "
    "! not an event",
}
# The bucket is rclone's source, the target its destination; keys that are equal (=) are no findings.
SIGNS = {
    DriftKind.MISSING.value: "+",
    DriftKind.ORPHANED.value: "-",
    DriftKind.STALE.value: "*",
    DriftKind.MALFORMED.value: "!",
}
# A line is a key: control characters are written as rclone shows them.
CONTROLS = "".join(map(chr, (*range(32), 127)))
PICTURES = "".join(map(chr, (*range(0x2400, 0x2420), 0x2421)))
_SHOWN = str.maketrans(CONTROLS, PICTURES)


def finding_line(form: str, bucket: str, finding: Mapping[str, Any]) -> str | None:
    """Return the line of a finding in one of the `FORMATS`; None if it has none: a manifest has objects only."""
    if form == COMBINED:
        return f"{SIGNS[finding['kind']]} {finding['key'].translate(_SHOWN)}"
    if finding.get("modified") is None:
        return None
    line = f"{bucket},{quote(finding['key'], safe='')}"
    return f"{line},{finding.get('version') or ''}" if form == CSV_VERSIONS else line


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
