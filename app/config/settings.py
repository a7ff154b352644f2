"""The service's own settings: `BUCKETWIRE_*` variables; none is needed (docs/reference/settings.md)."""

import contextlib
import dataclasses
import hashlib
import ipaddress
import re
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import ClassVar, Literal, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from app.config.errors import BadSettings, BadValue, Problem, did_you_mean
from app.config.fields.addresses import Host, HostPort, redacted_url, split_url
from app.config.fields.field_types import Choice, Duration, FieldType, Number, Path, Size, Text, Toggle
from app.config.fields.fields import Declared, declared, fields_of, parse, setting
from app.config.fields.secret_refs import SECRETS_DIR
from app.config.networks import is_loopback
from app.config.secrets import parse_key

_PREFIX = "BUCKETWIRE_"
# Where the test set-up keeps its servers, how the CLI shows errors, and what it tells a worker to serve.
_NOT_OURS = frozenset(
    {"BUCKETWIRE_CACHE", "BUCKETWIRE_DEBUG", "BUCKETWIRE_TOKEN", "BUCKETWIRE_URL", "BUCKETWIRE_WORKER_TARGETS"}
)
SCOPES = ("ingest", "read", "admin")
S3_SCOPES = ("read", "admin")
_SOCKET_PATH = 107  # bytes that a unix socket's path may have


class ApiToken(NamedTuple):
    """A bearer token by its SHA-256; the token itself is not kept."""

    name: str
    scopes: frozenset[str]
    digest: str


class ApiTokens(FieldType[tuple[ApiToken, ...]]):
    """`name:scope+scope:token`, divided by commas."""

    label = "name:scope+scope:token, …"
    empty = ()
    has_colons = True
    _HINT = "write name:scopes:token with scopes of ingest, read and admin joined by +, such as minio:ingest:5f3c…"

    def parse(self, text: str) -> tuple[ApiToken, ...]:
        """The tokens, hashed."""
        tokens = [self._token(part.strip()) for part in text.split(",") if part.strip()]
        if len({token.name for token in tokens}) < len(tokens) or len({token.digest for token in tokens}) < len(tokens):
            raise BadValue("has a name or a token twice", "give each token a name of its own")
        return tuple(tokens)

    def _token(self, text: str) -> ApiToken:
        name, _, rest = text.partition(":")
        scopes, _, token = rest.partition(":")
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) or not set(scopes.split("+")) <= set(SCOPES):
            raise BadValue("is no list of tokens", self._HINT)
        if not re.fullmatch(r"[A-Za-z0-9._~+/=-]{16,512}", token):
            raise BadValue(
                "has a token that is too short or has odd characters",
                "take 16 or more letters and digits: openssl rand -hex 32",
            )
        return ApiToken(name, frozenset(scopes.split("+")), hash_token(token))


class S3Key(NamedTuple):
    """A key of the S3 face: its name, what it may do, and the two parts that a client is given."""

    name: str
    scopes: frozenset[str]
    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        """Without the secret: it must not come into a log with a trace."""
        return f"S3Key({self.name!r})"


class S3Keys(FieldType[tuple[S3Key, ...]]):
    """`name:scope+scope:access key:secret key`, divided by commas; the scopes are read and admin."""

    label = "name:scope+scope:access:secret, …"
    empty = ()
    has_colons = True
    _HINT = "write name:scopes:access key:secret key with scopes of read and admin, such as watch:read:watcher:5f3c…"

    def parse(self, text: str) -> tuple[S3Key, ...]:
        """The keys."""
        keys = tuple(self._key(part.strip()) for part in text.split(",") if part.strip())
        if len({key.name for key in keys}) < len(keys) or len({key.access_key for key in keys}) < len(keys):
            raise BadValue("has a name or an access key twice", "give each key a name and an access key of its own")
        return keys

    def _key(self, text: str) -> S3Key:
        found = re.fullmatch(r"([A-Za-z0-9_.-]{1,64}):([a-z+]+):([A-Za-z0-9_.+=@-]{3,128}):([!-~]{8,128})", text)
        if found is None or not set(found[2].split("+")) <= set(S3_SCOPES):
            raise BadValue("is no list of S3 keys", self._HINT)
        return S3Key(found[1], frozenset(found[2].split("+")), found[3], found[4])


class SecretKeys(FieldType[tuple[str, ...]]):
    """Fernet keys, the newest first, divided by commas."""

    label = "Fernet keys, newest first"
    empty = ()

    def parse(self, text: str) -> tuple[str, ...]:
        """The keys."""
        keys = tuple(part.strip() for part in text.split(",") if part.strip())
        for key in keys:
            parse_key(key)
        return keys


class DatabaseUrl(FieldType[str]):
    """`sqlite:////path`, `postgresql://…`, `mysql://…` or `mariadb://…`; the driver is filled in."""

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
        """The URL with its driver, for MySQL also with its character set."""
        scheme, divider, rest = text.partition("://")
        base, _, driver = scheme.partition("+")
        if base == "sqlite" and driver in ("", "pysqlite") and divider:
            if not rest.startswith("//"):
                raise BadValue("is no SQLite file that every process finds", "write sqlite:/// and an absolute path")
            return text
        name, ours = self._DRIVERS.get(base, ("", ""))
        if not divider or driver not in ("", ours) or not name:
            raise BadValue("is no outbox database", "write sqlite:////path, postgresql://… or mysql://…")
        split_url(text, needs_host=name == "mysql")
        return f"{name}+{ours}://{_with_charset(rest) if name == 'mysql' else rest}"

    def shown(self, text: str) -> str:
        """The URL without its password."""
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
                "is no broker that can be used", "write redis://, rediss://, redis+socket:///path or amqp://"
            )
        split_url(text)
        return text

    def shown(self, text: str) -> str:
        """The URL without its password."""
        return redacted_url(text)


@declared
class Settings(Declared):
    """The service's settings. Durations are seconds, sizes bytes; URLs and secrets never show in its text form."""

    of_service = True

    data_dir: str = setting(Text(), default="var", about="the service's own folder")
    database_url: str = setting(DatabaseUrl(), default="", about="the outbox; empty: SQLite in the folder")
    database_timeout: float = setting(
        Duration(1, 3600), default="20s", about="a connection whose server takes longer to answer is given up"
    )
    broker_url: str = setting(BrokerUrl(), default="", about="the task broker; empty: a Redis in the folder")
    listen: HostPort = setting(Host(8730, any_port=True), default="127.0.0.1:8730", about="where the API listens")
    tls_cert: str = setting(
        Path(), default="", about="PEM chain of the API, read again when renewed; empty: plain HTTP"
    )
    tls_key: str = setting(Path(), default="", about="PEM key of `tls_cert`, without password")
    metrics_listen: HostPort = setting(
        Host(any_port=True), default="", about="where a worker tells its figures, port 0: any; empty: nowhere"
    )
    log_format: Literal["text", "json"] = setting(
        Choice("text", "json"), default="text", about="logs for people, or one JSON object a line"
    )
    api_tokens: tuple[ApiToken, ...] = setting(
        ApiTokens(), default="", secret=True, about="bearer tokens; scopes: ingest, read, admin"
    )
    access_key: str = setting(Text(), default="", about="of the S3 surface, at least 3 characters")
    secret_key: str = setting(Text(), default="", secret=True, about="of the S3 surface, at least 8 characters")
    s3_keys: tuple[S3Key, ...] = setting(
        S3Keys(), default="", secret=True, about="further keys of the S3 surface; scopes: read, admin"
    )
    secrets_dir: str = setting(
        Path(), default=SECRETS_DIR, about="the only folder whose files settings of targets may refer to"
    )
    secret_keys: tuple[str, ...] = setting(
        SecretKeys(), default="", secret=True, about="seal stored secrets; empty: a key made in the folder"
    )
    region: str = setting(Text(), default="", about="in ARNs and in what the S3 surface answers")
    retention: float = setting(Duration(days=True), default="7d", about="how long settled events can be replayed")
    report_retention: float = setting(
        Duration(days=True), default="90d", about="how long reconciliations and their reports are kept"
    )
    drain_interval: float = setting(Duration(0.01, 10), default="100ms", about="how often work is looked for")
    spool_dir: str = setting(Path(), default="", about="where events wait while the database is away; empty: refused")
    partitions: int = setting(Number(1, 1024), default="16", about="ordered shares of the log; fixed when it is made")
    lease_ttl: float = setting(
        Duration(1, 3600), default="6s", about="a worker's right to a partition, renewed while it works"
    )
    lease_max_work: float = setting(
        Duration(0.1, 3600), default="5s", about="the longest that one task works off a partition"
    )
    body_limit: int = setting(Size(1024, 2**40), default="64MiB", about="of one request, before and after unpacking")
    record_limit: int = setting(Number(1, 10_000_000), default="10000", about="records in one request")
    allow_private: bool = setting(
        Toggle(), default="", about="webhooks may go to private addresses; empty: only on the embedded default"
    )
    spark_master: str = setting(Text(), default="local[*]", about="where `bucketwire reconcile` runs, as Spark has it")
    spark_jars: str = setting(
        Path(), default="", about="folder with Spark's database drivers; empty: Spark fetches them once"
    )
    spark_memory: str = setting(Text(), default="1g", about="of the job's own process, as Java has it")
    sync_events: bool = setting(
        Toggle(), default="off", env="MINIO_API_SYNC_EVENTS", about="sync mode for targets that do not say"
    )
    embedded_database: bool = False
    embedded_broker: bool = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Settings":
        """The settings that the environment makes. Raises `BadSettings` with every problem, by variable.

        A relative folder is meant from the current one. An unknown `BUCKETWIRE_*` variable is refused.
        """
        variables = {key.env or _PREFIX + name.upper(): name for name, key in fields_of(cls).items()}
        given = {name: text for name, text in environ.items() if text.strip()}
        problems = [
            Problem(name, "", "is no setting", did_you_mean(name, list(variables)))
            for name in given
            if name.startswith(_PREFIX) and name not in variables and name not in _NOT_OURS
        ]
        values = {variables[name]: text for name, text in given.items() if name in variables}
        try:
            settings = parse(cls, values, environ)._with_defaults(values)
        except BadSettings as error:
            named = {name: variable for variable, name in variables.items()}
            problems += [dataclasses.replace(each, key=named.get(each.key, each.key)) for each in error.problems]
        if problems:
            raise BadSettings(problems)
        return settings

    def problems(self) -> Iterator[Problem]:
        """What has to hold between the settings."""
        if bool(self.access_key) != bool(self.secret_key):
            missing = "secret_key" if self.access_key else "access_key"
            yield Problem(missing, "", "is missing", "the S3 surface needs both keys or none")
        if self.access_key and len(self.access_key) < 3:
            yield Problem("access_key", self.access_key, "is too short", "as at MinIO, 3 or more characters")
        if self.secret_key and len(self.secret_key) < 8:
            yield Problem("secret_key", "", "is too short", "as at MinIO, 8 or more characters")
        if self.access_key in {key.access_key for key in self.s3_keys}:
            yield Problem("s3_keys", "", "has the access key of BUCKETWIRE_ACCESS_KEY", "give each key one of its own")
        if bool(self.tls_cert) != bool(self.tls_key):
            missing = "tls_key" if self.tls_cert else "tls_cert"
            yield Problem(missing, "", "is missing", "TLS needs a certificate and its key, plain HTTP neither")
        if self.lease_max_work >= self.lease_ttl:
            yield Problem(
                "lease_max_work", "", "is not shorter than the lease", "shorten it, or lengthen BUCKETWIRE_LEASE_TTL"
            )
        if not re.fullmatch(r"[A-Za-z0-9_-]*", self.region):
            yield Problem("region", self.region, "is no region", "letters, digits and -, such as us-east-1")
        if not self.broker_url and len(str(self.broker_socket).encode()) > _SOCKET_PATH:
            yield Problem(
                "data_dir", self.data_dir, "is too long a path for a socket", "choose a shorter one, or set a broker"
            )

    @property
    def folder(self) -> FilePath:
        """The service's own folder as an absolute path."""
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
        """The keys of the S3 face; with none it is closed."""
        scopes = frozenset(S3_SCOPES)
        first = (S3Key("default", scopes, self.access_key, self.secret_key),) if self.access_key else ()
        return (*first, *self.s3_keys)

    @property
    def api_address(self) -> HostPort:
        """Where this machine reaches the API: for one that listens on every address, its loopback address."""
        with contextlib.suppress(ValueError):
            ip = ipaddress.ip_address(self.listen.host)
            if ip.is_unspecified:
                return HostPort("::1" if ip.version == 6 else "127.0.0.1", self.listen.port)
        return self.listen

    @property
    def api_url(self) -> str:
        """The URL by which this machine reaches the API, without a slash at the end."""
        return f"{'https' if self.tls_cert else 'http'}://{self.api_address}"

    @property
    def loopback(self) -> bool:
        """Whether the API can be reached from this machine only."""
        return is_loopback(self.listen.host)

    def _with_defaults(self, given: Mapping[str, str]) -> "Settings":
        embedded = not self.database_url and not self.broker_url
        return dataclasses.replace(
            self,
            data_dir=str(self.folder),
            database_url=self.database_url or f"sqlite:///{quote(str(self.folder / 'bucketwire.db'))}",
            broker_url=self.broker_url or f"redis+socket://{quote(str(self.broker_socket))}",
            embedded_database=not self.database_url,
            embedded_broker=not self.broker_url,
            allow_private=self.allow_private if "allow_private" in given else embedded,
        )


def hash_token(token: str) -> str:
    """The SHA-256 of a bearer token in hexadecimal. Tokens are random, so no salt and no slow hash is needed."""
    return hashlib.sha256(token.encode()).hexdigest()


def _with_charset(rest: str) -> str:
    place, _, query = rest.partition("?")
    pairs = dict(parse_qsl(query, keep_blank_values=True))
    return f"{place}?{urlencode({'charset': 'utf8mb4'} | pairs)}"
