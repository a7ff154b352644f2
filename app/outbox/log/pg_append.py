"""Call PostgreSQL's function `append_events`, by which an append that is as nearly all are takes one round trip.

It inserts the rows of a batch without discarded events, adds them to the targets' counters, and commits. It returns
false, and has recorded nothing, if the version is not that of the log's head, if one of the events is in the log
already, or if the number recorded for a target would exceed its value in `ceilings`. The log's head is locked as for
any other append, and so are the targets. A migration creates it.
"""

from collections.abc import Iterable, Mapping

from app.outbox.log.batch import Batch

CALL = f"SELECT append_events({', '.join(['%s'] * 18)})"


def parameters(batch: Batch, version: int, ceilings: Mapping[int, int]) -> list[object]:
    """Return the parameters of `CALL`."""
    recorded = batch.recorded
    columns = zip(*batch.rows, strict=True)
    return [
        version,
        array(recorded),
        array(recorded.values()),
        array(ceilings.get(target, "NULL") for target in recorded) if ceilings else None,
        batch.posted,
        *[_text_array(column) if isinstance(column[0], str) else array(column) for column in columns],
    ]


def array(values: Iterable[object]) -> str:
    """Format numbers or hexadecimal ids as an array; what the driver makes of a list is parsed value by value."""
    return f"{{{','.join(map(str, values))}}}"


def _text_array(values: Iterable[str]) -> str:
    return '{"' + '","'.join([value.replace("\\", "\\\\").replace('"', '\\"') for value in values]) + '"}'
