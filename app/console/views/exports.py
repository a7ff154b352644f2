"""Files of what a page shows: events, dead letters and the samples of a target, as CSV and JSON."""

import csv
import io
import re
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from flask import Response

from app.api import Refused
from app.api.services import reserve
from app.console import session
from app.console.formats import curves, short_target
from app.console.pages import form_values, page, within_limits

MAX_ROWS = 10_000  # of a file
MAX_BYTES = 16 << 20  # of a file's rows as JSON, after which it ends: all of them are in this process' memory
_PAGE = 250  # rows of a call
_SECONDS = 20  # after which a file ends as it is: a search may find little in a long log
# Where a spreadsheet's separator is a semicolon or a tab, a text also begins after one; quotation marks do not prevent
# it, because the line's quoted parts are others then.
_SEPARATOR = re.compile(r"([;\t\r\n])")
_FORMULA = "=+-@\u2212"  # a spreadsheet takes a text that begins with one of these for a formula


@dataclass(frozen=True, slots=True)
class _Export:
    """What a file is made of: a list of the API by pages, its filters, the one that has limits, and the columns."""

    path: str
    member: str
    filters: Sequence[str]
    limited: str
    columns: Sequence[str]


_EXPORTS = {
    "events": _Export(
        "/v1/events",
        "events",
        ("bucket", "prefix", "events", "target", "state", "since", "before"),
        "bucket",
        ("received_at", "id", "event", "bucket", "key", "version", "delivery_states"),
    ),
    "dead-letters": _Export(
        "/v1/dead-letters",
        "dead_letters",
        ("target", "bucket", "prefix", "reason", "since", "before"),
        "target",
        (
            "id", "target", "event_id", "event", "bucket", "key", "reason", "attempts", "first_tried", "last_tried",
            "history",
        ),
    ),
}  # fmt: skip


@page("/export/<what>.<form>")
def export(what: str, form: str) -> Response:
    """Return the events or the dead letters of a search as a file, without their records."""
    which = _EXPORTS.get(what)
    if which is None or form not in ("csv", "json"):
        raise Refused(404, {"detail": "events and dead-letters can be exported, as csv and json"})
    given = within_limits(form_values(*which.filters), which.limited)
    reserve(MAX_BYTES)
    rows, following, size = list[dict[str, Any]](), "", 0
    for found in _pages(which, given):
        some = [{name: one[name] for name in which.columns if name in one} for one in found[which.member]]
        rows, following, size = rows + some, found["next"], size + len(orjson.dumps(some))
        if size >= MAX_BYTES:
            break
    return _file(what, form, which.member, rows, which.columns, following)


@page("/export/targets/<kind>/<name>.<form>")
def samples(kind: str, name: str, form: str) -> Response:
    """Return the samples from which a target's curves are drawn as a file."""
    if form not in ("csv", "json"):
        raise Refused(404, {"detail": "samples can be exported as csv and json"})
    drawn = curves(form_values("since", "before"), time.time())
    query = {"since": drawn.since, "before": drawn.before, "step": drawn.step, "width": drawn.width}
    [series] = session.get("/v1/series", target=f"{kind}:{name}", **query)["series"]
    columns = list(series["samples"][0]) if series["samples"] else []
    return _file(f"{kind}-{name}", form, "samples", series["samples"], columns, None)


def _pages(which: _Export, given: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Return pages until there is no other one, or they are enough."""
    ends, after, left = time.monotonic() + _SECONDS, "", MAX_ROWS
    while True:
        found = session.get(which.path, **given, after=after, limit=min(_PAGE, left))
        yield found
        left -= len(found[which.member])
        after = found["next"]
        if not after or not left or time.monotonic() > ends:
            return


def _file(
    name: str, form: str, member: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], following: object
) -> Response:
    """Return a file; one that does not have all rows says so by its name, in JSON also by `next`."""
    moment = f"{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}"
    named = f"bucketwire-{name}-{moment}{'-incomplete' if following else ''}.{form}"
    if form == "json":
        body, kind = orjson.dumps({member: rows, "next": following or None}), "application/json"
    else:
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(columns)
        writer.writerows([[_cell(row.get(column)) for column in columns] for row in rows])
        body, kind = text.getvalue().encode(), "text/csv"
    return Response(body, mimetype=kind, headers={"Content-Disposition": f'attachment; filename="{named}"'})


def _cell(value: Any) -> Any:
    """Return what a cell has of a value: a list as a text, and no text that a spreadsheet would execute."""
    if isinstance(value, list):
        value = "; ".join(_brief(one) for one in value)
    return _defused(value) if isinstance(value, str) else value


def _defused(text: str) -> str:
    """Return a text with `'` before each part that a spreadsheet may take for a formula, and before what is invisible.

    Programs skip blanks, a byte order mark and other characters that nobody sees, and read full-width characters as
    others.
    """
    written = "".join("".join(_with_mark(part)) for part in _SEPARATOR.split(text))
    return f"'{written}" if unicodedata.category(written[:1] or "x") in ("Cc", "Cf") else written


def _with_mark(part: str) -> tuple[str, str, str]:
    begins = len(part) - len(part.lstrip('"'))
    for letter in part[begins:]:
        if unicodedata.category(letter)[0] in "CZ":
            continue
        is_formula = unicodedata.normalize("NFKC", letter)[0] in _FORMULA
        return part[:begins], "'" if is_formula else "", part[begins:]
    return part, "", ""


def _brief(one: Mapping[str, Any]) -> str:
    """Return a delivery state or an attempt as a text."""
    return f"{short_target(one['target'])} {one['state']}" if "state" in one else f"{one['at']} {one['reason']}"
