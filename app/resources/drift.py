"""The kinds of drift, and lines of what a run found, for other programs.

A new kind is a member here, and what finds it in `spark_jobs/jobs/comparison.py`. The lines are a manifest of S3 Batch
Operations, or a list as rclone writes one.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from app.quantities import count_noun


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
