"""Lines of what a run found, for other programs: a manifest of S3 Batch Operations, a list as rclone writes one."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from app.resources.drift import DriftKind

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
