"""The settings of each target type. A key's name is its attribute's name; the words are MinIO's where MinIO has them.

A new type is one class here: its keys, and what has to hold between them.
"""

import base64
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar, Literal

from app.config.addresses import HttpUrl, RedisHost, SchemedHost
from app.config.cron import Cron
from app.config.keys import Declared, declared, setting
from app.config.kinds import Choice, Duration, Kind, Number, Path, Switch, Text, Toggle
from app.config.problems import BadSettings, BadValue, Problem, did_you_mean
from app.config.sql import ConnectionString, PostgresTable, identifier, is_url, keywords, written_keywords

DEFAULT_QUEUE_LIMIT = 100_000
_TYPES: dict[str, type["TargetSettings"]] = {}


@declared
class TargetSettings(Declared):
    """What every target can be told. Durations are seconds."""

    type_name: ClassVar[str]  # as in the ARN: postgresql
    section: ClassVar[str]  # of `notify_…` text: notify_postgres
    env: ClassVar[str]  # in MINIO_NOTIFY_<…>_: POSTGRES
    title: ClassVar[str]
    obsolete: ClassVar[frozenset[str]] = frozenset()  # squashed member names of config.json that mean nothing today

    def __init_subclass__(cls, *, type_name: str = "", short: str = "", title: str = "") -> None:
        super().__init_subclass__()
        if type_name:
            cls.type_name = type_name
            cls.section = f"notify_{short or type_name}"
            cls.env = (short or type_name).upper()
            cls.title = title or type_name
            _TYPES[type_name] = cls
            for name in sorted(_TYPES):
                _TYPES[name] = _TYPES.pop(name)

    enable: bool = setting(Toggle(), default="on", about="whether the target gets events; implied by setting it up")
    comment: str = setting(Text(), default="", about="anything you want to remember")
    queue_dir: str = setting(
        Path(), default="", about="gives the target a `queue_limit`, as in MinIO; its events are kept in the outbox"
    )
    queue_limit: int = setting(
        Number(0, 10**12),
        default="0",
        about=f"undelivered events it may have; 0: no limit, or {DEFAULT_QUEUE_LIMIT} where `queue_dir` is set",
    )
    queue_full: Literal["discard", "reject"] = setting(
        Choice("discard", "reject"),
        default="discard",
        about="at the limit, if there is one: leave the target out and count it, or refuse the request with 503",
    )
    sync: Literal["on", "off", ""] = setting(
        Switch(), default="", about="one unconfirmed request at a time; empty: as the service's MINIO_API_SYNC_EVENTS"
    )
    max_in_flight: int = setting(Number(1, 50_000), default="1000", about="unconfirmed requests when not in sync mode")
    batch_size: int = setting(Number(1, 10_000), default="500", about="events read and settled at once")
    max_attempts: int = setting(
        Number(1, 1_000_000), default="20", about="tries of one event before it becomes a dead letter"
    )
    retry_base: float = setting(Duration(0.001), default="1s", about="the wait before the second try; it doubles")
    retry_max_delay: float = setting(Duration(0.001), default="5m", about="the longest wait between two tries")
    max_age: float = setting(
        Duration(), default="72h", about="a failing event this old becomes a dead letter; 0 means never"
    )
    timeout: float = setting(Duration(0.001, 3600), default="5s", about="for connecting, and for answers")

    @property
    def effective_queue_limit(self) -> int | None:
        """How many undelivered events it may have, None for any number.

        In MinIO the limit is that of the store in `queue_dir`, and 0 means 100000 (§4.1). MinIO writes `queue_limit=0`
        into every target's settings, so that 0 alone says nothing.
        """
        return self.queue_limit or (DEFAULT_QUEUE_LIMIT if self.queue_dir else None)

    def problems(self) -> Iterator[Problem]:
        """What has to hold between the keys that every target has."""
        if self.retry_base > self.retry_max_delay:
            yield Problem("retry_base", "", "is longer than retry_max_delay", "shorten it or lengthen the other")


@declared
class NamespaceSettings(TargetSettings):
    """What targets with rows or fields can be told: mirror the buckets, or record every event."""

    format: Literal["namespace", "access"] = setting(
        Choice("namespace", "access"), default="namespace", about="one entry per object, or one per event"
    )
    policy: Literal["mirror", "compatible"] = setting(
        Choice("mirror", "compatible"),
        default="mirror",
        about="format namespace: hold what the bucket holds, or do what MinIO does event by event",
    )
    reconcile: str = setting(
        Cron(), default="", about="format namespace: when it is compared with its buckets; empty: only when asked for"
    )
    reconcile_repair: bool = setting(
        Toggle(), default="off", about="whether scheduled runs after the first set right what they find"
    )

    def problems(self) -> Iterator[Problem]:
        """What is compared has rows, and what is repaired is compared."""
        yield from super().problems()
        if self.reconcile and self.format == "access":
            yield Problem(
                "reconcile", self.reconcile, "has nothing to compare", "leave it out, or set format=namespace"
            )
        if self.reconcile_repair and not self.reconcile:
            yield Problem(
                "reconcile_repair", "on", "has no effect without reconcile", "set reconcile, such as 0 3 * * *"
            )


@declared
class RedisSettings(NamespaceSettings, type_name="redis", title="Redis"):
    """Redis (reference §4.9). An address that begins with `/` is a unix socket."""

    address: SchemedHost = setting(
        RedisHost(), about="host:port of the server, the path of its socket, or rediss://host:port for TLS"
    )
    key: str = setting(Text(), about="the hash (namespace) or list (access) that takes the events")
    user: str = setting(Text(), default="", about="ACL user; needs a password")
    password: str = setting(Text(), default="", secret=True, about="of the user, or of the server")
    db: int = setting(Number(0, 2**31 - 1), default="0", about="number of the database")
    tls: bool = setting(Toggle(), default="off", about="speak TLS")
    tls_ca: str = setting(Path(), default="", about="PEM file of the only authorities to trust; empty: the system's")
    tls_skip_verify: bool = setting(Toggle(), default="off", about="do not verify the server's certificate")
    client_cert: str = setting(Path(), default="", about="PEM file of the client's certificate")
    client_key: str = setting(Path(), default="", about="PEM file of its key")
    access_shape: Literal["minio", "guide"] = setting(
        Choice("minio", "guide"),
        default="minio",
        about="format access: entries as the MinIO server writes them, or the [time, event] pairs of its old guides",
    )

    @property
    def by_tls(self) -> bool:
        """Whether TLS is spoken, by `tls` or by the address."""
        return self.tls or self.address.tls

    def problems(self) -> Iterator[Problem]:
        """A user needs a password, a certificate its key, and files for TLS need TLS."""
        yield from super().problems()
        yield from _pair(self.client_cert, self.client_key)
        if self.user and not self.password:
            yield Problem("user", self.user, "is used only with a password", "set password, or leave user out")
        for name in ("tls_ca", "tls_skip_verify", "client_cert"):
            if getattr(self, name) and not self.by_tls:
                yield Problem(name, "", "has no effect without TLS", "set tls=on")
        if self.tls and self.address.host.startswith("/"):
            yield Problem("tls", "on", "cannot be had on a unix socket", "set tls=off or address=host:port")


@declared
class PostgresSettings(NamespaceSettings, type_name="postgresql", short="postgres", title="PostgreSQL"):
    """PostgreSQL (reference §4.10). The keys of before 2020 (`host`, `port`, …) add to the connection string."""

    connection_string: str = setting(
        ConnectionString(), default="", secret=True, about="libpq keywords or a postgresql:// URL; this or host"
    )
    table: str = setting(PostgresTable(), about="the table, made when it is not there; no schema")
    max_open_connections: int = setting(
        Number(0, 10_000), default="2", about="accepted as MinIO's, without effect: a worker process has one connection"
    )
    host: str = setting(Text(), default="", about="server, when it is not in connection_string")
    port: int = setting(Number(0, 65535), default="0", about="its port; 0 means what connection_string says, or 5432")
    username: str = setting(Text(), default="", aliases=("user",), about="database user")
    password: str = setting(Text(), default="", secret=True, about="database password")
    database: str = setting(Text(), default="", about="database name")

    @property
    def dsn(self) -> str:
        """What libpq connects to; it may hold a password."""
        parts = self._parts()
        if is_url(self.connection_string) or not parts:
            return self.connection_string
        return written_keywords(keywords(self.connection_string) | parts)

    @property
    def table_name(self) -> str:
        """The table's name as the catalogue holds it, to be quoted wherever it is used."""
        return identifier(self.table)

    def problems(self) -> Iterator[Problem]:
        """There is a place to connect to, and only one."""
        yield from super().problems()
        parts = self._parts()
        if not self.connection_string and not self.host:
            yield Problem(
                "connection_string", "", "is required", 'such as "host=db user=me dbname=events", or set host'
            )
        if is_url(self.connection_string) and parts:
            first = {"user": "username", "dbname": "database"}.get(next(iter(parts)), next(iter(parts)))
            yield Problem(first, "", "cannot be added to a URL", "write it into connection_string")

    def _parts(self) -> dict[str, str]:
        port = str(self.port) if self.port else ""
        parts = {"host": self.host, "port": port, "user": self.username, "password": self.password}
        return {name: text for name, text in (parts | {"dbname": self.database}).items() if text}


class SigningSecrets(Kind[str]):
    """Secrets of Standard Webhooks, the newest first, divided by blanks: each `whsec_` and base64 of 24 to 64 bytes."""

    label = "`whsec_…`, several divided by blanks"
    empty = ""
    separator = " "

    def parse(self, text: str) -> str:
        """The secrets, divided by single blanks."""
        for secret in text.split():
            try:
                size = len(base64.b64decode(secret.removeprefix("whsec_"), validate=True))
            except ValueError:
                size = 0
            if not secret.startswith("whsec_") or not 24 <= size <= 64:
                raise BadValue(
                    "is no signing secret of Standard Webhooks",
                    'write whsec_ and the output of "openssl rand -base64 32"',
                )
        return " ".join(text.split())


@declared
class WebhookSettings(TargetSettings, type_name="webhook", title="Webhook"):
    """Webhook (reference §4.2)."""

    endpoint: str = setting(HttpUrl(), about="the URL that events are posted to")
    auth_token: str = setting(
        Text(ascii_only=True),
        default="",
        secret=True,
        about="one word is sent as a bearer token, two words as they are, any other number not at all",
    )
    signing_secret: str = setting(
        SigningSecrets(), default="", secret=True, about="signs each request as Standard Webhooks; several: rotation"
    )
    client_cert: str = setting(Path(), default="", about="PEM file of the client's certificate")
    client_key: str = setting(Path(), default="", about="PEM file of its key")
    tls_ca: str = setting(Path(), default="", about="PEM file of the only authorities to trust; empty: the system's")
    tls_skip_verify: bool = setting(Toggle(), default="off", about="do not verify the server's certificate")
    allow_private: bool = setting(
        Toggle(), default="off", about="allow loopback, private and link-local addresses behind the endpoint's name"
    )
    read_timeout: float = setting(Duration(0.001, 3600), default="10s", about="for the answer to a request")
    events_per_post: int = setting(
        Number(1, 1000), default="1", about="most events in one request; more than 1 makes another body than MinIO's"
    )

    @property
    def signing_secrets(self) -> tuple[str, ...]:
        """The signing secrets, the newest first."""
        return tuple(self.signing_secret.split())

    def problems(self) -> Iterator[Problem]:
        """A certificate needs its key."""
        yield from super().problems()
        yield from _pair(self.client_cert, self.client_key)


def _pair(cert: str, key: str) -> Iterator[Problem]:
    if cert and not key:
        yield Problem("client_key", "", "is missing", "client_cert needs the key that belongs to it")
    if key and not cert:
        yield Problem("client_cert", "", "is missing", "client_key needs the certificate that belongs to it")


TYPES: Mapping[str, type[TargetSettings]] = MappingProxyType(_TYPES)

# Each declares more types by what stands above; imported here, so that TYPES has all of them whoever asks first.
from app.config import messaging, mysql, streams, subjects  # noqa: E402, F401


def without_effect(values: Mapping[str, str]) -> Iterator[str]:
    """What of a target's settings, given as texts, can be taken and does nothing: a sentence for each."""
    connections = values.get("max_open_connections", "").strip()
    if connections not in ("", "1", "2"):  # 2 is MinIO's default, which it writes into every target's settings
        yield (
            f"max_open_connections={connections} has no effect: each worker process has one connection to the target; "
            "fewer processes (`bucketwire worker --concurrency`) open fewer"
        )
    limit = values.get("queue_limit", "").strip(" +0") or values.get("queue_dir", "").strip()
    if values.get("queue_full", "").strip() == "reject" and not limit:
        yield "queue_full=reject has no effect without queue_limit or queue_dir: the target has no limit"


def settings_type(type_name: str) -> type[TargetSettings]:
    """The settings class of a target type. Raises `BadSettings` naming the types there are."""
    if type_name not in TYPES:
        problem = Problem("type", type_name, "is no target type here", did_you_mean(type_name, list(TYPES)))
        raise BadSettings([problem])
    return TYPES[type_name]
