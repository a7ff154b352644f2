"""The settings of MQTT (reference §4.4), and the parser of its URL."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from app.config.errors import BadValue, Problem
from app.config.fields.addresses import HostPort, LoginUrl, check_host, login_of, split_login_url
from app.config.fields.field_types import Choice, Duration, Number, Text, Toggle
from app.config.fields.fields import declared, setting
from app.config.fields.templates import Place, Templated, percent
from app.config.targets.base import MessageSettings, TlsSettings

# What no topic may have, or brokers need not take (MQTT 5, §1.5.4), and `$`, as brokers' own topics begin with it.
_UNSAFE = "[+#%$\x00-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]"
_MQTT_PORTS = {"tcp": 1883, "tcps": 8883, "ssl": 8883, "tls": 8883, "ws": 80, "wss": 443}


@dataclass(frozen=True, slots=True)
class MqttAddress:
    """The parts of an MQTT broker's URL, unescaped. `path` is the WebSocket's path and query, else empty."""

    address: HostPort
    tls: bool
    path: str
    user: str
    password: str = field(repr=False)


class MqttUrl(LoginUrl):
    """`tcp://`, `tls://` (also `ssl`, `tcps`), `ws://` or `wss://` with a host; a path only for WebSockets."""

    label = "broker URL"

    def parse(self, text: str) -> str:
        mqtt_address(text)
        return text


class MqttTopic(Text):
    """A topic that can be published to."""

    label = "topic"

    def parse(self, text: str) -> str:
        if re.search(r"[+#]", super().parse(text)):
            raise BadValue("contains a wildcard, which is for subscribers", "name one topic, such as minio/events")
        return text


def mqtt_address(url: str) -> MqttAddress:
    """Parse an MQTT broker's URL. Raises `BadValue`."""
    parts = split_login_url(
        url, _MQTT_PORTS, "write tcp://host:1883, tls://host:8883, ws://host/path or wss://host/path"
    )
    check_host(parts.hostname or "")
    if parts.scheme.startswith("ws"):
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if not path.isascii():
            raise BadValue("has a path with characters outside ASCII", "write them as %C3%BC or the like")
    elif parts.path.strip("/") or parts.query:
        raise BadValue("has a path, which only ws:// and wss:// can have", "leave it out; set the topic in topic")
    else:
        path = ""
    user, password = login_of(parts)
    return MqttAddress(
        HostPort(parts.hostname or "", parts.port or _MQTT_PORTS[parts.scheme]),
        tls=parts.scheme not in ("tcp", "ws"),
        path=path,
        user=user or "",
        password=password or "",
    )


@declared
class MqttSettings(
    MessageSettings,
    TlsSettings,
    type_name="mqtt",
    title="MQTT",
    example={"broker": "tcp://mosquitto", "topic": "minio/events", "qos": "1"},
):
    """MQTT 3.1, 3.1.1 and 5 (reference §4.4)."""

    tls_hint = "begin broker with tls:// or wss://"
    # MinIO has generated the client id itself since 2019-01 (§3.5), and so do we.
    obsolete: ClassVar[Mapping[str, str]] = MappingProxyType({"clientid": "each connection has an id of its own"})

    broker: str = setting(MqttUrl(), about="tcp://host:1883, tls://host:8883, ws://host/path or wss://host/path")
    topic: Place = setting(
        Templated(MqttTopic(), "topic", percent(_UNSAFE)),
        about="the topic that events are published to, such as minio/events or minio/{bucket}/{key}",
    )
    username: str = setting(Text(), default="", about="user, if not in the URL")
    password: str = setting(Text(), default="", secret=True, about="password of the user")
    qos: int = setting(
        Number(0, 2),
        default="0",
        about="0: sent, not confirmed; 1: confirmed, at least once; 2: confirmed, each message once",
    )
    keep_alive_interval: float = setting(
        Duration(0, 65535),
        default="0s",
        about="the broker closes a connection that is silent for 1.5 times as long; 0 means 10s",
    )
    reconnect_interval: float = setting(
        Duration(),
        default="0s",
        about="accepted for compatibility with MinIO, without effect: the circuit breaker decides when to reconnect",
    )
    version: Literal["3.1", "3.1.1", "5"] = setting(
        Choice("3.1", "3.1.1", "5"),
        default="3.1.1",
        about="protocol version; 3.1.1 tries 3.1 if the broker refuses it; only with 5 can a broker refuse an event",
    )
    retain: bool = setting(Toggle(), default="off", about="the broker keeps the last event for later subscribers")

    @property
    def place(self) -> MqttAddress:
        """The address and login to connect with."""
        address = mqtt_address(self.broker)
        return replace(address, user=self.username or address.user, password=self.password or address.password)

    @property
    def uses_tls(self) -> bool:
        """Whether the URL's scheme asks for TLS."""
        return mqtt_address(self.broker).tls

    @property
    def keep_alive(self) -> int:
        """The keep-alive interval in whole seconds; as in MinIO, 0 means 10 (§4.4)."""
        return max(1, round(self.keep_alive_interval)) if self.keep_alive_interval else 10

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        url = urlsplit(self.broker)
        if self.payload == "cloudevents-binary" and self.version != "5":
            hint = "set version=5, or payload=cloudevents"
            yield Problem("payload", self.payload, "needs user properties, which only MQTT 5 has", hint)
        if self.qos == 0 and self.queue_dir:
            yield Problem("qos", "0", "cannot be combined with queue_dir", "set qos to 1 or 2, or leave queue_dir out")
        if self.username and url.username is not None:
            yield Problem("username", self.username, "is in broker too", "leave one of them out")
        if self.password and url.password is not None:
            yield Problem("password", "", "is in broker too", "leave one of them out")
        if (self.password or url.password) and not (self.username or url.username):
            yield Problem("password", "", "is used only with a username", "set username, or leave password out")
