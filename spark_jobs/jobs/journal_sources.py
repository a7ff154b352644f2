"""Read the input of a journal: the service's own log, or the table or list of a target of format `access`.

A task has no more than one batch in memory. Times are milliseconds since 1970.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from psycopg2 import sql
from pyspark.sql import DataFrame, SparkSession

from app.config.targets.base import NamespaceSettings, TargetSettings
from app.config.targets.mysql import MysqlSettings
from app.config.targets.postgresql import PostgresSettings
from app.config.targets.redis import RedisSettings
from app.outbox.engine.database import Database
from app.outbox.log.log_reader import LogReader, first_seq, journal_rows, log_end
from spark_jobs.jobs.journal import ENTRIES, RECORDED
from spark_jobs.stores import mysql, postgresql
from spark_jobs.stores.base import CannotRead
from spark_jobs.stores.redis import check, connect

_BATCH_SIZE = 5000  # events that a task has in memory at a time


def recorded(spark: SparkSession, database: Database, *, since: int = 0) -> DataFrame:
    """Return RECORDED: every event that the log still has, or those received since then, up to now."""
    last, partitions, _ = log_end(database)
    after = LogReader(database, since).after if since else first_seq(database, partitions) - 1
    url = database.url.render_as_string(hide_password=False)
    windows = [(start, min(start + _BATCH_SIZE, last)) for start in range(after, last, _BATCH_SIZE)]
    slices = max(1, min(len(windows), 4 * spark.sparkContext.defaultParallelism))
    events = spark.sparkContext.parallelize(windows, slices).mapPartitions(
        lambda windows: _events(url, partitions, windows)
    )
    return spark.createDataFrame(events, RECORDED, verifySchema=False)


def entries(spark: SparkSession, settings: TargetSettings, *, tasks: int, since: int = 0) -> DataFrame:
    """Return the ENTRIES of a target, or those of events since then. Raises `CannotRead`."""
    if not isinstance(settings, NamespaceSettings) or settings.format != "access":
        raise CannotRead(
            "a journal needs a target of format access; leave out --target to read the service's own event log"
        )
    if isinstance(settings, PostgresSettings):
        return postgresql.read(
            spark, settings, "event_data", tasks, lambda table, _: _of_postgresql(table, tasks, since)
        )
    if isinstance(settings, MysqlSettings):
        return mysql.read(spark, settings, tasks, lambda table: _of_mysql(table, tasks, since))
    if isinstance(settings, RedisSettings):
        return _of_redis(spark, settings)
    raise CannotRead(f"{settings.type_name} targets cannot be read; journals need PostgreSQL, MySQL or Redis")


def _events(url: str, partitions: int, windows: Iterable[tuple[int, int]]) -> Iterator[tuple[Any, ...]]:
    database = Database(url, pool_size=1, patience=None)
    try:
        for after, last in windows:
            yield from map(tuple, journal_rows(database, partitions, after, last))
    finally:
        database.close()


def _of_postgresql(table: sql.Identifier, tasks: int, since: int) -> sql.Composable:
    time = sql.SQL("(extract(epoch from event_time) * 1000)::bigint")
    return sql.SQL(
        "SELECT {time} AS time, event_data::text AS document, mod({time}, {tasks}) AS part "
        "FROM {table} WHERE event_time >= to_timestamp({since} / 1000.0)"
    ).format(time=time, tasks=sql.Literal(tasks), table=table, since=sql.Literal(since))


def _of_mysql(table: str, tasks: int, since: int) -> str:
    # Without UNIX_TIMESTAMP, which would read the times, which are UTC, as times of the session's zone.
    epoch = "TIMESTAMP'1970-01-01 00:00:00'"
    return (
        f"SELECT TIMESTAMPDIFF(MICROSECOND, {epoch}, event_time) DIV 1000 AS time, "  # noqa: S608 - quoted, numbers
        f"CONVERT(event_data USING utf8mb4) AS document, CRC32(event_data) % {tasks} AS part "
        f"FROM {table} WHERE event_time >= {epoch} + INTERVAL {since // 1000} SECOND"
    )


def _of_redis(spark: SparkSession, settings: RedisSettings) -> DataFrame:
    check(settings, "list")
    keys = spark.sparkContext.parallelize([settings.key], 1)
    elements = keys.flatMap(lambda key: _elements(settings, key))
    return spark.createDataFrame(elements, ENTRIES, verifySchema=False)


def _elements(settings: RedisSettings, key: str) -> Iterator[tuple[int | None, str]]:
    """Read from the end backwards: a push there moves nothing, and a pop at the beginning only repeats elements."""
    client = connect(settings)
    try:
        length: Any = client.llen(key)
        for last in range(length, 0, -_BATCH_SIZE):
            elements: Any = client.lrange(key, max(0, last - _BATCH_SIZE), last - 1)
            for element in elements:
                yield None, element.decode(errors="replace")
    finally:
        client.close()
