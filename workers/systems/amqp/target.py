"""AMQP 0-9-1: each event is one message to an exchange, or to a queue by its name (reference §4.3).

Delivered means: the server confirmed the message (RabbitMQ's publisher confirms) and, with `mandatory`, did not return
it. RabbitMQ confirms a persistent message for a durable queue when it is on disk.

| answer                                                        | outcome                                          |
|---------------------------------------------------------------|--------------------------------------------------|
| confirmed                                                     | Delivered                                        |
| returned and confirmed, as `mandatory` asks for               | Rejected, with the server's reason               |
| larger than the server accepts                                | Rejected; Unavailable for the others sent        |
| no permission for the routing key that a template gives       | Failed; Unavailable for the others sent          |
| refused (nack): a full queue, or a failure of the server      | Failed                                           |
| channel or connection closed, lost, or silent for too long    | Unavailable for sent, unconfirmed events         |
| connection blocked, because memory or disk space is low       | Unavailable for sent, unconfirmed events         |

The server may refuse a message and accept a later one, so an object's next event is sent only when the previous one is
confirmed. Nothing sends heartbeats between two calls: a connection that was idle for longer is replaced.
"""

import re
from collections.abc import Iterable, Sequence

from amqp.exceptions import AccessRefused, AMQPError, PreconditionFailed

from app.config.targets.amqp import AmqpSettings
from app.events.model import Event
from workers.delivery.outcomes import Unavailable
from workers.systems.amqp.connection import BLOCKED, AmqpLink, Blocked, describe_error
from workers.targets import tls
from workers.targets.base import TargetUnavailable
from workers.targets.link_target import LinkTarget
from workers.targets.payloads import waves
from workers.targets.tcp import Endpoint, NodeRotation

_NOT_ALLOWED = re.compile(r"access to topic '(.*)' in exchange ")  # RabbitMQ's topic permissions
_TOO_LARGE = re.compile(r"message size [0-9]+ is larger than configured max size ([0-9]+)")


class AmqpTarget(LinkTarget[AmqpLink]):
    """One node, one connection, one channel. Declares the exchange; the consumer declares queues and bindings."""

    def __init__(self, settings: AmqpSettings) -> None:
        self._settings = settings
        self._nodes = NodeRotation(settings.places, settings.timeout)
        where = ",".join(str(place.address) for place in settings.places)
        super().__init__(f"AMQP server at {where}", (AMQPError, OSError))

    def endpoints(self) -> Sequence[Endpoint]:
        """Return each node."""
        context = tls.context_maker(self._settings)
        return [Endpoint(place.address, context, place.server_name) for place in self._settings.places]

    def _open_link(self) -> AmqpLink:
        return self._nodes.connect(lambda place: AmqpLink(self._settings, place), self._errors)

    def _check(self, link: AmqpLink) -> None:
        if link.blocked:
            raise TargetUnavailable(f"{self._where}: {BLOCKED}")

    def _groups(self, events: Sequence[Event], window: int) -> Iterable[Iterable[int]]:
        return [range(len(events))] if window == 1 else waves(events)

    def _lost(self, link: AmqpLink, error: Exception, reason: str) -> Unavailable:
        # Keep a blocked link; otherwise each retry would leave its messages in the server's buffers.
        if not isinstance(error, Blocked):
            self._drop(link)
        if isinstance(error, PreconditionFailed) and (limit := _TOO_LARGE.search(str(error))):
            link.reject_larger(int(limit[1]), reason)
        if isinstance(error, AccessRefused) and (refused := _NOT_ALLOWED.search(str(error))):
            link.fail_refused(refused[1], reason)
        return Unavailable(reason)

    def _describe_error(self, error: Exception) -> str:
        return describe_error(error, self._settings.timeout)
