"""Order the events of an object: each frontend makes a hexadecimal value of whatever its events tell.

§1.7 compares such values as text, padded on the right with zeros. Without the zeros at its end a value is comparable,
which is the form that the outbox stores. Values made of a time begin with its nanoseconds since 1970 in 16 digits, as
MinIO's sequencers do. So events of different frontends for one key, and repairs, are ordered by time. "" orders
nothing: such an event is as new as its arrival.
"""

import re
from collections.abc import Mapping
from typing import Any

from app.events import minio_json
from app.events.effects import ContentChange, content_change, is_concrete
from app.events.errors import BadRecord, excerpt

_HEX = re.compile("[0-9A-F]+")
_FRACTION = re.compile(r"\.([0-9]{1,9})")
MAX_SEQUENCER_CHARACTERS = 64  # characters, as the outbox's column
_DIGITS = 16  # of nanoseconds since 1970, until the year 2554
_NANOSECONDS = 10**9
_WIDTHS = (20, 36, 64)  # of values that follow another one: a time, a time and a counter, anything


def comparable(sequencer: str) -> str:
    """Return a value in its comparable form; "" if it is not hexadecimal. It is idempotent."""
    upper = sequencer.upper()
    return upper.rstrip("0") if _HEX.fullmatch(upper) else ""


def from_time(nanoseconds: int, rest: str = "") -> str:
    """Return the value of a time (since 1970); `rest`, in hexadecimal, orders what has the same time.

    A time after 2554 is the last of that year, and the value has at most 64 digits, which the outbox can store.
    """
    return f"{min(nanoseconds, 16**_DIGITS - 1):0{_DIGITS}X}{rest}"[:MAX_SEQUENCER_CHARACTERS]


def following(value: str) -> str:
    """Return a value just above a comparable one, and below every later time."""
    width = next(width for width in _WIDTHS if len(value) <= width)
    last = "F" * width
    return last if value == last else f"{int(value.ljust(width, '0'), 16) + 1:0{width}X}"


def is_time_of(value: str, other: str) -> bool:
    """Return whether a comparable value was made of a listing's time, and the other one may be the whole of that time.

    Such a time has milliseconds or seconds, and a place that is just above another one has more digits than a time.
    """
    if not value or not other:
        return False
    begin, time = (int(one[:_DIGITS].ljust(_DIGITS, "0"), 16) for one in (value, other))
    if len(value) > _DIGITS:
        begin -= begin % _NANOSECONDS
    width = next((width for width in (_NANOSECONDS, 10**6) if begin % width == 0), 0)
    return begin <= time < begin + width


def nanoseconds(moment: object) -> int | None:
    """Parse an RFC 3339 time with up to 9 decimals to nanoseconds since 1970; None if it is none."""
    if not isinstance(moment, str):
        return None
    milliseconds = minio_json.milliseconds(moment)
    if milliseconds is None:
        return None
    fraction = _FRACTION.search(moment)
    return milliseconds // 1000 * _NANOSECONDS + (int(fraction[1].ljust(9, "0")) if fraction else 0)


def sequencer_of(record: Mapping[str, Any]) -> str:
    """Return the record's sequencer, "" without one. Raises `BadRecord` if it is no text, or too long.

    A number counts as none: VK Cloud sends seconds, NooBaa a count, and neither orders the events of a key.
    """
    try:
        sequencer = record["s3"]["object"]["sequencer"]
    except (KeyError, TypeError):
        return ""
    if sequencer is None or type(sequencer) is int:
        return ""
    if type(sequencer) is not str or len(sequencer) > MAX_SEQUENCER_CHARACTERS or "\0" in sequencer:
        limit = f" of at most {MAX_SEQUENCER_CHARACTERS} characters, none of them U+0000" if sequencer else ""
        raise BadRecord("s3.object.sequencer", f"is {excerpt(sequencer)}; it must be text, or left out{limit}")
    return sequencer


def states_content(name: str, version: str) -> bool:
    """Return whether the event determines the key's current content, so that it supersedes older events.

    Access, tags and locks do not, nor does the removal of a concrete version, which need not be the newest.
    """
    change = content_change(name)
    if change is ContentChange.REMOVED:
        return not is_concrete(version)
    return change is not ContentChange.NOTHING
