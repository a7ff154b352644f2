"""Publish messages that are acknowledged one by one, as JetStream and NATS Streaming do.

Up to `window` messages are pending at once, but only one per object: neither server guarantees that a later message
waits for an earlier one that it did not accept.
"""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from app.config.errors import BadValue
from app.events.model import Event
from workers.delivery.outcomes import Delivered, Outcome, Rejected, Unavailable
from workers.systems.nats.connection import TargetConnection
from workers.targets.base import TargetUnavailable
from workers.targets.batch import Batch

# The most pending bytes, so that writing never waits for the server, and no acknowledgement waits for writing.
MAX_UNCONFIRMED_BYTES = 1_500_000

NO_RESPONDERS = "503"


@dataclass(frozen=True, slots=True)
class Message:
    """A message to publish."""

    subject: str
    data: bytes
    headers: dict[str, str] | None = None
    overhead: int = 0  # what the server counts besides `data`

    @property
    def size(self) -> int:
        """Its bytes, as the server counts them against its limit."""
        return len(self.data) + self.overhead


def headed(subject: str, data: bytes, headers: dict[str, str]) -> Message:
    """Return a message with headers: NATS/1.0, one line per header, and an empty line."""
    return Message(subject, data, headers, 12 + sum(len(name) + len(value) + 4 for name, value in headers.items()))


class Dialect(Protocol):
    """How events are published, and how acknowledgements are read."""

    def message(self, event: Event, number: int) -> Message:
        """Return the event's message, `number` being its own on this connection. Raises `BadValue` without a place."""

    def outcome(self, answer: Msg, event: Event) -> Outcome:
        """Return the outcome that the acknowledgement of this event reports."""


@dataclass
class Flight:
    """Which events of a batch may be sent, and which are pending."""

    batch: Batch
    window: int
    under_way: dict[int, int] = field(default_factory=dict)
    _waiting: deque[int] = field(default_factory=deque)
    _next: dict[int, int] = field(default_factory=dict)
    _bytes: int = 0

    def __post_init__(self) -> None:
        last: dict[str, int] = {}
        for index, event in enumerate(self.batch.events):
            if event.path in last:
                self._next[last[event.path]] = index
            else:
                self._waiting.append(index)
            last[event.path] = index

    @property
    def is_over(self) -> bool:
        """Whether nothing is pending and nothing more may be sent."""
        return not self.under_way and not self._waiting

    def take(self) -> int | None:
        """Return the index of an event that may be sent now. Raises `LeaseExpired`."""
        if self._waiting and len(self.under_way) < self.window and self._bytes < MAX_UNCONFIRMED_BYTES:
            if self.batch.begin([self._waiting[0]]):
                return self._waiting.popleft()
            self._waiting.clear()
        return None

    def sent(self, index: int, size: int) -> None:
        """Record that the event is pending."""
        self.under_way[index] = size
        self._bytes += size

    def settle(self, index: int, outcome: Outcome) -> None:
        """Record an outcome. The object's next event may be sent after `Delivered` or `Rejected`."""
        self._bytes -= self.under_way.pop(index, 0)
        self.batch.settle(index, outcome)
        if isinstance(outcome, Delivered | Rejected) and index in self._next:
            self._waiting.append(self._next[index])
        if self.batch.is_over:
            self._waiting.clear()

    def lose(self, why: Unavailable) -> None:
        """Send nothing more, and expect no answers to pending messages."""
        self.under_way.clear()
        self._waiting.clear()
        self.batch.lose(why)


class Acknowledged:
    """Publishing on one connection, with one inbox for all acknowledgements."""

    def __init__(self, connection: TargetConnection, dialect: Dialect) -> None:
        self._connection = connection
        self._dialect = dialect
        self._inbox = connection.client.new_inbox()
        self._flight = Flight(Batch(()), 0)
        self._numbers: dict[int, int] = {}  # number of a pending message to index of its event
        self._last_number = 0

    async def begin(self) -> None:
        """Subscribe to acknowledgements."""
        await self._connection.client.subscribe(f"{self._inbox}.*", cb=self._acknowledged)

    async def deliver(self, batch: Batch, window: int) -> None:
        """Settle the events. Never raises `TargetUnavailable`: some of them may have been delivered."""
        flight = self._flight = Flight(batch, window)
        self._numbers.clear()
        self._connection.forget_refusals()
        news = self._connection.news
        ends: float | None = None
        while not flight.is_over:
            news.clear()
            try:
                while (index := flight.take()) is not None:
                    await self._send(flight, index)
                if flight.under_way:
                    await self._connection.wait_for_news()
                    self._settle_refused(flight)
                if not batch.has_time():  # one more time limit for all pending messages
                    ends = ends or time.monotonic() + self._connection.settings.timeout
                    if flight.under_way and time.monotonic() > ends:
                        raise self._connection.no_answer()
            except TargetUnavailable as error:
                flight.lose(Unavailable(error.reason))

    async def _send(self, flight: Flight, index: int) -> None:
        self._last_number += 1
        try:
            message = self._dialect.message(flight.batch.events[index], self._last_number)
        except BadValue as error:
            flight.settle(index, Rejected(error.problem))
            return
        size = message.size
        connection = self._connection
        if size > connection.client.max_payload:
            flight.settle(index, connection.too_large(size))
            return
        self._numbers[self._last_number] = index
        reply = f"{self._inbox}.{self._last_number}"
        try:
            await connection.client.publish(message.subject, message.data, reply, message.headers)
        except NatsError as error:
            raise connection.failed(error) from error
        flight.sent(index, size)

    def _settle_refused(self, flight: Flight) -> None:
        """Settle what the server refused to take for its subject: no acknowledgement will come."""
        for index in list(flight.under_way):
            if refused := self._connection.refused(flight.batch.events[index]):
                flight.settle(index, refused)

    async def _acknowledged(self, answer: Msg) -> None:
        index = self._numbers.pop(int(answer.subject.rpartition(".")[2]), None)
        if index is not None and index in self._flight.under_way:
            event = self._flight.batch.events[index]
            self._flight.settle(index, self._dialect.outcome(answer, event))
        self._connection.news.set()
