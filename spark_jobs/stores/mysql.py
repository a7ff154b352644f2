"""Read the table of a MySQL or MariaDB target by JDBC, as `postgresql` does.

No index finds the rows of a bucket: that of such a table is by the hash of the key. Each task reads a range of it, so
that all of them together read the table once. A table without that column is read in parts by another hash.
"""

import re
from collections.abc import Sequence

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has none
from pyspark.sql import DataFrame, SparkSession

from app.config.targets.mysql import MysqlSettings
from spark_jobs.connectors import MYSQL_SAFE, mysql_url
from spark_jobs.frames import PATHS
from spark_jobs.stores import CannotRead, NoTable

HAS_SINGLE_ROWS = True  # whether one reading probably finds each key once
# The driver's message for error 1146; its exception class is the same for every error of a statement.
_NO_TABLE = re.compile(r"SQLSyntaxErrorException: Table '.*' doesn't exist")
# Error 1054 of either server, at the end of its message the clause.
_NO_HASH = re.compile(r"Unknown column '(?:\w+\.)?key_hash'")
_MAX_RANGES = 256  # of two hexadecimal digits
_TLS = {"": "DISABLED", "preferred": "PREFERRED", "skip-verify": "REQUIRED", "true": "VERIFY_IDENTITY"}


def rows(spark: SparkSession, settings: MysqlSettings, bucket: str, *, tasks: int) -> DataFrame:
    """Return the ROWS of the bucket. Raises `CannotRead`."""
    dsn = settings.dsn
    if dsn.socket:
        raise CannotRead("MySQL: Spark reads by TCP, not by a unix socket; give the server's host and port")
    if settings.tls_ca or settings.client_cert:
        raise CannotRead("MySQL: Spark's JDBC driver reads no PEM files; add the certificates to Java's trust store")
    table = ".".join("`" + name.replace("`", "``") + "`" for name in settings.table_name if name)
    options = MYSQL_SAFE | {
        # Never a URL of MariaDB's: see spark_jobs.connectors.
        "driver": "com.mysql.cj.jdbc.Driver",
        "fetchsize": "10000",
        "useCursorFetch": "true",  # otherwise the driver keeps the whole result in memory
        "user": dsn.user,
        "password": dsn.password,
        "sslMode": _TLS[dsn.tls],
        "allowPublicKeyRetrieval": "true" if dsn.tls == "" else "false",
        "connectTimeout": "10000",
    }
    url = mysql_url(dsn.host, dsn.port, dsn.database)

    def read(part: str, ranges: list[str]) -> DataFrame:
        selected = f"({_query(table, bucket, part)}) AS selected"
        return spark.read.jdbc(url, selected, predicates=ranges, properties=options).drop("part")

    try:
        try:
            return read("key_hash", _ranges(tasks))
        except Py4JJavaError as error:
            if not _NO_HASH.search(str(error.java_exception)):
                raise
        return read(f"CRC32(key_name) % {int(tasks)}", [f"part = {number}" for number in range(tasks)])
    except Py4JJavaError as error:
        if _NO_TABLE.search(str(error.java_exception)):
            raise NoTable(f"MySQL: there is no table {settings.table}") from None
        raise


def hosts(settings: MysqlSettings) -> Sequence[str]:
    """Return the host, as every store does."""
    return [settings.dsn.host]


def _ranges(tasks: int) -> list[str]:
    """Return conditions for `part`, the hash in hexadecimal, of which each row meets one."""
    number = min(tasks, _MAX_RANGES)
    bounds = [f"{place * _MAX_RANGES // number:02x}" for place in range(1, number)]
    above = ["part IS NOT NULL", *(f"part >= '{bound}'" for bound in bounds)]
    below = [*(f"part < '{bound}'" for bound in bounds), "part IS NOT NULL"]
    first, *others = [f"{least} AND {most}" for least, most in zip(above, below, strict=True)]
    return [f"({first}) OR part IS NULL", *others]  # null only in a table that somebody made


def _query(table: str, bucket: str, part: str) -> str:
    members = ", ".join(
        f"CONVERT(JSON_UNQUOTE(JSON_EXTRACT(value, '$.Records[0].{'.'.join(path)}')) USING utf8mb4) AS `{name}`"
        for name, path in PATHS.items()
    )
    # Spark's queries take no parameters, and a posted bucket name may be any text: in hexadecimal none of it is syntax,
    # whatever sql_mode and the character sets are. A table's own collation might compare a and A as equal.
    prefix = f"{bucket}/"
    hex_prefix = f"CONVERT(X'{prefix.encode().hex()}' USING utf8mb4) COLLATE utf8mb4_bin"
    return (
        f"SELECT SUBSTR(key_name, {len(prefix) + 1}) AS `key`, {members}, {part} AS part "  # noqa: S608 - as above
        f"FROM {table} WHERE LEFT(key_name, {len(prefix)}) = {hex_prefix}"
    )
