"""List the endpoints that a target's settings name, and check each one's name resolution, connection and TLS.

These checks need no target protocol. Where TLS begins within a protocol (NATS, NSQ, PostgreSQL, MySQL) it is part of
logging in, and only the adapter can check it.
"""

import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from app.config.fields.addresses import HostPort
from app.config.targets.amqp import AmqpSettings
from app.config.targets.base import TargetSettings
from app.config.targets.elasticsearch import ElasticsearchSettings
from app.config.targets.kafka import KafkaSettings
from app.config.targets.mqtt import MqttSettings
from app.config.targets.mysql import MysqlSettings
from app.config.targets.nats import NatsSettings
from app.config.targets.nsq import NsqSettings
from app.config.targets.postgresql import PostgresSettings
from app.config.targets.redis import RedisSettings
from app.config.targets.webhook import WebhookSettings
from workers.targets import tls
from workers.targets.http_connection import public_addresses
from workers.targets.http_pool import proxy_for
from workers.targets.postgresql.connection import parameters

_POSTGRES_PORT = 5432


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address to connect to; a host that begins with `/` is a unix socket.

    `context` creates the TLS context if TLS begins with the first byte, and `name` is the name that the certificate
    must match. `guarded`: only connections to public addresses are allowed.
    """

    address: HostPort
    context: Callable[[], ssl.SSLContext] | None = None
    name: str = ""
    guarded: bool = False

    def resolve(self) -> list[str]:
        """Return the addresses of the host. Raises `OSError`, or `PrivateAddressError` if the endpoint is guarded."""
        host, port = self.address
        if host.startswith("/"):
            return [host]
        if self.guarded:
            return list(dict.fromkeys(public_addresses(host, port)))
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(entry[4][0]) for entry in infos))

    def connect(self, addresses: Sequence[str], timeout: float) -> socket.socket:
        """Connect to the first address that accepts a connection. Raises `OSError`."""
        failure = OSError("there is no address to connect to")
        for address in addresses:
            try:
                if address.startswith("/"):
                    return _unix(address, timeout)
                return socket.create_connection((address, self.address.port), timeout=timeout)
            except OSError as error:
                failure = error
        raise failure


def endpoints_of(settings: TargetSettings) -> list[Endpoint]:
    """Return every endpoint that the settings name, in order; the proxy instead if HTTP requests go through one.

    Raises `TargetUnavailable` for an unusable proxy or connection string.
    """
    return [*_ENDPOINTS[type(settings)](settings)]


def tls_handshake(wire: socket.socket, context: ssl.SSLContext, name: str) -> str:
    """Start TLS over the connection; return the TLS version and the cipher. Raises `OSError`."""
    with context.wrap_socket(wire, server_hostname=name) as wrapped:
        cipher = wrapped.cipher()
        return f"{wrapped.version()}, {cipher[0]}" if cipher else str(wrapped.version())


def _unix(path: str, timeout: float) -> socket.socket:
    wire = socket.socket(socket.AF_UNIX)
    try:
        wire.settimeout(timeout)
        wire.connect(path)
    except OSError:
        wire.close()
        raise
    return wire


def _context(
    settings: Any, *, ca: str = "", cert: str = "client_cert", key: str = "client_key"
) -> Callable[[], ssl.SSLContext]:
    return lambda: tls.context(
        ca or getattr(settings, "tls_ca", ""),  # NATS has cert_authority instead
        skip_verify=settings.tls_skip_verify,
        client_cert=getattr(settings, cert),
        client_key=getattr(settings, key),
    )


def _amqp(settings: AmqpSettings) -> list[Endpoint]:
    def context() -> ssl.SSLContext:
        return tls.context(
            settings.file("tls_ca"),
            skip_verify=settings.tls_skip_verify,
            client_cert=settings.file("client_cert"),
            client_key=settings.file("client_key"),
        )

    return [Endpoint(place.address, context if place.tls else None, place.server_name) for place in settings.places]


def _mqtt(settings: MqttSettings) -> list[Endpoint]:
    return [Endpoint(settings.place.address, _context(settings) if settings.place.tls else None)]


def _nats(settings: NatsSettings) -> list[Endpoint]:
    context = _context(settings, ca=settings.cert_authority) if settings.tls_handshake_first else None
    return [Endpoint(address, context) for address in settings.address]


def _nsq(settings: NsqSettings) -> list[Endpoint]:
    return [Endpoint(settings.nsqd_address)]


def _kafka(settings: KafkaSettings) -> list[Endpoint]:
    context = _context(settings, cert="client_tls_cert", key="client_tls_key") if settings.tls else None
    return [Endpoint(broker, context) for broker in settings.bootstrap]


def _redis(settings: RedisSettings) -> list[Endpoint]:
    return [Endpoint(place, _context(settings) if settings.by_tls else None) for place in settings.places]


def _mysql(settings: MysqlSettings) -> list[Endpoint]:
    dsn = settings.dsn
    return [Endpoint(HostPort(dsn.socket, 0) if dsn.socket else HostPort(dsn.host, dsn.port))]


def _postgresql(settings: PostgresSettings) -> list[Endpoint]:
    """Read the hosts and ports as libpq does: several hosts, with one port for each or one for all."""
    options = parameters(settings)
    hosts = str(options.get("hostaddr") or options.get("host") or "/var/run/postgresql").split(",")
    ports = str(options.get("port") or _POSTGRES_PORT).split(",")
    ports = ports if len(ports) == len(hosts) else ports * len(hosts)
    return [
        Endpoint(HostPort(f"{host}/.s.PGSQL.{port}", 0) if host.startswith("/") else HostPort(host, int(port)))
        for host, port in zip(hosts, (each or str(_POSTGRES_PORT) for each in ports), strict=False)
    ]


def _elasticsearch(settings: ElasticsearchSettings) -> list[Endpoint]:
    return [_http(str(node), _context(settings), guarded=False) for node in settings.nodes]


def _webhook(settings: WebhookSettings) -> list[Endpoint]:
    return [_http(settings.endpoint, _context(settings), guarded=not settings.allow_private)]


def _http(url: str, context: Callable[[], ssl.SSLContext], *, guarded: bool) -> Endpoint:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    if proxy := proxy_for(parts.scheme, host, port):
        return Endpoint(HostPort(proxy.host or "", proxy.port or (443 if proxy.scheme == "https" else 80)))
    return Endpoint(HostPort(host, port), context if parts.scheme == "https" else None, guarded=guarded)


_ENDPOINTS: dict[type[TargetSettings], Callable[[Any], list[Endpoint]]] = {
    AmqpSettings: _amqp,
    ElasticsearchSettings: _elasticsearch,
    KafkaSettings: _kafka,
    MqttSettings: _mqtt,
    MysqlSettings: _mysql,
    NatsSettings: _nats,
    NsqSettings: _nsq,
    PostgresSettings: _postgresql,
    RedisSettings: _redis,
    WebhookSettings: _webhook,
}
