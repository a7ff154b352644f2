"""The settings of Kafka (reference §4.7)."""

import re
from collections.abc import Iterator
from typing import Any, Literal

from app.config.errors import BadValue, Problem
from app.config.fields.addresses import Host, HostPort, secrets_in_address, shown_address, split_list
from app.config.fields.field_types import Choice, Duration, FieldType, Number, Path, Switch, Text, Toggle
from app.config.fields.fields import Declared, declared, setting
from app.config.fields.templates import Place, Templated, underscored
from app.config.targets.base import MessageSettings, check_certificate_pair

KAFKA_PORT = 9092
_DEFAULT_BATCH_SIZE = 500
OBJECT_KEY = "{bucket}/{key}"
_LEVELS = {"none": 22, "gzip": 9, "snappy": 0, "lz4": 16, "zstd": 22}


class Brokers(FieldType[str]):
    """Comma-separated hosts; any one of them is enough to find the others."""

    label = "comma-separated host[:port]"
    empty = ""
    separator = ","

    def parse(self, text: str) -> str:
        """Return the hosts with their ports, without surrounding spaces (MinIO keeps those, §4.7)."""
        host = Host(KAFKA_PORT)
        return ",".join(str(host.parse(part)) for part in split_list(text))

    def shown(self, text: str) -> str:
        return shown_address(text)

    def secrets_in(self, value: str) -> Iterator[str]:
        return secrets_in_address(value)


class Topic(FieldType[str]):
    """The name of a Kafka topic."""

    label = "topic name"
    empty = ""

    def parse(self, text: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", text) or text in (".", ".."):
            raise BadValue("is not a topic name", "write up to 249 ASCII letters, digits, dots, _ or -")
        return text


class MessageKey(FieldType[str]):
    """The key of a message, which may be any text."""

    label = "text"
    empty = ""

    def parse(self, text: str) -> str:
        return text


class BrokerVersion(FieldType[str]):
    """A Kafka version as MinIO accepts it: `x.y.z` or `x.y`, before 1.0 `0.x.y.z` or `0.x.y`."""

    label = "x.y.z"
    empty = ""

    def parse(self, text: str) -> str:
        if not re.fullmatch(r"0(\.[0-9]{1,2}){2,3}|[1-9][0-9]?(\.[0-9]{1,2}){1,2}", text):
            raise BadValue("is not a Kafka version", "write it as 2.1.0, or before 1.0 as 0.10.2.0")
        if _version(text) < (0, 8):
            raise BadValue("is older than any supported version", "0.8.0.0 and later are supported")
        return text


class BatchSize(Number):
    """A `Number`, except that 0, which is MinIO's default, means our default."""

    def parse(self, text: str) -> int:
        """Return the number of events in a batch, never 0."""
        return super().parse(text) or _DEFAULT_BATCH_SIZE


@declared
class KafkaConnection(Declared):
    """How to reach a cluster and log in, for whatever speaks Kafka: a target or a source."""

    brokers: str = setting(Brokers(), about="bootstrap brokers; the rest of the cluster is found through them")
    topic: Any = setting(Topic(), about="the topic of the messages")
    sasl: bool = setting(Toggle(), default="off", about="log in with SASL")
    sasl_username: str = setting(Text(), default="", about="SASL user")
    sasl_password: str = setting(Text(), default="", secret=True, about="SASL password")
    sasl_mechanism: Literal["plain", "sha256", "sha512"] = setting(
        Choice("plain", "sha256", "sha512"), default="plain", about="PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
    )
    tls: bool = setting(Toggle(), default="off", about="use TLS")
    tls_ca: str = setting(Path(), default="", about="PEM file of the only authorities to trust; empty: the system's")
    tls_skip_verify: bool = setting(Toggle(), default="off", about="do not verify the brokers' certificates")
    client_tls_cert: str = setting(Path(), default="", about="PEM file of the client's certificate")
    client_tls_key: str = setting(Path(), default="", about="PEM file of its key")
    version: str = setting(
        BrokerVersion(), default="", about="use no newer protocol than this version's; empty: ask the brokers"
    )

    @property
    def bootstrap(self) -> tuple[HostPort, ...]:
        """The bootstrap brokers."""
        return tuple(Host(KAFKA_PORT).parse(host) for host in self.brokers.split(",") if host)

    @property
    def api_version(self) -> tuple[int, ...] | None:
        """The version that decides about protocols: two parts, three before 1.0. None: ask the broker."""
        return _version(self.version) if self.version else None

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        for problem in check_certificate_pair(self.client_tls_cert, self.client_tls_key):
            name = problem.key.replace("client_", "client_tls_")
            yield Problem(name, "", problem.problem, problem.hint.replace("client_", "client_tls_"))
        for name in ("sasl_username", "sasl_password"):
            if self.sasl and not getattr(self, name):
                yield Problem(name, "", "is missing", "sasl=on needs sasl_username and sasl_password")
        if self.sasl and self.older_than(0, 10):
            yield Problem("sasl", "on", "needs Kafka 0.10 or later", "raise version or set sasl=off")

    def ineffective(self) -> Iterator[Problem]:
        yield from super().ineffective()
        if not self.sasl:
            for name in ("sasl_username", "sasl_password"):
                if getattr(self, name):
                    yield Problem(name, "", "has no effect without SASL", "set sasl=on")
        if not self.tls:
            for name in ("tls_ca", "tls_skip_verify", "client_tls_cert"):
                if getattr(self, name):
                    yield Problem(name, "", "has no effect without TLS", "set tls=on")

    def older_than(self, *version: int) -> bool:
        """Return whether `version` names an older one than this."""
        return self.api_version is not None and self.api_version < version


@declared
class KafkaSettings(
    KafkaConnection,
    MessageSettings,
    type_name="kafka",
    title="Kafka",
    example={"brokers": "kafka", "topic": "bucketevents"},
):
    """Kafka (reference §4.7)."""

    topic: Place = setting(
        Templated(Topic(), "topic", underscored("[^A-Za-z0-9._-]")),
        about="the topic of every message, such as bucketevents or events.{bucket}",
    )
    key: Place = setting(
        Templated(MessageKey(), "key", of_object=True),
        default=OBJECT_KEY,
        about="the key of the messages, which decides about the partition; messages of an object have one key",
    )
    tls_client_auth: int = setting(
        Number(0, 4), default="0", about="accepted for compatibility with MinIO, without effect for a client"
    )
    batch_size: int = setting(
        BatchSize(0, 10_000),
        default=str(_DEFAULT_BATCH_SIZE),
        about="events read and settled in one batch; 0 means the default",
    )
    batch_commit_timeout: float = setting(
        Duration(),
        default="0s",
        about="accepted for compatibility with MinIO, without effect: a batch never waits to become full",
    )
    compression_codec: Literal["none", "gzip", "snappy", "lz4", "zstd"] = setting(
        Choice("none", "gzip", "snappy", "lz4", "zstd"),
        default="none",
        env="PRODUCER_COMPRESSION_CODEC",
        about="how batches are compressed",
    )
    compression_level: int = setting(
        Number(0, 22), default="0", env="PRODUCER_COMPRESSION_LEVEL", about="the codec's level; 0 means its default"
    )
    idempotent: Literal["on", "off", ""] = setting(
        Switch(),
        default="",
        about="idempotent producer: brokers drop duplicates of the client; empty: on if `version` allows it",
    )

    @property
    def is_idempotent(self) -> bool:
        """Whether to use the idempotent producer."""
        return self.idempotent == "on" or (self.idempotent == "" and not self.older_than(0, 11))

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.compression_level > (most := _LEVELS[self.compression_codec]):
            hint = f"leave it at 0 or choose up to {most}" if most else "leave it at 0"
            yield Problem(
                "compression_level",
                str(self.compression_level),
                f"is not a compression level of {self.compression_codec}",
                hint,
            )
        if self.idempotent == "on" and self.older_than(0, 11):
            yield Problem("idempotent", "on", "needs Kafka 0.11 or later", "raise version or set idempotent=off")
        if self.payload == "cloudevents-binary" and self.older_than(0, 11):
            hint = "raise version or set payload=cloudevents"
            yield Problem("payload", self.payload, "needs headers, which Kafka has since 0.11", hint)
        if self.compression_codec == "zstd" and self.older_than(2, 1):
            yield Problem("compression_codec", "zstd", "needs Kafka 2.1 or later", "raise version or choose lz4")


def _version(text: str) -> tuple[int, ...]:
    parts = tuple(int(part) for part in text.split("."))
    return parts[: 3 if parts[0] == 0 else 2]
