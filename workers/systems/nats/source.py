"""NATS JetStream: one stream, read from a position on by a consumer that lives as long as the source reads.

The share is the stream as it was created at some time, and its position the sequence number of the next message. The
outbox has the position, so the consumer needs no acknowledgements: the server sends each message once, in order, and
whatever is missing in its count makes the source begin again at the position. The server deletes the consumer when
nobody has asked it for messages for a while.

Where the messages after a position have been removed by the stream's limits, or by somebody who purged it, the source
begins with the oldest one that there is, and says how many were lost. A stream that was deleted and made again is
another share, and is read from its beginning. So is a restored one, whose end is before the position, or which has
another message in the place of the last one that was recorded: that is part of the position, and is asked for again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from app.config.fields.addresses import HostPort
from app.config.sources.jetstream import JetstreamSourceSettings
from app.events.parsing import Message
from workers.sources.base import Opened, SourceUnavailable
from workers.systems.nats.connection import Connection
from workers.systems.nats.stream_reader import Position, StreamReader, StreamState, read_position
from workers.targets.base import TargetUnavailable
from workers.targets.endpoint import NodeRotation
from workers.targets.event_loop_thread import EventLoopThread

_FROM_BEGINNING = "it is pulled from its beginning"
_CATCHING_UP_SECONDS = 0.2  # between two looks at a stream that ends before the position


class Start(NamedTuple):
    """Where to begin, and what was lost before that, if anything."""

    position: Position
    lost: str = ""


class JetstreamSource:
    """One stream, one connection to one of the servers, and one thread that reads it."""

    def __init__(self, settings: JetstreamSourceSettings) -> None:
        self._settings = settings
        self._servers = NodeRotation(settings.address, settings.timeout)
        self._loop: EventLoopThread | None = None
        self._reader: StreamReader | None = None

    def open(self, positions: Mapping[str, str]) -> Opened:
        """Connect to the first server that answers, and begin at the position."""
        self.close()
        try:
            return self._servers.connect(partial(self._connect, positions), TargetUnavailable)
        except TargetUnavailable as error:
            raise SourceUnavailable(error.reason) from error

    def pull(self, most: int, seconds: float) -> Sequence[Message]:
        """Return what has arrived, and wait only for the first message."""
        loop, reader = self._ready()
        try:
            return loop.run(reader.pull(most, seconds))
        except TargetUnavailable as error:
            raise SourceUnavailable(error.reason) from error

    def commit(self, messages: Sequence[Message]) -> None:
        """Do nothing: the outbox alone has the position."""

    def lag(self) -> int:
        """Return how many messages of the subject the stream has after the position."""
        loop, reader = self._ready()
        try:
            return loop.run(reader.lag())
        except TargetUnavailable as error:
            raise SourceUnavailable(error.reason) from error

    def close(self) -> None:
        """Close the connection and end its thread."""
        loop, self._loop, self._reader = self._loop, None, None
        if loop is not None:
            loop.close()

    def _ready(self) -> tuple[EventLoopThread, StreamReader]:
        if self._loop is None or self._reader is None:
            raise SourceUnavailable("it is not open")
        return self._loop, self._reader

    def _connect(self, positions: Mapping[str, str], server: HostPort) -> Opened:
        loop = self._loop = EventLoopThread("jetstream")
        try:
            self._reader, opened = loop.run(self._begin(positions, server, loop))
        except BaseException:
            self.close()
            raise
        return opened

    async def _begin(
        self, positions: Mapping[str, str], server: HostPort, loop: EventLoopThread
    ) -> tuple[StreamReader, Opened]:
        connection = Connection(self._settings, server, lambda: loop.is_encrypted)
        await connection.connect()
        reader = StreamReader(connection, self._settings)
        state = await self._state(reader, positions)
        at_end = self._settings.start == "latest" and not positions
        start = start_at(positions, state, at_end=at_end)
        last = start.position.last_sequence
        known = start.position if last >= state.first else Position(start.position.next)
        if not await reader.begin(state.share, known):
            lost = f"the stream has another message {last}, up to which it was pulled"
            start = Start(Position(state.first), f"{lost}: it was restored or has lost messages; {_FROM_BEGINNING}")
            reader = StreamReader(connection, self._settings)
            await reader.begin(state.share, start.position)
        if (await reader.state()).share != state.share:
            raise reader.unavailable("it was made again just now")
        begun = str(start.position)
        moved = {} if positions.get(state.share) == begun else {state.share: begun}
        return reader, Opened(moved, [start.lost] if start.lost else [], state.risks)

    async def _state(self, reader: StreamReader, positions: Mapping[str, str]) -> StreamState:
        """Return the stream's state. One that ends before the position may have a new leader, which is catching up."""
        clock = asyncio.get_running_loop().time
        until = clock() + self._settings.timeout
        while True:
            is_last = clock() >= until  # before the look, which may be an old one after a pause of this process
            state = await reader.state()
            if is_last or state.end >= read_position(positions.get(state.share, "0")).next:
                return state
            await asyncio.sleep(_CATCHING_UP_SECONDS)


def start_at(positions: Mapping[str, str], state: StreamState, *, at_end: bool) -> Start:
    """Decide where to begin: after the position, unless the stream has not what is there."""
    first = Position(state.first)
    if state.share not in positions:
        if positions:
            return Start(first, f"the stream was made again; {_FROM_BEGINNING}")
        return Start(Position(state.end) if at_end else first)
    stored = read_position(positions[state.share])
    if stored.next > state.end:
        return Start(
            first,
            f"the stream ends before {state.end}, and was pulled up to {stored.next}: it was restored or has lost"
            f" messages; {_FROM_BEGINNING}",
        )
    if stored.next < state.first:
        return Start(first, f"{state.first - stored.next} messages were removed before they were pulled")
    return Start(stored)
