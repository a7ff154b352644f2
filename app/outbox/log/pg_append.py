"""Call PostgreSQL's function `append_events`, by which an append that is as nearly all are takes one round trip.

It inserts the rows of a batch without discarded events, adds them to the targets' counters and arrivals, and commits.
It returns false, and has recorded nothing, if the version is not that of the log's head, if one of the events is in the
log already, or if the number recorded for a target would exceed its value in `ceilings`. The log's head is locked as
for any other append, and so are the targets. A migration creates it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.outbox import tables
from app.outbox.log.batch import Batch

_COLUMNS = [column.name for column in tables.events.columns if column.name not in ("seq", "received_at")]
# The JSON of records has no line break. In an array each of its quotes would be escaped, by us and for the driver, and
# read twice by the server, which took a quarter of the time of an append.
_RECORD = _COLUMNS.index("record")
_VALUES = ["string_to_array(%s, E'\\n')" if number == _RECORD else "%s" for number in range(len(_COLUMNS))]
CALL = f"SELECT append_events({', '.join(['%s'] * 9 + _VALUES)})"


def parameters(batch: Batch, version: int, ceilings: Mapping[int, int]) -> list[object]:
    """Return the parameters of `CALL`."""
    recorded, arrivals = batch.recorded, batch.arrivals
    return [
        version,
        array(recorded),
        array(recorded.values()),
        array(ceilings.get(target, "NULL") for target in recorded) if ceilings else None,
        batch.posted,
        array(target for target, _ in arrivals),
        array(partition for _, partition in arrivals),
        array(first for first, _ in arrivals.values()),
        array(last for _, last in arrivals.values()),
        *map(_column, range(len(_COLUMNS)), zip(*batch.rows, strict=True)),
    ]


def _column(number: int, values: Sequence[Any]) -> str:
    if number == _RECORD:
        return "\n".join(values)
    return _text_array(values) if isinstance(values[0], str) else array(values)


def array(values: Iterable[object]) -> str:
    """Format numbers or hexadecimal ids as an array; what the driver makes of a list is parsed value by value."""
    return f"{{{','.join(map(str, values))}}}"


def _text_array(values: Sequence[str]) -> str:
    together = "".join(values)
    if '"' in together or "\\" in together:  # rare
        values = [value.replace("\\", "\\\\").replace('"', '\\"') for value in values]
    return '{"' + '","'.join(values) + '"}'
