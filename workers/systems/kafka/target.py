"""Kafka: each event is one message on a topic, its key `bucket/object`, its value the log envelope (reference §4.7).

Delivered means: the leader of the partition answered that all in-sync replicas have the message (`acks=all`).

A broker confirms a batch of one partition as a whole, and all events of an object belong to one partition. So a call is
split into rounds: each sends one batch to each of up to `window` partitions, and the next round begins when all of them
are answered. So no event of an object is pending behind one that may still fail, and with `window == 1` one batch is
pending.

The producer repeats unanswered batches within 1.5 `timeout`, and brokers recognise duplicates. A batch that is still
unanswered then may arrive nevertheless: it is Unavailable, and the producer, which might still send it, is discarded.

When a broker refuses a batch, kafka-python 3.0 ends all other pending batches with the same error. So only a message
that was pending alone is blamed; all others are sent again, by a new producer and in smaller batches.

| answer                                                           | outcome                               |
|------------------------------------------------------------------|---------------------------------------|
| no error and an offset, or a batch that the broker has already   | Delivered                             |
| message too large                                                | Rejected                              |
| an error that the broker has no name for                         | Failed                                |
| no topic, no permission for it, where a template names it        | Failed                                |
| no topic, no leader, too few replicas, no permission, no answer, | Unavailable, and nothing more is sent |
| no error and no offset,                                          |                                       |
| refused by the broker's validation, which would refuse all       |                                       |
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from fnv_hash_fast import fnv1a_32
from kafka import KafkaProducer
from kafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from kafka.future import Future

from app.config.targets.kafka import OBJECT_KEY, KafkaSettings
from app.events.model import Event
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected, Unavailable
from workers.systems.kafka.client import (
    BATCH_BYTES,
    TOO_LARGE,
    Client,
    describe_error,
    missing_package,
    outcome_of_error,
    producer_config,
    tls_context,
    unwrapped,
)
from workers.targets import tls
from workers.targets.base import NO_LEASE, LeaseCheck, TargetUnavailable
from workers.targets.batch import NOWHERE, Batch, places
from workers.targets.messages import KAFKA, MessageFormat, message_format
from workers.targets.payloads import runs
from workers.targets.tcp import Endpoint

_MAX_OVERHEAD_BYTES = 40  # the most that a message has besides its key and value, in any version of the format
_MAX_HEADER_OVERHEAD_BYTES = 4  # the most that one of its headers has besides its name and value, up to 8 KB


class Message(NamedTuple):
    """One event as it is sent."""

    place: int  # index among the events of the call
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]  # the trace context, if the event has one, and a CloudEvent's

    @property
    def size(self) -> int:
        """The most bytes that it takes in a batch."""
        size = len(self.key) + len(self.value) + _MAX_OVERHEAD_BYTES
        for name, value in self.headers:
            size += len(name) + len(value) + _MAX_HEADER_OVERHEAD_BYTES
        return size


@dataclass(slots=True)
class Line:
    """The messages still to be sent to one partition, in order."""

    topic: str
    partition: int
    waiting: deque[Message] = field(default_factory=deque)

    def take(self, max_bytes: int) -> list[Message]:
        """Take as many messages as have at most `max_bytes` together, at least one."""
        messages = [self.waiting.popleft()]
        left = max_bytes - messages[0].size
        while self.waiting and (left := left - self.waiting[0].size) >= 0:
            messages.append(self.waiting.popleft())
        return messages


@dataclass(slots=True)
class Rounds:
    """What one call of `deliver` still has to send, and how much of it is sent at once."""

    batch: Batch
    lines: list[Line]
    max_bytes: int  # bytes of a batch of one partition

    def next_round(self, window: int) -> list[tuple[Line, list[Message]]]:
        """Return the next batches, each of a different partition; a message too large to share a batch is sent alone.

        Raises `LeaseExpired`. Return none if nothing more may be sent.
        """
        lines = self.lines[:window]
        large = next((line for line in lines if line.waiting[0].size > self.max_bytes), None)
        taken = [(line, line.take(self.max_bytes)) for line in ([large] if large else lines)]
        chosen = set(self.batch.begin([message.place for _, messages in taken for message in messages]))
        return [(line, [message for message in messages if message.place in chosen]) for line, messages in taken]

    def end_round(self, window: int) -> None:
        """Move the partitions just served to the end, so that no partition waits until another one is finished."""
        self.lines = [line for line in self.lines[window:] + self.lines[:window] if line.waiting]


def partition_of(key: bytes, count: int) -> int:
    """Return which of `count` partitions a key belongs to (as MinIO: §4.7; vectors §15).

    MinIO treats the hash as a signed number, divides rounding towards zero and drops the sign of the remainder.
    Producers that share a topic and rely on order by key must agree on this.
    """
    hashed = fnv1a_32(key)
    return (hashed if hashed < 0x80000000 else 0x100000000 - hashed) % count


class Route(NamedTuple):
    """Where an event goes, and the key of its message."""

    topic: str
    partition: int
    key: bytes


def make_lines(
    events: Sequence[Event],
    indexes: Iterable[int],
    routes: Sequence[Route | None],
    messages: MessageFormat,
    *,
    headers: bool,
) -> list[Line]:
    """Return the messages of some events, which have routes, by topic and partition.

    `headers`: the broker's version of the protocol supports headers.
    """
    always, write = headers and messages.headers is not None, messages.body
    lines: dict[tuple[str, int], Line] = {}
    for index in indexes:
        event, route = events[index], routes[index]
        if route is None:
            continue
        topic, number, key = route
        line = lines.get((topic, number))
        if line is None:
            line = lines[topic, number] = Line(topic, number)
        named: list[tuple[str, bytes]] = []
        if always or (headers and event.trace):
            named = [(name, text.encode()) for name, text in messages.all_headers(event).items()]
        line.waiting.append(Message(index, key, write(event).encode(), named))
    return list(lines.values())


_ABOUT_THE_TOPIC = (UnknownTopicOrPartitionError, TopicAuthorizationFailedError)
_ABSENT_TIME_LIMITS = 10  # for so long nobody waits again for a topic that was not there
_HEADERS_SINCE = (0, 11)  # by the setting `version`, or by the broker's answer


class KafkaTarget:
    """One topic, one producer, which has its own thread."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._format = message_format(settings, KAFKA)
        self._where = f"Kafka topic {settings.topic} at {settings.brokers}"
        self._producer: Any = None
        self._client: Client | None = None
        self._stamp: object = None
        self._batch_bytes = BATCH_BYTES
        self._absent: dict[str, float] = {}  # by topic: until when nobody waits for it, by `time.monotonic()`
        # From a batch's first message on: half a time limit to collect the others, a whole one for the answer.
        self._patience = settings.timeout * 1.5

    def endpoints(self) -> Sequence[Endpoint]:
        """Return each bootstrap broker."""
        context = partial(tls_context, self._settings) if self._settings.tls else None
        return [Endpoint(broker, context) for broker in self._settings.bootstrap]

    def open(self) -> None:
        """Connect, log in, and check that the topic exists; brokers that create topics automatically create it now."""
        self._connect()

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        """Send rounds of one batch for each of up to `window` partitions."""
        if self._producer is None or self._stamp != self._files():
            self._connect()
        batch = Batch(events, lease)
        routes = self._routes(batch)
        headers = self._has_headers()
        whole = [range(len(events))] if self._settings.topic.fixed is not None else runs(events, routes)
        for some in whole:
            work = Rounds(batch, make_lines(events, some, routes, self._format, headers=headers), self._batch_bytes)
            while work.lines and not batch.is_over:
                self._round(work, window)
                work.end_round(window)
        outcomes = batch.outcomes()
        if any(isinstance(outcome, Unavailable) for outcome in outcomes):
            self.close()
        return outcomes

    def close(self) -> None:
        """Close the producer, its thread and its connections."""
        producer, self._producer = self._producer, None
        client, self._client = self._client, None
        if producer is not None:
            try:
                producer.close(timeout=1)
            except KafkaError:
                # A message that nobody waits for any more is unanswered; the library has no public way to give up.
                producer._sender.force_close()
                producer._sender.join(1)
        elif client is not None:  # a producer's thread closes its client
            client.close()

    def _connect(self) -> None:
        self.close()
        chosen = self._settings
        if package := missing_package(chosen.compression_codec):
            raise TargetUnavailable(f"compression_codec: {chosen.compression_codec} needs the package {package}")
        self._stamp = self._files()
        config = producer_config(chosen)

        def begun(**given: Any) -> Client:
            self._client = Client(level=chosen.compression_level, patience=chosen.timeout, **given)
            self._client.begin()
            return self._client

        try:
            self._producer = KafkaProducer(kafka_client=begun, **config)
            self._partitions()
            self._check_headers()
        except (KafkaError, OSError, ValueError) as error:
            reason = self._reason(error)
            self.close()
            raise TargetUnavailable(reason) from error
        except BaseException:
            self.close()
            raise

    def _has_headers(self) -> bool:
        """Return whether messages can have headers; only while connected."""
        return bool(self._producer.config["api_version"] >= _HEADERS_SINCE)

    def _check_headers(self) -> None:
        if self._settings.payload == "cloudevents-binary" and not self._has_headers():
            reason = "payload=cloudevents-binary needs headers, which brokers before 0.11 do not have"
            raise TargetUnavailable(f"{self._where}: {reason}; set payload=cloudevents")

    def _partitions(self) -> list[int]:
        """Return the partitions of the topic, if it is fixed."""
        if self._settings.topic.fixed is None:
            return []
        try:
            found = sorted(self._producer.partitions_for(self._settings.topic.fixed))
        except KafkaError as error:
            raise TargetUnavailable(self._reason(error)) from error
        if not found:
            raise TargetUnavailable(f"{self._where}: the broker says that the topic has no partitions")
        return found

    def _routes(self, batch: Batch) -> list[Route | None]:
        """Return where each event goes; settle those that go nowhere."""
        topic, key = self._settings.topic, self._settings.key
        keys = [(event.path if key == OBJECT_KEY else key.of(event)).encode(errors="replace") for event in batch.events]
        if topic.fixed is not None:
            partitions = self._partitions()
            count = len(partitions)
            return [Route(topic.fixed, partitions[partition_of(each, count)], each) for each in keys]
        topics = places(topic, batch)
        known = self._partitions_of({*topics} - {NOWHERE})
        routes: list[Route | None] = []
        for index, (name, each) in enumerate(zip(topics, keys, strict=True)):
            found = known.get(name)
            if isinstance(found, Failed):
                batch.settle(index, found)
            routes.append(Route(name, found[partition_of(each, len(found))], each) if isinstance(found, list) else None)
        return routes

    def _partitions_of(self, topics: Iterable[str]) -> dict[str, list[int] | Failed]:
        """Return the partitions of topics, or why they cannot be used.

        All unknown ones are asked for at once, within one time limit: brokers take a moment to create a topic, and
        `partitions_for` would wait in turn for each that they do not create. One that was not there is asked for again
        without waiting for the answer, so that it does not slow down the others.
        """
        metadata, sender = self._producer._metadata, self._producer._sender
        known: dict[str, list[int] | Failed] = {}
        unknown = set(topics)
        now = time.monotonic()
        deadline = now + self._settings.timeout
        self._absent = {topic: until for topic, until in self._absent.items() if now < until}
        for topic in unknown:
            if metadata.partitions_for_topic(topic) is None:
                sender.add_topic(topic)
        while True:
            for topic in list(unknown):
                if partitions := metadata.partitions_for_topic(topic):
                    known[topic] = sorted(partitions)
                elif topic in metadata.unauthorized_topics:
                    known[topic] = self._no_topic(topic, TopicAuthorizationFailedError())
            unknown -= known.keys()
            left = deadline - time.monotonic()
            if not unknown or left <= 0:
                break
            answered = threading.Event()
            metadata.request_update().add_both(lambda done, *_: done.set(), answered)
            sender.wakeup()
            if unknown <= self._absent.keys():
                break
            answered.wait(left)
        until = now + _ABSENT_TIME_LIMITS * self._settings.timeout
        self._absent = dict.fromkeys(unknown, until) | self._absent
        return known | {topic: self._no_topic(topic, UnknownTopicOrPartitionError()) for topic in unknown}

    def _no_topic(self, topic: str, error: KafkaError) -> Failed:
        return Failed(f"{self._where}: topic {topic}: {describe_error(error, None, sasl=self._settings.sasl)}")

    def _round(self, work: Rounds, window: int) -> None:
        """Send one batch to each of the next partitions, and settle their messages."""
        batches = work.next_round(window)
        client = self._client
        if client is not None:
            client.last_error = None
        sent = [(line, message, self._send(line, message)) for line, messages in batches for message in messages]
        if not sent:
            return
        self._await([future for _, _, future in sent])
        unclear: list[tuple[Line, Message]] = []
        blamed = False
        for line, message, future in sent:
            outcome = DELIVERED if future.succeeded() else self._outcome(future.exception, message)
            if outcome is DELIVERED or isinstance(outcome, Unavailable) or len(sent) == 1:
                blamed = isinstance(outcome, Failed | Rejected)
                work.batch.settle(message.place, outcome)
            else:
                unclear.append((line, message))
        for line, message in reversed(unclear):
            line.waiting.appendleft(message)
        largest = max(sum(message.size for message in messages) for _, messages in batches)
        if len(sent) > 1 and client is not None and isinstance(client.last_error, TOO_LARGE):
            self._batch_bytes = work.max_bytes = largest // 2  # permanently: the topic accepts less than the default
        elif unclear:
            work.max_bytes = largest // 2
        if (unclear or blamed) and not work.batch.is_over:
            self._begin_again(work)

    def _begin_again(self, work: Rounds) -> None:
        try:
            self._connect()
        except TargetUnavailable as error:
            work.batch.lose(Unavailable(error.reason, error.retry_after))

    def _send(self, line: Line, message: Message) -> Any:
        try:
            return self._producer.send(
                line.topic, message.value, message.key, message.headers, partition=line.partition
            )
        except (KafkaError, ValueError) as error:
            return Future().failure(error)

    def _await(self, futures: Sequence[Any]) -> None:
        """Return when every message has its answer, or the time for it is over."""
        deadline = time.monotonic() + self._patience + 0.5
        while not all(future.is_done for future in futures) and (left := deadline - time.monotonic()) > 0:
            try:
                self._producer.flush(left)
            except KafkaError:
                # Also raised when the library has split a batch into two, which are now pending.
                continue

    def _outcome(self, error: BaseException | None, message: Message) -> Outcome:
        error = unwrapped(error or KafkaTimeoutError())
        if self._settings.topic.fixed is None and isinstance(error, _ABOUT_THE_TOPIC):
            return Failed(self._reason(error))
        return outcome_of_error(error, self._reason(error), len(message.key) + len(message.value))

    def _reason(self, error: BaseException) -> str:
        last_error = None if self._client is None else self._client.last_error
        return f"{self._where}: {describe_error(error, last_error, sasl=self._settings.sasl)}"

    def _files(self) -> object:
        chosen = self._settings
        return tls.stamp(chosen.tls_ca, chosen.client_tls_cert, chosen.client_tls_key)
