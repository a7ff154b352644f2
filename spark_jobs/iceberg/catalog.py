"""Configure the Iceberg catalog of a Spark session: the warehouse's own files, the outbox's PostgreSQL, or REST.

A catalog decides which of two commits came first. In files that takes a rename that fails if the name exists, which
object storages lack and which Iceberg does not get from every file system either: so a warehouse in a folder has a lock
file, and one in a bucket needs another catalog. A REST catalog decides itself where the files of a table are.
"""

import fcntl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa
from pyspark.sql import SparkSession

from app.config.errors import BadValue
from app.config.fields.addresses import redacted_url
from app.config.settings import Settings
from app.outbox.errors import AlreadyRunning
from spark_jobs import connectors
from spark_jobs.connectors import postgresql_url
from spark_jobs.listings.s3_listing import Bucket

CATALOG, NAMESPACE = "bucketwire", "s3"
_PREFIX = f"spark.sql.catalog.{CATALOG}"
_TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey")  # libpq and JDBC call them the same
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
            spark.conf.set(f"{_PREFIX}.{name}", value)
        spark.conf.set(_PREFIX, "org.apache.iceberg.spark.SparkCatalog")
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
    return options | {f"jdbc.{name}": query[name] for name in _TLS if name in query}


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
