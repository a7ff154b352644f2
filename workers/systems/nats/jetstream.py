"""Publish to a JetStream stream, which acknowledges each message."""

import orjson
from nats.aio.msg import Msg

from app.events.model import Event
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected, Unavailable
from workers.systems.nats.acks import NO_RESPONDERS, Acknowledged, Message, headed
from workers.systems.nats.connection import TargetConnection
from workers.targets import cloudevents
from workers.targets.batch import Batch
from workers.targets.messages import message_format

# JetStream's error for a message beyond the stream's max_msg_size (err_code JSStreamMessageExceedsMaximumErr).
_EXCEEDS_STREAM = 10054


class JetStream:
    """Messages that a stream acknowledges."""

    def __init__(self, connection: TargetConnection) -> None:
        self._connection = connection
        self._subject = connection.settings.subject
        self._format = message_format(connection.settings, cloudevents.NATS)
        self._publishing = Acknowledged(connection, self)

    async def begin(self) -> None:
        """Subscribe to acknowledgements. A missing stream is detected only when publishing."""
        await self._publishing.begin()

    async def end(self) -> None:
        """Do nothing."""

    async def deliver(self, batch: Batch, window: int) -> None:
        """Keep up to `window` messages unacknowledged."""
        await self._publishing.deliver(batch, window)

    def message(self, event: Event, _number: int) -> Message:
        """Return the event's message, with the id by which the stream detects duplicates."""
        headers = {"Nats-Msg-Id": event.id}
        if event.trace or self._format.headers:
            headers |= self._format.all_headers(event)
        return headed(self._subject.of(event), self._format.body(event).encode(), headers)

    def outcome(self, answer: Msg, event: Event) -> Outcome:
        """Return the outcome in the stream's answer; a template may name subjects that no stream has."""
        where, subject = self._connection.where, self._subject.of(event)
        if answer.headers and answer.headers.get("Status") == NO_RESPONDERS:
            subjects = subject if self._subject.fixed is not None else _wildcard(self._subject)
            reason = (
                f"{where}: no JetStream stream has the subject {subject!r}; create one, such as by "
                f"`nats stream add EVENTS --subjects={subjects}`, or enable JetStream in the server"
            )
            return Unavailable(reason) if self._subject.fixed is not None else Failed(reason)
        try:
            body = orjson.loads(answer.data)
            error = body.get("error")
            if error is None and isinstance(body["stream"], str) and body["stream"] and body["seq"] > 0:
                return DELIVERED
            code, description = error.get("err_code"), error["description"]
        except (ValueError, LookupError, TypeError, AttributeError):
            return Unavailable(f"{where}: the answer on subject {subject!r} is not a JetStream acknowledgement")
        reason = f"{where}: JetStream: {description} (error {code})"
        return Rejected(reason) if code == _EXCEEDS_STREAM else Unavailable(reason)


def _wildcard(subject: str) -> str:
    """Return the subjects of a template: a token that depends on the event is `*`."""
    return ".".join("*" if "{" in token else token for token in subject.split("."))
