"""AMQP 0-9-1: each event is one message to an exchange, or to a queue by its name (reference §4.3).

Delivered means: the server confirmed the message (RabbitMQ's publisher confirms) and, with `mandatory`, did not return
it. RabbitMQ confirms a persistent message for a durable queue when it is on disk.

| answer                                                        | outcome                                          |
|---------------------------------------------------------------|--------------------------------------------------|
| confirmed                                                     | Delivered                                        |
| returned and confirmed, as `mandatory` asks for               | Rejected, with the server's reason               |
| larger than the server accepts                                | Rejected; Unavailable for the others sent        |
| refused (nack): a full queue, or a failure of the server      | Failed                                           |
| channel or connection closed, lost, or silent for too long    | Unavailable for sent, unconfirmed events         |
| connection blocked, because memory or disk space is low       | Unavailable for sent, unconfirmed events         |

The server may refuse a message and accept a later one, so an object's next event is sent only when the previous one is
confirmed. Nothing sends heartbeats between two calls: a connection that was idle for longer is replaced.
"""

import re
from collections.abc import Sequence

from amqp.exceptions import AMQPError, PreconditionFailed

from app.config.targets.amqp import AmqpSettings
from app.events.model import Event
from workers.delivery.outcomes import Outcome, Unavailable
from workers.targets.amqp.link import BLOCKED, Blocked, Link
from workers.targets.base import NO_LEASE, LeaseCheck, TargetUnavailable
from workers.targets.batch import Batch
from workers.targets.payloads import waves

_TOO_LARGE = re.compile(r"message size [0-9]+ is larger than configured max size ([0-9]+)")


class AmqpTarget:
    """One server, one connection, one channel."""

    def __init__(self, settings: AmqpSettings) -> None:
        self._settings = settings
        self._place = settings.place
        self._where = f"AMQP server at {self._place.address}"
        self._link: Link | None = None

    def open(self) -> None:
        """Connect, log in, and declare the exchange; the consumer declares queues and bindings."""
        self._connect()

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        """Keep up to `window` messages unconfirmed, one per object; send none after the connection is lost."""
        link = self._awake()
        if link.blocked:
            raise TargetUnavailable(f"{self._where}: {BLOCKED}")
        batch = Batch(events, lease)
        link.begin(batch)
        try:
            for group in [range(len(events))] if window == 1 else waves(events):
                for index in group:
                    link.send(index, window)
                link.gather(0)
        except (AMQPError, OSError) as error:
            batch.lose(self._lost(link, error))
        except BaseException:
            self._link = None
            link.drop()
            raise
        return batch.outcomes()

    def close(self) -> None:
        """Close the connection."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _connect(self) -> Link:
        self.close()
        try:
            link = Link(self._settings, self._place)
        except (AMQPError, OSError) as error:
            raise TargetUnavailable(f"{self._where}: {self._words(error)}") from error
        self._link = link
        return link

    def _awake(self) -> Link:
        """Return the link if it is still usable, else a new one: the server may have closed it or timed it out."""
        link = self._link
        if link is None or link.is_stale():
            return self._connect()
        try:
            link.look()
        except (AMQPError, OSError):
            link.drop()
            return self._connect()
        return link

    def _lost(self, link: Link, error: AMQPError | OSError) -> Unavailable:
        """Return the outcome of the events that were sent and are neither confirmed nor refused."""
        # Keep a blocked link; otherwise each retry would leave its messages in the server's buffers.
        if not isinstance(error, Blocked):
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
