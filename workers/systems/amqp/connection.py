"""Connect to an AMQP server by py-amqp, and publish on the connection: login, TLS, time limits, and the answers.

`AmqpLink` is the connection of a target with its channel; a source uses `make_connection` alone.
"""

import contextlib
import functools
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import takewhile
from typing import Any

from amqp import Connection, Message, spec
from amqp.exceptions import AccessRefused, AMQPError, UnexpectedFrame
from amqp.method_framing import frame_handler
from amqp.serialization import dumps
from amqp.transport import SSLTransport, TCPTransport

from app.config.errors import BadValue
from app.config.sources.amqp import AmqpSourceSettings
from app.config.targets.amqp import AmqpAddress, AmqpSettings
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected
from workers.targets import sockets, tcp, tls
from workers.targets.batch import Batch
from workers.targets.messages import AMQP, LEAST_BYTES, message_format
from workers.targets.sockets import MAX_MESSAGE_BYTES, AnswerTooLong, Deadline

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
        sockets.watch(self.sock.fileno())
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
        sockets.watch(sock.fileno())
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


BLOCKED = "the server has blocked this connection, because its memory or disk runs short"

BATCH_MESSAGES = 64  # messages sent between two checks for the server's answers
_CACHED_KEYS = 1024  # routing keys whose part of a frame is kept


class Blocked(AMQPError):
    """The server has blocked this connection and accepts no messages until it unblocks it."""


class AmqpLink:
    """A connection, its channel, and the server's answers about the events of the current call.

    Every method raises `AMQPError` or `OSError` when the connection is no longer usable.
    """

    def __init__(self, settings: AmqpSettings, place: AmqpAddress) -> None:
        self.blocked = False
        self._batch = Batch(())
        self._unconfirmed: dict[int, int] = {}  # delivery tag to index of its event, in the order of sending
        self._returned: dict[str, str] = {}  # event id to the server's reason
        self._tag = 0
        self._timeout = settings.timeout
        self._format = message_format(settings, AMQP)
        self._persistence = {"delivery_mode": settings.delivery_mode} if settings.delivery_mode else {}
        self._routing_key = settings.routing_key
        self._publish = lru_cache(maxsize=_CACHED_KEYS)(partial(_publish, settings))
        self._connection: Any = make_connection(settings, place)
        try:
            self._connection.on_blocked = self._on_blocked
            self._connection.on_unblocked = self._on_unblocked
            with limited(self._connection, self._timeout):
                self._connection.connect()
                self._connection.sock.settimeout(settings.timeout)
                self._channel: Any = self._connection.channel()
                self._declare(settings)
                self._channel.confirm_select()
        except BaseException:
            self._connection.collect()  # py-amqp leaves the socket open when the server refuses the connection
            raise
        self._channel.events["basic_ack"].add(self._on_ack)
        self._channel.events["basic_nack"].add(self._on_nack)
        self._channel.events["basic_return"].add(self._on_return)
        self._poll = select.poll()
        self._poll.register(self._connection.sock, select.POLLIN)
        self._used = time.monotonic()

    def begin(self, batch: Batch) -> None:
        """Begin a new call; answers about events of an earlier one are ignored."""
        self._batch = batch
        self._unconfirmed.clear()
        self._returned.clear()

    def send(self, index: int, window: int) -> None:
        """Publish an event, if it may be sent, as soon as the window has room for it."""
        self.gather(window - 1)
        if not self._batch.begin([index]):
            return
        event = self._batch.events[index]
        try:
            publish = self._publish(self._routing_key.of(event))
        except BadValue as error:
            self._batch.settle(index, Rejected(error.problem))
            return
        self._tag += 1
        self._unconfirmed[self._tag] = index
        headers = {"minio-bucket": event.bucket, "minio-event": event.name}
        if event.trace or self._format.headers:
            headers |= self._format.all_headers(event)
        message = Message(
            self._format.body(event).encode(),
            content_type=self._format.content_type,
            application_headers=headers,
            message_id=event.id,
            **self._persistence,
        )
        # Not `basic_publish`: it polls the socket before each message, which costs as much as the message itself.
        self._connection.frame_writer(1, self._channel.channel_id, spec.Basic.Publish, publish, message)
        if self._tag % BATCH_MESSAGES == 0:
            self.look()
            self._refuse_if_blocked()

    def gather(self, most: int) -> None:
        """Wait until at most that many events are unconfirmed.

        Each confirmation restarts the time limit, as long as the call has time.
        """
        if len(self._unconfirmed) > most:
            with limited(self._connection, self._timeout) as limit:
                self._gather(most, limit)
        self._used = time.monotonic()

    def _gather(self, most: int, limit: Deadline) -> None:
        deadline = time.monotonic() + self._timeout
        while (waiting := len(self._unconfirmed)) > most:
            self._refuse_if_blocked()
            self._read(max(0.001, min(deadline - time.monotonic(), (self._connection.heartbeat or 60) / 2)))
            if len(self._unconfirmed) < waiting and self._batch.has_time():
                deadline = time.monotonic() + self._timeout
                limit.restart()
            elif time.monotonic() >= deadline:
                raise TimeoutError

    def look(self) -> None:
        """Process the answers that have arrived, without waiting."""
        while self._has_arrived():
            with limited(self._connection, self._timeout):
                self._read(self._timeout)

    def is_stale(self) -> bool:
        """Return whether it was idle for so long, without heartbeats, that the server may have closed it."""
        heartbeat = self._connection.heartbeat
        return bool(heartbeat) and time.monotonic() - self._used >= heartbeat

    def reject_larger(self, limit: int, words: str) -> None:
        """Reject the unsettled events that are larger than a limit in bytes; none if every event is."""
        for index in self._batch.unsettled() if limit >= LEAST_BYTES else ():
            if len(self._format.body(self._batch.events[index]).encode()) > limit:
                self._batch.settle(index, Rejected(words))

    def fail_refused(self, routing_key: str, words: str) -> None:
        """Fail the unsettled events of a routing key that the user may not write to; only with a template."""
        if self._routing_key.fixed is None:
            for index in self._batch.unsettled():
                with contextlib.suppress(BadValue):
                    if self._routing_key.of(self._batch.events[index]) == routing_key:
                        self._batch.settle(index, Failed(words))

    def close(self) -> None:
        """Close the connection; without AMQP's closing handshake if the server has blocked it and would not read it."""
        if not self.blocked:
            with contextlib.suppress(AMQPError, OSError):
                self._connection.close()
        self.drop()

    def drop(self) -> None:
        """Close the socket."""
        self._connection.collect()

    def _refuse_if_blocked(self) -> None:
        if self.blocked:
            raise Blocked(BLOCKED)

    def _read(self, patience: float) -> None:
        """Read one frame, or none within `patience` seconds."""
        try:
            self._connection.blocking_read(patience)
        except TimeoutError:
            self._connection.heartbeat_tick()

    def _has_arrived(self) -> bool:
        wire = self._connection.sock
        return bool((isinstance(wire, ssl.SSLSocket) and wire.pending()) or self._poll.poll(0))

    def _declare(self, settings: AmqpSettings) -> None:
        if not settings.exchange:
            return
        try:
            self._ask_for_exchange(settings, passive=not settings.exchange_type)
        except AccessRefused as refused:
            # A user who may only write can still use an existing exchange. py-amqp has opened a new channel by now.
            try:
                self._ask_for_exchange(settings, passive=True)
            except AMQPError:
                raise refused from None

    def _ask_for_exchange(self, settings: AmqpSettings, *, passive: bool) -> None:
        # Not `exchange_declare`: it cannot declare an internal exchange, and warns about auto-delete.
        flags = (passive, settings.durable, settings.auto_deleted, settings.internal, settings.no_wait)
        self._channel.send_method(
            spec.Exchange.Declare,
            "BssbbbbbF",
            (0, settings.exchange, settings.exchange_type, *flags, {}),
            wait=None if settings.no_wait else spec.Exchange.DeclareOk,
        )

    def _on_ack(self, tag: int, multiple: bool) -> None:
        self._settle(tag, multiple, DELIVERED)

    def _on_nack(self, tag: int, multiple: bool) -> None:
        self._settle(tag, multiple, Failed("refused (basic.nack): a queue that is full, or a failure of the server"))

    def _on_return(self, refusal: AMQPError, exchange: str, routing_key: str, message: Message) -> None:
        place = f"exchange {exchange!r} with routing key {routing_key!r}" if exchange else f"queue {routing_key!r}"
        if "message_id" not in message.properties:
            raise UnexpectedFrame("the server returned a message without its id")
        self._returned[message.properties["message_id"]] = f"{refusal.reply_text} ({refusal.reply_code}): {place}"

    def _settle(self, tag: int, multiple: bool, outcome: Outcome) -> None:
        if tag > self._tag:
            raise UnexpectedFrame(f"the server confirmed message {tag}, of {self._tag} that were sent")
        tags = list(takewhile(lambda sent: sent <= tag or tag == 0, self._unconfirmed)) if multiple else [tag]
        for settled in tags:
            index = self._unconfirmed.pop(settled, None)
            if index is None:
                continue
            if self._returned and (words := self._returned.pop(self._batch.events[index].id, None)):
                self._batch.settle(index, Rejected(words))
            else:
                self._batch.settle(index, outcome)

    def _on_blocked(self, _: str) -> None:
        self.blocked = True

    def _on_unblocked(self) -> None:
        self.blocked = False


def _publish(settings: AmqpSettings, routing_key: str) -> bytes:
    """Return the arguments of Basic.Publish."""
    arguments = (0, settings.exchange, routing_key, settings.mandatory, settings.immediate)
    encoded: bytes = dumps("Bssbb", arguments)
    return encoded
