"""NATS: core, JetStream and NATS Streaming; each event is one message, the log envelope, on one subject (§4.5).

| kind                       | Delivered means                                     | the message then                 |
|----------------------------|-----------------------------------------------------|----------------------------------|
| core                       | the server has read the message: it answered a PING | goes to the current subscribers  |
| JetStream (`jetstream=on`) | the stream acknowledged it                          | is kept as the stream is set up  |
| Streaming (`streaming=on`) | the server acknowledged it                          | is kept as the channel is set up |

Core: up to `window` messages, then a PING. JetStream and Streaming: up to `window` messages unacknowledged, one per
object; JetStream gets the event's id and drops duplicates within its `duplicate_window`. Streams are never created (as
MinIO); channels of NATS Streaming are created automatically. A message larger than the server's `max_payload` is
rejected before it is sent, as the server would close the connection over it. All other errors are those of the server,
the stream or the login: Unavailable.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from app.config.fields.addresses import HostPort
from app.config.targets.nats import NatsSettings
from app.events.model import Event
from workers.delivery.outcomes import Outcome, Unavailable
from workers.systems.nats.connection import EventLoopThread, TargetConnection, tls_context
from workers.systems.nats.publishers import Core, JetStream, Streaming
from workers.targets.base import NO_LEASE, LeaseCheck, TargetUnavailable
from workers.targets.batch import Batch
from workers.targets.tcp import Endpoint, NodeRotation


class Publisher(Protocol):
    """One of the three ways to publish, over an open connection."""

    async def begin(self) -> None:
        """Prepare the connection once. Raises `TargetUnavailable`."""

    async def deliver(self, batch: Batch, window: int) -> None:
        """Settle what can be sent of the batch."""

    async def end(self) -> None:
        """Sign off from a server that is still connected."""


class NatsTarget:
    """One connection to one of the servers, and one thread that answers it between calls."""

    def __init__(self, settings: NatsSettings) -> None:
        self._settings = settings
        self._servers = NodeRotation(settings.address, settings.timeout)
        self._loop: EventLoopThread | None = None
        self._connection: TargetConnection | None = None
        self._publisher: Publisher | None = None

    def endpoints(self) -> Sequence[Endpoint]:
        """Return each server."""
        context = partial(tls_context, self._settings) if self._settings.tls_handshake_first else None
        return [Endpoint(address, context) for address in self._settings.address]

    def open(self) -> None:
        """Connect and log in; register with NATS Streaming. This checks and creates no streams or channels."""
        self._connect()

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        """Publish and await the confirmations; after an `Unavailable` nothing more is sent."""
        loop, publisher = self._ready()
        if not events:
            return []
        batch = Batch(events, lease)
        try:
            loop.run(publisher.deliver(batch, window))
        except BaseException:
            self.close()
            raise
        outcomes = batch.outcomes()
        if any(isinstance(outcome, Unavailable) for outcome in outcomes):
            # The fate of the others is unknown; a new connection receives no late answers to old messages.
            self.close()
        return outcomes

    def close(self) -> None:
        """Close the connection and end its thread."""
        loop, connection, publisher = self._loop, self._connection, self._publisher
        self._loop = self._connection = self._publisher = None
        if loop is None or not loop.is_here:
            return
        if connection is not None and publisher is not None and not connection.is_lost:
            with suppress(Exception):  # either way the server detects a closed connection
                loop.run(publisher.end())
        loop.close()

    def _ready(self) -> tuple[EventLoopThread, Publisher]:
        loop, connection, publisher = self._loop, self._connection, self._publisher
        if loop is None or connection is None or publisher is None or connection.is_lost or not loop.is_here:
            return self._connect()
        return loop, publisher

    def _connect(self) -> tuple[EventLoopThread, Publisher]:
        self.close()
        return self._servers.connect(self._connect_to, TargetUnavailable)

    def _connect_to(self, server: HostPort) -> tuple[EventLoopThread, Publisher]:
        loop = self._loop = EventLoopThread("nats")
        try:
            self._connection, self._publisher = loop.run(_connected(self._settings, server, loop))
        except BaseException:
            self.close()
            raise
        return loop, self._publisher


async def _connected(
    settings: NatsSettings, server: HostPort, loop: EventLoopThread
) -> tuple[TargetConnection, Publisher]:
    connection = TargetConnection(settings, server, lambda: loop.is_encrypted)
    await connection.connect()
    publisher: Publisher = Core(connection)
    if settings.jetstream:
        publisher = JetStream(connection)
    elif settings.streaming:
        publisher = Streaming(connection)
    await publisher.begin()
    return connection, publisher
