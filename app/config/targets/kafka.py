"""The settings of Kafka (reference §4.7)."""

import re
from collections.abc import Iterator
from typing import Literal

from app.config.errors import BadValue, Problem
from app.config.fields.addresses import Host, HostPort
from app.config.fields.field_types import Choice, Duration, FieldType, Number, Path, Switch, Text, Toggle
from app.config.fields.fields import declared, setting
from app.config.targets.base import TargetSettings, check_certificate_pair

KAFKA_PORT = 9092
_USUAL_BATCH = 500
_LEVELS = {"none": 22, "gzip": 9, "snappy": 0, "lz4": 16, "zstd": 22}


class Brokers(FieldType[str]):
    """Hosts divided by commas, of which any one is enough to find the others."""

    label = "host[:port], several divided by commas"
    empty = ""
    separator = ","

    def parse(self, text: str) -> str:
        """The hosts with their ports, blanks around them taken off (MinIO keeps those, §4.7)."""
        host = Host(KAFKA_PORT)
        return ",".join(str(host.parse(each.strip())) for each in text.split(","))


class Topic(FieldType[str]):
    """The name of a Kafka topic."""

    label = "topic name"
    empty = ""

    def parse(self, text: str) -> str:
        """The name as written."""
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", text) or text in (".", ".."):
            raise BadValue("is not a topic name", "write up to 249 ASCII letters, digits, dots, _ or -")
        return text


class BrokerVersion(FieldType[str]):
    """A Kafka version as MinIO takes it: `x.y.z`, before 1.0 `0.x.y.z`; `x.y` will do."""

    label = "x.y.z"
    empty = ""

    def parse(self, text: str) -> str:
        """The text as written."""
        if not re.fullmatch(r"0(\.[0-9]{1,2}){2,3}|[1-9][0-9]?(\.[0-9]{1,2}){1,2}", text):
            raise BadValue("is not a Kafka version", "write it as 2.1.0, or as 0.10.2.0 for what came before 1.0")
        if _version(text) < (0, 8):
            raise BadValue("is older than any version that can be spoken to", "0.8.0.0 and later can be had")
        return text


class BatchSize(Number):
    """As `Number`, but 0, which is MinIO's default, means ours."""

    def parse(self, text: str) -> int:
        """Events in a batch, never 0."""
        return super().parse(text) or _USUAL_BATCH


@declared
class KafkaSettings(TargetSettings, type_name="kafka", title="Kafka"):
    """Kafka (reference §4.7)."""

    brokers: str = setting(Brokers(), about="brokers to begin with; the rest of the cluster is found through them")
    topic: str = setting(Topic(), about="the topic that takes the events")
    sasl: bool = setting(Toggle(), default="off", about="log in with SASL")
    sasl_username: str = setting(Text(), default="", about="SASL user")
    sasl_password: str = setting(Text(), default="", secret=True, about="its password")
    sasl_mechanism: Literal["plain", "sha256", "sha512"] = setting(
        Choice("plain", "sha256", "sha512"), default="plain", about="PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
    )
    tls: bool = setting(Toggle(), default="off", about="speak TLS")
    tls_ca: str = setting(Path(), default="", about="PEM file of the only authorities to trust; empty: the system's")
    tls_skip_verify: bool = setting(Toggle(), default="off", about="do not verify the brokers' certificates")
    tls_client_auth: int = setting(
        Number(0, 4), default="0", about="accepted as MinIO's; it means nothing for a client, there or here"
    )
    client_tls_cert: str = setting(Path(), default="", about="PEM file of the client's certificate")
    client_tls_key: str = setting(Path(), default="", about="PEM file of its key")
    version: str = setting(
        BrokerVersion(), default="", about="speak no newer protocol than this version's; empty: what the brokers speak"
    )
    batch_size: int = setting(
        BatchSize(0, 10_000), default=str(_USUAL_BATCH), about="events read and settled at once; 0 means the default"
    )
    batch_commit_timeout: float = setting(
        Duration(), default="0s", about="accepted as MinIO's; a batch never waits to become full here"
    )
    compression_codec: Literal["none", "gzip", "snappy", "lz4", "zstd"] = setting(
        Choice("none", "gzip", "snappy", "lz4", "zstd"),
        default="none",
        env="PRODUCER_COMPRESSION_CODEC",
        about="how batches are compressed",
    )
    compression_level: int = setting(
        Number(0, 22), default="0", env="PRODUCER_COMPRESSION_LEVEL", about="the codec's level; 0 means its usual one"
    )
    idempotent: Literal["on", "off", ""] = setting(
        Switch(), default="", about="brokers drop what the client sends twice; empty: on wherever `version` allows it"
    )

    @property
    def bootstrap(self) -> tuple[HostPort, ...]:
        """The brokers to begin with."""
        return tuple(Host(KAFKA_PORT).parse(each) for each in self.brokers.split(",") if each)

    @property
    def api_version(self) -> tuple[int, ...] | None:
        """The version in the form that decides about protocols: two parts, three before 1.0. None: ask the broker."""
        return _version(self.version) if self.version else None

    @property
    def is_idempotent(self) -> bool:
        """Whether brokers shall recognise what is sent twice."""
        return self.idempotent == "on" or (self.idempotent == "" and not self._older_than(0, 11))

    def problems(self) -> Iterator[Problem]:
        """A login is whole, a certificate has its key, files for TLS need TLS, and `version` can do what is asked."""
        yield from super().problems()
        for problem in check_certificate_pair(self.client_tls_cert, self.client_tls_key):
            name = problem.key.replace("client_", "client_tls_")
            yield Problem(name, "", problem.problem, problem.hint.replace("client_", "client_tls_"))
        for name in ("sasl_username", "sasl_password"):
            given = bool(getattr(self, name))
            if self.sasl and not given:
                yield Problem(name, "", "is missing", "sasl=on needs sasl_username and sasl_password")
            elif given and not self.sasl:
                yield Problem(name, "", "has no effect without SASL", "set sasl=on")
        for name in ("tls_ca", "tls_skip_verify", "client_tls_cert"):
            if getattr(self, name) and not self.tls:
                yield Problem(name, "", "has no effect without TLS", "set tls=on")
        if self.compression_level > (most := _LEVELS[self.compression_codec]):
            hint = f"leave it at 0 or choose up to {most}" if most else "leave it at 0"
            yield Problem(
                "compression_level", str(self.compression_level), f"is no level of {self.compression_codec}", hint
            )
        if self.idempotent == "on" and self._older_than(0, 11):
            yield Problem("idempotent", "on", "cannot be had before Kafka 0.11", "raise version or set idempotent=off")
        if self.compression_codec == "zstd" and self._older_than(2, 1):
            yield Problem("compression_codec", "zstd", "cannot be had before Kafka 2.1", "raise version or choose lz4")
        if self.sasl and self._older_than(0, 10):
            yield Problem("sasl", "on", "cannot be had before Kafka 0.10", "raise version or set sasl=off")

    def _older_than(self, *version: int) -> bool:
        return self.api_version is not None and self.api_version < version


def _version(text: str) -> tuple[int, ...]:
    parts = tuple(int(part) for part in text.split("."))
    return parts[: 3 if parts[0] == 0 else 2]
