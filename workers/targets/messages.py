"""Choose how a target's events are written, once and by its settings: an adapter only carries the result."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from app.config.targets.base import MessageSettings, NamespaceSettings
from app.events.model import Event, trace_fields
from workers.targets import cloudevents
from workers.targets.cloudevents import Binding
from workers.targets.payloads import log, s3_notification

Write = Callable[[Event], str]

# Every event's message has more. A remote that takes less takes none, so its limit is no reason to reject an event.
LEAST_BYTES = 256


class MessageFormat(NamedTuple):
    """What a message has: its body, the body's content type, and the headers of a CloudEvent.

    `headers` is None for MinIO's messages, so that these cost nothing more; theirs are those of a trace context.
    """

    body: Write
    content_type: str
    headers: Callable[[Event], list[tuple[str, str]]] | None = None

    def all_headers(self, event: Event) -> dict[str, str]:
        """Return the headers of the event's trace context and of the CloudEvent."""
        headers = dict(trace_fields(event.trace))
        return headers | dict(self.headers(event)) if self.headers else headers


NO_HEADERS = Binding("", "", "", str)  # of protocols whose messages are a body and nothing else


def message_format(settings: MessageSettings, binding: Binding = NO_HEADERS) -> MessageFormat:
    """Return the format of a target's messages, with the headers of its protocol."""
    if settings.payload == "cloudevents":
        fixed = cloudevents.structured_headers(binding)
        return MessageFormat(cloudevents.structured, cloudevents.STRUCTURED, lambda _: fixed)
    body = s3_notification if settings.body_shape == "s3" else shaped(log, settings.body_shape)
    if settings.payload == "minio":
        return MessageFormat(body, cloudevents.DATA)
    return MessageFormat(body, cloudevents.DATA, partial(cloudevents.binary_headers, binding=binding))


def shaped(write: Callable[..., str], shape: str) -> Write:
    """Return a function of `payloads` that writes events in this shape."""
    return write if shape == "minio" else partial(write, shape=shape)


def entry_format(settings: NamespaceSettings, minio: Write, end: str = "") -> Write:
    """Return how the entries of a target of format `access` are written.

    `minio` writes them as MinIO does; `end` is what follows each entry otherwise.
    """
    if settings.payload == "minio":
        return minio
    return lambda event: cloudevents.structured(event) + end
