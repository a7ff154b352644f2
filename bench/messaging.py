"""The cases that bench.deliver does not have, each with the batch loop of a raw client that is its limit.

Each function starts a server that runs until the next case is requested.
"""

import asyncio
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import nats as nats_py
from amqp import Connection
from amqp.basic_message import Message
from confluent_kafka import Producer
from elasticsearch import Elasticsearch
from elasticsearch.helpers import bulk
from paho.mqtt.client import Client as MqttClient
from paho.mqtt.enums import CallbackAPIVersion

from app.events.model import Event
from bench.deliver import BATCH, Case, batches
from tests import services
from tests.contract.probes import amqp, elasticsearch, kafka, mqtt, mysql, nats, nats_jetstream, nats_streaming, nsq
from workers.targets.payloads import log, records


def amqp_cases() -> Iterator[Case]:
    with services.rabbitmq() as server, ExitStack() as stack:
        connection = Connection(f"127.0.0.1:{server.port}", services.USER, services.PASSWORD)
        stack.enter_context(connection)
        channel = connection.channel()
        channel.confirm_select()
        channel.exchange_declare("bench", "fanout", durable=True, auto_delete=False)
        limit = {"x-max-length": 1000}  # drop old messages, so that a full queue is not measured
        channel.queue_declare("bench", durable=True, auto_delete=False, arguments=limit)
        channel.queue_bind("bench", "bench")
        confirmed = 0

        def ack(tag: int, multiple: bool) -> None:
            nonlocal confirmed
            confirmed = confirmed if not multiple and tag < confirmed else tag

        channel.events["basic_ack"].add(ack)  # type: ignore[attr-defined]  # py-amqp sets both at run time
        sent = 0

        def publish(events: Sequence[Event]) -> None:
            nonlocal sent
            for batch in batches([log(event) for event in events]):
                for body in batch:
                    message = Message(body, content_type="application/json", delivery_mode=2)
                    channel._basic_publish(message, "bench")  # type: ignore[attr-defined]  # see above
                    sent += 1
                while confirmed < sent:
                    connection.drain_events(timeout=30)

        values = amqp.Queue.values(_around(amqp.Queue, server)) | {"exchange": "bench", "exchange_type": "fanout"}
        values |= {"routing_key": "", "durable": "on", "publisher_confirms": "on"}
        yield Case("AMQP, persistent, confirmed", "amqp", dict(values), publish)


def mqtt_cases() -> Iterator[Case]:
    with services.mosquitto() as server:
        client = MqttClient(CallbackAPIVersion.VERSION2)
        client.username_pw_set(services.USER, services.PASSWORD)
        client.max_inflight_messages_set(BATCH)
        client.connect(services.LOOPBACK, server.port)
        client.loop_start()

        def publish(events: Sequence[Event]) -> None:
            for batch in batches([log(event) for event in events]):
                for message in [client.publish(mqtt.TOPIC, body, qos=1) for body in batch]:
                    message.wait_for_publish(30)

        values = mqtt.Qos1.values(_around(mqtt.Qos1, server))
        yield Case("MQTT, QoS 1", "mqtt", dict(values), publish)
        client.disconnect()
        client.loop_stop()


def nats_cases() -> Iterator[Case]:
    with services.nats(jetstream=True) as server:
        loop = asyncio.new_event_loop()
        client = loop.run_until_complete(nats_py.connect(server.url, pending_size=1 << 27))
        stream = client.jetstream(publish_async_max_pending=BATCH)
        config: dict[str, Any] = {"name": "BENCH", "subjects": ["bench.stored"], "max_msgs": 10_000}
        loop.run_until_complete(stream.add_stream(**config))

        async def core(events: Sequence[Event]) -> None:
            for batch in batches([log(event).encode() for event in events]):
                for body in batch:
                    await client.publish("bench.core", body)
                await client.flush()

        async def stored(events: Sequence[Event]) -> None:
            for batch in batches([log(event).encode() for event in events]):
                await asyncio.gather(*[await stream.publish_async("bench.stored", body) for body in batch])

        values = nats.Core.values(_around(nats.Core, server))
        yield Case(
            "NATS core", "nats", values | {"subject": "bench.core"}, lambda some: loop.run_until_complete(core(some))
        )
        values = nats_jetstream.JetStream.values(_around(nats_jetstream.JetStream, server)) | {
            "subject": "bench.stored"
        }
        yield Case("NATS JetStream", "nats", dict(values), lambda some: loop.run_until_complete(stored(some)))
        loop.run_until_complete(client.close())
        loop.close()


def streaming_cases() -> Iterator[Case]:
    """No Python client of NATS Streaming works any more, so there is no raw loop."""
    with services.nats_streaming() as server:
        values = nats_streaming.AsyncStreaming.values(_around(nats_streaming.AsyncStreaming, server))
        yield Case("NATS Streaming, streaming_async", "nats", dict(values), None)


def nsq_cases() -> Iterator[Case]:
    with services.nsqd() as server, socket.create_connection((services.LOOPBACK, server.port), 30) as wire:
        wire.sendall(b"  V2")
        stream = wire.makefile("rb")

        def publish(events: Sequence[Event]) -> None:
            for batch in batches([log(event).encode() for event in events]):
                content = struct.pack(">l", len(batch)) + b"".join(
                    struct.pack(">l", len(body)) + body for body in batch
                )
                wire.sendall(b"MPUB raw\n" + struct.pack(">l", len(content)) + content)
                while True:
                    (size,) = struct.unpack(">l", stream.read(4))
                    if (response := stream.read(size)[4:]) == b"OK":
                        break
                    if response != b"_heartbeat_":
                        raise RuntimeError(f"nsqd answered {response!r}")
                    wire.sendall(b"NOP\n")

        values = nsq.Log.values(_around(nsq.Log, server))
        yield Case("NSQ", "nsq", dict(values), publish)


def kafka_cases() -> Iterator[Case]:
    with services.kafka() as server:
        probe = kafka.Log(server)
        for topic in ("raw", "ours"):
            probe.create_topic(topic, kafka.PARTITIONS)
        settings = {
            "bootstrap.servers": server.brokers,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "log_level": 0,
        }
        producer = Producer(settings | {"partitioner": "murmur2_random", "queue.buffering.max.messages": BATCH * 2})

        def produce(events: Sequence[Event]) -> None:
            for batch in batches([(event.path, log(event)) for event in events]):
                for path, body in batch:
                    producer.produce("raw", body, path)
                if producer.flush(30):
                    raise RuntimeError("Kafka did not confirm a batch within 30 s")

        yield Case("Kafka, acks=all, idempotent", "kafka", {"brokers": server.brokers, "topic": "ours"}, produce)


def elasticsearch_cases() -> Iterator[Case]:
    with services.elasticsearch() as server:
        client = Elasticsearch(server.url, basic_auth=(server.user_name, services.PASSWORD), request_timeout=60)

        def index(events: Sequence[Event]) -> None:
            for batch in batches([(event.id, records(event)) for event in events]):
                bulk(client, ({"_index": "raw", "_id": id_, "_source": body} for id_, body in batch), chunk_size=BATCH)

        values = dict(elasticsearch.Namespace(server).values()) | {"timeout": "60s"}
        yield Case("Elasticsearch, namespace", "elasticsearch", dict(values), index)
        client.close()


def mysql_cases() -> Iterator[Case]:
    with services.mysql() as server, ExitStack() as stack:
        probe = mysql.Namespace(server)
        probe.ask("CREATE TABLE raw_log (event_time DATETIME NOT NULL, event_data JSON)")
        probe.ask("CREATE TABLE raw_ns (id char(32) PRIMARY KEY, value JSON)")
        connection = stack.enter_context(server.connection(mysql.DATABASE))

        def upserts(events: Sequence[Event]) -> None:
            query = "INSERT INTO raw_ns VALUES (%s, %s) ON DUPLICATE KEY UPDATE value = VALUES(value)"
            with connection.cursor() as cursor:
                for batch in batches([(event.id, records(event)) for event in events]):
                    cursor.executemany(query, batch)
                    connection.commit()

        def inserts(events: Sequence[Event]) -> None:
            with connection.cursor() as cursor:
                for batch in batches([("2026-11-21 00:33:56", records(event)) for event in events]):
                    cursor.executemany("INSERT INTO raw_log VALUES (%s, %s)", batch)
                    connection.commit()

        settings = {"dsn_string": probe.dsn()}
        yield Case("MySQL, namespace", "mysql", settings | {"table": "ns", "format": "namespace"}, upserts)
        yield Case("MySQL, access", "mysql", settings | {"table": "log", "format": "access"}, inserts)


def _around(kind: Any, server: services.Server) -> Any:
    """Return a probe of a running server, for its settings."""
    probe = kind.__new__(kind)
    probe.server = server
    return probe
