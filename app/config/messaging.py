"""The settings of AMQP and MQTT (reference §4.3, §4.4), and how their URLs are read."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from app.config.addresses import HostPort, check_host, redacted_url, split_url
from app.config.keys import declared, setting
from app.config.kinds import Choice, Duration, Kind, Number, Path, Text, Toggle
from app.config.problems import BadValue, Problem
from app.config.targets import TargetSettings, _pair

AMQP_HEARTBEAT = 60
_AMQP_PORTS = {"amqp": 5672, "amqps": 5671}
_AMQP_FILES = {"tls_ca": "cacertfile", "client_cert": "certfile", "client_key": "keyfile"}
_MQTT_PORTS = {"tcp": 1883, "tcps": 8883, "ssl": 8883, "tls": 8883, "ws": 80, "wss": 443}
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class AmqpPlace:
    """Where an AMQP URL leads, escapes resolved. `heartbeat` is in seconds, 0 for none."""

    address: HostPort
    tls: bool
    user: str
    password: str = field(repr=False)
    vhost: str
    heartbeat: int
    external: bool  # the login is the client certificate's
    server_name: str


@dataclass(frozen=True, slots=True)
class MqttPlace:
    """Where an MQTT broker's URL leads, escapes resolved. `path` is the WebSocket's with its query, else empty."""

    address: HostPort
    tls: bool
    path: str
    user: str
    password: str = field(repr=False)


class _LoginUrl(Kind[str]):
    """A URL that may hold a login."""

    empty = ""
    holds_secrets = True

    def shown(self, text: str) -> str:
        """The URL without its password."""
        return redacted_url(text)


class AmqpUrl(_LoginUrl):
    """`amqp://` or `amqps://`, with login, virtual host and RabbitMQ's query parameters (as MinIO's library: §4.3)."""

    label = "amqp(s) URL"

    def parse(self, text: str) -> str:
        """The URL itself."""
        amqp_place(text)
        return text


class MqttUrl(_LoginUrl):
    """`tcp://`, `tls://` (also `ssl`, `tcps`), `ws://` or `wss://` with a host; a path where it is a WebSocket."""

    label = "broker URL"

    def parse(self, text: str) -> str:
        """The URL itself."""
        mqtt_place(text)
        return text


class ShortString(Text):
    """What AMQP calls a short string."""

    label = "text of at most 255 bytes"

    def parse(self, text: str) -> str:
        """The text itself."""
        if len(super().parse(text).encode()) > 255:
            raise BadValue("is longer than the 255 bytes that AMQP allows", "shorten it")
        return text


class MqttTopic(Text):
    """A topic that can be published to."""

    label = "topic"

    def parse(self, text: str) -> str:
        """The topic itself."""
        if re.search(r"[+#]", super().parse(text)):
            raise BadValue("holds a wildcard, which is for subscribers", "name one topic, such as minio/events")
        return text


def amqp_place(url: str) -> AmqpPlace:
    """What the URL says; the defaults are those of Go's library: guest:guest@localhost, virtual host `/`.

    Raises `BadValue`.
    """
    parts = _split(url, _AMQP_PORTS, "write amqp://user:password@host:5672/vhost or amqps://…", needs_host=False)
    host = parts.hostname or "localhost"
    check_host(host)
    vhost = unquote(parts.path[1:]) or "/"
    if len(vhost.encode()) > 255:
        raise BadValue("has a virtual host longer than the 255 bytes that AMQP allows", "shorten it")
    given = _parameters(parts.query)
    user, password = _login(parts)
    return AmqpPlace(
        HostPort(host, parts.port or _AMQP_PORTS[parts.scheme]),
        tls=parts.scheme == "amqps",
        user="guest" if user is None else user,
        password="guest" if password is None else password,
        vhost=vhost,
        heartbeat=int(given.get("heartbeat", AMQP_HEARTBEAT)),
        external=given.get("auth_mechanism") == "external",
        server_name=given.get("server_name_indication", ""),
    )


def mqtt_place(url: str) -> MqttPlace:
    """What the URL says. Raises `BadValue`."""
    parts = _split(url, _MQTT_PORTS, "write tcp://host:1883, tls://host:8883, ws://host/path or wss://host/path")
    check_host(parts.hostname or "")
    if parts.scheme.startswith("ws"):
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if not path.isascii():
            raise BadValue("has a path with characters outside ASCII", "write them as %C3%BC or the like")
    elif parts.path.strip("/") or parts.query:
        raise BadValue(
            "has a path, which only ws:// and wss:// can have", "leave it out; topic is a setting of its own"
        )
    else:
        path = ""
    user, password = _login(parts)
    return MqttPlace(
        HostPort(parts.hostname or "", parts.port or _MQTT_PORTS[parts.scheme]),
        tls=parts.scheme not in ("tcp", "ws"),
        path=path,
        user=user or "",
        password=password or "",
    )


@declared
class AmqpSettings(TargetSettings, type_name="amqp", title="AMQP"):
    """AMQP 0-9-1 (reference §4.3). Without an exchange events go to the queue that `routing_key` names."""

    url: str = setting(AmqpUrl(), about="amqp://user:password@host:5672/vhost, or amqps:// for TLS")
    exchange: str = setting(ShortString(), default="", about="the exchange; empty: the server's default exchange")
    exchange_type: str = setting(
        ShortString(),
        default="",
        about="direct, fanout, topic, headers or one of a plugin's; empty: the exchange is there already, as it is",
    )
    routing_key: str = setting(
        ShortString(), default="", about="routing key of every event; queue, without an exchange"
    )
    mandatory: bool = setting(Toggle(), default="off", about="refuse events that reach no queue: they are dead letters")
    immediate: bool = setting(
        Toggle(), default="off", about="as AMQP has it; RabbitMQ from 3.0 on closes the connection instead"
    )
    durable: bool = setting(Toggle(), default="off", about="the exchange outlives a restart of the server")
    internal: bool = setting(
        Toggle(), default="off", about="the exchange takes messages of other exchanges only, so RabbitMQ refuses events"
    )
    no_wait: bool = setting(Toggle(), default="off", about="declare the exchange without awaiting the answer")
    auto_deleted: bool = setting(Toggle(), default="off", about="the exchange goes when its last binding does")
    delivery_mode: int = setting(Number(0, 2), default="0", about="2: queues keep events on disk; 0 or 1: in memory")
    publisher_confirms: bool = setting(
        Toggle(),
        default="off",
        env="PUBLISHING_CONFIRMS",
        about="accepted as MinIO's; confirmations are awaited with or without it",
    )
    password: str = setting(Text(), default="", secret=True, about="of the URL's user, where the URL has none")
    tls_ca: str = setting(Path(), default="", about="PEM file of the only authorities to trust; empty: the system's")
    tls_skip_verify: bool = setting(Toggle(), default="off", about="do not verify the server's certificate")
    client_cert: str = setting(Path(), default="", about="PEM file of the client's certificate")
    client_key: str = setting(Path(), default="", about="PEM file of its key")

    @property
    def place(self) -> AmqpPlace:
        """Where to connect, and as whom; a password of its own replaces the default one."""
        place = amqp_place(self.url)
        return replace(place, password=self.password or place.password)

    def file(self, key: str) -> str:
        """The PEM file of `tls_ca`, `client_cert` or `client_key`: the key's own, else the URL's parameter."""
        return str(getattr(self, key)) or _parameters(urlsplit(self.url).query).get(_AMQP_FILES[key], "")

    def problems(self) -> Iterator[Problem]:
        """An exchange can be told from a queue, one password is given, and files for TLS have TLS."""
        yield from super().problems()
        yield from _pair(self.file("client_cert"), self.file("client_key"))
        if not self.exchange and self.exchange_type:
            yield Problem(
                "exchange", "", "is missing", "exchange_type is of an exchange, so name it, or leave both out"
            )
        if not self.exchange and not self.routing_key:
            yield Problem(
                "exchange", "", "is required", "name the exchange, or in routing_key the queue, that gets events"
            )
        if self.password and urlsplit(self.url).password is not None:
            yield Problem("password", "", "is in url too", "leave one of them out")
        if not amqp_place(self.url).tls:
            for key in ("tls_ca", "tls_skip_verify", "client_cert"):
                if getattr(self, key):
                    yield Problem(key, "", "has no effect without TLS", "begin url with amqps://")


@declared
class MqttSettings(TargetSettings, type_name="mqtt", title="MQTT"):
    """MQTT 3.1.1 and 5 (reference §4.4)."""

    obsolete: ClassVar[frozenset[str]] = frozenset({"clientid"})  # went in 2019-01; each connection has its own

    broker: str = setting(MqttUrl(), about="tcp://host:1883, tls://host:8883, ws://host/path or wss://host/path")
    topic: str = setting(MqttTopic(), about="the topic that every event is published to")
    username: str = setting(Text(), default="", about="user; may stand in the URL instead")
    password: str = setting(Text(), default="", secret=True, about="its password")
    qos: int = setting(
        Number(0, 2),
        default="0",
        about="0: sent, not confirmed; 1: confirmed; 2: confirmed, and each sending counts once",
    )
    keep_alive_interval: float = setting(
        Duration(0, 65535),
        default="0s",
        about="the broker drops a connection silent for half as long again; 0 means 10s",
    )
    reconnect_interval: float = setting(
        Duration(),
        default="0s",
        about="accepted as MinIO's; when to reconnect is decided for the target as a whole",
    )
    version: Literal["3.1.1", "5"] = setting(
        Choice("3.1.1", "5"), default="3.1.1", about="protocol; only in 5 can a broker say that it refuses an event"
    )
    retain: bool = setting(
        Toggle(), default="off", about="the broker keeps the last event for those who subscribe later"
    )
    tls_ca: str = setting(Path(), default="", about="PEM file of the only authorities to trust; empty: the system's")
    tls_skip_verify: bool = setting(Toggle(), default="off", about="do not verify the broker's certificate")
    client_cert: str = setting(Path(), default="", about="PEM file of the client's certificate")
    client_key: str = setting(Path(), default="", about="PEM file of its key")

    @property
    def place(self) -> MqttPlace:
        """Where to connect, and as whom."""
        place = mqtt_place(self.broker)
        return replace(place, user=self.username or place.user, password=self.password or place.password)

    @property
    def keep_alive(self) -> int:
        """Whole seconds; as MinIO, 0 means 10 (§4.4)."""
        return max(1, round(self.keep_alive_interval)) if self.keep_alive_interval else 10

    def problems(self) -> Iterator[Problem]:
        """A kept event needs a confirmation, a password a user, and files for TLS need TLS."""
        yield from super().problems()
        yield from _pair(self.client_cert, self.client_key)
        url = urlsplit(self.broker)
        if self.qos == 0 and self.queue_dir:
            yield Problem(
                "qos", "0", "is not for events that are kept in queue_dir", "set 1 or 2, or leave queue_dir out"
            )
        if self.username and url.username is not None:
            yield Problem("username", self.username, "is in broker too", "leave one of them out")
        if self.password and url.password is not None:
            yield Problem("password", "", "is in broker too", "leave one of them out")
        if (self.password or url.password) and not (self.username or url.username):
            yield Problem("password", "", "is used only with a username", "set username, or leave password out")
        if not mqtt_place(self.broker).tls:
            for key in ("tls_ca", "tls_skip_verify", "client_cert"):
                if getattr(self, key):
                    yield Problem(key, "", "has no effect without TLS", "begin broker with tls:// or wss://")


def _split(url: str, schemes: Mapping[str, int], hint: str, *, needs_host: bool = True) -> SplitResult:
    parts = split_url(url, needs_host=needs_host)
    if parts.scheme not in schemes or "://" not in url:
        raise BadValue(f"has none of the schemes {', '.join(schemes)}", hint)
    if "#" in url:
        raise BadValue("has a #fragment, which is never sent", "leave it out, or write # as %23")
    if _BAD_ESCAPE.search(url):
        raise BadValue("has a % without two hexadecimal digits behind it", "write % as %25")
    if re.search(r"[\x00-\x1f\x7f]", unquote(url)):
        raise BadValue("holds an escaped control character", "leave it out")
    return parts


def _login(parts: SplitResult) -> tuple[str | None, str | None]:
    """User and password, each None where the URL does not have it."""
    return (
        None if parts.username is None else unquote(parts.username),
        None if parts.password is None else unquote(parts.password),
    )


def _parameters(query: str) -> dict[str, str]:
    """RabbitMQ's query parameters. Raises `BadValue` for one that is not known or has no such value."""
    try:
        given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise BadValue("has a ?query that is not name=value&…", "such as ?heartbeat=30") from None
    known = ("heartbeat", "auth_mechanism", "server_name_indication", "connection_timeout", "channel_max")
    for name, text in given.items():
        if name not in (*known, *_AMQP_FILES.values()):
            raise BadValue("has a parameter that is not known here", f"known are {', '.join(known)}")
        if name in ("heartbeat", "connection_timeout", "channel_max") and not re.fullmatch("[0-9]{1,5}", text):
            raise BadValue(f"has a {name} that is no number", f"write it as {name}=30")
        if name in _AMQP_FILES.values() and not text.startswith("/"):
            raise BadValue(f"has a {name} that is no absolute path", "begin it with /")
    if int(given.get("heartbeat", "0")) > 65535:
        raise BadValue("has a heartbeat longer than AMQP allows", "write seconds up to 65535")
    if given.get("auth_mechanism", "plain") not in ("plain", "external"):
        raise BadValue("has an auth_mechanism that is not known here", "write plain or external")
    if given.get("server_name_indication"):
        check_host(given["server_name_indication"])
    return given
