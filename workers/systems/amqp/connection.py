"""Create connections to an AMQP server by py-amqp: login, TLS, time limits."""

import functools
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from amqp import Connection
from amqp.exceptions import AMQPError, UnexpectedFrame
from amqp.method_framing import frame_handler
from amqp.transport import SSLTransport, TCPTransport

from app.config.sources.amqp import AmqpSourceSettings
from app.config.targets.amqp import AmqpAddress, AmqpSettings
from workers.targets import socket_deadline, tcp, tls
from workers.targets.answer_limit import MAX_MESSAGE_BYTES, AnswerTooLong
from workers.targets.socket_deadline import Deadline

CLIENT_NAME = "Bucketwire"
_MAX_FRAME_BYTES = 1 << 20  # servers agree to 128 KiB


class _Bounded:
    """A transport that refuses a frame of more bytes than have been agreed on."""

    def _read(self, n: int, *options: Any, **more: Any) -> bytes:
        if n > _MAX_FRAME_BYTES:
            raise UnexpectedFrame(str(AnswerTooLong(_MAX_FRAME_BYTES, n)))
        return super()._read(n, *options, **more)  # type: ignore[misc,no-any-return]  # the transport's


def _whole_messages(connection: Any, callback: Any, **options: Any) -> Callable[[Any], bool]:
    """Return py-amqp's function for frames, with a limit for a message of many."""
    take, pending = frame_handler(connection, callback, **options), 0

    def limited(frame: Any) -> bool:
        nonlocal pending
        is_whole = bool(take(frame))
        pending = 0 if is_whole else pending + len(frame[2])
        if pending > MAX_MESSAGE_BYTES:
            raise UnexpectedFrame(str(AnswerTooLong(MAX_MESSAGE_BYTES)))
        return is_whole

    return limited


class _Transport(_Bounded, TCPTransport):
    """A transport that a `Deadline` cuts."""

    sock: Any

    def _connect(self, host: str, port: int, timeout: float) -> None:
        self.sock = tcp.connect(host, port, timeout)

    def _setup_transport(self) -> None:
        socket_deadline.watch(self.sock.fileno())
        super()._setup_transport()  # type: ignore[misc]  # the stubs lack it


class _TLSTransport(_Bounded, SSLTransport):
    """A transport with the TLS context that all targets share; py-amqp would create its own."""

    def __init__(self, host: str, context: ssl.SSLContext, server_name: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._context = context
        self._server_name = server_name

    def _connect(self, host: str, port: int, timeout: float) -> None:
        self.sock = tcp.connect(host, port, timeout)

    def _wrap_socket(self, sock: socket.socket, **_: Any) -> ssl.SSLSocket:
        socket_deadline.watch(sock.fileno())
        return self._context.wrap_socket(
            sock, server_hostname=self._server_name or self.host, do_handshake_on_connect=False
        )


def make_connection(settings: AmqpSettings | AmqpSourceSettings, place: AmqpAddress) -> Any:
    """Return a connection that is not connected yet; Any, because py-amqp's stubs lack members that are used."""
    host, port = place.address
    options: Any = {}
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux has it, and py-amqp would set it to one second
        options[socket.TCP_USER_TIMEOUT] = int(settings.timeout * 1000)
    connection: Any = Connection(
        f"[{host.lower()}]:{port}" if ":" in host else f"{host}:{port}",
        place.user,
        place.password,
        # Not left to py-amqp, which would choose EXTERNAL whenever the server offers it.
        login_method="EXTERNAL" if place.external else "PLAIN",
        virtual_host=place.vhost,
        client_properties={"product": CLIENT_NAME, "connection_name": CLIENT_NAME},
        connect_timeout=settings.timeout,
        read_timeout=settings.timeout,
        write_timeout=settings.timeout,
        heartbeat=place.heartbeat,
        socket_settings=options,
        frame_handler=_whole_messages,
    )
    kind: Any = _Transport
    if place.tls:
        kind = functools.partial(_TLSTransport, context=tls.context_of(settings), server_name=place.server_name)

    def transport(host: str, connect_timeout: float, _: object, *timeouts: float, **options: Any) -> Any:
        options |= dict(zip(("read_timeout", "write_timeout"), timeouts, strict=True))
        return kind(host, connect_timeout=connect_timeout, **options)

    connection.Transport = transport
    return connection


@contextmanager
def limited(connection: Any, seconds: float) -> Iterator[Deadline]:
    """Cut a connection if the block takes longer, and raise `TimeoutError`: py-amqp's limit is that of one read."""
    with Deadline(seconds) as limit:
        if connection._transport is not None:
            limit.watch(connection.sock.fileno())
        try:
            yield limit
        except (AMQPError, OSError) as error:
            if limit.expired:
                raise TimeoutError from error
            raise
        except (struct.error, ValueError, LookupError, TypeError) as error:  # py-amqp's, of what is malformed
            raise UnexpectedFrame(f"what the server sent cannot be read: {type(error).__name__}") from error


def describe_error(error: Exception, timeout: float) -> str:
    """Return an error of a connection as a text for people; `timeout` is its limit in seconds."""
    if isinstance(error, AMQPError):
        return f"{error.reply_text} ({error.reply_code})" if error.reply_code else str(error)
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout:g} s"
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
