"""The settings of Redis (reference §4.9)."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from app.config.errors import BadValue, Problem
from app.config.fields.addresses import HostPort, Hosts, RedisHost, SchemedHost
from app.config.fields.field_types import Choice, Number, Text, Toggle
from app.config.fields.fields import declared, setting
from app.config.fields.templates import Place, Templated, percent
from app.config.settings import KEY_PREFIX
from app.config.targets.base import NamespaceSettings, TlsFiles, check_shape


class RedisKey(Text):
    """A key that is not the task broker's: the service may run on the same Redis."""

    label = "key"

    def parse(self, text: str) -> str:
        if super().parse(text).startswith(KEY_PREFIX):
            raise BadValue("is among the keys of the task broker", f"choose one that does not begin with {KEY_PREFIX}")
        return text


@declared
class RedisConnection(TlsFiles):
    """How to reach the server that has a key, also by Sentinel or in a Cluster: of a target or a source."""

    address: SchemedHost = setting(
        RedisHost(),
        about="host:port of the server, the path of its socket, or rediss://host:port for TLS",
        of_host=True,
    )
    key: Any = setting(RedisKey(), about="the key")
    user: str = setting(Text(), default="", about="ACL user; needs a password")
    password: str = setting(Text(), default="", secret=True, about="password of the user, or of the server")
    db: int = setting(Number(0, 2**31 - 1), default="0", about="number of the database")
    tls: bool = setting(Toggle(), default="off", about="use TLS")
    sentinel: str = setting(
        Text(),
        default="",
        about="name of the master that Sentinels watch; address and nodes are the Sentinels",
    )
    sentinel_user: str = setting(Text(), default="", about="ACL user of the Sentinels; needs sentinel_password")
    sentinel_password: str = setting(Text(), default="", secret=True, about="password of the Sentinels")
    cluster: bool = setting(Toggle(), default="off", about="a Redis Cluster; address and nodes are some of its nodes")
    nodes: tuple[HostPort, ...] = setting(
        Hosts(6379), default="", about="further Sentinels, or nodes of the Cluster: one that can be reached is enough"
    )

    @property
    def uses_tls(self) -> bool:
        """Whether to use TLS, because of `tls` or of the address."""
        return self.tls or self.address.tls

    @property
    def places(self) -> tuple[HostPort, ...]:
        """The addresses of the server, the Sentinels or nodes of the Cluster, each once."""
        return tuple(dict.fromkeys((self.address.place, *self.nodes)))

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.cluster and self.sentinel:
            yield Problem("cluster", "on", "contradicts sentinel", "set one of the two")
        if self.cluster and self.db:
            yield Problem("db", str(self.db), "does not exist in a Redis Cluster, which has only 0", "leave it out")
        if (self.cluster or self.sentinel) and self.address.host.startswith("/"):
            which = "Cluster" if self.cluster else "Sentinel"
            yield Problem(
                "address", self.address.host, f"is a unix socket, which {which} cannot use", "write host:port"
            )
        if self.sentinel_user and not self.sentinel_password:
            hint = "set sentinel_password, or leave sentinel_user out"
            yield Problem("sentinel_user", self.sentinel_user, "is used only with a password", hint)
        if self.user and not self.password:
            yield Problem("user", self.user, "is used only with a password", "set password, or leave user out")
        if self.tls and self.address.host.startswith("/"):
            yield Problem("tls", "on", "is not possible on a unix socket", "set tls=off or address=host:port")

    def ineffective(self) -> Iterator[Problem]:
        yield from super().ineffective()
        if self.nodes and not (self.cluster or self.sentinel):
            yield Problem("nodes", "", "has no effect without cluster or sentinel", "set cluster=on or sentinel=NAME")
        if self.sentinel_password and not self.sentinel:
            yield Problem("sentinel_password", "", "has no effect without sentinel", "set sentinel=NAME")


@declared
class RedisSettings(
    RedisConnection,
    NamespaceSettings,
    type_name="redis",
    title="Redis",
    example={"address": "redis", "key": "bucketobjects"},
):
    """Redis (reference §4.9), also with Sentinel or Cluster. An address that begins with `/` is a unix socket."""

    entry_schemas: ClassVar[Mapping[tuple[str, str], str]] = MappingProxyType(
        {
            ("access", "minio"): "RedisEntry",
            ("access", "guide"): "RedisGuideEntry",
            ("stream", "minio"): "Envelope",  # in the field `body`
        }
    )

    key: Place = setting(
        Templated(RedisKey(), "key", percent(r"[%\x00-\x1f\x7f]")),
        about="the hash (namespace), list (access) or stream that stores the events",
    )
    format: str = setting(
        Choice("namespace", "access", "stream"),
        default="namespace",
        about="one field per object, or one entry per event in a list or in a stream",
    )
    max_entries: int = setting(
        Number(0, 10**12),
        default="0",
        about="format stream: Redis drops the oldest entries beyond about so many (MAXLEN ~); 0: it keeps all",
    )
    wait_replicas: int = setting(
        Number(0, 1000), default="0", about="an event is delivered when so many replicas have it, too (WAIT)"
    )
    access_shape: Literal["minio", "guide"] = setting(
        Choice("minio", "guide"),
        default="minio",
        about="format access: entries as the MinIO server writes them, or [time, event] pairs as in its old guides",
    )

    def host_files(self) -> Iterator[tuple[str, str]]:
        yield from super().host_files()
        if self.address.host.startswith("/"):
            yield "address", self.address.host

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        yield from check_shape(self.payload, "access_shape", self.access_shape)
        if self.format == "stream" and self.access_shape != "minio":
            yield Problem("access_shape", self.access_shape, "is for lists", "set format=access, or leave it out")
        if self.key.fixed is None and self.format == "namespace":
            hint = "set format=access or stream, or write {{ for a brace"
            yield Problem("key", self.key, "is a template, and a mirror is one hash", hint)
        elif self.key.fixed is None and self.cluster:
            hint = "name one key, or write {{ for a brace"
            yield Problem("key", self.key, "is a template, and a target writes to one node of a Cluster", hint)

    def ineffective(self) -> Iterator[Problem]:
        yield from super().ineffective()
        if self.max_entries and self.format != "stream":
            yield Problem("max_entries", str(self.max_entries), "has no effect without a stream", "set format=stream")
