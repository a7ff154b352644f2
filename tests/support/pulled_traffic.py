"""Events that frontends write to queues while something is done to the service, which pulls them.

What a queue has not confirmed is written again; it keeps the order, and what is in it twice is one event.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import amqp
import httpx
import orjson
import redis
import sqlalchemy as sa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from app.outbox import tables
from app.outbox.engine.database import now_ms
from tests import services
from tests.contract.probes.nats_wire import Wire
from tests.services.elasticmq import elasticmq
from tests.support.fault_injection import Servers
from tests.support.service_processes import System, source_worker
from tests.support.target_readers import path
from tests.support.traffic import Poster

NAME = "chaos"  # of every source, and of what it pulls from
LOOK_SECONDS = 10.0  # for recorded messages, before it is counted that there are none yet
WORKERS = 2  # that pull: while one is away the other one has its sources
_ERRORS = (OSError, redis.RedisError, amqp.AMQPError)

Waiting = deque[tuple[str, bytes]]  # objects and messages, the oldest first


class Queue(Protocol):
    """A queue of the source `type:chaos`."""

    type: ClassVar[str]
    part: ClassVar[str]  # what is hurt
    keeps: ClassVar[bool]  # whether its server has what it has confirmed also after it was killed
    repeats: ClassVar[bool]  # whether the outbox has the position, so that what it has forgotten is pulled again
    counter: ClassVar[str]  # of the source: which one says how many different messages were recorded

    @property
    def server(self) -> services.Server:
        """What has the queue."""

    def values(self) -> Mapping[str, Any]:
        """The source's settings."""

    def write(self, waiting: Waiting) -> None:
        """Write these and take away what is written; one of `_ERRORS` if that is not possible now."""


def topic_producer(server: services.Kafka, name: str) -> Producer:
    """Make a topic of three partitions, and return what writes each message to it once, for up to ten minutes."""
    servers = {"bootstrap.servers": server.brokers, "log_level": 0}
    admin = AdminClient(servers)  # which ends what it was asked when it is gone
    admin.create_topics([NewTopic(name, num_partitions=3, replication_factor=1)])[name].result(60)
    return Producer({**servers, "enable.idempotence": True, "message.timeout.ms": 600_000})


class Topic:
    """A topic of Kafka. An object's events are in one partition, as MinIO's are."""

    type, part, keeps, repeats = "kafka", "Kafka", True, True
    counter = "messages"  # one that is counted twice, or not at all, shows as too early or never

    def __init__(self) -> None:
        self.server = services.kafka()
        self._producer = topic_producer(self.server, NAME)

    def values(self) -> Mapping[str, Any]:
        return {"brokers": self.server.brokers, "topic": NAME}

    def write(self, waiting: Waiting) -> None:
        while waiting:
            key, message = waiting.popleft()
            self._producer.produce(NAME, message, key)  # which it does once, however often it has to try
        self._producer.flush(LOOK_SECONDS)


class Stream:
    """A stream of Redis. Its entries have ids of ours, so that one that is written already is refused."""

    type, part, keeps, repeats, counter = "redis", "Redis stream", True, True, "messages"

    def __init__(self) -> None:
        self.server = services.redis(durable=True)
        self._client = self.server.client()
        self._written, self._since = 0, now_ms()

    def values(self) -> Mapping[str, Any]:
        return {"address": f"{services.LOOPBACK}:{self.server.port}", "key": NAME, "format": "stream"}

    def write(self, waiting: Waiting) -> None:
        while waiting:
            try:
                self._client.xadd(NAME, {"body": waiting[0][1]}, id=f"{self._since}-{self._written}")
            except redis.ResponseError as error:
                if "equal or smaller" not in str(error):
                    raise
            waiting.popleft()
            self._written += 1


class AmqpQueue:
    """A durable queue of RabbitMQ, which remembers by itself what was taken."""

    type, part, keeps, repeats = "amqp", "AMQP queue", True, False
    counter = "recorded"  # events: a message without a confirmation may be there twice

    def __init__(self) -> None:
        self.server = services.rabbitmq()
        self._connection: amqp.Connection | None = None
        with self.server.connection() as connection:
            connection.channel().queue_declare(NAME, durable=True, auto_delete=False)

    def values(self) -> Mapping[str, Any]:
        return {"url": self.server.url, "queue": NAME}

    def write(self, waiting: Waiting) -> None:
        self._connection = self._connection or self.server.connection()
        try:
            channel = self._connection.channel()
            while waiting:
                channel.basic_publish(amqp.Message(waiting[0][1], delivery_mode=2), routing_key=NAME)
                waiting.popleft()
            channel.close()
        except BaseException:
            self._connection.collect()
            self._connection = None
            raise


class JetstreamQueue:
    """A stream of JetStream. It refuses a message of a number that it has already, for ten minutes."""

    type, part, keeps, repeats, counter = "jetstream", "JetStream", True, True, "messages"

    def __init__(self) -> None:
        self.server = services.nats(jetstream=True)
        self._wire: Wire | None = None
        self._written = 0
        with closing(Wire(self.server)) as wire:
            window = 600 * 10**9
            config = {"name": NAME, "subjects": [NAME], "storage": "file", "duplicate_window": window}
            made = wire.ask(f"STREAM.CREATE.{NAME}", **config)
        assert "error" not in made, made

    def values(self) -> Mapping[str, Any]:
        login = {"username": services.USER, "password": services.PASSWORD}
        return {"address": f"{services.LOOPBACK}:{self.server.port}", "stream": NAME, **login}

    def write(self, waiting: Waiting) -> None:
        try:
            self._wire = self._wire or Wire(self.server)
            while waiting:
                number = b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % self._written
                answer = self._wire.request(NAME, waiting[0][1], number)
                if not answer or "error" in answer:
                    raise ConnectionError(f"JetStream does not take it: {answer}")
                waiting.popleft()
                self._written += 1
        except BaseException:
            if self._wire is not None:
                self._wire.close()
                self._wire = None
            raise


class SqsQueue:
    """A FIFO queue of ElasticMQ, which has everything in memory: it is stopped, and never killed."""

    type, part, keeps, repeats, counter = "sqs", "SQS queue", False, False, "recorded"

    def __init__(self) -> None:
        self.server = elasticmq()
        self._url = self.server.create(f"{NAME}.fifo")
        self._written = 0

    def values(self) -> Mapping[str, Any]:
        login = {"access_key": services.USER, "secret_key": services.PASSWORD}
        return {"queue_url": self._url, "visibility": "10s", **login}

    def write(self, waiting: Waiting) -> None:
        while waiting:
            some = list(waiting)[:10]
            entries = [
                {
                    "Id": str(number),
                    "MessageBody": message.decode(),
                    "MessageGroupId": hashlib.sha1(name.encode()).hexdigest(),
                    "MessageDeduplicationId": str(self._written + number),
                }
                for number, (name, message) in enumerate(some)
            ]
            answer = self.server.ask("SendMessageBatch", QueueUrl=self._url, Entries=entries)
            if answer.get("Failed"):
                raise ConnectionError(f"SQS does not take it: {answer['Failed']}")
            self._written += len(some)
            for _ in some:
                waiting.popleft()


QUEUES: Mapping[str, type[Queue]] = {
    "kafka": Topic,
    "redis": Stream,
    "amqp": AmqpQueue,
    "jetstream": JetstreamQueue,
    "sqs": SqsQueue,
}


@dataclass
class Sender(Poster):
    """One frontend that writes its own objects' events to a queue, and counts them as taken when they are recorded."""

    posts: ClassVar[bool] = False
    queue: Queue = field(kw_only=True)
    _written: int = 0
    _body: bytes = b""
    _waiting: Waiting = field(default_factory=deque)

    @property
    def repeats(self) -> bool:  # type: ignore[override]  # it depends on the queue
        """What the outbox has forgotten comes again by itself, if the queue still has it."""
        return self.queue.repeats

    def _refusal(self, client: httpx.Client, url: str, content: bytes) -> str:  # type: ignore[override]  # it has a state
        """Write each record of a body to the queue; empty when all are recorded."""
        if content is not self._body:
            self._body = content
            records = orjson.loads(content)["Records"]
            self._waiting.extend((path(record), orjson.dumps({"Records": [record]})) for record in records)
            self._written += len(records)
        try:
            self.queue.write(self._waiting)
        except _ERRORS as error:
            return f"{self.queue.part}: {type(error).__name__}"
        deadline = time.monotonic() + LOOK_SECONDS
        while time.monotonic() < deadline:
            if self._recorded(client, url) >= self._written:
                return ""
            time.sleep(0.05)
        return f"{self.queue.part}: not recorded yet"

    def _recorded(self, client: httpx.Client, url: str) -> int:
        """How many messages the source has taken; 0 while nobody can say."""
        try:
            answer = client.get(f"{url}/v1/sources/{self.queue.type}/{NAME}")
        except httpx.TransportError:
            return 0
        return int(answer.json()["counters"][self.queue.counter]) if answer.status_code == 200 else 0


def pullers(whole: System) -> Counter[int]:
    """From how many sources each process pulls, by its id."""
    with whole.database.reading() as connection:
        tokens = connection.execute(sa.select(tables.sources.c.lease_token)).scalars()
        return Counter(int(token.split(":")[1]) for token in tokens if token)


@contextmanager
def pulled_from(whole: System, servers: Servers, types: Sequence[str]) -> Iterator[list[Queue]]:
    """Run servers with a queue each, and the workers that pull from them, if there are any queues."""
    with ExitStack() as stack:
        queues: list[Queue] = []
        for type_name in types:
            queues.append(QUEUES[type_name]())
            stack.callback(queues[-1].server.stop)
            servers.queues[queues[-1].part] = queues[-1].server
            whole.ask("PUT", f"/v1/sources/{type_name}/{NAME}", json=dict(queues[-1].values()))
        for _ in range(WORKERS if queues else 0):
            worker = source_worker(whole.settings)
            servers.source_workers.append(worker)
            stack.callback(worker.stop)
            worker.start()
        yield queues
