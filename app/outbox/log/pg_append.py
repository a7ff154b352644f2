"""Append on PostgreSQL in one round trip, where an append is as nearly all are: `append_in_one_trip`."""

from collections.abc import Iterable, Mapping

from app.outbox.engine.database import Database
from app.outbox.log.batch import Batch

_CALL = f"SELECT append_events({', '.join(['%s'] * 16)})"


def append_in_one_trip(
    database: Database, batch: Batch, version: int, ceilings: Mapping[int, int], seconds: float | None = None
) -> bool:
    """Insert the rows of a batch without discarded events, add them to the targets' counters, and commit.

    Returns False, and has recorded nothing, if `version` is not that of the log's head, if one of the events is in the
    log already, if the number recorded for a target would exceed its value in `ceilings`, or if the head is locked for
    long. The head is locked as for any other append, and so are the targets. `seconds` is that of
    `Database.in_one_trip`.
    """
    recorded = batch.recorded
    columns = zip(*batch.rows, strict=True)
    values = [
        version,
        array(recorded),
        array(recorded.values()),
        array(ceilings.get(target, "NULL") for target in recorded) if ceilings else None,
        *[_text_array(column) if isinstance(column[0], str) else array(column) for column in columns],
    ]
    return bool(database.in_one_trip(_CALL, values, seconds))


def array(values: Iterable[object]) -> str:
    """Format numbers or hexadecimal ids as an array; what the driver makes of a list is parsed value by value."""
    return f"{{{','.join(map(str, values))}}}"


def _text_array(values: Iterable[str]) -> str:
    return '{"' + '","'.join([value.replace("\\", "\\\\").replace('"', '\\"') for value in values]) + '"}'
