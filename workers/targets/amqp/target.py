"""AMQP 0-9-1: each event is one message to an exchange, or to a queue by its name (reference §4.3).

Delivered means: the server confirmed the message (RabbitMQ's publisher confirms) and, with `mandatory`, did not return
it. RabbitMQ confirms a persistent message for a durable queue when it is on disk.

| answer                                                        | outcome                                          |
|---------------------------------------------------------------|--------------------------------------------------|
| confirmed                                                     | Delivered                                        |
| returned and confirmed, as `mandatory` asks for               | Rejected, with the server's words                |
| larger than the server takes                                  | Rejected, and Unavailable what was not confirmed |
| refused (nack): a queue that is full, or the server's failure | Failed                                           |
| channel or connection closed, lost, or silent for too long    | Unavailable, whatever was not confirmed          |
| connection blocked, because memory or disk run short          | Unavailable, whatever was not confirmed          |

A message that is refused may stand before one that is taken, so an object's next event is sent when the one before it
is confirmed. Nobody sends heartbeats between two calls: a connection that was idle for longer is replaced.
"""

import contextlib
import re
import select
import socket
import ssl
import time
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from amqp import Connection, Message, spec
from amqp.exceptions import AccessRefused, AMQPError, PreconditionFailed
from amqp.serialization import dumps
from amqp.transport import SSLTransport

from app.config.targets.amqp import AmqpAddress, AmqpSettings
from app.events.model import Event
from app.events.trace import fields
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Failed, Outcome, Rejected, Unavailable
from workers.targets import tls
from workers.targets.base import NO_LEASE, LeaseCheck, TargetUnavailable
from workers.targets.payloads import log, mark_not_attempted, waves

CLIENT_NAME = "Bucketwire"

_TOO_LARGE = re.compile(r"message size [0-9]+ is larger than configured max size ([0-9]+)")
_BLOCKED = "the server has blocked this connection, because its memory or disk runs short"
_LOOK_EVERY = 64  # messages sent without looking at what the server has to say


class _Blocked(AMQPError):
    """The server takes nothing more on this connection, until it says otherwise."""


class AmqpTarget:
    """One server, one connection, one channel."""

    def __init__(self, settings: AmqpSettings) -> None:
        self._settings = settings
        self._place = settings.place
        self._where = f"AMQP server at {self._place.address}"
        self._link: _Link | None = None

    def open(self) -> None:
        """Connect, log in, and declare the exchange; queues and bindings are the consumer's matter."""
        self._connect()

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        """Up to `window` messages unconfirmed, one of each object; none is sent after the link is lost."""
        link = self._awake()
        if link.blocked:
            raise TargetUnavailable(f"{self._where}: {_BLOCKED}")
        link.begin(events, lease)
        left: Outcome = NOT_ATTEMPTED
        try:
            for group in [range(len(events))] if window == 1 else waves(events):
                for index in group:
                    link.send(index, window)
                link.gather(0)
        except (AMQPError, OSError) as error:
            left = self._lost(link, error)
        except BaseException:
            self._link = None
            link.drop()
            raise
        return mark_not_attempted(events, [left if outcome is None else outcome for outcome in link.outcomes])

    def close(self) -> None:
        """Close the connection."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _connect(self) -> "_Link":
        self.close()
        try:
            link = _Link(self._settings, self._place)
        except (AMQPError, OSError) as error:
            raise TargetUnavailable(f"{self._where}: {self._words(error)}") from error
        self._link = link
        return link

    def _awake(self) -> "_Link":
        """The link if it still is one, else a new one: the server may have closed it, or taken us for dead."""
        link = self._link
        if link is None or link.is_stale():
            return self._connect()
        try:
            link.look()
        except (AMQPError, OSError):
            link.drop()
            return self._connect()
        return link

    def _lost(self, link: "_Link", error: AMQPError | OSError) -> Unavailable:
        """What becomes of the events that are neither confirmed nor refused."""
        if not isinstance(
            error, _Blocked
        ):  # kept, or each further try would leave its messages in the server's buffers
            self._link = None
            link.drop()
        words = f"{self._where}: {self._words(error)}"
        if isinstance(error, PreconditionFailed) and (limit := _TOO_LARGE.search(str(error))):
            link.reject_larger(int(limit[1]), words)
        return Unavailable(words)

    def _words(self, error: AMQPError | OSError) -> str:
        if isinstance(error, AMQPError):
            return f"{error.reply_text} ({error.reply_code})" if error.reply_code else str(error)
        if isinstance(error, TimeoutError):
            return f"no answer within {self._settings.timeout:g} s"
        return error.strerror or str(error)


class _Link:
    """A connection, its channel, and what the server has said about the events of the running call.

    Everything here raises `AMQPError` or `OSError` when the connection is of no more use.
    """

    def __init__(self, settings: AmqpSettings, place: AmqpAddress) -> None:
        self.blocked = False
        self.outcomes: list[Outcome | None] = []
        self._events: Sequence[Event] = ()
        self._lease: LeaseCheck = NO_LEASE
        self._unconfirmed: dict[int, int] = {}  # delivery tag and index of its event, in the order of sending
        self._returned: dict[str, str] = {}  # event id and the server's words
        self._stuck: set[str] = set()
        self._tag = 0
        self._timeout = settings.timeout
        self._persistence = {"delivery_mode": settings.delivery_mode} if settings.delivery_mode else {}
        arguments = (0, settings.exchange, settings.routing_key, settings.mandatory, settings.immediate)
        self._publish = dumps("Bssbb", arguments)
        self._connection: Any = _connection(settings, place)  # more of it is used than its stubs know
        try:
            self._connection.on_blocked = self._on_blocked
            self._connection.on_unblocked = self._on_unblocked
            self._connection.connect()
            self._connection.sock.settimeout(settings.timeout)
            self._channel: Any = self._connection.channel()
            self._declare(settings)
            self._channel.confirm_select()
        except BaseException:
            self._connection.collect()  # py-amqp leaves the socket open when the server says no
            raise
        self._channel.events["basic_ack"].add(self._on_ack)
        self._channel.events["basic_nack"].add(self._on_nack)
        self._channel.events["basic_return"].add(self._on_return)
        self._poll = select.poll()
        self._poll.register(self._connection.sock, select.POLLIN)
        self._used = time.monotonic()

    def begin(self, events: Sequence[Event], lease: LeaseCheck) -> None:
        """A new call; what may still be said about an earlier one's events is passed over."""
        self.outcomes = [None] * len(events)
        self._events = events
        self._lease = lease
        self._unconfirmed.clear()
        self._returned.clear()
        self._stuck.clear()

    def send(self, index: int, window: int) -> None:
        """Publish an event, if none before it of its object is stuck, as soon as the window has room for it."""
        event = self._events[index]
        if event.path in self._stuck:
            return
        self.gather(window - 1)
        self._lease.check()
        self._tag += 1
        self._unconfirmed[self._tag] = index
        headers = {"minio-bucket": event.bucket, "minio-event": event.name}
        if event.trace:
            headers |= fields(event.trace)
        message = Message(
            log(event).encode(),
            content_type="application/json",
            application_headers=headers,
            message_id=event.id,
            **self._persistence,
        )
        # Not `basic_publish`: before each message it asks the socket for news, which costs as much as the message.
        self._connection.frame_writer(1, self._channel.channel_id, spec.Basic.Publish, self._publish, message)
        if self._tag % _LOOK_EVERY == 0:
            self.look()
            self._refuse_if_blocked()

    def gather(self, most: int) -> None:
        """Wait until at most that many events are unconfirmed; each confirmation starts the time limit anew."""
        deadline = time.monotonic() + self._timeout
        while (waiting := len(self._unconfirmed)) > most:
            self._refuse_if_blocked()
            self._read(max(0.001, min(deadline - time.monotonic(), (self._connection.heartbeat or 60) / 2)))
            if len(self._unconfirmed) < waiting:
                deadline = time.monotonic() + self._timeout
            elif time.monotonic() >= deadline:
                raise TimeoutError
        self._used = time.monotonic()

    def look(self) -> None:
        """Take in what has arrived, without waiting."""
        while self._has_arrived():
            self._read(self._timeout)

    def is_stale(self) -> bool:
        """Whether it was idle for so long that the server may have given it up, as nobody sent heartbeats."""
        heartbeat = self._connection.heartbeat
        return bool(heartbeat) and time.monotonic() - self._used >= heartbeat

    def reject_larger(self, limit: int, words: str) -> None:
        """Reject the unsettled events that can never pass a limit in bytes."""
        for index, event in enumerate(self._events):
            if self.outcomes[index] is None and len(log(event).encode()) > limit:
                self.outcomes[index] = Rejected(words)

    def close(self) -> None:
        """Say goodbye and close; a server that has blocked us would not hear it."""
        if not self.blocked:
            with contextlib.suppress(AMQPError, OSError):
                self._connection.close()
        self.drop()

    def drop(self) -> None:
        """Close the socket."""
        self._connection.collect()

    def _refuse_if_blocked(self) -> None:
        if self.blocked:
            raise _Blocked(_BLOCKED)

    def _read(self, patience: float) -> None:
        """One frame, or none within `patience` seconds."""
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
            # Who may only write can still use an exchange that is there. py-amqp has opened the channel anew by now.
            try:
                self._ask_for_exchange(settings, passive=True)
            except AMQPError:
                raise refused from None

    def _ask_for_exchange(self, settings: AmqpSettings, *, passive: bool) -> None:
        # Not `exchange_declare`: it cannot ask for an internal exchange, and warns of auto-delete.
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
        self._returned[message.properties["message_id"]] = f"{refusal.reply_text} ({refusal.reply_code}): {place}"

    def _settle(self, tag: int, multiple: bool, outcome: Outcome) -> None:
        tags = list(takewhile(lambda each: each <= tag or tag == 0, self._unconfirmed)) if multiple else [tag]
        for each in tags:
            index = self._unconfirmed.pop(each, None)
            if index is None:
                continue
            event = self._events[index]
            if self._returned and (words := self._returned.pop(event.id, None)):
                self.outcomes[index] = Rejected(words)
                continue
            self.outcomes[index] = outcome
            if outcome is not DELIVERED:
                self._stuck.add(event.path)

    def _on_blocked(self, _: str) -> None:
        self.blocked = True

    def _on_unblocked(self) -> None:
        self.blocked = False


class _TLSTransport(SSLTransport):
    """A transport with the context that all targets share; py-amqp would make one of its own."""

    def __init__(self, host: str, context: ssl.SSLContext, server_name: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._context = context
        self._server_name = server_name

    def _wrap_socket(self, sock: socket.socket, **_: Any) -> ssl.SSLSocket:
        return self._context.wrap_socket(
            sock, server_hostname=self._server_name or self.host, do_handshake_on_connect=False
        )


def _connection(settings: AmqpSettings, place: AmqpAddress) -> Any:
    host, port = place.address
    options: Any = {}
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux has it, and py-amqp sets it to one second
        options[socket.TCP_USER_TIMEOUT] = int(settings.timeout * 1000)
    connection: Any = Connection(
        f"[{host.lower()}]:{port}" if ":" in host else f"{host}:{port}",
        place.user,
        place.password,
        # Not left to py-amqp, which would take EXTERNAL wherever the server offers it.
        login_method="EXTERNAL" if place.external else "PLAIN",
        virtual_host=place.vhost,
        client_properties={"product": CLIENT_NAME, "connection_name": CLIENT_NAME},
        connect_timeout=settings.timeout,
        read_timeout=settings.timeout,
        write_timeout=settings.timeout,
        heartbeat=place.heartbeat,
        socket_settings=options,
    )
    if place.tls:
        context = tls.context(
            settings.file("tls_ca"),
            skip_verify=settings.tls_skip_verify,
            client_cert=settings.file("client_cert"),
            client_key=settings.file("client_key"),
        )

        def transport(host: str, connect_timeout: float, _: object, *timeouts: float, **options: Any) -> SSLTransport:
            options |= dict(zip(("read_timeout", "write_timeout"), timeouts, strict=True))
            return _TLSTransport(host, context, place.server_name, connect_timeout=connect_timeout, **options)

        connection.Transport = transport
    return connection
