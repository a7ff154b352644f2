"""Connect to the Redis server that has the key, and check what it answers.

It is the server of the settings, Sentinel's master, or a node of a Cluster. The clients that redis-py has for Sentinel
and Cluster repeat commands and follow redirections by themselves. Here a command is sent once, to a server that was
asked for right before the connection was made; one that is not the right one any more refuses it (READONLY, MOVED), and
the next connection finds its successor.
"""

import math
import re
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection, UnixDomainSocketConnection
from redis.crc import key_slot
from redis.exceptions import AskError, InvalidResponse, NoPermissionError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from app.config.fields.addresses import HostPort
from app.config.sources.redis import RedisSourceSettings
from app.config.targets.redis import RedisSettings
from workers.targets import sockets, tcp, tls
from workers.targets.sockets import MAX_ANSWER_BYTES, MAX_MESSAGE_BYTES, LimitedSocket
from workers.targets.tcp import NodeRotation

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
        sockets.watch(made.fileno())
        return made

    def send_packed_command(self, *command: Any, **options: Any) -> None:
        """Send a command, over a new connection or the one of the command before."""
        if self._sock is not None:  # type: ignore[attr-defined]  # as above
            sockets.watch(self._sock.fileno())  # type: ignore[attr-defined]  # as above
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


# Permissions of a target's user.
_NEEDED = "+type +hset +hdel +hget +eval +rpush +xadd +multi +exec, with wait_replicas +wait,"

_STREAM_ID = re.compile(rb"[0-9]+-[0-9]+")

# By command and its words: how many fields it changes at most.
_MOST_CHANGED: dict[str, Callable[[Sequence[Any]], float]] = {
    "HSET": lambda words: (len(words) - 2) // 2,
    "HDEL": lambda words: len(words) - 2,
    "EVAL": lambda words: (len(words) - 4) // 2,
    "WAIT": lambda _: math.inf,
}

Commands = Sequence[Sequence[Any]]  # each is its words


class UnexpectedAnswer(RedisConnectionError):
    """The answer is not one of this command: what was asked may have been done or not, as after a lost connection."""


def answers_to(commands: Commands, received: list[Any]) -> list[Any]:
    """Return the answer to each command, or the error that it was refused with.

    `received` has more answers if the commands were sent as one transaction: those to MULTI and EXEC too. Raises
    `UnexpectedAnswer`.
    """
    if len(received) > len(commands):
        if refused := next((each for each in received if isinstance(each, Exception)), None):
            return [refused] * len(commands)
        received = received[-1]
        if not isinstance(received, list) or len(received) != len(commands):
            raise UnexpectedAnswer(f"the answer to EXEC is not that of {len(commands)} commands")
    for words, answer in zip(commands, received, strict=True):
        if not isinstance(answer, Exception):
            check_answer(words, answer)
    return received


def check_answer(words: Sequence[Any], answer: Any) -> None:
    """Check that this is an answer to this command. Raises `UnexpectedAnswer`."""
    name = words[0]
    if name == "XADD":
        right = isinstance(answer, bytes) and _STREAM_ID.fullmatch(answer) is not None
    elif name == "RPUSH":  # the length of the list: with the entries that were appended
        right = type(answer) is int and answer >= len(words) - 2
    else:  # how many fields were added or removed; WAIT: how many replicas have it
        right = type(answer) is int and 0 <= answer <= _MOST_CHANGED[name](words)
    if not right:
        raise UnexpectedAnswer(f"the answer to {name} is {str(answer)[:80]!r}, which is no answer to it")


def is_about_the_server(error: Exception) -> bool:
    """Return whether the error is about the server, the key or the login, so that every other event would fail too.

    Redis gives such states their own error code (`OOM`, `READONLY`, `WRONGTYPE`, `MISCONF`, ...), which redis-py maps
    to a class if it knows the code. A bare `ERR` is about the command, unless the server does not know that command or
    stopped our script, which no event can cause to fail.
    """
    if isinstance(error, RedisConnectionError | RedisTimeoutError | OSError) or type(error) is not ResponseError:
        return True
    text = str(error)
    first = text.partition(" ")[0]
    if first.isupper() and first != "ERR":
        return True
    return text.startswith(("unknown command", "wrong number of arguments")) or "script" in text


def is_about_the_key(error: Exception) -> bool:
    """Return whether a command was refused for what its key holds, or because the user may not use this key."""
    text = str(error)
    return text.startswith("WRONGTYPE") or (isinstance(error, NoPermissionError) and " key" in text)


def describe_error(error: Exception, needed: str = _NEEDED) -> str:
    """Return the error as text, with the permissions that are `needed` if they are what it is about."""
    if isinstance(error, AskError):  # MOVED too
        return f"the key's slot {error.slot_id} is now, or about to be, at {error.host}:{error.port}"
    text = str(error) or type(error).__name__
    if isinstance(cause := error.__cause__ or error.__context__, OSError):  # redis-py writes the tuple of its arguments
        text = text.replace(str(cause.args), cause.strerror or str(cause))
    if isinstance(error, NoPermissionError):
        text += f" (the user needs {needed} on this key, and +client|setname; for a Cluster +cluster|slots)"
    return text
