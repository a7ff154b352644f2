"""NATS JetStream: one stream, read from a position on by a consumer that lives as long as the source reads.

The share is the stream as it was created at some time, and its position the sequence number of the next message. The
outbox has the position, so the consumer needs no acknowledgements: the server sends each message once, in order, and
whatever is missing in its count makes the source begin again at the position. The server deletes the consumer when
nobody has asked it for messages for a while.

Where the messages after a position have been removed by the stream's limits, or by somebody who purged it, the source
begins with the oldest one that there is, and says how many were lost. A stream that was deleted and made again is
another share, and is read from its beginning. So is a restored one, whose end is before the position, or which has
another message in the place of the last one that was recorded: that is part of the position, and is asked for again.

The stream is read by requests for batches of messages, over one connection. nats-py has a class for that too; it keeps
no requests under way while messages are recorded, and does not notice that a message is missing.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from app.config.fields.addresses import HostPort
from app.config.sources.jetstream import JetstreamSourceSettings
from app.events.parsing import Message
from workers.sources.base import Opened, SourceChanged, SourceUnavailable, parses_position
from workers.systems.nats.connection import CLIENT_NAME, Connection, EventLoopThread
from workers.targets.base import TargetUnavailable
from workers.targets.tcp import NodeRotation

_REQUEST_BYTES = 1 << 24  # of the messages of one request, unless a single message has more
_REQUEST_SECONDS = 2.0  # that a request waits at the server; one that is lost is noticed by its end
_CONSUMER_SECONDS = 60.0  # after which the server deletes a consumer that nobody has asked for messages
_GATHER_SECONDS = 0.001  # that further messages are waited for when there are some already
_NANOSECONDS, _NANOSECONDS_PER_MS = 10**9, 10**6
_STREAM_NOT_FOUND = 10059  # JetStream's err_code JSStreamNotFoundErr
_MISSED = "messages of the server did not arrive; they are asked for again"
_NOBODY = "JetStream is not enabled in the server, or not for the user's account"


class StreamState(NamedTuple):
    """When the stream was created, its first sequence number, and that of the next message to come; and its risks."""

    share: str
    first: int
    end: int
    risks: Sequence[str] = ()


class _Place(NamedTuple):
    """Where a message stands, as the subject for its acknowledgement says."""

    sequence: int  # in the stream
    number: int  # of those that the consumer has sent, from 1 on
    timestamp: int  # at which the stream got it, in nanoseconds


class Position(NamedTuple):
    """The sequence number of the next message, and which one was last, as SEQUENCE@NANOSECONDS; "" if unknown."""

    next: int
    last: str = ""

    def __str__(self) -> str:
        return f"{self.next}:{self.last}" if self.last else str(self.next)

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last message; 0 if unknown."""
        return int(self.last.partition("@")[0] or 0)


@parses_position
def read_position(text: str) -> Position:
    """Parse a position."""
    number, _, last = text.partition(":")
    int(last.partition("@")[0] or 0)  # as `last_sequence` does
    return Position(int(number), last)


class _Arrived(NamedTuple):
    sequence: int
    message: Message

    @property
    def name(self) -> str:
        """The message, as a position names the last one."""
        return read_position(self.message.position).last


def _unfit(config: Mapping[str, Any]) -> str:
    """Return why messages of a stream would vanish unnoticed; "" if it drops none but its oldest."""
    if (retention := config["retention"]) != "limits":
        return (
            f"it has retention={retention}, so it keeps messages only until they are acknowledged; a source needs a"
            " stream with retention=limits"
        )
    if (most := config.get("max_msgs_per_subject", -1)) > 0:
        return (
            f"it has max_msgs_per_subject={most}, so it drops messages between others, which nobody notices; a source"
            " needs a stream with max_msgs_per_subject=-1"
        )
    if config.get("allow_msg_ttl"):
        return (
            "it has allow_msg_ttl, so messages between others expire, which nobody notices; a source needs a stream"
            " without it"
        )
    return ""


def _risks(config: Mapping[str, Any]) -> Sequence[str]:
    """Return by which settings a stream may lose messages unnoticed, although that is not what they are for."""
    risks = []
    if config.get("storage") == "memory":
        risks.append("the stream has storage=memory, so its messages are lost when its servers stop; set storage=file")
    if config.get("allow_rollup_hdrs"):
        risks.append(
            "the stream has allow_rollup_hdrs, so every publisher can remove messages between others, which nobody"
            " notices; set it off"
        )
    return risks


class StreamReader:
    """A consumer of a stream. Every method raises `TargetUnavailable` if the server is gone or refuses."""

    def __init__(self, connection: Connection, settings: JetstreamSourceSettings) -> None:
        self._connection = connection
        self._settings = settings
        self._where = f"stream {settings.stream}, {connection.where}"
        self._inbox = connection.client.new_inbox()
        self._share = self._consumer = ""
        self._next = 0  # the sequence number after the last message that was returned
        self._last = ""  # that message, as a position names it
        self._arrived: deque[_Arrived] = deque()  # and are not returned yet
        self._number = 0  # of the last message that arrived
        self._sent = 0  # by the consumer, as it said last
        self._requested = 0  # messages that the request under way may still get
        self._ends = 0.0  # when that request is over
        self._alone = False  # whether the next message is larger than a request may ask for
        self._end = 0  # of the stream at the last look
        self._skip_to = 0  # the sequence number up to which no message has the subject
        self._failure = ""

    async def state(self) -> StreamState:
        """Return where the stream begins and ends. Raises `TargetUnavailable` also for one that cannot be pulled."""
        info = await self._ask("STREAM.INFO")
        if problem := _unfit(info["config"]):
            raise TargetUnavailable(f"{self._where}: {problem}")
        last = int(info["state"]["last_seq"])
        first = max(1, int(info["state"]["first_seq"]))
        return StreamState(info["created"], first, last + 1, _risks(info["config"]))

    async def begin(self, share: str, position: Position) -> bool:
        """Have a consumer that begins at the position; return whether the last message is still there as it was.

        It is asked for once more: if another message has its number, the stream was restored, and has grown since. A
        stream that has lost it, or does not send it in time, is believed.
        """
        await self._connection.client.subscribe(
            self._inbox, cb=self._on_message, pending_msgs_limit=0, pending_bytes_limit=0
        )
        config: dict[str, Any] = {
            "description": CLIENT_NAME,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": position.last_sequence or position.next,
            "ack_policy": "none",
            "replay_policy": "instant",
            "inactive_threshold": round(_CONSUMER_SECONDS * _NANOSECONDS),
        }
        if self._settings.subject:
            config["filter_subject"] = self._settings.subject
        made = await self._ask("CONSUMER.CREATE", stream_name=self._settings.stream, config=config)
        self._share, self._next, self._consumer = share, position.next, made["name"]
        self._last = position.last
        if not self._last:
            return True
        clock = asyncio.get_running_loop().time
        until = clock() + self._settings.timeout
        while not self._arrived and (left := until - clock()) > 0:
            await self._request(1)
            await self._wait(min(left, max(0.0, self._ends - clock())))
        if not self._arrived or self._arrived[0].sequence != position.last_sequence:
            return True
        return self._arrived.popleft().name == self._last

    async def pull(self, most: int, seconds: float) -> list[Message]:
        """Return up to `most` messages as soon as there are any; none after that many seconds.

        Raises `SourceChanged` if messages were removed that had not been pulled.
        """
        if gap := self._gap():
            return [gap]
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while not self._arrived and (left := until - clock()) > 0:
            await self._request(most)
            await self._wait(min(left, max(0.0, self._ends - clock())))
        count = -1
        while count < len(self._arrived) < most and self._requested and clock() < until:
            count = len(self._arrived)
            await asyncio.sleep(_GATHER_SECONDS)
        messages = await self._take(most)
        if not self._requested and not self._failure:
            await self._request(most)  # it is answered while these messages are recorded
        return messages

    async def lag(self) -> int:
        """Return how many messages wait. Notices messages that were lost on the way, and that none has the subject.

        In a cluster the consumer's server may have fewer messages than the stream's leader, so that none has the
        subject is believed up to where the stream ended at the last look.
        """
        state = await self.state()
        info = await self._ask(f"CONSUMER.INFO.{self._settings.stream}.{self._consumer}")
        if self._number < self._sent:
            raise self.unavailable(_MISSED)
        self._sent, waiting = int(info["delivered"]["consumer_seq"]), int(info["num_pending"])
        if not waiting and self._sent == self._number:
            self._skip_to = self._end
        self._end = state.end
        return waiting + len(self._arrived)

    def unavailable(self, reason: str) -> TargetUnavailable:
        """Return the error with this reason, which names the stream and its server."""
        return TargetUnavailable(f"{self._where}: {reason}")

    def _gap(self) -> Message | None:
        """Move past messages of other subjects; else their removal would look like that of messages to be pulled."""
        if not self._settings.subject or self._arrived or self._skip_to <= self._next:
            return None
        self._next = self._skip_to
        return Message(b"", self._share, str(Position(self._next, self._last)), is_gap=True)

    async def _request(self, most: int) -> None:
        """Ask for messages, unless a request is under way."""
        self._check()
        if self._requested:
            return
        self._requested = 1 if self._alone else most
        self._ends = asyncio.get_running_loop().time() + _REQUEST_SECONDS + self._settings.timeout
        question: dict[str, int] = {"batch": self._requested, "expires": round(_REQUEST_SECONDS * _NANOSECONDS)}
        if not self._alone:
            question["max_bytes"] = _REQUEST_BYTES
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._settings.stream}.{self._consumer}"
        try:
            await self._connection.client.publish(subject, orjson.dumps(question), self._inbox)
        except NatsError as error:
            raise self._connection.failed(error) from error

    async def _wait(self, seconds: float) -> None:
        """Wait until something arrives, or the time is over."""
        news = self._connection.news
        news.clear()
        try:
            async with asyncio.timeout(seconds):
                await news.wait()
        except TimeoutError:
            pass
        self._check()

    def _check(self) -> None:
        if problem := self._connection.problem():
            raise problem
        if self._failure:
            raise self.unavailable(self._failure)
        if self._requested and asyncio.get_running_loop().time() >= self._ends:
            raise self._connection.no_answer()

    async def _take(self, most: int) -> list[Message]:
        """Take messages off those that have arrived, up to a place where some were removed before they were read."""
        messages: list[Message] = []
        is_checked = False
        while self._arrived and len(messages) < most:
            if self._arrived[0].sequence > self._next and not is_checked:
                if (await self.state()).first > self._next:
                    if messages:
                        break
                    raise SourceChanged
                is_checked = True
            arrived = self._arrived.popleft()
            self._next, self._last = arrived.sequence + 1, arrived.name
            messages.append(arrived.message)
        return messages

    async def _on_message(self, received: Msg) -> None:
        if received.reply:
            self._on_arrival(received, _place(received.reply))
        else:
            self._on_status(received.headers or {})
        self._connection.news.set()

    def _on_arrival(self, received: Msg, place: _Place) -> None:
        if self._failure:
            return
        if place.number != self._number + 1:
            self._failure = _MISSED
            return
        self._number = place.number
        self._requested = max(0, self._requested - 1)
        self._alone = False
        headers = {name.lower(): value for name, value in (received.headers or {}).items()}
        message = Message(
            body=received.data,
            share=self._share,
            position=str(Position(place.sequence + 1, f"{place.sequence}@{place.timestamp}")),
            headers=headers,
            sent_at=place.timestamp // _NANOSECONDS_PER_MS,
        )
        self._arrived.append(_Arrived(place.sequence, message))

    def _on_status(self, headers: Mapping[str, str]) -> None:
        """Read how a request has ended: its time or its bytes are used up, or the consumer is gone."""
        status, description = headers.get("Status", ""), headers.get("Description", "")
        text = description.lower()
        if status in ("404", "408") or "batch completed" in text:
            self._requested = 0
        elif "maxbytes" in text:
            self._alone = not self._arrived
            self._requested = 0
        elif status == "503":
            self._failure = "the source's consumer is gone; it is made again"
        elif status != "100":
            self._failure = f"{description} ({status})"

    async def _ask(self, api: str, **question: object) -> Any:
        """Return JetStream's answer about the stream, or about what is named after it."""
        subject = f"$JS.API.{api}" if api.count(".") > 1 else f"$JS.API.{api}.{self._settings.stream}"
        answer = await self._connection.ask(subject, orjson.dumps(question) if question else b"", _NOBODY)
        try:
            body = orjson.loads(answer)
            error = body.get("error")
        except (ValueError, AttributeError):
            raise self.unavailable("the answer is not one of JetStream") from None
        if error is None:
            return body
        text = f"{error.get('description')} (error {error.get('err_code')})"
        if error.get("err_code") == _STREAM_NOT_FOUND:
            text += "; create it, with the subjects that the frontend publishes to"
        raise self.unavailable(text)


def _place(reply: str) -> _Place:
    """Read `$JS.ACK.STREAM.CONSUMER.DELIVERED.SEQUENCE.NUMBER.TIMESTAMP.PENDING`, to which newer servers add words."""
    words = reply.split(".")
    sequence, number, timestamp = words[-4:-1] if len(words) == 9 else words[7:10]
    return _Place(int(sequence), int(number), int(timestamp))


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
