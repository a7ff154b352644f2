"""The settings of AMQP (reference §4.3), and the parser of its URL."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, unquote, urlsplit

from app.config.errors import BadValue, Problem
from app.config.fields.addresses import HostPort, Hosts, LoginUrl, check_host, login_of, split_login_url
from app.config.fields.field_types import Number, Text, Toggle
from app.config.fields.fields import declared, setting
from app.config.fields.templates import Place, Templated, percent
from app.config.targets.base import MessageSettings, TlsFiles

AMQP_HEARTBEAT = 60
_AMQP_PORTS = {"amqp": 5672, "amqps": 5671}
_AMQP_FILES = {"tls_ca": "cacertfile", "client_cert": "certfile", "client_key": "keyfile"}


@dataclass(frozen=True, slots=True)
class AmqpAddress:
    """The parts of an AMQP URL, unescaped. `heartbeat` is in seconds, 0 for none."""

    address: HostPort
    tls: bool
    user: str
    password: str = field(repr=False)
    vhost: str
    heartbeat: int
    external: bool  # the login is the client certificate's
    server_name: str


class AmqpUrl(LoginUrl):
    """`amqp://` or `amqps://`, with login, virtual host and RabbitMQ's parameters, as in MinIO's library (§4.3)."""

    label = "amqp(s) URL"

    def parse(self, text: str) -> str:
        amqp_address(text)
        return text


class ShortString(Text):
    """A short string of AMQP."""

    label = "text of at most 255 bytes"

    def parse(self, text: str) -> str:
        if len(super().parse(text).encode()) > 255:
            raise BadValue("is longer than the 255 bytes that AMQP allows", "shorten it")
        return text


def amqp_address(url: str) -> AmqpAddress:
    """Parse an AMQP URL; the defaults are those of Go's library: guest:guest@localhost, virtual host `/`.

    Raises `BadValue`.
    """
    parts = split_login_url(
        url, _AMQP_PORTS, "write amqp://user:password@host:5672/vhost or amqps://…", needs_host=False
    )
    host = parts.hostname or "localhost"
    check_host(host)
    vhost = unquote(parts.path[1:]) or "/"
    if len(vhost.encode()) > 255:
        raise BadValue("has a virtual host longer than the 255 bytes that AMQP allows", "shorten it")
    parameters = _parameters(parts.query)
    user, password = login_of(parts)
    return AmqpAddress(
        HostPort(host, parts.port or _AMQP_PORTS[parts.scheme]),
        tls=parts.scheme == "amqps",
        user="guest" if user is None else user,
        password="guest" if password is None else password,
        vhost=vhost,
        heartbeat=int(parameters.get("heartbeat", AMQP_HEARTBEAT)),
        external=parameters.get("auth_mechanism") == "external",
        server_name=parameters.get("server_name_indication", ""),
    )


@declared
class AmqpConnection(TlsFiles):
    """How to reach a server or a cluster and log in: of a target or a source."""

    tls_hint = "begin url with amqps://"

    url: str = setting(AmqpUrl(), about="amqp://user:password@host:5672/vhost, or amqps:// for TLS", of_host=True)
    nodes: tuple[HostPort, ...] = setting(
        Hosts(), default="", about="host:port of the other nodes of a cluster; the rest of url is for all"
    )
    password: str = setting(Text(), default="", secret=True, about="password of the URL's user, if the URL has none")

    @property
    def place(self) -> AmqpAddress:
        """The address and login to connect with; `password` replaces the default one."""
        address = amqp_address(self.url)
        return replace(address, password=self.password or address.password)

    @property
    def places(self) -> tuple[AmqpAddress, ...]:
        """`place`, and the same at each of the other nodes."""
        addresses = dict.fromkeys((self.place.address, *self.nodes))
        return tuple(replace(self.place, address=address) for address in addresses)

    @property
    def uses_tls(self) -> bool:
        """Whether the URL is amqps."""
        return amqp_address(self.url).tls

    def tls_file(self, name: str) -> str:
        """Return the PEM file of `tls_ca`, `client_cert` or `client_key`: the setting, else the URL's parameter."""
        return super().tls_file(name) or _parameters(urlsplit(self.url).query).get(_AMQP_FILES[name], "")

    def tls_file_name(self, name: str) -> str:
        return name if super().tls_file(name) else f"{_AMQP_FILES[name]} in url"

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.password and urlsplit(self.url).password is not None:
            yield Problem("password", "", "is in url too", "leave one of them out")


@declared
class AmqpSettings(
    AmqpConnection,
    MessageSettings,
    type_name="amqp",
    title="AMQP",
    servers="RabbitMQ, LavinMQ",
    example={"url": "amqp://rabbitmq", "exchange": "bucketevents", "exchange_type": "fanout"},
):
    """AMQP 0-9-1 (reference §4.3). Without an exchange, events go to the queue named by `routing_key`."""

    exchange: str = setting(ShortString(), default="", about="the exchange; empty: the server's default exchange")
    exchange_type: str = setting(
        ShortString(),
        default="",
        about="direct, fanout, topic, headers or a plugin's; empty: the exchange exists and is not declared",
    )
    routing_key: Place = setting(
        Templated(ShortString(), "routing_key", percent(r"[.%\x00-\x1f\x7f]")),
        default="",
        about="routing key of the events, such as {bucket}.{kind}; without an exchange, the queue",
    )
    mandatory: bool = setting(Toggle(), default="off", about="events that reach no queue become dead letters")
    immediate: bool = setting(
        Toggle(), default="off", about="AMQP's immediate flag; RabbitMQ 3.0 and later closes the connection instead"
    )
    durable: bool = setting(Toggle(), default="off", about="the exchange outlives a restart of the server")
    internal: bool = setting(
        Toggle(),
        default="off",
        about="the exchange accepts only messages of other exchanges, so RabbitMQ refuses events",
    )
    no_wait: bool = setting(Toggle(), default="off", about="declare the exchange without waiting for the answer")
    auto_deleted: bool = setting(Toggle(), default="off", about="delete the exchange with its last binding")
    delivery_mode: int = setting(Number(0, 2), default="0", about="2: queues keep events on disk; 0 or 1: in memory")
    publisher_confirms: bool = setting(
        Toggle(),
        default="off",
        env="PUBLISHING_CONFIRMS",
        about="accepted for compatibility with MinIO; confirmations are always awaited",
    )

    def host_files(self) -> Iterator[tuple[str, str]]:
        yield from super().host_files()
        parameters = _parameters(urlsplit(self.url).query)
        yield from (("url", parameters[name]) for name in _AMQP_FILES.values() if parameters.get(name))

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if not self.exchange and self.exchange_type:
            yield Problem("exchange", "", "is missing", "exchange_type needs an exchange: name it, or leave both out")
        if not self.exchange and not self.routing_key:
            yield Problem(
                "exchange", "", "is required", "name the exchange that gets events, or the queue in routing_key"
            )
        if not self.exchange and self.routing_key.fixed is None and not self.mandatory:
            yield Problem(
                "mandatory",
                "off",
                "would lose the events whose queue does not exist without a word",
                "set mandatory=on: they become dead letters; or name an exchange",
            )


def _parameters(query: str) -> dict[str, str]:
    """Parse RabbitMQ's query parameters. Raises `BadValue` for an unknown parameter or an invalid value."""
    try:
        parameters = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise BadValue("has a ?query that is not name=value&…", "such as ?heartbeat=30") from None
    known = ("heartbeat", "auth_mechanism", "server_name_indication", "connection_timeout", "channel_max")
    for name, text in parameters.items():
        if name not in (*known, *_AMQP_FILES.values()):
            raise BadValue("has an unknown parameter", f"known are {', '.join(known)}")
        if name in ("heartbeat", "connection_timeout", "channel_max") and not re.fullmatch("[0-9]{1,5}", text):
            raise BadValue(f"has a {name} that is not a number", f"write it as {name}=30")
        if name in _AMQP_FILES.values() and not text.startswith("/"):
            raise BadValue(f"has a {name} that is not an absolute path", "begin it with /")
    if int(parameters.get("heartbeat", "0")) > 65535:
        raise BadValue("has a heartbeat longer than AMQP allows", "write seconds up to 65535")
    if parameters.get("auth_mechanism", "plain") not in ("plain", "external"):
        raise BadValue("has an unknown auth_mechanism", "write plain or external")
    if parameters.get("server_name_indication"):
        check_host(parameters["server_name_indication"])
    return parameters
