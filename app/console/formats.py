"""Write times, numbers, keys and commands as the pages show them, and draw curves. Pure.

All text that is returned is escaped. A curve says which time a page shows and how finely; its samples of totals are
turned into rates.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, pairwise, takewhile
from typing import Any

import orjson
from markupsafe import Markup, escape

from app.quantities import count_noun
from app.resources.declaration import TIME

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))
_MAX_TEXT_CHARACTERS = 1_000  # characters of a value in a record
_MAX_RECORD_CHARACTERS = 100_000  # characters of a record
_MARKUP = 50  # characters around a value
_ODD = "\\u{:04x}"
_SHORT_ID = 8  # characters of a run's id, which are enough to tell it from others of a list
# Where a line may break within a text without spaces: after punctuation, and anywhere in what is longer than a word.
_TOKEN = re.compile(r"\S{17,}")
_BREAK = re.compile(r"(?<=[/._:,;=&?@%+~|#)\]}>-])(?!(?<=\d[.,:])\d)(?=[^\W_])")
_TOO_LONG = re.compile(r"([^\W_]{25,})")

# Each state has a word and a sign, so that no state is shown by its colour alone.
_STATES: Mapping[str, tuple[str, str]] = {
    "running": ("good", "✓"),
    "delivered": ("good", "✓"),
    "settled": ("good", "✓"),
    "clean": ("good", "✓"),
    "repaired": ("good", "✓"),
    "backfilled": ("good", "✓"),
    "finished": ("good", "✓"),
    "ok": ("good", "✓"),
    "paused": ("warn", "‖"),
    "parked": ("warn", "↻"),
    "drift": ("warn", "≠"),
    "unfinished": ("warn", "…"),
    "warning": ("warn", "!"),
    "note": ("off", "i"),
    "failing": ("bad", "✕"),
    "unavailable": ("bad", "✕"),
    "broken": ("bad", "✕"),
    "dead": ("bad", "✕"),
    "discarded": ("bad", "✕"),
    "failed": ("bad", "✕"),
    "problem": ("bad", "✕"),
    "not served": ("bad", "✕"),
    "stopped": ("bad", "✕"),
    "silent": ("bad", "✕"),
    "hindered": ("bad", "✕"),
    "refused": ("bad", "✕"),
    "ended": ("bad", "✕"),
    "leased": ("busy", "▸"),
    "revoked": ("warn", "!"),
    "free": ("off", "○"),
    "disabled": ("off", "○"),
    "cancelled": ("off", "○"),
    "pending": ("busy", "…"),
    "waiting": ("busy", "…"),
    "active": ("busy", "▸"),
    "backfilling": ("busy", "▸"),
}


def visible(text: object, most: int = 0) -> Markup:
    """Write a text of unknown origin: escaped, isolated from the page's direction, with unprintable characters shown.

    A key may contain line breaks, and characters that reorder or hide what stands beside them. Of more than `most`
    characters the middle is left out, because keys begin with their folder and end with their type. A long text
    without spaces may break after punctuation, and no word of it is broken.
    """
    written = str(text)
    if most and len(written) > most:
        written = f"{written[: most * 2 // 3]}…{written[-most // 3 :]}"
    return Markup('<bdi class="key">{}</bdi>').format(Markup("<wbr>").join(map(_piece, _pieces(written))))


def _pieces(text: str) -> Iterator[str]:
    """Yield the parts of a text between which a line may break, besides at its spaces."""
    begin = 0
    for token in _TOKEN.finditer(text):
        for at in _BREAK.finditer(text, token.start() + 1, token.end()):
            yield text[begin : at.start()]
            begin = at.start()
    yield text[begin:]


def _piece(text: str) -> Markup:
    """Write a part of a text; what is longer than any word may break anywhere."""
    parts = _TOO_LONG.split(text)
    return Markup("").join(
        Markup('<span class="long">{}</span>').format(part) if index % 2 else _characters(part)
        for index, part in enumerate(parts)
    )


def _characters(text: str) -> Markup:
    if text.isprintable():
        return escape(text)
    odd = Markup('<span class="odd">{}</span>')
    return Markup("").join(escape(c) if c.isprintable() else odd.format(_ODD.format(ord(c))) for c in text)


def with_code(text: object) -> Markup:
    """Write a text of the service itself, with what stands in backticks, as a command, in the font of commands."""
    parts = str(text).split("`")
    if len(parts) % 2 == 0:
        return visible(text)
    code = Markup("<code>{}</code>")
    return Markup("").join(
        code.format(visible(part)) if n % 2 else visible(part) for n, part in enumerate(parts) if part
    )


def sentence(text: object, most: int = 0) -> Markup:
    """Write a text of unknown origin, such as a remote's answer, as a sentence: with one full stop at its end."""
    return visible(str(text).rstrip(". "), most) + Markup(".")


def number(value: float | None) -> str:
    """Write a number with thousands apart; a dash for none."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def duration(seconds: float | None) -> str:
    """Write a length of time in its two largest units, below a second in milliseconds; a dash for none."""
    if seconds is None:
        return "–"
    if 0 < seconds < 0.9995:
        return f"{max(1, round(seconds * 1000))} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    parts, rest = [], int(seconds)
    for size, unit in _UNITS:
        if rest >= size:
            parts.append(f"{rest // size} {unit}")
            rest %= size
    return " ".join(parts[:2])


def parsed(text: str | None) -> datetime | None:
    """Parse a time of the API."""
    return datetime.fromisoformat(text) if text else None


def has_passed(text: str | None) -> bool:
    """Return whether a time of the API has passed, by this host's clock; false for none."""
    at = parsed(text)
    return at is not None and at <= datetime.now(UTC)


def when(text: str | None, *, ago: bool = False, due: bool = False) -> Markup:
    """Write a time of the API in UTC; a script adds the browser's own time zone to the title.

    With `ago` it is written as how long ago it was, with `due` as in how long it will be, "now" if it has passed.
    """
    at = parsed(text)
    if at is None:
        return Markup('<span class="dim">–</span>')
    utc = at.astimezone(UTC)
    shown = f"{utc:%Y-%m-%d %H:%M:%S} UTC"
    exact = f"{utc:%Y-%m-%d %H:%M:%S}.{utc.microsecond // 1000:03d} UTC"
    if ago or due:
        past = (datetime.now(UTC) - utc).total_seconds()
        shown = relative(min(0, past) if due else past)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(text, exact, shown)


def took(began: str, ended: str) -> str:
    """Write how long something took, from times of the API."""
    return duration((datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds())


def iso(at: int) -> str:
    """Write seconds since 1970 as the API writes a time."""
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def relative(seconds: float) -> str:
    """Write how long ago something was, or in how long it will be."""
    if abs(seconds) < 1:
        return "now"
    return f"in {duration(-seconds)}" if seconds < 0 else f"{duration(seconds)} ago"


def state(word: str, count: int | None = None) -> Markup:
    """Write a state: its word, after how many are in it if that is given, and a sign and a colour for its kind."""
    kind, sign = _STATES.get(word, ("off", "·"))
    return Markup('<span class="state {}"><span class="sign" aria-hidden="true">{}</span>{}</span>').format(
        kind, sign, word if count is None else f"{number(count)} {word}"
    )


def command(*words: str) -> str:
    """Write a `bucketwire` command as a shell takes it; what cannot be seen in a word is written as bash's `$'…'`."""
    return " ".join(["bucketwire", *(_quoted(word) for word in words if word)])


def options(given: Mapping[str, str]) -> list[str]:
    """Return a filter as options of a command, without what is empty."""
    return [word for name, text in given.items() if text for word in (f"--{name}", text)]


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + "'"


def short_target(arn: str) -> str:
    """Return `type:name` of an ARN, which is how the commands and the pages name a target."""
    parts = arn.split(":")
    return f"{parts[-1]}:{parts[-2]}" if len(parts) == 6 else arn


def short_id(run: str) -> str:
    """Return the beginning of a run's id, by which people tell runs apart; commands and links have all of it."""
    return run[:_SHORT_ID]


def target_path(arn: str) -> str:
    """Return the page of the target with this ARN."""
    kind, _, name = short_target(arn).partition(":")
    return f"targets/{kind}/{name}"


def sparkline(values: Sequence[float], label: str) -> Markup:
    """Draw values as a small line, without a script; `label` says in words what it shows."""
    if len(values) < 2:
        return Markup('<span class="dim">no samples yet</span>')
    most = max([*values, 1e-9])
    step = 120 / (len(values) - 1)
    points = " ".join(f"{index * step:.1f},{26 - 24 * value / most:.1f}" for index, value in enumerate(values))
    return Markup(
        '<svg class="spark" viewBox="0 0 120 28" role="img" aria-label="{}" preserveAspectRatio="none">'
        '<polygon points="0,28 {} 120,28"/><polyline points="{}"/></svg>'
    ).format(label, points, points)


def shortened(value: Any) -> Any:
    """Return JSON with long texts shortened, and without what is too much for a page; it says how much that is."""
    room = _MAX_RECORD_CHARACTERS

    def short(some: Any) -> Any:
        nonlocal room
        room -= _MARKUP
        if isinstance(some, str):
            room -= min(len(some), _MAX_TEXT_CHARACTERS)
            rest = len(some) - _MAX_TEXT_CHARACTERS
            return some if rest <= 0 else f"{some[:_MAX_TEXT_CHARACTERS]}… ({number(rest)} more characters)"
        if isinstance(some, dict):
            members = {short(key): short(member) for key, member in takewhile(has_room, some.items())}
            rest = len(some) - len(members)
            return members | ({"…": f"{number(rest)} more members"} if rest else {})
        if isinstance(some, list):
            items = [short(item) for item in takewhile(has_room, some)]
            rest = len(some) - len(items)
            return items + ([f"… {number(rest)} more items"] if rest else [])
        return some

    def has_room(_: Any) -> bool:
        return room > 0

    return short(value)


def pretty_json(value: Any) -> str:
    """Write JSON for people, in the order in which it was sent, with unprintable characters as JSON escapes them."""
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


TEMPLATE_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "count_noun": count_noun,
    "number": number,
    "duration": duration,
    "when": when,
    "has_passed": has_passed,
    "took": took,
    "iso": iso,
    "state": state,
    "command": command,
    "short_id": short_id,
    "short_target": short_target,
    "target_path": target_path,
    "sparkline": sparkline,
    "pretty_json": pretty_json,
    "shortened": shortened,
}


RANGES = ("15m", "1h", "6h", "24h", "7d", "30d")
_DEFAULT = RANGES[0]
_FINE, _COARSE, _FINE_KEPT = 10, 300, 86400  # seconds between two samples; for how long the fine ones are kept
# How long a time is at most, and the width of a point in it, in seconds.
_WIDTHS = ((900, 10), (3600, 30), (6 * 3600, 300), (86400, 900), (7 * 86400, 7200))
_LONGEST_WIDTH = 28_800  # seconds
_EARLIER = 1  # second by which "24h" ago is earlier when the samples are read


@dataclass(frozen=True, slots=True)
class Curves:
    """The time that curves show: from `since` to `before` (ms; None: now), by samples every `step` seconds.

    A point is of `width` seconds.
    """

    since: int
    before: int | None
    step: int
    width: int


def curves(given: Mapping[str, str], now: float) -> Curves:
    """Return how to draw the time that `since` and `before` name; `now` is in seconds. Raises `BadMember`."""
    since = max(0, TIME.read("since", given["since"] or _DEFAULT))
    before = max(0, TIME.read("before", given["before"])) if given["before"] else None
    length = ((now * 1000 if before is None else before) - since) / 1000
    width = next((width for longest, width in _WIDTHS if length <= longest + _EARLIER), _LONGEST_WIDTH)
    is_fine = width < _COARSE and now - since / 1000 <= _FINE_KEPT + _EARLIER
    step = _FINE if is_fine else _COARSE
    return Curves(since, before, step, max(step, width))


_FLOWS = ("recorded", "delivered", "failed", "dead_lettered")
_RECENT_SECONDS = 60  # since the newest sample, of which there is one every ten seconds while a drain runs


@dataclass(frozen=True, slots=True)
class Point:
    """What happened up to `at` (seconds since 1970): events in a second, and the backlog at the end of that time."""

    at: int
    recorded: float
    delivered: float
    failed: float
    dead_lettered: float
    backlog: int
    oldest_age: float | None
    p50: float | None = None  # seconds from recording to delivery, in the worst sample of the time
    p99: float | None = None


def points(samples: Sequence[Mapping[str, Any]], *, width: int) -> list[Point]:
    """Return a point for each `width` seconds in which there are samples.

    A total that falls was counted from 0 again: the target was removed and created again. Nothing is known of that
    time.
    """
    groups = [list(group) for _, group in groupby(samples, lambda sample: _seconds(sample["at"]) // width)]
    result = []
    for earlier, later in pairwise(groups):
        before, after = earlier[-1], later[-1]
        begun, ended = _seconds(before["at"]), _seconds(after["at"])
        rates = {name: max(0, after[name] - before[name]) / max(1, ended - begun) for name in _FLOWS}
        result.append(
            Point(
                at=ended,
                backlog=after["backlog"],
                oldest_age=after["oldest_age"],
                p50=_greatest(later, "p50"),
                p99=_greatest(later, "p99"),
                **rates,
            )
        )
    return result


def newest(curve: Sequence[Point], now: float) -> Point | None:
    """Return what happened last; None if there are no samples of now (seconds since 1970), so that nobody knows."""
    return curve[-1] if curve and curve[-1].at > now - _RECENT_SECONDS else None


def newest_times(curve: Sequence[Point], now: float) -> tuple[float | None, float | None]:
    """Return the greatest median and 99th percentile of the last minute's delivery times (s); None of no deliveries."""
    recent = [point for point in curve if point.at > now - _RECENT_SECONDS]
    return _most(point.p50 for point in recent), _most(point.p99 for point in recent)


def incoming_rate(intake: Sequence[Mapping[str, Any]]) -> float | None:
    """Return how many events came in in a second by all ways together, each event once; None if nobody knows."""
    # Nothing has ever come by a way that has recorded nothing.
    rates = [0.0 if each["rate"] is None and not each["recorded"] else each["rate"] for each in intake]
    return None if None in rates else sum(rates)


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _greatest(samples: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return _most(sample.get(name) for sample in samples)


def _seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())
