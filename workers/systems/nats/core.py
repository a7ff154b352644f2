"""Publish with core NATS: messages, and a PING whose answer shows that the server has read them."""

from collections.abc import Iterator, Sequence

from nats.errors import Error as NatsError

from app.config.errors import BadValue
from app.events.model import Event
from workers.delivery.outcomes import DELIVERED, Rejected, Unavailable
from workers.systems.nats.acks import Message, headed
from workers.systems.nats.connection import TargetConnection
from workers.targets import cloudevents
from workers.targets.base import TargetUnavailable
from workers.targets.batch import Batch
from workers.targets.messages import message_format

# A PING follows after this many bytes: what is written without one must be sent within the time limit.
BATCH_BYTES = 1_000_000


class Core:
    """Messages, and a PING whose answer shows that the server has read them."""

    def __init__(self, connection: TargetConnection) -> None:
        self._connection = connection
        self._format = message_format(connection.settings, cloudevents.NATS)

    async def begin(self) -> None:
        """Check that the server can carry what the settings ask for. Raises `TargetUnavailable`."""
        if self._connection.settings.payload == "cloudevents-binary" and not self._connection.has_headers:
            raise TargetUnavailable(
                f"{self._connection.where}: payload=cloudevents-binary needs headers, which servers before 2.2 do not "
                "have; set payload=cloudevents"
            )

    async def end(self) -> None:
        """Do nothing."""

    async def deliver(self, batch: Batch, window: int) -> None:
        """Publish portion by portion."""
        try:
            for portion in self._portions(batch, window):
                chosen = set(batch.begin([index for index, _ in portion]))
                await self._publish(batch, [message for message in portion if message[0] in chosen])
        except TargetUnavailable as error:
            batch.lose(Unavailable(error.reason))

    async def _publish(self, batch: Batch, messages: Sequence[tuple[int, Message]]) -> None:
        connection = self._connection
        client = connection.client
        sent = []
        connection.forget_refusals()
        try:
            for index, message in messages:
                if message.size > client.max_payload:
                    batch.settle(index, connection.too_large(message.size))
                    continue
                await client.publish(message.subject, message.data, headers=message.headers)
                sent.append(index)
        except NatsError as error:
            raise connection.failed(error) from error
        if sent:
            await connection.confirm()
            for index in sent:
                batch.settle(index, connection.refused(batch.events[index]) or DELIVERED)

    def _messages(self, batch: Batch) -> Iterator[tuple[int, Message]]:
        for index, event in enumerate(batch.events):
            try:
                yield index, self._message(event)
            except BadValue as error:
                batch.settle(index, Rejected(error.problem))

    def _portions(self, batch: Batch, window: int) -> Iterator[list[tuple[int, Message]]]:
        """Yield what is sent before an answer; an object's events there have one subject.

        Of two subjects the server may refuse the first, and the object's later event would overtake the earlier one.
        """
        varies = self._connection.settings.subject.fixed is None
        portion: list[tuple[int, Message]] = []
        subjects: dict[str, str] = {}
        size = 0
        for index, message in self._messages(batch):
            path = batch.events[index].path if varies else ""
            is_full = len(portion) == window or size + message.size > BATCH_BYTES
            if portion and (is_full or subjects.get(path, message.subject) != message.subject):
                yield portion
                portion, subjects, size = [], {}, 0
            portion.append((index, message))
            subjects[path] = message.subject
            size += message.size
        yield portion

    def _message(self, event: Event) -> Message:
        subject, body = self._connection.settings.subject.of(event), self._format.body(event).encode()
        if (event.trace or self._format.headers) and self._connection.has_headers:
            return headed(subject, body, self._format.all_headers(event))
        return Message(subject, body)
