"""Read a PostgreSQL target's table by JDBC; the server extracts the members of a document, so that only they are sent.

The rows of a bucket are a range of the key's index where its collation orders by bytes, else what the planner makes of
LIKE, for which an index of the class `text_pattern_ops` is enough. Only what equals the prefix byte by byte is read.

Each task reads the keys of one hash: the table needs no numeric key, and rows that move within it while it is read are
neither lost nor repeated, as they would be by ranges of `ctid`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg2
from psycopg2 import extensions, sql
from pyspark.sql import DataFrame, SparkSession

from app.config.targets.postgresql import PostgresSettings, explicit, parameters
from spark_jobs.connectors import postgresql_url
from spark_jobs.frames import PATHS
from spark_jobs.jobs.comparison import documents
from spark_jobs.stores import CannotRead, NoTable

HAS_SINGLE_ROWS = True  # whether one reading probably finds each key once
_COLUMN = "value"
_FETCH = "10000"  # rows; without it the driver keeps the whole result in memory
_TYPE = "SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = %s"
# Functions of the row, because the columns that say how a collation orders depend on the version.
_COLLATION = (
    "SELECT to_jsonb(c), (SELECT to_jsonb(d) FROM pg_database AS d WHERE d.datname = current_database()) "
    "FROM pg_attribute AS a JOIN pg_collation AS c ON c.oid = a.attcollation "
    "WHERE a.attrelid = to_regclass(%s) AND a.attname = 'key'"
)
_BYTE_ORDERS = ("c", "posix", "c.utf-8", "c.utf8")
# The server looks for a document's record and its object once, not for each member; a subquery with OFFSET stays one.
_OBJECT = ("s3", "object")
_DOCUMENTS = sql.SQL(
    "{table} AS mirror, LATERAL (SELECT mirror.value #> '{{Records,0}}' AS record OFFSET 0) AS of_document, "
    "LATERAL (SELECT of_document.record #> '{{s3,object}}' AS thing OFFSET 0) AS of_record"
)
# Parameter names of libpq and of JDBC.
_JDBC = {"sslmode": "sslmode", "sslrootcert": "sslrootcert", "gssencmode": "gssEncMode", "require_auth": "requireAuth"}
_CERTIFICATE = ("sslcert", "sslkey")  # if they are empty, the driver shows none, not even the account's own


def rows(spark: SparkSession, settings: PostgresSettings, bucket: str, *, tasks: int) -> DataFrame:
    """Return the ROWS of the bucket. Raises `CannotRead`."""
    given = explicit(parameters(settings.dsn))
    try:
        connection = psycopg2.connect(extensions.make_dsn(**given))
    except psycopg2.Error as error:
        raise CannotRead(f"PostgreSQL: {' '.join(str(error).split())}") from None
    try:
        with connection.cursor() as cursor:
            table = sql.Identifier(settings.table_name)
            cursor.execute(_TYPE, (table.as_string(connection), _COLUMN))
            kind = cursor.fetchone()
            if kind is None:
                cursor.execute("SELECT to_regclass(%s)", (table.as_string(connection),))
                if cursor.fetchone() == (None,):
                    raise NoTable(f"PostgreSQL: there is no table {settings.table}")
                raise CannotRead(f"PostgreSQL: the table {settings.table} has no column {_COLUMN}")
            is_json = kind[0] in ("json", "jsonb")
            cursor.execute(_COLLATION, (table.as_string(connection),))
            is_ordered = _orders_by_bytes(cursor.fetchone())
            text = _query(table, bucket, tasks, is_json=is_json, is_ordered=is_ordered).as_string(connection)
            host, port, database = connection.info.host, connection.info.port, connection.info.dbname
            user, password = connection.info.user, connection.info.password
    except psycopg2.Error as error:
        raise CannotRead(f"PostgreSQL: {' '.join(str(error).split())}") from None
    finally:
        connection.close()
    if host.startswith("/"):
        raise CannotRead("PostgreSQL: Spark reads by TCP, not by a unix socket; give the server's host and port")
    options = {
        "url": postgresql_url(host, port, database),
        "driver": "org.postgresql.Driver",
        "dbtable": f"({text}) AS selected",
        "fetchsize": _FETCH,
        "partitionColumn": "part",
        "lowerBound": "0",
        "upperBound": str(tasks),
        "numPartitions": str(tasks),
        "user": user,
        "password": password or "",
        "ApplicationName": "bucketwire",
        **{name: given[key] for key, name in _JDBC.items() if key in given},
        **{name: parameters(settings.dsn).get(name, "") for name in _CERTIFICATE},
    }
    selected = spark.read.format("jdbc").options(**options).load().drop("part")
    return selected if is_json else documents(selected)


def hosts(settings: PostgresSettings) -> Sequence[str]:
    """Return the names and addresses that libpq and Java connect to."""
    given = parameters(settings.dsn)
    return [host for name in ("host", "hostaddr") for host in given.get(name, "").split(",")]


def _orders_by_bytes(row: tuple[Mapping[str, Any], Mapping[str, Any]] | None) -> bool:
    """Return whether a collation orders text as its bytes; the rows are those of the collation and of the database."""
    if row is None:
        return False
    collation, database = row
    provider, locale = collation.get("collprovider"), collation.get("collcollate")
    if provider in (None, "d"):
        provider, locale = database.get("datlocprovider", "c"), database.get("datcollate")
    # The built-in provider, of PostgreSQL 17, knows no other order.
    return provider == "b" or (provider == "c" and str(locale).lower() in _BYTE_ORDERS)


def _query(table: sql.Identifier, bucket: str, tasks: int, *, is_json: bool, is_ordered: bool) -> sql.Composable:
    members: list[sql.Composable]
    if is_json:
        members = [_member(path, name) for name, path in PATHS.items()]
        source = _DOCUMENTS
    else:  # an old or a handmade table: one broken document must not fail the whole read
        members = [sql.SQL("mirror.value::text AS document")]
        source = sql.SQL("{table} AS mirror")
    return sql.SQL(
        "SELECT substr(mirror.key, {skip}) AS key, {members}, (hashtext(mirror.key) & 2147483647) % {tasks} AS part "
        "FROM {source} WHERE left(mirror.key, {length}) = {prefix} AND {place}"
    ).format(
        skip=sql.Literal(len(bucket) + 2),
        members=sql.SQL(", ").join(members),
        tasks=sql.Literal(tasks),
        source=source.format(table=table),
        length=sql.Literal(len(bucket) + 1),
        prefix=sql.Literal(f"{bucket}/"),
        place=_place(bucket, is_ordered=is_ordered),
    )


def _place(bucket: str, *, is_ordered: bool) -> sql.Composed:
    """Return the condition by which an index finds the rows: no row with the prefix is outside."""
    if is_ordered:  # "0" follows "/"
        bounds = sql.Literal(f"{bucket}/"), sql.Literal(f"{bucket}0")
        return sql.SQL("mirror.key >= {} AND mirror.key < {}").format(*bounds)
    escaped = bucket.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
    return sql.SQL("mirror.key LIKE {}").format(sql.Literal(f"{escaped}/%"))


def _member(path: Sequence[str], name: str) -> sql.Composed:
    document = sql.Identifier("of_document", "record")
    if tuple(path[:2]) == _OBJECT:
        document, path = sql.Identifier("of_record", "thing"), path[2:]
    member = "{} ->> {} AS {}" if len(path) == 1 else "{} #>> {} AS {}"
    text = path[0] if len(path) == 1 else "{" + ",".join(path) + "}"
    return sql.SQL(member).format(document, sql.Literal(text), sql.Identifier(name))
