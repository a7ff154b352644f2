"""The task broker: connect to it, send it messages, and count those that wait in a queue.

A message is a Celery task, in the protocol that Celery documents. This module knows kombu, the messaging library below
Celery, and not Celery itself.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from amqp.exceptions import AccessRefused, MessageNacked
from kombu import Connection, Producer, Queue
from kombu.common import maybe_declare
from kombu.exceptions import OperationalError
from kombu.transport.virtual import Channel as VirtualChannel

from app.config.arn import TargetId
from app.config.settings import KEY_PREFIX, is_rabbitmq
from app.logs import clause

log = logging.getLogger("bucketwire.broker")

SERVICE_QUEUE, SPARK_QUEUE, SOURCES_QUEUE = "bucketwire", "spark", "sources"
_T = TypeVar("_T")


class BrokerPolicy(NamedTuple):
    """How long something waits for the broker, and how many messages may wait at the broker.

    Messages have no expiry, which would compare the clocks of two hosts: instead, nobody sends more while enough wait.
    """

    timeout_seconds: int = 3  # without one, a publisher waits forever for a broker that vanished silently
    retry_seconds: float = 1.0  # between two attempts to reach a broker that is unavailable
    settled_seconds: float = 3.0  # after its last failure a broker that carries messages counts as working
    refused_seconds: float = 10.0  # until a queue that the broker refuses is tried again
    max_drains: int = 3  # in the service queue; a drain among them has not begun, so it finds all work
    max_beat_messages: int = 20  # in the service queue, where rare tasks may wait behind drains
    max_target_messages: int = 32  # in a target's queue; twice as many as it usually has partitions
    max_direct_wake_ups: int = 2  # in a target's queue; one among them finds what is due by then
    max_runs: int = 1_000  # reconciliations in the queue of the Spark worker
    max_job_seconds: int = 7 * 86_400  # for which a message may be unacknowledged there


POLICY = BrokerPolicy()
_RABBITMQ = {
    "confirm_publish": True,
    "confirm_timeout": POLICY.timeout_seconds,
    "read_timeout": POLICY.timeout_seconds,
    "write_timeout": POLICY.timeout_seconds,
}
_REDIS = {
    "global_keyprefix": KEY_PREFIX,
    "visibility_timeout": 600,
    "socket_timeout": POLICY.timeout_seconds,
    "socket_connect_timeout": POLICY.timeout_seconds,
    "socket_keepalive": True,
    "health_check_interval": POLICY.timeout_seconds - 1,  # also bounds how late Redis may reply that nothing arrived
    "priority_steps": [0],  # kombu's four would make four lists of each queue, and every look ask for all of them
}
_PROBE_QUEUE = "doctor"  # a queue of no service's, with one message for a moment
_HEADERS = {"lang": "py", "kwargsrepr": "{}", "retries": 0}
_OPTIONS: Mapping[str, None] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


class BrokerUnavailable(Exception):
    """The broker does not answer, or refuses to work; the message has its address without the password."""


class QueueRefused(BrokerUnavailable):
    """The broker works, but refuses the queue that the message names, with its reason."""

    def __init__(self, queue: str, reason: str) -> None:
        super().__init__(f"the broker refuses the queue {queue}: {clause(reason)}")


class BrokerState:
    """The state of the broker as a process knows it: logs once that it fails, and once that it works again.

    It works again when it has not failed for some seconds, as a broker that refuses one command may carry out another.
    """

    def __init__(self, log: logging.Logger, consequence: str) -> None:
        self._log, self._consequence = log, consequence
        self._failed_at: float | None = None  # by time.monotonic(), the last failure; None while the broker works
        self._problem = ""

    @property
    def is_failing(self) -> bool:
        """Whether the broker has failed, and has not worked since."""
        return self._failed_at is not None

    @property
    def problem(self) -> str:
        """Why the broker fails; "" while it works."""
        return self._problem if self.is_failing else ""

    def fails(self, error: BaseException) -> None:
        """Note that the broker cannot be reached, or has refused something."""
        self._problem = str(error) if isinstance(error, BrokerUnavailable) else _describe("the broker", error)
        if self._failed_at is None:
            self._log.warning("%s; %s", self._problem, self._consequence)
        self._failed_at = time.monotonic()

    def works(self) -> None:
        """Note that the broker has done what it was asked for."""
        if self._failed_at is not None and time.monotonic() - self._failed_at > POLICY.settled_seconds:
            self._failed_at = None
            self._log.info("the broker works again")


def _describe(broker: str, error: BaseException) -> str:
    return f"{broker} cannot be used: {clause(str(error)) or f'no answer in time ({type(error).__name__})'}"


def check_broker(broker_url: str) -> str:
    """Connect to the broker, for five seconds at most, and return its address without the password.

    A Redis is made to carry a message, too. Raises `BrokerUnavailable`.
    """
    with _checked(broker_url) as connection:
        if not is_rabbitmq(broker_url):
            # At its memory limit, as a replica, or while it cannot save, it refuses this, and answers all else.
            client = connection.default_channel.client
            client.lpush(_PROBE_QUEUE, "")
            client.delete(_PROBE_QUEUE)
        return str(connection.as_uri())


def eviction_policy(broker_url: str) -> str:
    """Return what a Redis deletes at its memory limit, in its words; empty if it does not say, as to a limited user.

    Raises `BrokerUnavailable`.
    """
    with _checked(broker_url) as connection, suppress(*connection.channel_errors):
        return str(connection.default_channel.client.info("memory").get("maxmemory_policy", ""))
    return ""


@contextmanager
def _checked(broker_url: str) -> Iterator[Any]:
    with Connection(broker_url, connect_timeout=5, transport_options=transport_options(broker_url)) as connection:
        shown = connection.as_uri()
        errors: tuple[type[BaseException], ...] = (*connection.channel_errors, *connection.connection_errors)
        errors += (OperationalError,)
        try:
            _connect(connection, within=5)
            yield connection
        except errors as error:
            raise BrokerUnavailable(_describe(shown, error)) from None


def _connect(connection: Any, *, within: int | None = None) -> None:
    """Connect; once more at once, unless so many seconds are over, as the first try may find a broken one of addresses.

    Left to itself, kombu pauses for two seconds in between.
    """
    connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=within)


def load_transport(broker_url: str) -> None:
    """Import what a connection needs, so that the thread that connects first does not hold up the others with it."""
    Connection(broker_url).get_transport_cls()


def transport_options(broker_url: str) -> dict[str, Any]:
    """Return kombu's options for connections to this broker, so that each notices a broker that does not answer.

    From then on the answers of a Redis have a time limit in this process.
    """
    if is_rabbitmq(broker_url):
        return dict(_RABBITMQ)
    from app.socket_watchdog import limit_answers  # noqa: PLC0415 - slow: not for RabbitMQ

    transport: Any = Connection(broker_url).get_transport_cls()
    limit_answers(transport.Channel)
    return dict(_REDIS)


def waiting(channel: Any, queue: str) -> int:
    """Return how many messages wait in a queue. Raises the channel's errors, on RabbitMQ also for a missing queue."""
    if isinstance(channel, VirtualChannel):
        return int(channel._size(queue))  # the public way takes an empty list of Redis for a missing queue
    return int(channel.queue_declare(queue, passive=True).message_count)


def queue_name(target: TargetId) -> str:
    """Return the name of the queue that carries a target's wake-ups."""
    return f"target.{target.type}.{target.name}"


def declared_queue(broker_url: str, name: str) -> Queue:
    """Return a queue as this service declares it: durable; a quorum queue on RabbitMQ."""
    arguments: dict[str, str | int] | None = {"x-queue-type": "quorum"} if is_rabbitmq(broker_url) else None
    if arguments and name == SPARK_QUEUE:  # a wake-up may have to wait for as long as a reconciliation takes
        arguments["x-consumer-timeout"] = POLICY.max_job_seconds * 1000
    return Queue(name, routing_key=name, queue_arguments=arguments)


def _queue_errors(connection: Any) -> tuple[type[BaseException], ...]:
    """Return the errors by which a broker refuses one queue."""
    errors: tuple[type[BaseException], ...] = connection.channel_errors
    return errors if connection.transport.driver_type == "amqp" else ()


class QueueDeclarations:
    """Declares queues, each once on every connection, and leaves out for a while those that the broker refuses.

    RabbitMQ closes the channel on which it refuses a queue, with everything else that the channel is used for. It
    refuses one that exists with other properties than this service declares, or that belongs to another connection.
    What Redis refuses concerns no queue, but all of them.
    """

    def __init__(self) -> None:
        # By name, when it is tried again, by time.monotonic(), and why it was refused.
        self._refused: dict[str, tuple[float, str]] = {}
        self._of_messages: set[str] = set()  # those of them that were declared, and whose messages were refused

    @property
    def refused(self) -> dict[str, str]:
        """The queues that are left out now, each with the broker's reason."""
        return {name: reason for name, (_, reason) in self._refused.items()}

    def usable(self, connection: Any, queues: Iterable[Queue]) -> list[Queue]:
        """Return those of the queues that can be used on this connection.

        They are declared on a channel of its own, which is closed again. A refusal is logged when it begins and when it
        ends. Raises the connection's errors if it is lost.
        """
        channel, usable = None, []
        try:
            for queue in queues:
                if self._refused.get(queue.name, (0.0, ""))[0] > time.monotonic():
                    continue
                if hash(queue) not in connection.declared_entities:
                    channel = channel or connection.channel()
                    try:
                        maybe_declare(queue, channel)
                    except _queue_errors(connection) as error:
                        channel = None  # the broker has closed it
                        self.refuse(queue.name, error)
                        continue
                if queue.name not in self._of_messages:
                    self._accept(queue.name)
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
                "the broker refuses the queue %s, so %s. %s: %s", name, _consequence(name),
                "Let the broker's user use it" if isinstance(error, AccessRefused)
                else "Delete the queue, and it is created again", error,
            )  # fmt: skip
        self._refused[name] = time.monotonic() + POLICY.refused_seconds, str(error)

    def refuse_message(self, name: str, error: BaseException) -> None:
        """Do the same because of a message: that the queue can be declared does not end this, a sent message does."""
        self.refuse(name, error)
        self._of_messages.add(name)

    def accept_message(self, name: str) -> None:
        """Note that the broker has accepted a message to a queue."""
        self._of_messages.discard(name)
        self._accept(name)

    def _accept(self, name: str) -> None:
        if self._refused.pop(name, None) is not None:
            log.info("the broker accepts the queue %s again", name)


def _consequence(queue: str) -> str:
    """Return what does not happen while a queue is refused."""
    if queue == SERVICE_QUEUE:
        return "nothing is drained, scheduled, purged or sampled"
    if queue == SPARK_QUEUE:
        return "no reconciliation runs by schedule"
    return "its target gets no events; other targets are served"


class Broker:
    """One connection to the broker, opened when it is needed, and again when it was lost.

    Use it from one thread at a time, and in the process that made it. Its methods raise `BrokerUnavailable`. `state`
    learns of that, and of each message that was sent: a broker that refuses messages may answer all else.
    """

    def __init__(self, broker_url: str, state: BrokerState | None = None) -> None:
        self._url = broker_url
        self._state = state
        self._connection: Any = None
        self._channel: Any = None
        self._declarations = QueueDeclarations()

    def length(self, queue: str) -> int | None:
        """Return how many messages wait in a queue; None if nobody has declared it, or the broker refuses it."""
        return self._connected(lambda: self._length(queue))

    def refusal(self, queue: str) -> str:
        """Declare a queue; return why the broker refuses it, "" if it does not."""
        return self._connected(lambda: self._refusal(queue))

    def publish(
        self,
        queue: str,
        task: str,
        arguments: tuple[object, ...] = (),
        *,
        time_limit: int | None = None,
        declare: bool = False,
    ) -> bool:
        """Have a worker carry out a task; return whether it was sent: not if the broker refuses the queue.

        A worker that takes longer than `time_limit` (s) is killed. On RabbitMQ a message to a missing queue is lost, so
        `declare` the queue first, unless it was counted.
        """
        sent = self._connected(lambda: self._publish(queue, task, arguments, time_limit, declare=declare))
        if self._state is not None:
            self._state.works()
        return sent

    def close(self) -> None:
        """Close the connection; the next use opens another one."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with suppress(Exception):
                connection.release()

    def _connected(self, action: Callable[[], _T]) -> _T:
        """Carry out an action; once more on a new connection if it fails on an old one, which may have been lost."""
        if self._connection is not None:
            with suppress(BrokerUnavailable):
                return self._try(action)
        try:
            return self._try(action)
        except BrokerUnavailable as error:
            if self._state is not None:
                self._state.fails(error)
            raise

    def _try(self, action: Callable[[], _T]) -> _T:
        is_new = self._connection is None
        if is_new:
            self._connection = Connection(
                self._url, connect_timeout=POLICY.timeout_seconds, transport_options=transport_options(self._url)
            )
        try:
            if is_new:
                _connect(self._connection)
            return action()
        except Exception as error:
            shown = self._connection.as_uri()
            self.close()
            raise BrokerUnavailable(_describe(shown, error)) from error

    def _length(self, queue: str) -> int | None:
        channel = self._channel = self._channel or self._connection.channel()
        try:
            return waiting(channel, queue)
        except _queue_errors(self._connection):
            self._channel = None  # RabbitMQ has closed it
            return None

    def _refusal(self, name: str) -> str:
        usable = self._declarations.usable(self._connection, [declared_queue(self._url, name)])
        return "" if usable else self._declarations.refused[name]

    def _publish(
        self, name: str, task: str, arguments: tuple[object, ...], time_limit: int | None, *, declare: bool
    ) -> bool:
        queue = declared_queue(self._url, name)
        if declare and not self._declarations.usable(self._connection, [queue]):
            return False
        self._channel = self._channel or self._connection.channel()
        number = str(uuid4())
        headers = {"task": task, "id": number, "root_id": number, "argsrepr": repr(arguments)}
        try:
            Producer(self._channel, auto_declare=False).publish(
                (arguments, {}, _OPTIONS), routing_key=name, serializer="json", correlation_id=number,
                headers=_HEADERS | headers | {"timelimit": [time_limit, None]},
            )  # fmt: skip
        except Exception as error:
            cause = error.__cause__ or error  # kombu replaces some of them, and raises from the original
            if not isinstance(cause, (*_queue_errors(self._connection), MessageNacked)):
                raise
            self._channel = None
            self._declarations.refuse_message(name, cause)
            return False
        self._declarations.accept_message(name)
        return True
