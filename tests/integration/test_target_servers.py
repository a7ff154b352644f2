"""The servers that only targets need: a real client writes and reads on each listener, and nothing is left over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests import services
from tests.integration.test_services import leaves_nothing

LOGIN = {"username": services.USER, "password": services.PASSWORD}


def trust(*, client: bool = False) -> ssl.SSLContext:
    certs = services.certificates()
    context = ssl.create_default_context(cafile=str(certs.ca))
    if client:
        context.load_cert_chain(certs.client_cert, certs.client_key)
    return context


@pytest.mark.parametrize("listener", ["port", "ws_port", "tls_port", "wss_port", "mtls_port"])
def test_mosquitto_carries_a_message_on_each_listener(listener: str) -> None:
    mqtt = pytest.importorskip("paho.mqtt.client")
    with leaves_nothing(services.mosquitto()) as server:
        transport = "websockets" if listener.startswith("ws") else "tcp"
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, transport=transport, protocol=mqtt.MQTTv5)
        client.username_pw_set(**LOGIN)
        if listener not in ("port", "ws_port"):
            client.tls_set_context(trust(client=listener == "mtls_port"))
        got: list[bytes] = []
        client.on_message = lambda _client, _data, message: got.append(message.payload)
        client.on_connect = lambda client, *_: client.subscribe("t", qos=1)
        client.on_subscribe = lambda client, *_: client.publish("t", "é🪣", qos=1)
        client.connect("localhost" if "tls" in listener else "127.0.0.1", getattr(server, listener))
        client.loop_start()
        try:
            services.until(lambda: got == ["é🪣".encode()], what="the message")
        finally:
            client.disconnect()
            client.loop_stop()


@contextlib.asynccontextmanager
async def nats_client(server: services.Nats, **settings: Any) -> AsyncIterator[Any]:
    import nats

    client = nats.NATS()
    try:  # also where it is refused: it leaves its socket open
        await client.connect(server.url, allow_reconnect=False, connect_timeout=5, **settings)
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize("secure", [False, True])
def test_jetstream_keeps_a_message_through_a_kill(secure: bool) -> None:
    pytest.importorskip("nats")
    settings: dict[str, Any] = {"tls": trust(client=True)} if secure else {}

    async def write(server: services.Nats) -> None:
        async with nats_client(server, **settings) as client:
            stream = client.jetstream()
            await stream.add_stream(name="kept", subjects=["kept"])
            assert (await stream.publish("kept", "é🪣".encode())).seq == 1

    async def read(server: services.Nats) -> bytes:
        async with nats_client(server, **settings) as client:
            return bytes((await client.jetstream().get_msg("kept", 1)).data)

    with leaves_nothing(services.nats(jetstream=True, client_cert=secure)) as server:
        asyncio.run(write(server))
        server.kill()
        server.start()
        assert asyncio.run(read(server)) == "é🪣".encode()


def test_nats_takes_a_token_and_refuses_a_wrong_one() -> None:
    errors = pytest.importorskip("nats.errors")

    async def connect(server: services.Nats) -> None:
        async with nats_client(server) as client:
            await client.flush()

    with leaves_nothing(services.nats(token="t0ken")) as server:
        asyncio.run(connect(server))
        server.token = "wrong"
        with pytest.raises(errors.Error, match="Authorization Violation"):
            asyncio.run(connect(server))


@pytest.mark.parametrize("token", [None, "t0ken"])
def test_nats_streaming_keeps_a_message_through_a_kill(token: str | None) -> None:
    with leaves_nothing(services.nats_streaming(token=token)) as server:
        server.publish("kept", "é🪣")
        server.kill()
        server.start()
        server.publish("kept", '"quoted"')
        assert server.messages("kept", 2) == ["é🪣".encode(), b'"quoted"']


def test_nats_streaming_starts_with_client_certificates_demanded() -> None:
    with leaves_nothing(services.nats_streaming(client_cert=True)) as server:
        assert server.url.startswith("tls://")


def test_nsqd_keeps_a_message_through_a_stop() -> None:
    with leaves_nothing(services.nsqd()) as server:
        base = f"http://127.0.0.1:{server.http_port}"

        with urllib.request.urlopen(f"{base}/pub?topic=kept", data="é🪣".encode(), timeout=5) as answer:
            assert answer.read() == b"OK"
        server.stop()
        server.start()
        assert nsq_message(server, "kept") == "é🪣".encode()


def nsq_message(server: services.Nsqd, topic: str) -> bytes:
    """Consume one message over nsqd's own protocol, TLS included where the server demands it."""
    raw = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(raw)

        def frame() -> bytes:
            size = int.from_bytes(_exactly(client, 4), "big")
            return _exactly(client, size)

        identity = json.dumps({"feature_negotiation": True, "tls_v1": server.strict}).encode()
        client.sendall(b"  V2IDENTIFY\n" + len(identity).to_bytes(4, "big") + identity)
        assert b'"version":"1.3.0"' in frame()
        if server.strict:
            client = stack.enter_context(trust(client=True).wrap_socket(raw, server_hostname="localhost"))
            assert frame()[4:] == b"OK"
        client.sendall(f"SUB {topic} c\n".encode())
        assert frame()[4:] == b"OK"
        client.sendall(b"RDY 1\n")
        message = frame()
        client.sendall(b"FIN " + message[14:30] + b"\n")
        return message[30:]


def _exactly(client: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = client.recv(size - len(found))
        assert part, "nsqd closed the connection"
        found += part
    return found


def test_a_strict_nsqd_is_served_over_tls_only() -> None:
    with leaves_nothing(services.nsqd(strict=True)) as server:
        request = urllib.request.Request(f"https://localhost:{server.https_port}/pub?topic=kept", data=b"x")
        with urllib.request.urlopen(request, timeout=5, context=trust(client=True)) as answer:
            assert answer.read() == b"OK"
        assert nsq_message(server, "kept") == b"x"
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain:
            plain.sendall(b"  V2PUB kept\n" + len(b"x").to_bytes(4, "big") + b"x")
            assert b"E_INVALID" in plain.recv(200)


@pytest.mark.parametrize("secure", [False, True])
def test_kafka_keeps_a_message_through_a_kill(secure: bool) -> None:
    kafka = pytest.importorskip("kafka")
    certs = services.certificates()
    with leaves_nothing(services.kafka()) as server:
        settings: dict[str, Any] = {"bootstrap_servers": server.brokers, "bootstrap_timeout_ms": 10000}
        if secure:
            settings |= {
                "bootstrap_servers": f"127.0.0.1:{server.mtls_port}",
                "security_protocol": "SSL",
                "ssl_cafile": str(certs.ca),
                "ssl_certfile": str(certs.client_cert),
                "ssl_keyfile": str(certs.client_key),
            }
        with contextlib.closing(kafka.KafkaProducer(**settings)) as producer:
            assert producer.send("kept", "é🪣".encode(), key=b"k").get(20).offset == 0
        server.kill()
        server.start()
        settings |= {"auto_offset_reset": "earliest", "consumer_timeout_ms": 20000}
        with contextlib.closing(kafka.KafkaConsumer("kept", **settings)) as consumer:
            assert next(consumer).value == "é🪣".encode()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_kafka_lets_its_user_in_by_each_mechanism(kafka_server: services.Kafka, mechanism: str) -> None:
    kafka = pytest.importorskip("kafka")
    for port, protocol in ((kafka_server.sasl_port, "SASL_PLAINTEXT"), (kafka_server.sasl_tls_port, "SASL_SSL")):
        settings: dict[str, Any] = {
            "bootstrap_servers": f"127.0.0.1:{port}",
            "bootstrap_timeout_ms": 10000,
            "security_protocol": protocol,
            "sasl_mechanism": mechanism,
            "sasl_plain_username": services.USER,
            "sasl_plain_password": services.PASSWORD,
        }
        if protocol == "SASL_SSL":
            settings["ssl_cafile"] = str(services.certificates().ca)
        with contextlib.closing(kafka.KafkaProducer(**settings)) as producer:
            assert producer.send("t", b"x").get(20).topic == "t"


@pytest.fixture(scope="module")
def kafka_server() -> Iterator[services.Kafka]:
    with leaves_nothing(services.kafka()) as server:
        yield server


def test_an_old_kafka_speaks_to_an_old_client() -> None:
    kafka = pytest.importorskip("kafka")
    with leaves_nothing(services.kafka(old=True)) as server:
        settings = {"bootstrap_servers": server.brokers, "api_version": (0, 10, 2), "bootstrap_timeout_ms": 10000}
        with contextlib.closing(kafka.KafkaProducer(**settings, enable_idempotence=False)) as producer:
            assert producer.send("t", b"x").get(20).topic == "t"


@pytest.mark.parametrize("tls", [False, True])
def test_elasticsearch_keeps_a_document_through_a_kill_and_refuses_a_wrong_password(tls: bool) -> None:
    elasticsearch = pytest.importorskip("elasticsearch")
    with leaves_nothing(services.elasticsearch(tls=tls)) as server:

        def client(password: str) -> Any:
            extra = {"ca_certs": str(services.certificates().ca)} if tls else {}
            return elasticsearch.Elasticsearch(server.url, basic_auth=(server.user_name, password), **extra)

        with client(server.password) as known:
            known.index(index="kept", id="a/é", document={"v": "🪣"}, refresh=True)
        server.kill()
        server.start()
        with client(server.password) as known:
            # It answers before it has found its shards again.
            services.until(lambda: known.cluster.health(wait_for_status="yellow")["status"] != "red", 30)
            assert known.get(index="kept", id="a/é")["_source"] == {"v": "🪣"}
        with client("wrong") as stranger, pytest.raises(elasticsearch.AuthenticationException):
            stranger.info()
