"""A worker's connection to the task broker, for which it waits whatever the broker answers.

Celery ends a worker at an error that it does not expect, and a Redis has many: at its memory limit, while it cannot
save, after it became a replica, or with other permissions it refuses commands and answers everything else.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from amqp.exceptions import AMQPError
from celery.app.events import Events as CeleryEvents
from celery.events.dispatcher import EventDispatcher
from celery.worker import consumer, state
from kombu.exceptions import OperationalError
from kombu.transport import redis as over_redis
from kombu.transport.virtual import QoS
from redis import RedisError

from app.broker import POLICY
from workers.heartbeat import broker_state

log = logging.getLogger("bucketwire.worker")

_FORMER_TASKS = frozenset({"probe_queues", "queue_alive"})  # of 0.2, for heartbeats of queues


class Acknowledging(over_redis.QoS):
    """Frees a worker's slot for a wake-up on Redis even if acknowledging or rejecting the wake-up fails.

    Otherwise the worker would count the wake-up against its prefetch limit forever, and stop taking messages. A later
    redelivery by Redis is harmless, also of a message that a closed channel could not put back.
    """

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a wake-up."""
        with self._freeing(delivery_tag):
            super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Reject a wake-up."""
        with self._freeing(delivery_tag):
            super().reject(delivery_tag, requeue=requeue)

    def restore_unacked(self, client: Any = None) -> None:
        """Put the wake-ups of a closed connection back into their queues. Raises kombu's errors of a connection."""
        # As in `_freeing`, if Redis was away while the connection was closed, and is back before the channel is.
        try:
            super().restore_unacked(client)
        except AttributeError:
            self._delivered.clear()  # type: ignore[union-attr]  # only its class has none; Redis delivers them again

    @contextmanager
    def _freeing(self, delivery_tag: str) -> Iterator[None]:
        try:
            yield
        except AttributeError:
            # The connection was closed while the task ran: kombu's channel cannot connect again, because it knows no
            # address any more. The worker would end for an error that Celery does not expect.
            QoS.ack(self, delivery_tag)
        except RedisError as error:
            QoS.ack(self, delivery_tag)
            broker_state.fails(error)  # Celery would log each with a traceback


class Dispatcher(EventDispatcher):
    """Tries to send what Flower shows once. Celery's heartbeat would wait for the broker without end, in the loop."""

    def send(self, type: str, *arguments: Any, **fields: Any) -> Any:  # noqa: A002 - Celery's
        """Send an event, or leave it for later if the broker does not take it."""
        return super().send(type, *arguments, **(fields | {"retry": False}))


class Events(CeleryEvents):
    """Celery's events with this dispatcher."""

    dispatcher_cls = f"{__name__}:Dispatcher"


class Consumer(consumer.Consumer):
    """Celery's consumer, which takes each refusal for a lost connection and tries again every second.

    It says once what it waits for, and once that the broker works again. Meanwhile it reports that the worker is there.
    """

    # Steps of the worker replace both: the targets whose queues the broker refuses, and the worker's heartbeat.
    refused_targets: Callable[[], Mapping[str, str]] = dict
    report: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # kombu wraps some of them in its own.
        self.connection_errors: tuple[type[Exception], ...] = (*self.connection_errors, OperationalError)
        # It runs only while there is a connection.
        self.timer.call_repeatedly(POLICY.retry_seconds, broker_state.works)

    def ensure_connected(self, conn: Any) -> Any:
        """Connect, as soon as that is possible."""
        connected = conn.ensure_connection(
            lambda error, _: self._fails(error),
            interval_start=POLICY.retry_seconds,
            interval_step=0,
            interval_max=POLICY.retry_seconds,
            callback=state.maybe_shutdown,
        )
        self.first_connection_attempt = False
        return connected

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        """Wait before the next attempt; Celery calls this if there is no connection yet."""
        self._fails(exc)
        time.sleep(POLICY.retry_seconds)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Close the connection and wait before the next attempt; Celery calls this if a connection fails."""
        self._fails(exc)
        super().on_connection_error_after_connected(exc)
        time.sleep(POLICY.retry_seconds)

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
        """Drop the messages that only earlier versions send and understand; log others as Celery does."""
        if message.headers.get("task") in _FORMER_TASKS:
            message.ack_log_error(log, self.connection_errors)
        else:
            super().on_unknown_task(body, message, exc)

    def _fails(self, error: Exception) -> None:
        broker_state.fails(error)
        self.report()


over_redis.Channel.QoS = Acknowledging
# A worker goes on after errors of a connection wherever they occur, also in a timer of its loop, and after no others.
over_redis.Transport.connection_errors = (*over_redis.Transport.connection_errors, RedisError)
for _name in ("connection", "consumer"):  # each attempt would be logged; what is wrong has been said
    logging.getLogger(f"celery.worker.consumer.{_name}").addFilter(lambda _: not broker_state.is_failing)


def _is_of_lost_connection(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return isinstance(error, (OSError, AMQPError, RedisError, OperationalError))


# After a lost connection Celery runs what its loop had not come to, such as another read, and would log the traceback.
logging.getLogger("celery.worker.loops").addFilter(lambda record: not _is_of_lost_connection(record))
