"""The settings of every target type. A key's name is its attribute's name: MinIO's name where MinIO has the key."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar, Literal, Self, TypeVar

from app.config.errors import BadValue, Problem
from app.config.fields.field_types import Choice, Duration, Number, Path, Switch, Text, Toggle
from app.config.fields.fields import Declared, Field, declared, fields_of, setting
from app.config.fields.times import Cron

P = TypeVar("P", bound=str)

DEFAULT_QUEUE_LIMIT = 100_000
# What a token that is limited to targets may set at most: a process of a worker waits as long for a target that hangs.
MAX_LIMITED_SECONDS = 60.0  # of each time limit
MAX_LIMITED_IN_FLIGHT, MAX_LIMITED_BATCH = 1_000, 1_000
# Times for which no process waits: of events, of idle connections, or without effect.
_NO_TIME_LIMITS = {
    "retry_base", "retry_max_delay", "max_age", "keep_alive_interval", "ping_interval", "reconnect_interval",
    "batch_commit_timeout",
}  # fmt: skip
REGISTERED_TYPES: dict[str, type["TargetSettings"]] = {}


@declared
class TargetSettings(Declared):
    """The settings of every target. Durations are seconds."""

    type_name: ClassVar[str]  # as in the ARN: postgresql
    section: ClassVar[str]  # of `notify_…` text: notify_postgres
    env: ClassVar[str]  # in MINIO_NOTIFY_<…>_: POSTGRES
    title: ClassVar[str]
    servers: ClassVar[str]  # whose names people look for, besides the title: RabbitMQ
    example: ClassVar[Mapping[str, str]]  # settings that are enough to set a target
    # Members of config.json that are left out now, by their squashed names, with the reason.
    obsolete: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def __init_subclass__(
        cls,
        *,
        type_name: str = "",
        short: str = "",
        title: str = "",
        servers: str = "",
        example: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init_subclass__()
        if type_name:
            cls.type_name = type_name
            cls.section = f"notify_{short or type_name}"
            cls.env = (short or type_name).upper()
            cls.title = title or type_name
            cls.servers = servers
            cls.example = example
            REGISTERED_TYPES[type_name] = cls

    enable: bool = setting(Toggle(), default="on", about="whether the target gets events; on unless set")
    comment: str = setting(Text(), default="", about="a note of your own")
    queue_dir: str = setting(
        Path(),
        default="",
        about="sets the default `queue_limit`, as in MinIO; events are stored in the outbox, not in this folder",
        of_host=False,
    )
    queue_limit: int = setting(
        Number(0, 10**12),
        default="0",
        about=f"most undelivered events; 0: no limit, or {DEFAULT_QUEUE_LIMIT} if `queue_dir` is set",
    )
    queue_full: Literal["discard", "reject"] = setting(
        Choice("discard", "reject"),
        default="discard",
        about="at `queue_limit`: discard the event for this target and count it, or refuse the request with 503",
    )
    sync: Literal["on", "off", ""] = setting(
        Switch(), default="", about="one unconfirmed request at a time; empty: as MINIO_API_SYNC_EVENTS"
    )
    max_in_flight: int = setting(
        Number(1, 50_000), default="1000", about="most unconfirmed requests when not in sync mode"
    )
    batch_size: int = setting(Number(1, 10_000), default="500", about="events read and settled in one batch")
    rate_limit: int = setting(
        Number(0, 1_000_000), default="0", about="most events per second, of all workers together; 0: no limit"
    )
    max_attempts: int = setting(
        Number(1, 1_000_000), default="20", about="attempts of an event before it becomes a dead letter"
    )
    retry_base: float = setting(
        Duration(0.001),
        default="1s",
        about="longest back-off before the second attempt; it is random, and its limit doubles with each attempt",
    )
    retry_max_delay: float = setting(Duration(0.001), default="5m", about="longest back-off between two attempts")
    max_age: float = setting(
        Duration(),
        default="72h",
        about="time since its first attempt after which a failing event becomes a dead letter; 0: never",
    )
    timeout: float = setting(Duration(0.001, 3600), default="5s", about="time limit for connecting and for an answer")
    scan: str = setting(
        Cron(), default="", about="when to scan the buckets whose scanner events it gets; empty: only on request"
    )

    @property
    def effective_queue_limit(self) -> int | None:
        """The most undelivered events that it may have, None for no limit.

        In MinIO the limit applies to the store in `queue_dir`, and 0 means 100000 (§4.1). MinIO writes `queue_limit=0`
        into every target's settings, so 0 alone means no limit here.
        """
        return self.queue_limit or (DEFAULT_QUEUE_LIMIT if self.queue_dir else None)

    def problems(self) -> Iterator[Problem]:
        if self.retry_base > self.retry_max_delay:
            yield Problem("retry_base", "", "is longer than retry_max_delay", "shorten it, or lengthen retry_max_delay")

    def time_limits(self) -> Iterator[tuple[str, float]]:
        """Yield each time limit of a connection or a request, in seconds, with the setting that has it."""
        for name, field in fields_of(type(self)).items():
            if isinstance(field.kind, Duration) and name not in _NO_TIME_LIMITS:
                yield name, getattr(self, name)

    def served(self, *, allow_private: bool) -> Self:  # noqa: ARG002 (for types that ask for a permission)
        """Return the settings as a service uses them that allows every target private addresses, or does not."""
        return self


@declared
class TlsFiles(Declared):
    """The settings of connections that begin with TLS, or not, as `uses_tls` says: of a target or a source."""

    tls_hint: ClassVar[str] = "set tls=on"  # how to have TLS

    tls_ca: str = setting(Path(), default="", about="PEM file of the only authorities to trust; empty: the system's")
    tls_skip_verify: bool = setting(Toggle(), default="off", about="do not verify the server's certificate")
    client_cert: str = setting(Path(), default="", about="PEM file of the client's certificate")
    client_key: str = setting(Path(), default="", about="PEM file of its key")

    @property
    def uses_tls(self) -> bool:
        """Whether to connect with TLS."""
        raise NotImplementedError

    def tls_file(self, name: str) -> str:
        """Return the PEM file of `tls_ca`, `client_cert` or `client_key`, or an empty text."""
        return str(getattr(self, name))

    def tls_file_name(self, name: str) -> str:
        """Return what people call the setting that has this file."""
        return name

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        yield from check_certificate_pair(self.tls_file("client_cert"), self.tls_file("client_key"))

    def ineffective(self) -> Iterator[Problem]:
        yield from super().ineffective()
        if not self.uses_tls:
            yield from needing_tls(self, "tls_ca", "tls_skip_verify", "client_cert", hint=self.tls_hint)


@declared
class TlsSettings(TlsFiles, TargetSettings):
    """The settings of targets whose connections begin with TLS, or not."""


class Payload(Choice[P]):
    """What a target gets of an event; without `cloudevents-binary` for targets whose messages have no headers."""

    def parse(self, text: str) -> P:
        if text.casefold() == "cloudevents-binary" and text.casefold() not in self.words:
            raise BadValue(
                "needs headers beside the event, which this type of target does not have", "write cloudevents"
            )
        return super().parse(text)


@declared
class MessageSettings(TargetSettings):
    """The settings of targets that get every event as a message."""

    payload: Literal["minio", "cloudevents", "cloudevents-binary"] = setting(
        Payload("minio", "cloudevents", "cloudevents-binary"),
        default="minio",
        about="messages as MinIO writes them, CloudEvents in JSON, or MinIO's messages with a CloudEvent's headers",
    )
    body_shape: str = setting(
        Choice("minio", "guide"),
        default="minio",
        about="messages as MinIO writes them, or with `EventType`, `level`, `msg` and `time` as in its old guides",
    )

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        yield from check_shape(self.payload, "body_shape", self.body_shape)


@declared
class NamespaceSettings(TargetSettings):
    """The settings of targets with rows or fields, which mirror the buckets or record every event."""

    # The schema of an entry in /asyncapi.json, by format and `access_shape`, where it is not a record in an envelope.
    entry_schemas: ClassVar[Mapping[tuple[str, str], str]] = MappingProxyType({})

    format: str = setting(
        Choice("namespace", "access"), default="namespace", about="one entry per object, or one per event"
    )
    payload: Literal["minio", "cloudevents"] = setting(
        Payload("minio", "cloudevents"),
        default="minio",
        about="format access: entries as MinIO writes them, or CloudEvents in JSON",
    )
    policy: Literal["mirror", "compatible"] = setting(
        Choice("mirror", "compatible"),
        default="mirror",
        about="format namespace: mirror what the bucket contains, or apply each event as MinIO does",
    )
    reconcile: str = setting(
        Cron(), default="", about="format namespace: when to compare it with its buckets; empty: only on request"
    )
    reconcile_incremental: str = setting(
        Cron(),
        default="",
        about="format namespace: when to compare what events have named since the last run; empty: only on request",
    )
    reconcile_repair: bool = setting(
        Toggle(), default="off", about="whether scheduled runs after the first repair the drift they find"
    )

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        for name in ("reconcile", "reconcile_incremental"):
            if (schedule := getattr(self, name)) and self.format != "namespace":
                yield Problem(name, schedule, "has nothing to compare", "leave it out, or set format=namespace")
        if self.payload != "minio" and self.format == "namespace":
            yield Problem(
                "payload",
                self.payload,
                "is for events; format=namespace keeps objects, as MinIO writes them",
                "set format=access, or leave payload out",
            )
        if self.reconcile_repair and not (self.reconcile or self.reconcile_incremental):
            yield Problem(
                "reconcile_repair", "on", "has no effect without reconcile", "set reconcile, such as 0 3 * * *"
            )


def ordered_fields(cls: type[TargetSettings]) -> dict[str, Field]:
    """Return a type's settings in the order in which people read them: `enable`, its own, every target's, `comment`."""
    ranks = dict.fromkeys(fields_of(TlsFiles), 1) | dict.fromkeys(fields_of(TargetSettings), 3)
    ranks |= {"enable": -1, "payload": 2, "body_shape": 2, "comment": 4}
    return dict(sorted(fields_of(cls).items(), key=lambda item: ranks.get(item[0], 0)))


def check_shape(payload: str, name: str, shape: str) -> Iterator[Problem]:
    """Yield a problem if the setting `name` asks for a shape of MinIO's guides, and `payload` for a CloudEvent."""
    if payload != "minio" and shape == "guide":
        yield Problem(name, shape, f"is not possible with payload={payload}", "leave one of them out")


def check_certificate_pair(cert: str, key: str) -> Iterator[Problem]:
    """Yield a problem if a certificate has no key, or a key has no certificate."""
    if cert and not key:
        yield Problem("client_key", "", "is missing", "client_cert needs its key")
    if key and not cert:
        yield Problem("client_cert", "", "is missing", "client_key needs its certificate")


def needing_tls(settings: Declared, *names: str, hint: str = "set tls=on") -> Iterator[Problem]:
    """Yield a problem for each of these settings that is set; for a connection without TLS."""
    for name in names:
        if getattr(settings, name):
            yield Problem(name, "", "has no effect without TLS", hint)


def without_effect(values: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each setting that is accepted and has no effect."""
    connections = values.get("max_open_connections", "").strip()
    if connections not in ("", "1", "2"):  # 2 is MinIO's default, which it writes into every target's settings
        yield (
            f"max_open_connections={connections} has no effect: each worker process has one connection to the target; "
            "fewer processes (`bucketwire worker --concurrency`) open fewer"
        )
    limit = values.get("queue_limit", "").strip(" +0") or values.get("queue_dir", "").strip()
    if values.get("queue_full", "").strip() == "reject" and not limit:
        yield "queue_full=reject has no effect without queue_limit or queue_dir: the target has no limit"
    if (words := len(values.get("auth_token", "").split())) > 2:  # as MinIO, without a word
        yield (
            f"auth_token has {words} words and is not sent: write the token alone, which becomes Bearer, "
            "or a scheme and the token, such as Splunk abc; or set headers"
        )
