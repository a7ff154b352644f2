"""Connect to the Redis server that has the key: the one of the settings, Sentinel's master, or a node of a Cluster.

The clients that redis-py has for Sentinel and Cluster repeat commands and follow redirections by themselves. Here a
command is sent once, to a server that was asked for right before the connection was made; one that is not the right one
any more refuses it (READONLY, MOVED), and the next connection finds its successor.
"""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection, UnixDomainSocketConnection
from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisError
from redis.retry import Retry

from app.config.fields.addresses import HostPort
from app.config.sources.redis import RedisSourceSettings
from app.config.targets.redis import RedisSettings
from workers.targets import socket_deadline, tcp, tls
from workers.targets.answer_limit import MAX_ANSWER_BYTES, MAX_MESSAGE_BYTES, LimitedSocket
from workers.targets.endpoint import NodeRotation

CLIENT_NAME = "Bucketwire"


class RedisServers:
    """The addresses in the settings, of which one that did not answer is asked last the next time."""

    def __init__(self, settings: RedisSettings | RedisSourceSettings) -> None:
        self._settings = settings
        self._asked = NodeRotation(settings.places, settings.timeout)

    def connect(self) -> redis.Redis:
        """Return a client of one connection to the server that has the key. Raises `RedisError` and `OSError`."""
        return self._client(self._server())

    def _server(self) -> HostPort:
        """Return the address to connect to, which may have changed since the last call."""
        if self._settings.sentinel:
            return self._asked.connect(self._master, (RedisError, OSError))
        if self._settings.cluster:
            return self._asked.connect(self._owner, (RedisError, OSError))
        return self._settings.address.place

    def _master(self, place: HostPort) -> HostPort:
        """Ask one Sentinel for the master."""
        name = self._settings.sentinel
        client = self._client(place, of_sentinel=True)
        try:
            command = "SENTINEL GET-MASTER-ADDR-BY-NAME"
            address = client.execute_command(command, name)  # type: ignore[no-untyped-call]  # redis-py leaves it
        finally:
            client.connection_pool.disconnect()
        if not address:
            raise RedisConnectionError(f"the Sentinel at {place} knows no master {name!r}")
        with _shaped("SENTINEL"):
            host, port = address
            return HostPort(_text(host), int(port))

    def _owner(self, place: HostPort) -> HostPort:
        """Ask one node of a Cluster which one has the key: a hash or a list is one key, in one slot."""
        slot = key_slot(self._settings.key.encode())
        client = self._client(place)
        try:
            ranges = client.execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]  # redis-py leaves it
        finally:
            client.connection_pool.disconnect()
        with _shaped("CLUSTER SLOTS"):
            for first, last, owner, *_ in ranges:
                if int(first) <= slot <= int(last):
                    # A node that does not know by which address it is reached leaves it out.
                    host = _text(owner[0] or b"")
                    return HostPort(place.host if host in ("", "?") else host, int(owner[1]))
        raise RedisConnectionError(f"the Cluster of {place} has no node for the key's slot {slot}")

    def _client(self, place: HostPort, *, of_sentinel: bool = False) -> redis.Redis:
        chosen = self._settings
        kind: type[Connection | UnixDomainSocketConnection]
        options: dict[str, Any]
        if place.host.startswith("/"):
            kind, options = _UnixConnection, {"path": place.host}
        else:
            kind, options = _PlainConnection, {"host": place.host, "port": place.port, "socket_keepalive": True}
        if chosen.uses_tls:
            kind = _TLSConnection
            options["context"] = tls.context_of(chosen)
        user, password = chosen.user, chosen.password
        if of_sentinel:
            user, password = chosen.sentinel_user, chosen.sentinel_password
        pool = redis.ConnectionPool(
            connection_class=kind,
            max_connections=1,
            db=0 if of_sentinel else chosen.db,
            # As MinIO: without a password, the user is not sent (§4.9).
            username=(user or None) if password else None,
            password=password or None,
            client_name=CLIENT_NAME,
            socket_timeout=chosen.timeout,
            socket_connect_timeout=chosen.timeout,
            retry=Retry(NoBackoff(), 0),
            limit=MAX_ANSWER_BYTES if isinstance(chosen, RedisSettings) else MAX_MESSAGE_BYTES,
            protocol=2,  # HELLO does not exist before Redis 6
            **options,
        )
        return redis.Redis(connection_pool=pool)


@contextmanager
def _shaped(command: str) -> Iterator[None]:
    """Raise `InvalidResponse` where the block finds that an answer is none to the command."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidResponse(f"the answer to {command} cannot be read") from error


def describe_servers(settings: RedisSettings | RedisSourceSettings) -> str:
    """Return which server is connected to, for messages."""
    places = ",".join(map(str, settings.places))
    if settings.sentinel:
        return f"Redis master {settings.sentinel!r} of the Sentinels at {places}"
    return f"Redis Cluster at {places}" if settings.cluster else f"Redis at {places}"


class _Limited:
    """A connection that a `Deadline` cuts: redis-py's own time limit is that of one read.

    An answer of which redis-py makes neither a value nor an error is `InvalidResponse`.
    """

    def _connect(self) -> Any:
        made = super()._connect()  # type: ignore[misc]  # the connection's, which it is mixed into
        socket_deadline.watch(made.fileno())
        return made

    def send_packed_command(self, *command: Any, **options: Any) -> None:
        """Send a command, over a new connection or the one of the command before."""
        if self._sock is not None:  # type: ignore[attr-defined]  # as above
            socket_deadline.watch(self._sock.fileno())  # type: ignore[attr-defined]  # as above
        super().send_packed_command(*command, **options)  # type: ignore[misc]  # as above

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        """Return an answer. Raises `RedisError` and `OSError`."""
        try:
            return super().read_response(*arguments, **options)  # type: ignore[misc]  # as above
        except (ValueError, LookupError, TypeError, RecursionError) as error:  # the connection is closed then
            raise InvalidResponse(f"the answer cannot be read: {error}") from error


class _TcpConnection(Connection):
    def _connect(self) -> Any:
        made = tcp.connect(self.host, int(self.port), self.socket_connect_timeout, tcp.OPTIONS)
        made.settimeout(self.socket_timeout)
        return made


class _Bounded:
    """A connection whose answers have at most `limit` bytes."""

    def __init__(self, *, limit: int, **options: Any) -> None:
        super().__init__(**options)
        self._limit = limit

    def _connect(self) -> Any:
        return LimitedSocket(super()._connect(), self._limit)  # type: ignore[misc]  # as above


class _LimitedTcpConnection(_Limited, _TcpConnection):
    """A TCP connection."""


class _PlainConnection(_Bounded, _LimitedTcpConnection):
    """A TCP connection whose answers have a limit."""


class _UnixConnection(_Bounded, _Limited, UnixDomainSocketConnection):
    """A connection through a socket file."""


class _SharedContextConnection(_LimitedTcpConnection):
    """A connection with the TLS context that all targets share; redis-py would create its own."""

    def __init__(self, *, context: ssl.SSLContext, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
        self._context = context

    def _connect(self) -> Any:
        plain = super()._connect()
        try:
            return self._context.wrap_socket(plain, server_hostname=self.host)
        except OSError:
            plain.close()
            raise


class _TLSConnection(_Bounded, _SharedContextConnection):
    """A TLS connection whose answers have a limit."""


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
