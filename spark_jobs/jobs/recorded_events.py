"""Read the events of the service's own log by parallel tasks. A task has no more than one batch in memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from app.events.frontends import order_of
from app.outbox.engine.database import Database
from app.outbox.log.reading import ids_between, journal_rows

# As the log stores them, each with its comparable sequencer; times are milliseconds since 1970.
RECORDED = (
    "seq bigint, received_at bigint, id string, time bigint, name string, bucket string, key string, version string, "
    "sequencer string, record string"
)
_BATCH_SIZE = 5000  # events that a task has in memory at a time
_Rows = Callable[[Database, int, int, int], Sequence[tuple[Any, ...]]]


def recorded_between(
    spark: SparkSession, database: Database, partitions: int, after: int, last: int, *, connections: int = 8
) -> DataFrame:
    """Return RECORDED: the events that the log has after the position `after`, up to `last`.

    Its partitions have ranges of positions that do not overlap.
    """
    return _between(spark, database, partitions, (after, last), _recorded, RECORDED, connections)


def ids_recorded_between(
    spark: SparkSession, database: Database, partitions: int, after: int, last: int, *, connections: int = 8
) -> DataFrame:
    """Return the positions and ids of the same events, as the journal calls these columns."""
    return _between(
        spark, database, partitions, (after, last), ids_between, "log_position bigint, event_id string", connections
    )


def _between(
    spark: SparkSession,
    database: Database,
    partitions: int,
    window: tuple[int, int],
    rows: _Rows,
    schema: str,
    connections: int,
) -> DataFrame:
    after, last = window
    url = database.url.render_as_string(hide_password=False)
    windows = [(start, min(start + _BATCH_SIZE, last)) for start in range(after, last, _BATCH_SIZE)]
    cores = spark.sparkContext.defaultParallelism
    # Each task has a connection of its own, and as many tasks run at once as there are cores.
    slices = max(1, min(len(windows), 4 * cores if cores <= connections else connections))
    events = spark.sparkContext.parallelize(windows, slices).mapPartitions(
        lambda windows: _read(url, partitions, windows, rows)
    )
    return spark.createDataFrame(events, schema, verifySchema=False)


def _read(url: str, partitions: int, windows: Iterable[tuple[int, int]], rows: _Rows) -> Iterator[tuple[Any, ...]]:
    database = Database(url, pool_size=1, patience=None)
    try:
        for after, last in windows:
            yield from rows(database, partitions, after, last)
    finally:
        database.close()


def _recorded(database: Database, partitions: int, after: int, last: int) -> list[tuple[Any, ...]]:
    return [
        # The log keeps the sequencer only of events that supersede others.
        (*columns, sequencer or order_of(record), record)
        for *columns, sequencer, record in journal_rows(database, partitions, after, last)
    ]
