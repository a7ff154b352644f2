"""The keys of every target as reference §4 tables them, and values that §3.3 refuses: written from there, by hand.

Not from the declarations, so that a key which is missing there is missed here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PEM = "/etc/ssl/a.pem"
SECRET = "s3cr3t-v4lue"
REFUSED = {
    "toggle": ("maybe", "2"),
    "number": ("ten", "1.5", "0x10"),
    "duration": ("10 seconds", "10", "5D"),
    "path": ("relative/file.pem", "file.pem"),
    "host": ("http://h:1", "a:b:c", "h:99999", "under+score:1", "1.2.3.999:1"),
    "url": ("ftp://h/x", "no-scheme", "http://", "http://h:0/"),
    "amqp": ("http://h/", "amqp://h:0/", "no-scheme"),
    "mqtt": ("http://h/", "tcp://", "tcp://h:1/path"),
    "choice": ("neither", "on"),
    "version": ("two", "2", "2.1.0.0.0.0"),
    "table": ("schema-x.t", "a-b", "1 2"),
    "text": ("bell\a", "tab\tbed"),
    "libpq": ("host", "mysql://h/db", "host='h"),
    "dsn": ("no-slash", "u:p@tcp(h:0)/db", "u@nowhere(h)/db"),
    "topic": ("wild/#", "tab\tbed"),
    "subject": ("two words", "wild.>"),
    "nsq": ("no spaces", "x" * 65),
    "kafka": ("no spaces", "x" * 250),
    "index": ("Upper", "a/b", "_first"),
}


@dataclass(frozen=True)
class Row:
    """One row of §4: the key, its variable's suffix, what kind of value it has, a value, and what that needs beside."""

    key: str
    env: str
    kind: str
    value: str
    beside: dict[str, str] = field(default_factory=dict)
    secret: bool = False


# Kinds of text that may contain a password: one that cannot be read is hidden as a whole.
HIDDEN_IF_REFUSED = frozenset({"libpq", "dsn"})


@dataclass(frozen=True)
class Table:
    """One section of §4: the least that makes a target, and its rows."""

    env: str
    section: str
    least: dict[str, str]
    rows: tuple[Row, ...]

    @property
    def required(self) -> tuple[str, ...]:
        """The keys without which nothing goes."""
        return tuple(self.least)


def _rows(*rows: Row) -> tuple[Row, ...]:
    """The rows with those of §4.1, which every section has."""
    return (
        *rows,
        Row("enable", "ENABLE", "toggle", "on"),
        Row("comment", "COMMENT", "text", "of the shop"),
        Row("queue_dir", "QUEUE_DIR", "path", "/var/events", {"qos": "1"} if rows[0].key == "broker" else {}),
        Row("queue_limit", "QUEUE_LIMIT", "number", "500"),
    )


def _pair(cert: str, key: str, beside: dict[str, str]) -> tuple[Row, Row]:
    return (
        Row(cert, cert.upper(), "path", PEM, beside | {key: PEM}),
        Row(key, key.upper(), "path", PEM, beside | {cert: PEM}),
    )


FORMAT = Row("format", "FORMAT", "choice", "access")
AMQPS = {"url": "amqps://h/"}
LOGIN = {"username": "me", "password": SECRET}
STREAMING = {"streaming": "on", "streaming_cluster_id": "c"}

TABLES = {
    "webhook": Table("WEBHOOK", "notify_webhook", {"endpoint": "http://h:9/x"}, _rows(
        Row("endpoint", "ENDPOINT", "url", "https://h/in"),
        Row("auth_token", "AUTH_TOKEN", "text", SECRET, secret=True),
        *_pair("client_cert", "client_key", {}),
    )),
    "amqp": Table("AMQP", "notify_amqp", {"url": "amqp://h/"}, _rows(
        Row("url", "URL", "amqp", "amqps://me:you@h:5671/v"),
        Row("exchange", "EXCHANGE", "text", "minio"),
        Row("exchange_type", "EXCHANGE_TYPE", "text", "fanout"),
        Row("routing_key", "ROUTING_KEY", "text", "events"),
        Row("mandatory", "MANDATORY", "toggle", "on"),
        Row("immediate", "IMMEDIATE", "toggle", "on"),
        Row("durable", "DURABLE", "toggle", "on"),
        Row("internal", "INTERNAL", "toggle", "on"),
        Row("no_wait", "NO_WAIT", "toggle", "on"),
        Row("auto_deleted", "AUTO_DELETED", "toggle", "on"),
        Row("delivery_mode", "DELIVERY_MODE", "number", "2"),
        Row("publisher_confirms", "PUBLISHING_CONFIRMS", "toggle", "on"),
    )),
    "mqtt": Table("MQTT", "notify_mqtt", {"broker": "tcp://h:1883", "topic": "minio"}, _rows(
        Row("broker", "BROKER", "mqtt", "wss://h/mqtt"),
        Row("topic", "TOPIC", "topic", "minio/events"),
        Row("username", "USERNAME", "text", "me"),
        Row("password", "PASSWORD", "text", SECRET, {"username": "me"}, secret=True),
        Row("qos", "QOS", "number", "2"),
        Row("keep_alive_interval", "KEEP_ALIVE_INTERVAL", "duration", "30s"),
        Row("reconnect_interval", "RECONNECT_INTERVAL", "duration", "1m"),
    )),
    "nats": Table("NATS", "notify_nats", {"address": "h:4222", "subject": "s"}, _rows(
        Row("address", "ADDRESS", "host", "[::1]:4222"),
        Row("subject", "SUBJECT", "subject", "minio.events"),
        Row("username", "USERNAME", "text", "me", {"password": SECRET}),
        Row("password", "PASSWORD", "text", SECRET, {"username": "me"}, secret=True),
        Row("token", "TOKEN", "text", SECRET, secret=True),
        Row("user_credentials", "USER_CREDENTIALS", "path", "/etc/u.creds"),
        Row("nkey_seed", "NKEY_SEED", "path", "/etc/u.nk"),
        Row("tls", "TLS", "toggle", "on"),
        Row("tls_skip_verify", "TLS_SKIP_VERIFY", "toggle", "on", {"tls": "on"}),
        Row("tls_handshake_first", "TLS_HANDSHAKE_FIRST", "toggle", "on"),
        Row("cert_authority", "CERT_AUTHORITY", "path", PEM),
        *_pair("client_cert", "client_key", {}),
        Row("ping_interval", "PING_INTERVAL", "number", "30"),
        Row("jetstream", "JETSTREAM", "toggle", "on"),
        Row("streaming", "STREAMING", "toggle", "on", {"streaming_cluster_id": "c"}),
        Row("streaming_cluster_id", "STREAMING_CLUSTER_ID", "subject", "test-cluster", {"streaming": "on"}),
        Row("streaming_async", "STREAMING_ASYNC", "toggle", "on", STREAMING),
        Row("streaming_max_pub_acks_in_flight", "STREAMING_MAX_PUB_ACKS_IN_FLIGHT", "number", "10", STREAMING),
    )),
    "nsq": Table("NSQ", "notify_nsq", {"nsqd_address": "h:4150", "topic": "t"}, _rows(
        Row("nsqd_address", "NSQD_ADDRESS", "host", "10.0.0.1:4150"),
        Row("topic", "TOPIC", "nsq", "minio"),
        Row("tls", "TLS", "toggle", "on"),
        Row("tls_skip_verify", "TLS_SKIP_VERIFY", "toggle", "on", {"tls": "on"}),
    )),
    "kafka": Table("KAFKA", "notify_kafka", {"brokers": "h:9092", "topic": "t"}, _rows(
        Row("brokers", "BROKERS", "host", "a:9092,b:9092"),
        Row("topic", "TOPIC", "kafka", "minio.events"),
        Row("sasl", "SASL", "toggle", "on", {"sasl_username": "me", "sasl_password": SECRET}),
        Row("sasl_username", "SASL_USERNAME", "text", "me", {"sasl": "on", "sasl_password": SECRET}),
        Row("sasl_password", "SASL_PASSWORD", "text", SECRET, {"sasl": "on", "sasl_username": "me"}, secret=True),
        Row("sasl_mechanism", "SASL_MECHANISM", "choice", "SHA512",
            {"sasl": "on", "sasl_username": "me", "sasl_password": SECRET}),
        Row("tls", "TLS", "toggle", "on"),
        Row("tls_skip_verify", "TLS_SKIP_VERIFY", "toggle", "on", {"tls": "on"}),
        Row("tls_client_auth", "TLS_CLIENT_AUTH", "number", "1"),
        *_pair("client_tls_cert", "client_tls_key", {"tls": "on"}),
        Row("version", "VERSION", "version", "2.8.0"),
        Row("batch_size", "BATCH_SIZE", "number", "100", {"queue_dir": "/var/events"}),
        Row("batch_commit_timeout", "BATCH_COMMIT_TIMEOUT", "duration", "5s",
            {"queue_dir": "/var/events", "batch_size": "100"}),
        Row("compression_codec", "PRODUCER_COMPRESSION_CODEC", "choice", "ZSTD"),
        Row("compression_level", "PRODUCER_COMPRESSION_LEVEL", "number", "3", {"compression_codec": "zstd"}),
    )),
    "elasticsearch": Table("ELASTICSEARCH", "notify_elasticsearch", {"url": "http://h:9200", "index": "i"}, _rows(
        Row("url", "URL", "url", "https://me:you@h:9200"),
        Row("index", "INDEX", "index", "events"),
        FORMAT,
        Row("username", "USERNAME", "text", "me", {"password": SECRET}),
        Row("password", "PASSWORD", "text", SECRET, {"username": "me"}, secret=True),
    )),
    "redis": Table("REDIS", "notify_redis", {"address": "h:6379", "key": "k"}, _rows(
        Row("address", "ADDRESS", "host", "127.0.0.1:6379"),
        Row("key", "KEY", "text", "bucketevents"),
        FORMAT,
        Row("password", "PASSWORD", "text", SECRET, secret=True),
        Row("user", "USER", "text", "me", {"password": SECRET}),
    )),
    "postgresql": Table("POSTGRES", "notify_postgres", {"connection_string": "host=h", "table": "t"}, _rows(
        Row("connection_string", "CONNECTION_STRING", "libpq", "postgresql://me@a,b/db?sslmode=require"),
        Row("table", "TABLE", "table", "bucketevents"),
        FORMAT,
        Row("max_open_connections", "MAX_OPEN_CONNECTIONS", "number", "0"),
    )),
    "mysql": Table("MYSQL", "notify_mysql", {"dsn_string": "me@tcp(h:3306)/db", "table": "t"}, _rows(
        Row("dsn_string", "DSN_STRING", "dsn", "me:you@tcp([::1]:3306)/db?tls=true"),
        Row("table", "TABLE", "table", "bucketevents"),
        FORMAT,
        Row("max_open_connections", "MAX_OPEN_CONNECTIONS", "number", "5"),
    )),
}  # fmt: skip

# What a row's value needs beside it that is not of its own making.
_EXCHANGE = {"exchange": "minio", "exchange_type": "direct"}


def valid(type_name: str, row: Row) -> dict[str, str]:
    """The least target of the type with this row's value."""
    table = TABLES[type_name]
    own = _EXCHANGE if type_name == "amqp" else {}
    return table.least | own | row.beside | {row.key: row.value}


def refused(type_name: str, row: Row) -> list[dict[str, str]]:
    """The same with each value that its kind refuses."""
    return [valid(type_name, row) | {row.key: text} for text in REFUSED[row.kind]]


def camel(key: str) -> str:
    """The member's name in a config.json of before 2019 (§3.5)."""
    first, *rest = key.split("_")
    return first + "".join(part.capitalize() for part in rest)
