"""The service's own settings: `BUCKETWIRE_*` variables; none is needed (docs/reference/settings.md)."""

import contextlib
import dataclasses
import hashlib
import ipaddress
import re
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import ClassVar, Literal, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from app.config.errors import BadSettings, BadValue, Problem, did_you_mean
from app.config.fields.addresses import (
    ConsoleUrl,
    Host,
    HostPort,
    HttpUrl,
    Issuer,
    PageUrl,
    check_is_one_value,
    check_login_end,
    redacted_url,
    secrets_in_url,
    split_url,
)
from app.config.fields.field_types import Choice, Duration, FieldType, Number, Path, Size, Switch, Text, Toggle, Values
from app.config.fields.fields import Declared, declared, fields_of, parse, setting
from app.config.fields.secret_refs import SECRETS_DIR
from app.config.fields.times import Cron
from app.config.networks import is_loopback
from app.config.secrets import parse_key
from app.events.buckets import is_fixed, is_in

# Every key of the broker in Redis begins with it: queues, and what is not acknowledged. A target's key must not.
KEY_PREFIX = "bucketwire-broker:"


def is_rabbitmq(broker_url: str) -> bool:
    """Return whether the broker speaks AMQP."""
    return broker_url.startswith("amqp")


_PREFIX = "BUCKETWIRE_"
_SOURCES = "BUCKETWIRE_SOURCE_"
# Not settings of the service: of the test set-up, of the CLI, and of a worker that the CLI starts.
_NOT_SETTINGS = frozenset(
    {
        "BUCKETWIRE_CACHE",
        "BUCKETWIRE_DEBUG",
        "BUCKETWIRE_FRONTEND_TOKEN",
        "BUCKETWIRE_TOKEN",
        "BUCKETWIRE_URL",
        "BUCKETWIRE_WORKER_SOURCES",
        "BUCKETWIRE_WORKER_TARGETS",
    }
)
SCOPES = ("ingest", "read", "admin")
S3_SCOPES = ("read", "admin")
_MAX_SOCKET_PATH = 107  # bytes


class ApiToken(NamedTuple):
    """A bearer token by its SHA-256; the token itself is not kept.

    With `buckets` or `targets` (as type:name) it is limited to events of these buckets, and to these targets. `kind` is
    `openid` for a person who has signed in with OpenID Connect: such a session stands for a token that nobody has. Its
    `name` is what the person is called, and `person` who it is. `frontend` is the sender of what is posted with it; ""
    where each record shows its sender. `tenant` is whose buckets that concerns (`app.events.buckets`); a fixed one also
    limits it to the tenant's buckets. It is invalid from `expires_at` on (ms since 1970; 0: never).
    """

    name: str
    scopes: frozenset[str]
    digest: str
    buckets: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    kind: str = "token"
    person: str = ""
    frontend: str = ""
    expires_at: int = 0
    tenant: str = ""

    def has_expired(self, now: int) -> bool:
        """Return whether it is invalid at a time (ms since 1970)."""
        return 0 < self.expires_at <= now

    @property
    def actor(self) -> str:
        """What the audit log calls its user. A person's name is last: people choose it."""
        return f"{self.kind}:{self.person} ({self.name})" if self.person else f"{self.kind}:{self.name}"

    @property
    def is_limited(self) -> bool:
        """Whether it allows only what concerns its buckets and targets."""
        return bool(self.buckets or self.targets) or is_fixed(self.tenant)

    def includes(self, bucket: str) -> bool:
        """Return whether a limited token allows what concerns a bucket."""
        if self.buckets:
            return bucket in self.buckets
        return is_fixed(self.tenant) and is_in(self.tenant, bucket)


class ApiTokens(FieldType[tuple[ApiToken, ...]]):
    """Comma-separated `name:scope+scope:token`."""

    label = "name:scope+scope:token, …"
    empty = ()
    has_colons = True
    _HINT = "write name:scopes:token with scopes of ingest, read and admin joined by +, such as minio:ingest:5f3c…"

    def parse(self, text: str) -> tuple[ApiToken, ...]:
        """Parse the tokens and hash them."""
        tokens = [self._token(part.strip()) for part in text.split(",") if part.strip()]
        if len({token.name for token in tokens}) < len(tokens) or len({token.digest for token in tokens}) < len(tokens):
            raise BadValue("has a name or a token twice", "give each token a name of its own")
        return tuple(tokens)

    def _token(self, text: str) -> ApiToken:
        name, _, rest = text.partition(":")
        scopes, _, token = rest.partition(":")
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) or not set(scopes.split("+")) <= set(SCOPES):
            raise BadValue("is not a list of tokens", self._HINT)
        if not re.fullmatch(r"[A-Za-z0-9._~+/=-]{16,512}", token):
            raise BadValue(
                "has a token that is too short or has invalid characters",
                "take 16 or more letters and digits: openssl rand -hex 32",
            )
        return ApiToken(name, frozenset(scopes.split("+")), hash_token(token))


class S3Key(NamedTuple):
    """A key of the S3 API: its name, its scopes, and the access key and secret key of a client."""

    name: str
    scopes: frozenset[str]
    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        """Leave the secret out, so that no stack trace logs it."""
        return f"S3Key({self.name!r})"

    @property
    def actor(self) -> str:
        """What the audit log calls its user."""
        return f"key:{self.name}"


class S3Keys(FieldType[tuple[S3Key, ...]]):
    """Comma-separated `name:scope+scope:access key:secret key`; the scopes are read and admin."""

    label = "name:scope+scope:access:secret, …"
    empty = ()
    has_colons = True
    _HINT = "write name:scopes:access key:secret key with scopes of read and admin, such as watch:read:watcher:5f3c…"

    def parse(self, text: str) -> tuple[S3Key, ...]:
        keys = tuple(self._key(part.strip()) for part in text.split(",") if part.strip())
        if len({key.name for key in keys}) < len(keys) or len({key.access_key for key in keys}) < len(keys):
            raise BadValue("has a name or an access key twice", "give each key a name and an access key of its own")
        return keys

    def secrets_in(self, value: tuple[S3Key, ...]) -> Iterator[str]:
        """Yield the secret keys."""
        return (key.secret_key for key in value)

    def _key(self, text: str) -> S3Key:
        match = re.fullmatch(r"([A-Za-z0-9_.-]{1,64}):([a-z+]+):([A-Za-z0-9_.+=@-]{3,128}):([!-~]{8,128})", text)
        if match is None or not set(match[2].split("+")) <= set(S3_SCOPES):
            raise BadValue("is not a list of S3 keys", self._HINT)
        return S3Key(match[1], frozenset(match[2].split("+")), match[3], match[4])


class SecretKeys(FieldType[tuple[str, ...]]):
    """Comma-separated Fernet keys, the newest first."""

    label = "Fernet keys, newest first"
    empty = ()

    def parse(self, text: str) -> tuple[str, ...]:
        keys = tuple(part.strip() for part in text.split(",") if part.strip())
        for key in keys:
            parse_key(key)
        return keys


class DatabaseUrl(FieldType[str]):
    """`sqlite:////path`, `postgresql://…`, `mysql://…` or `mariadb://…`; `parse` adds the driver."""

    label = "database URL"
    empty = ""
    holds_secrets = True
    _DRIVERS: ClassVar[dict[str, tuple[str, str]]] = {
        "postgres": ("postgresql", "psycopg2"),
        "postgresql": ("postgresql", "psycopg2"),
        "mysql": ("mysql", "pymysql"),
        "mariadb": ("mysql", "pymysql"),
    }

    def parse(self, text: str) -> str:
        """Return the URL with its driver, for MySQL also with its character set."""
        scheme, divider, rest = text.partition("://")
        base, _, driver = scheme.partition("+")
        if base == "sqlite" and driver in ("", "pysqlite") and divider:
            if not rest.startswith("//"):
                raise BadValue("is not an absolute SQLite path", "write sqlite:/// and an absolute path")
            return text
        name, ours = self._DRIVERS.get(base, ("", ""))
        if not divider or driver not in ("", ours) or not name:
            raise BadValue("is not a supported database URL", "write sqlite:////path, postgresql://… or mysql://…")
        parts = split_url(text, needs_host=name == "mysql")
        # SQLAlchemy ends the login at the first @, whatever is before it.
        if "@" in rest.partition("@")[2].partition("?")[0] or ("@" in rest and "@" not in parts.netloc):
            raise BadValue("has an @ behind the login", "write / ? # @ in a user or password as %2F %3F %23 %40")
        check_is_one_value("database", rest.rpartition("@")[2].partition("?")[0])
        return f"{name}+{ours}://{_with_charset(rest) if name == 'mysql' else rest}"

    def secrets_in(self, value: str) -> Iterator[str]:
        """Yield the password."""
        return secrets_in_url(value)

    def shown(self, text: str) -> str:
        return redacted_url(text)


class BrokerUrl(FieldType[str]):
    """`redis://`, `rediss://`, `redis+socket:///path`, `amqp://` or `amqps://`."""

    label = "broker URL"
    empty = ""
    holds_secrets = True

    def parse(self, text: str) -> str:
        """The URL as given."""
        scheme, divider, rest = text.partition("://")
        if scheme == "redis+socket" and rest.startswith("/"):
            return text
        if not divider or scheme not in ("redis", "rediss", "amqp", "amqps"):
            raise BadValue(
                "is not a supported broker URL", "write redis://, rediss://, redis+socket:///path or amqp://"
            )
        parts = split_url(text)
        check_login_end(parts)
        if re.search(r"(^|&)(password|userid|hostname|port|virtual_host)=", parts.query):
            raise BadValue("has a part of the address in its ?query", "write scheme://user:password@host:port/place")
        return text

    def secrets_in(self, value: str) -> Iterator[str]:
        """Yield the password."""
        return secrets_in_url(value)

    def shown(self, text: str) -> str:
        return redacted_url(text)


@declared
class Settings(Declared):
    """The service's settings. Durations are seconds, sizes bytes; `repr` redacts URLs and secrets."""

    of_service = True

    data_dir: str = setting(Text(), default="var", about="the service's data folder")
    database_url: str = setting(DatabaseUrl(), default="", about="the outbox; empty: SQLite in the data folder")
    database_timeout: float = setting(
        Duration(1, 3600), default="20s", about="how long to wait for the database server's answer"
    )
    broker_url: str = setting(
        BrokerUrl(), default="", about="the task broker; empty: an embedded Redis in the data folder"
    )
    listen: HostPort = setting(Host(8730, any_port=True), default="127.0.0.1:8730", about="where the API listens")
    tls_cert: str = setting(
        Path(), default="", about="PEM chain of the API, read again when renewed; empty: plain HTTP"
    )
    tls_key: str = setting(Path(), default="", about="PEM key of `tls_cert`, without password")
    stop_delay: float = setting(
        Duration(0, 3600),
        default="0",
        about="how long the API answers on after SIGTERM, while `/healthz` and `/readyz` are 503, until load balancers "
        "send it nothing more",
    )
    metrics_listen: HostPort = setting(
        Host(any_port=True), default="", about="where a worker serves its metrics, port 0: any; empty: nowhere"
    )
    probe_listen: HostPort = setting(
        Host(any_port=True),
        default="",
        about="where a worker or beat answers `/readyz`, with 503 while it does not serve; port 0: any; empty: nowhere",
    )
    log_format: Literal["text", "json"] = setting(
        Choice("text", "json"), default="text", about="log lines for people, or one JSON object per line"
    )
    api_tokens: tuple[ApiToken, ...] = setting(
        ApiTokens(), default="", secret=True, about="bearer tokens; scopes: ingest, read, admin"
    )
    access_key: str = setting(Text(), default="", about="access key of the S3 API, at least 3 characters")
    secret_key: str = setting(Text(), default="", secret=True, about="secret key of the S3 API, at least 8 characters")
    s3_keys: tuple[S3Key, ...] = setting(
        S3Keys(), default="", secret=True, about="more keys of the S3 API; scopes: read, admin"
    )
    secrets_dir: str = setting(
        Path(), default=SECRETS_DIR, about="the only folder whose files the settings of targets may refer to"
    )
    secret_keys: tuple[str, ...] = setting(
        SecretKeys(), default="", secret=True, about="encrypt stored secrets; empty: a generated key in the data folder"
    )
    b2_signing_secrets: tuple[str, ...] = setting(
        Values(), default="", secret=True, about="of Backblaze B2's rules; empty: no signature is verified"
    )
    oidc_issuer: str = setting(
        Issuer(), default="", about="OpenID Connect provider that people sign in to the console with; empty: none"
    )
    oidc_client_id: str = setting(Text(), default="", about="the client's id at the provider")
    oidc_client_secret: str = setting(
        Text(), default="", secret=True, about="the client's secret at the provider; empty: a public client"
    )
    oidc_console_url: str = setting(
        ConsoleUrl(), default="", about="the console as browsers see it, such as https://ops.example.com/console/"
    )
    oidc_scope: str = setting(
        Text(ascii_only=True), default="openid profile email", about="what the provider is asked for"
    )
    oidc_claim: str = setting(Text(), default="groups", about="the claim that says what a person may do")
    oidc_admin: tuple[str, ...] = setting(
        Values(), default="", about="values of `oidc_claim` that give the scope admin"
    )
    oidc_read: tuple[str, ...] = setting(
        Values(), default="", about="values of `oidc_claim` that give the scope read; *: everybody"
    )
    flower_url: str = setting(
        PageUrl(),
        default="",
        about="Flower as browsers see it, for a link in the console; `bucketwire up` sets it",
    )
    region: str = setting(Text(), default="", about="the region in ARNs and in responses of the S3 API")
    retention: float = setting(Duration(), default="7d", about="how long settled events can be replayed")
    report_retention: float = setting(
        Duration(), default="90d", about="how long reconciliations and their reports are kept"
    )
    reports: str = setting(
        Text(),
        default="",
        about="where reconciliations write their reports: a folder, or a URL of a file system that Spark reaches, "
        "such as `s3a://bucket/prefix`; empty: `reconciliations` in the data folder",
    )
    audit_retention: float = setting(Duration(), default="365d", about="how long the audit log is kept")
    service_events: bool = setting(
        Toggle(), default="off", about="record events about the service itself, which rules can send to any target"
    )
    service_events_interval: float = setting(
        Duration(60, 86400), default="10m", about="least time between two such events of a kind about a target"
    )
    service_events_backlog: int = setting(
        Number(), default="100000", about="backlog of a target above which such an event is recorded; 0: never"
    )
    drain_interval: float = setting(
        Duration(0.01, 10), default="2s", about="how often the drain looks for due work if no wake-up reaches it"
    )
    spool_dir: str = setting(
        Path(), default="", about="where the API keeps events while the database is unavailable; empty: refuse them"
    )
    partitions: int = setting(
        Number(1, 1024), default="16", about="ordered shares of the event log; fixed when it is created"
    )
    lease_ttl: float = setting(
        Duration(1, 3600), default="6s", about="how long a worker's right to a partition lasts, renewed while it works"
    )
    lease_max_work: float = setting(
        Duration(0.1, 3600), default="5s", about="how long one task works on a partition at most"
    )
    body_limit: int = setting(
        Size(1024, 2**40), default="64MiB", about="largest request body, before and after decompression"
    )
    record_limit: int = setting(Number(1, 10_000_000), default="10000", about="most records in one request")
    allow_private: bool = setting(
        Toggle(), default="", about="allow webhooks to private addresses; empty: only with the embedded default"
    )
    spark_master: str = setting(
        Text(), default="local[*]", about="the Spark master that runs `bucketwire reconcile run`"
    )
    spark_jars: str = setting(
        Path(), default="", about="folder with libraries for Spark; empty: Spark downloads them once"
    )
    spark_connections: int = setting(
        Number(1, 256), default="8", about="most connections at once that a Spark job opens to a database"
    )
    spark_memory: str = setting(Text(), default="1g", about="memory of the Spark driver process, in Java's notation")
    tables_warehouse: str = setting(
        Text(),
        default="",
        about="where `bucketwire tables` keeps its Iceberg tables: a folder, or `s3a://bucket/prefix`; empty: `tables` "
        "in the data folder. With a REST catalog: the name of its warehouse",
    )
    tables_catalog: Literal["hadoop", "jdbc", "rest"] = setting(
        Choice("hadoop", "jdbc", "rest"),
        default="hadoop",
        about="their Iceberg catalog: files of the warehouse, two tables in the outbox's PostgreSQL, or a REST catalog",
    )
    tables_catalog_uri: str = setting(HttpUrl(), default="", about="URL of the REST catalog")
    tables_catalog_credential: str = setting(
        Text(),
        default="",
        secret=True,
        about="what the REST catalog asks for: a bearer token, or `id:secret` of an OAuth2 client",
    )
    tables_schedule: str = setting(
        Cron(), default="", about="when a Spark worker runs `bucketwire tables`; empty: only on request"
    )
    tables_history: float = setting(
        Duration(), default="30d", about="how long earlier states of the tables can be queried"
    )
    sync_events: Literal["on", "off", ""] = setting(
        Switch(),
        default="",
        env="MINIO_API_SYNC_EVENTS",
        about="sync mode of targets whose `sync` is empty; empty: as `config set api sync_events=…`, or off",
    )
    embedded_database: bool = False
    embedded_broker: bool = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Settings":
        """Read the settings from the environment. Raises `BadSettings` with every problem, by variable.

        A relative folder is relative to the current one. An unknown `BUCKETWIRE_*` variable is refused.
        """
        variables = {key.env or _PREFIX + name.upper(): name for name, key in fields_of(cls).items()}
        set_variables = {name: text for name, text in environ.items() if text.strip()}
        problems = [
            Problem(name, "", "is not a known setting", did_you_mean(name, list(variables)))
            for name in set_variables
            if name.startswith(_PREFIX) and name not in variables and name not in _NOT_SETTINGS
            if not name.startswith(_SOURCES)  # of `app.config.formats.environment`
        ]
        values = {variables[name]: text for name, text in set_variables.items() if name in variables}
        try:
            settings = parse(cls, values, environ)._with_defaults(values)
        except BadSettings as error:
            variable_of = {name: variable for variable, name in variables.items()}
            problems += [
                dataclasses.replace(problem, key=variable_of.get(problem.key, problem.key))
                for problem in error.problems
            ]
        if problems:
            raise BadSettings(problems)
        return settings

    def problems(self) -> Iterator[Problem]:
        """Check the settings against each other."""
        if bool(self.access_key) != bool(self.secret_key):
            missing = "secret_key" if self.access_key else "access_key"
            yield Problem(missing, "", "is missing", "the S3 API needs both keys or none")
        if self.access_key and len(self.access_key) < 3:
            yield Problem("access_key", self.access_key, "is too short", "use 3 or more characters, as MinIO requires")
        if self.secret_key and len(self.secret_key) < 8:
            yield Problem("secret_key", "", "is too short", "use 8 or more characters, as MinIO requires")
        if self.access_key in {key.access_key for key in self.s3_keys}:
            yield Problem(
                "s3_keys", "", "repeats the access key of BUCKETWIRE_ACCESS_KEY", "give each key its own access key"
            )
        if bool(self.tls_cert) != bool(self.tls_key):
            missing = "tls_key" if self.tls_cert else "tls_cert"
            yield Problem(
                missing, "", "is missing", "TLS needs both a certificate and its key; plain HTTP needs neither"
            )
        if self.oidc_issuer:
            yield from self._openid_problems()
        if self.lease_max_work >= self.lease_ttl:
            yield Problem(
                "lease_max_work", "", "is not shorter than the lease", "shorten it, or raise BUCKETWIRE_LEASE_TTL"
            )
        yield from self._problems_of_tables()
        if self.spark_master.startswith("sc:"):
            yield Problem(
                "spark_master", self.spark_master, "is a Spark Connect server, on which the jobs cannot run",
                "name a master, such as local[*], spark://host:7077, yarn or k8s://https://host:6443",
            )  # fmt: skip
        if not re.fullmatch(r"[A-Za-z0-9_-]*", self.region):
            yield Problem("region", self.region, "is not a region", "letters, digits and -, such as us-east-1")
        if not self.broker_url and len(str(self.broker_socket).encode()) > _MAX_SOCKET_PATH:
            yield Problem(
                "data_dir",
                self.data_dir,
                "is too long for the path of a unix socket",
                "choose a shorter one, or set BUCKETWIRE_BROKER_URL",
            )

    def _openid_problems(self) -> Iterator[Problem]:
        for name in ("oidc_client_id", "oidc_console_url", "oidc_claim"):
            if not getattr(self, name):
                yield Problem(name, "", "is missing", "the sign-in with OpenID Connect needs it")
        if not self.oidc_admin and not self.oidc_read:
            yield Problem("oidc_read", "", "is missing", "say whom to let in, here or in BUCKETWIRE_OIDC_ADMIN")
        if "openid" not in self.oidc_scope.split():
            yield Problem("oidc_scope", self.oidc_scope, "lacks openid", "write openid and what else is needed")

    def _problems_of_tables(self) -> Iterator[Problem]:
        if self.tables_catalog == "rest":
            if urlsplit(self.tables_catalog_uri).scheme not in ("http", "https"):
                yield Problem(
                    "tables_catalog_uri", self.tables_catalog_uri, "is not the URL of a REST catalog",
                    "write one with http:// or https://",
                )  # fmt: skip
            return
        scheme, divider, _ = self.tables_warehouse.partition("://")
        if divider and scheme not in ("file", "s3", "s3a"):
            yield Problem(
                "tables_warehouse", self.tables_warehouse, "is neither a folder nor in a bucket",
                "write a path, or s3a://bucket/prefix",
            )  # fmt: skip
        elif divider and scheme != "file" and self.tables_catalog == "hadoop":
            yield Problem(
                "tables_warehouse", self.tables_warehouse, "is no folder, so its files cannot be a catalog",
                "set BUCKETWIRE_TABLES_CATALOG=jdbc",
            )  # fmt: skip
        if self.tables_catalog == "jdbc" and not self.database_url.startswith("postgresql"):
            yield Problem(
                "tables_catalog", "jdbc", "needs an outbox on PostgreSQL", "set BUCKETWIRE_DATABASE_URL=postgresql://…"
            )

    @property
    def folder(self) -> FilePath:
        """The data folder as an absolute path."""
        return FilePath(self.data_dir).absolute()

    @property
    def broker_socket(self) -> FilePath:
        """The socket of the embedded Redis."""
        return self.folder / "redis.sock"

    @property
    def key_path(self) -> FilePath:
        """The file of the key that seals secrets when BUCKETWIRE_SECRET_KEYS gives none."""
        return self.folder / "secret.key"

    @property
    def every_s3_key(self) -> tuple[S3Key, ...]:
        """Every key of the S3 API; without one the S3 API is closed."""
        scopes = frozenset(S3_SCOPES)
        first = (S3Key("default", scopes, self.access_key, self.secret_key),) if self.access_key else ()
        return (*first, *self.s3_keys)

    @property
    def api_address(self) -> HostPort:
        """The API's address on this machine: the loopback address if it listens on every address."""
        with contextlib.suppress(ValueError):
            ip = ipaddress.ip_address(self.listen.host)
            if ip.is_unspecified:
                return HostPort("::1" if ip.version == 6 else "127.0.0.1", self.listen.port)
        return self.listen

    @property
    def api_url(self) -> str:
        """The API's URL on this machine, without a trailing slash."""
        return f"{'https' if self.tls_cert else 'http'}://{self.api_address}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the API."""
        return is_loopback(self.listen.host)

    def _with_defaults(self, values: Mapping[str, str]) -> "Settings":
        embedded = not self.database_url and not self.broker_url
        return dataclasses.replace(
            self,
            data_dir=str(self.folder),
            database_url=self.database_url or f"sqlite:///{quote(str(self.folder / 'bucketwire.db'))}",
            broker_url=self.broker_url or f"redis+socket://{quote(str(self.broker_socket))}",
            embedded_database=not self.database_url,
            embedded_broker=not self.broker_url,
            allow_private=self.allow_private if "allow_private" in values else embedded,
        )


def hash_token(token: str) -> str:
    """Return the SHA-256 of a bearer token in hexadecimal. Tokens are random: they need no salt and no slow hash."""
    return hashlib.sha256(token.encode()).hexdigest()


def _with_charset(rest: str) -> str:
    address, _, query = rest.partition("?")
    pairs = dict(parse_qsl(query, keep_blank_values=True))
    return f"{address}?{urlencode({'charset': 'utf8mb4'} | pairs)}"
