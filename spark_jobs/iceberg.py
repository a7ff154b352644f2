"""Iceberg in Spark: the catalog of a session, and tables whose commits say which events of the log they have.

The catalog is in the warehouse's own files, in the outbox's PostgreSQL, or REST. It decides which of two commits came
first. In files that takes a rename that fails if the name exists, which object storages lack and which Iceberg does not
get from every file system either: so a warehouse in a folder has a lock file, and one in a bucket needs another
catalog. A REST catalog decides itself where the files of a table are.
"""

import fcntl
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has none
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.config.errors import BadValue
from app.config.fields.addresses import redacted_url
from app.config.settings import Settings
from app.outbox.errors import AlreadyRunning
from spark_jobs import connectors
from spark_jobs.connectors import postgresql_url
from spark_jobs.listings.s3_listing import Bucket

CATALOG, NAMESPACE = "bucketwire", "s3"
_CATALOG_SETTING = f"spark.sql.catalog.{CATALOG}"
_LIBPQ_TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey")  # libpq and JDBC call them the same
_DRIVER = "org.postgresql.Driver"


class BadCatalog(Exception):
    """The catalog cannot be used; the message says why."""


class AlreadyUpdating(AlreadyRunning):
    """Another run writes to the same tables."""


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A folder or `s3a://bucket/prefix`, and the database that has the catalog; None: files of the warehouse.

    With the URL of a REST catalog `location` is what that calls the warehouse, and may be empty.
    """

    location: str
    database: sa.URL | None = None
    rest: str = ""
    credential: str = field(default="", repr=False)  # a bearer token, or `id:secret` of an OAuth2 client

    @classmethod
    def of(cls, settings: Settings) -> "Warehouse":
        """Return the warehouse of the settings."""
        if settings.tables_catalog == "rest":
            return cls(
                settings.tables_warehouse,
                rest=settings.tables_catalog_uri,
                credential=settings.tables_catalog_credential,
            )
        database = sa.make_url(settings.database_url) if settings.tables_catalog == "jdbc" else None
        location = settings.tables_warehouse or str(settings.folder / "tables")
        return cls(location if "://" in location else str(Path(location).absolute()), database)

    @property
    def libraries(self) -> Sequence[str]:
        """The libraries that a Spark session needs for it."""
        needs_s3 = self._bucket or self.rest
        return (*connectors.DRIVERS, connectors.ICEBERG, *([connectors.ICEBERG_S3] if needs_s3 else []))

    @property
    def place(self) -> str:
        """Where the tables are, for people."""
        return f"{self.location} of {redacted_url(self.rest)}".removeprefix(" of ") if self.rest else self.location

    @property
    def _bucket(self) -> str:
        """The bucket that it is in, "" for a folder."""
        scheme, divider, path = self.location.partition("://")
        return path.partition("/")[0] if divider and scheme != "file" else ""

    def open(self, spark: SparkSession) -> None:
        """Make the tables available to the session as `bucketwire.s3.…`. Raises `BadCatalog`."""
        for name, value in self._options().items():
            spark.conf.set(f"{_CATALOG_SETTING}.{name}", value)
        spark.conf.set(_CATALOG_SETTING, "org.apache.iceberg.spark.SparkCatalog")
        if self.database is not None:
            # Iceberg asks Java's DriverManager, which does not look into Spark's own libraries.
            registry = spark._jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry  # type: ignore[union-attr]
            registry.register(_DRIVER)
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{NAMESPACE}")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let one run at a time write, where the catalog does not see to it. Raises `AlreadyUpdating`."""
        if self._bucket or self.rest:
            yield
            return
        folder = Path(self.location.removeprefix("file://"))
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AlreadyUpdating(f"another run is writing to {folder}; wait until it has finished") from None
            yield

    def _options(self) -> Mapping[str, str]:
        # Another process may have committed since this one looked last.
        if self.rest:
            return {"type": "rest", "cache-enabled": "false", "uri": self.rest} | _rest(self.location, self.credential)
        options = {"type": "hadoop", "cache-enabled": "false", "warehouse": self.location}
        if not self._bucket and "://" not in self.location:
            options["warehouse"] = f"file://{self.location}"  # whatever the cluster's default file system is
        if self.database is not None:
            options |= {"type": "jdbc"} | _jdbc(self.database)
        if self._bucket:
            options |= {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"} | _s3()
        return options


def _jdbc(url: sa.URL) -> dict[str, str]:
    query = {name: value for name, value in url.query.items() if isinstance(value, str)}
    host, port = url.host or query.get("host", ""), url.port or query.get("port", 5432)
    if not host or host.startswith("/"):
        raise BadCatalog("BUCKETWIRE_DATABASE_URL names a unix socket; Spark needs the host of PostgreSQL")
    try:
        uri = postgresql_url(host, int(port or 5432), url.database or "")
    except BadValue as error:
        raise BadCatalog(f"BUCKETWIRE_DATABASE_URL {error.problem}; {error.hint}") from None
    options = {
        "uri": uri,
        "jdbc.user": url.username or "",
        "jdbc.password": url.password or "",
        "jdbc.ApplicationName": "bucketwire",
        "jdbc.schema-version": "V1",
    }
    return options | {f"jdbc.{name}": query[name] for name in _LIBPQ_TLS if name in query}


def _rest(warehouse: str, credential: str) -> dict[str, str]:
    options = {"warehouse": warehouse} if warehouse else {}
    if credential:
        options["credential" if ":" in credential else "token"] = credential
    return options | _s3()  # used if the catalog says nothing else of a table's files


def _s3() -> dict[str, str]:
    """Return the options for buckets, whose endpoint and credentials boto3 finds, as for a listing."""
    bucket = Bucket.from_boto3("")
    options = {"client.region": bucket.region}
    if bucket.endpoint:
        options |= {"s3.endpoint": bucket.endpoint, "s3.path-style-access": "true"}
    if bucket.login:
        access, secret, token = bucket.login
        options |= {"s3.access-key-id": access, "s3.secret-access-key": secret}
        options |= {"s3.session-token": token} if token else {}
    return options


Columns = Sequence[tuple[str, str]]  # name and type
_POSITION, _READ_AT, _EPOCH = "bucketwire.position", "bucketwire.read-at", "bucketwire.epoch"
_SESSION_OPTION = "spark.sql.iceberg.snapshot-property."  # for commits of SQL statements
_FRAME_OPTION = "snapshot-property."  # for those of a DataFrame
_CONFLICT = re.compile(r"CommitFailedException|Found (new )?conflicting|missing data files")
_PROPERTIES = {
    "format-version": "2",
    # A row that changes costs a line in a file of deletions, and not the file that it is in.
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    # As the tasks have the rows: one that gathers those of a day would be the only one that writes.
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


# Of a table in the order of its keys: a read of few keys reads a group of rows of this size for each place they are in.
_ORDERED = {"write.target-file-size-bytes": f"{64 << 20}", "write.parquet.row-group-size-bytes": f"{8 << 20}"}


class LostPosition(Exception):
    """No commit of a table says up to which position it has read."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a commit says: every event up to `position` of the log, as it was at `read_at`, is in the table.

    `read_at` is milliseconds since 1970 by the outbox database's clock. `epoch` is the log's, to which the position
    belongs; "" in commits of a version that did not keep it.
    """

    position: int
    read_at: int
    epoch: str = ""

    def properties(self, prefix: str) -> Mapping[str, str]:
        """Return the mark as properties of a commit."""
        values = {_POSITION: str(self.position), _READ_AT: str(self.read_at), _EPOCH: self.epoch}
        return {f"{prefix}{name}": value for name, value in values.items()}


BEGINNING = Mark(0, 0)


class IcebergTable:
    """A table of the catalog. Writing raises `AlreadyUpdating` if another run has committed meanwhile.

    `position` is the column with each row's position in the log, for a table to which rows are only added. The rows of
    each new file are in the order of `ordered_by`, those of all files after the table's maintenance.
    """

    def __init__(
        self, spark: SparkSession, name: str, columns: Columns, *, partitioned_by: str = "", position: str = "",
        ordered_by: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._spark = spark
        self.name = f"{CATALOG}.{NAMESPACE}.{name}"
        self.local_name = f"{NAMESPACE}.{name}"
        self.columns = columns
        self._partitioned_by = partitioned_by
        self._position = position
        self.ordered_by = ordered_by

    @property
    def schema(self) -> str:
        """The columns, as SQL declares them."""
        return ", ".join(f"`{name}` {kind}" for name, kind in self.columns)

    def create(self) -> None:
        """Create the table, or add the columns that one of an earlier version lacks."""
        partitions = f"PARTITIONED BY ({self._partitioned_by})" if self._partitioned_by else ""
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.name} ({self.schema}) USING iceberg {partitions} "
            f"TBLPROPERTIES ({_as_sql(_PROPERTIES)})"
        )
        has = set(self._spark.table(self.name).columns)
        added = ", ".join(f"`{name}` {kind}" for name, kind in self.columns if name not in has)
        if added:
            self._spark.sql(f"ALTER TABLE {self.name} ADD COLUMNS ({added})")
        if self.ordered_by and self._java().sortOrder().isUnsorted():
            self._order()

    def frame(self) -> DataFrame:
        """Return the table's rows."""
        return self._spark.table(self.name)

    def mark(self) -> Mark:
        """Return the mark of the newest commit that has one; `BEGINNING` for a new table. Raises `LostPosition`."""
        return self.state()[0]

    def state(self) -> tuple[Mark, int | None]:
        """Return the mark, as `mark` does, and the id of the current snapshot, None for a new table."""
        table = self._java()
        current = snapshot = table.currentSnapshot()
        if current is None:
            return BEGINNING, None
        while snapshot is not None:
            summary = snapshot.summary()
            if summary.containsKey(_POSITION):
                epoch = str(summary.getOrDefault(_EPOCH, ""))
                return Mark(int(summary.get(_POSITION)), int(summary.get(_READ_AT)), epoch), int(current.snapshotId())
            parent = snapshot.parentId()
            snapshot = None if parent is None else table.snapshot(parent)
        raise LostPosition(
            f"no snapshot of {self.name} says which events it has; another program has changed it: roll it back to a "
            f"snapshot with {_POSITION}, or name a new folder in BUCKETWIRE_TABLES_WAREHOUSE"
        )

    def added_rows(self) -> int:
        """Return how many rows the last commit added."""
        snapshot = self._java().currentSnapshot()
        return 0 if snapshot is None else int(snapshot.summary().getOrDefault("added-records", "0"))

    def properties(self) -> dict[str, str]:
        """Return the table's properties."""
        return dict(self._java().properties())

    def is_in_bucket(self) -> bool:
        """Return whether the files of the table are in a bucket, not in a folder."""
        return str(self._java().location()).startswith("s3")

    def set_property(self, name: str, value: str) -> None:
        """Set a property of the table; the value must not have quotes."""
        with _committing():
            self._spark.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ('{name}' = '{value}')")

    def add(self, rows: DataFrame, after: int, snapshot: int | None, mark: Mark) -> None:
        """Add rows of positions greater than `after`, if no run has added any to the table since the snapshot."""
        writer = rows.writeTo(self.name).option("isolation-level", "serializable")
        if snapshot is not None:
            writer = writer.option("validate-from-snapshot-id", str(snapshot))
        for name, value in mark.properties(_FRAME_OPTION).items():
            writer = writer.option(name, value)
        with _committing():
            writer.overwrite(F.col(self._position) > after)

    def merge(self, changes: DataFrame, statement: str, mark: Mark, *, near: str) -> None:
        """Carry out a MERGE of `changes` into the table, which the statement calls `changes` and `{table}`.

        `near` is the condition on the table's rows that stands for `{near}`.
        """
        changes.createOrReplaceTempView("changes")
        properties = mark.properties(_SESSION_OPTION)
        try:
            for name, value in properties.items():
                self._spark.conf.set(name, value)
            with _committing():
                self._spark.sql(statement.format(table=self.name, near=near))
        finally:
            for name in properties:
                self._spark.conf.unset(name)
            self._spark.catalog.dropTempView("changes")

    def repeat_mark(self) -> None:
        """Commit the mark once more, without any rows."""
        mark, snapshot = self.state()
        self.set_mark(mark, snapshot)

    def set_mark(self, mark: Mark, snapshot: int | None = None) -> None:
        """Commit a mark without any rows; in a table to which rows are only added, if none was since the snapshot."""
        rows = self.frame().limit(0)  # one made of an empty list needs Python workers
        if self._position:
            self.add(rows, mark.position, snapshot, mark)
            return
        writer = rows.writeTo(self.name)
        for name, value in mark.properties(_FRAME_OPTION).items():
            writer = writer.option(name, value)
        with _committing():
            writer.append()

    def _order(self) -> None:
        self._spark.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ({_as_sql(_ORDERED)})")
        iceberg = self._spark._jvm.org.apache.iceberg  # type: ignore[union-attr]
        order = self._java().replaceSortOrder()  # in SQL it needs an extension of Spark's
        for name in self.ordered_by:
            order = order.asc(iceberg.expressions.Expressions.ref(name), iceberg.NullOrder.NULLS_FIRST)
        order.commit()

    def _java(self) -> Any:
        util = self._spark._jvm.org.apache.iceberg.spark.Spark3Util  # type: ignore[union-attr]
        return util.loadIcebergTable(self._spark._jsparkSession, self.name)


def _as_sql(properties: Mapping[str, str]) -> str:
    """Return properties as SQL lists them; no value has quotes."""
    return ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())


@contextmanager
def _committing() -> Iterator[None]:
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        if _CONFLICT.search(str(error)):
            raise AlreadyUpdating("another run has changed the tables meanwhile; nothing was written") from None
        raise
