"""Declare the queues of targets on the broker, so that one which the broker refuses concerns its own target alone.

RabbitMQ closes the channel on which it refuses a queue, with everything else that the channel is used for. It refuses
one that exists with other properties than this service declares, or that belongs to another connection.
"""

import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from amqp.exceptions import MessageNacked
from kombu import Queue
from kombu.common import maybe_declare

log = logging.getLogger("bucketwire.worker")

_REFUSED_FOR = 10.0  # seconds until a refused queue is tried again


class QueueDeclarations:
    """Declares queues, each once on every connection, and leaves out for a while those that the broker refuses."""

    def __init__(self) -> None:
        self._refused: dict[str, float] = {}  # by name, when it is tried again, by time.monotonic()

    def usable(self, connection: Any, queues: Iterable[Queue]) -> list[Queue]:
        """Return those of the queues that can be used on this connection.

        They are declared on a channel of its own, which is closed again. A refusal is logged when it begins and when it
        ends. Raises the connection's errors if it is lost.
        """
        channel, usable = None, []
        try:
            for queue in queues:
                if self._refused.get(queue.name, 0.0) > time.monotonic():
                    continue
                if hash(queue) not in connection.declared_entities:
                    channel = channel or connection.channel()
                    try:
                        maybe_declare(queue, channel)
                    except connection.channel_errors as error:
                        channel = None  # the broker has closed it
                        self.refuse(queue.name, error)
                        continue
                if self._refused.pop(queue.name, None) is not None:
                    log.info("the broker accepts the queue %s again", queue.name)
                usable.append(queue)
        finally:
            if channel is not None:
                with suppress(*connection.channel_errors, *connection.connection_errors):
                    channel.close()
        return usable

    def refuse(self, name: str, error: BaseException) -> None:
        """Leave a queue out for a while, because the broker has answered so to its declaration or to a message."""
        if name not in self._refused:
            log.error(
                "the broker refuses the queue %s, so its target gets no events; other targets are served. Delete the"
                " queue, and it is created again: %s", name, error,
            )  # fmt: skip
        self._refused[name] = time.monotonic() + _REFUSED_FOR


def refuses_queue(connection: Any, error: BaseException) -> bool:
    """Return whether an error of publishing concerns the message's queue alone, and not the connection."""
    cause = error.__cause__ or error  # kombu replaces some of them, and raises from the original
    return isinstance(cause, (*connection.channel_errors, MessageNacked))
