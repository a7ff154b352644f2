"""What is Kafka's own: messages, partitions, batches, codecs, logins, versions, topics."""

from __future__ import annotations

import errno
import itertools
import random
import re
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from kafka import errors

from app.config.sources.kafka import KafkaSourceSettings
from app.config.target_settings import load
from tests import services
from tests.contract.probes import fixtures
from tests.contract.probes.base import LIMIT, attempt
from tests.contract.probes.kafka import PARTITIONS, Log
from tests.support import cloud_events, sample_events
from workers.delivery.outcomes import DELIVERED, Delivered, Failed, NotAttempted, Rejected, Unavailable
from workers.sources.base import SourceUnavailable
from workers.systems.kafka import client
from workers.systems.kafka.source import KafkaSource
from workers.systems.kafka.target import partition_of
from workers.targets.base import TargetUnavailable

ONE_AT_A_TIME = pytest.mark.nightly(
    "up to 100 at a time: a template is filled before anything is sent", when=lambda window: window == 1
)

NIGHTLY = pytest.mark.nightly("Kafka 4, also by the protocols 0.11 and 2.1")

WINDOWS = pytest.mark.parametrize("window", [1, 100])
MECHANISMS = pytest.mark.parametrize("mechanism", ["plain", "sha256", "sha512"])
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


running = fixtures.running(Log)
kafka = fixtures.renewed()


@pytest.fixture(scope="module")
def old() -> Iterator[Log]:
    """The last 3.x, which still speaks the oldest formats."""
    probe = Log(services.kafka(old=True))
    yield probe
    probe.close()


def batches(probe: Log, topic: str) -> list[tuple[int, int, int]]:
    """(codec, producer id, records) of each batch in the first partition's file, format 2."""
    found = []
    for segment in sorted((probe.server.folder / "data" / f"{topic}-0").glob("*.log")):
        content = segment.read_bytes()
        place = 0
        while place < len(content):
            (size,) = struct.unpack_from(">i", content, place + 8)
            (attributes,) = struct.unpack_from(">h", content, place + 21)
            (producer,) = struct.unpack_from(">q", content, place + 43)
            (records,) = struct.unpack_from(">i", content, place + 57)
            found.append((attributes & 7, producer, records))
            place += 12 + size
    return found


def size_of(probe: Log, topic: str) -> int:
    """Bytes that the first partition has on disk."""
    return sum(file.stat().st_size for file in (probe.server.folder / "data" / f"{topic}-0").glob("*.log"))


def test_a_message_has_the_path_as_key_no_headers_and_the_time_of_sending(kafka: Log) -> None:
    began = time.time() * 1000
    made = sample_events.put("folder/a file+é.txt")
    assert kafka.delivered([made]) == [DELIVERED]
    (message,) = kafka.messages()
    assert message.key() == "images/folder/a file+é.txt".encode()
    assert message.headers() is None
    assert began - 1 <= message.timestamp()[1] <= time.time() * 1000 + 1


def test_a_trace_context_is_the_headers_of_its_message_alone(kafka: Log) -> None:
    made = [sample_events.put("a"), sample_events.traced(sample_events.put("a")), sample_events.put("a")]
    assert kafka.delivered(made) == [DELIVERED] * 3
    traced = [(name, value.encode()) for name, value in sample_events.TRACE.items()]
    assert [message.headers() for message in kafka.messages()] == [None, traced, None]
    assert [message.value().decode() for message in kafka.messages()] == [kafka.expected(event) for event in made]


@pytest.mark.parametrize("payload", ["cloudevents", "cloudevents-binary"])
def test_a_cloud_event_is_read_by_the_sdk_and_its_key_stays(kafka: Log, payload: str) -> None:
    made = [sample_events.put(key) for key in sample_events.ODD_KEYS]
    made.append(sample_events.traced(sample_events.put("traced")))
    assert kafka.delivered(made, 100, payload=payload) == [DELIVERED] * len(made)
    messages = {message.key().decode(): message for message in kafka.messages()}
    for event in made:
        message = messages[event.path]
        headers = dict(message.headers())
        cloud_events.assert_is(cloud_events.of_kafka(headers, message.value()), event)
        if payload == "cloudevents-binary":
            assert message.value().decode() == kafka.expected(event)
            assert headers["content-type"] == b"application/json"
        else:
            assert headers.keys() - {"traceparent", "tracestate"} == {"content-type"}
        assert headers.get("traceparent", b"").decode() == event.trace.partition(" ")[0]


@WINDOWS
def test_the_partition_is_the_one_that_minio_would_choose(kafka: Log, window: int) -> None:
    made = [sample_events.put(key) for key in (*sample_events.ODD_KEYS, *(f"object-{number}" for number in range(200)))]
    assert set(kafka.delivered(made, window)) == {DELIVERED}
    found = {message.key(): message.partition() for message in kafka.messages()}
    assert found == {event.path.encode(): partition_of(event.path.encode(), PARTITIONS) for event in made}
    assert set(found.values()) == set(range(PARTITIONS))


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[int], int]]:
    """(acks, partitions, requests under way) of every produce request, as it goes out."""
    found: list[tuple[int, list[int], int]] = []
    under_way = itertools.count(1)
    lock, open_requests = threading.Lock(), set[int]()
    usual = client.Client.send

    def send(self: Any, node_id: Any, request: Any, **options: Any) -> Any:
        if not hasattr(request, "topic_data"):
            return usual(self, node_id, request, **options)
        number = next(under_way)
        partitions = [part.index for topic in request.topic_data for part in topic.partition_data]
        with lock:
            open_requests.add(number)
            found.append((request.acks, partitions, len(open_requests)))
        return usual(self, node_id, request, **options).add_both(lambda _: open_requests.discard(number))

    monkeypatch.setattr(client.Client, "send", send)
    return found


def test_window_1_has_one_batch_of_one_partition_under_way(
    kafka: Log, requests: list[tuple[int, list[int], int]]
) -> None:
    made = [sample_events.put(f"object-{number}") for number in range(100)]
    assert set(kafka.delivered(made, 1)) == {DELIVERED}
    assert len(requests) == PARTITIONS
    assert all(acks == -1 and len(partitions) == 1 and open_ == 1 for acks, partitions, open_ in requests)


def test_a_wider_window_sends_to_all_partitions_at_once(kafka: Log, requests: list[tuple[int, list[int], int]]) -> None:
    made = [sample_events.put(f"object-{number}") for number in range(100)]
    assert set(kafka.delivered(made, 100)) == {DELIVERED}
    assert [acks for acks, _, _ in requests] == [-1] * len(requests)
    assert len(requests) == 1
    assert sorted(requests[0][1]) == list(range(PARTITIONS))


@WINDOWS
def test_a_call_larger_than_a_batch_keeps_its_order(kafka: Log, window: int) -> None:
    kafka.topic = f"{kafka.topic}-long"
    kafka.create_topic(kafka.topic, 1)
    made = [sample_events.of_kilobyte(number, 3) for number in range(2000)]
    assert set(kafka.delivered(made, window, timeout="10s")) == {DELIVERED}
    assert [sample_events.number_of(document) for _, document in kafka.held()] == list(range(1, 2001))
    assert 2 <= len(batches(kafka, kafka.topic)) <= 4


@pytest.mark.parametrize(("setting", "producers"), [({}, True), ({"idempotent": "off"}, False)])
def test_the_broker_recognises_what_is_sent_twice_unless_told_otherwise(
    kafka: Log, setting: dict[str, str], producers: bool
) -> None:
    kafka.topic = f"{kafka.topic}-one"
    kafka.create_topic(kafka.topic, 1)
    assert set(kafka.delivered([sample_events.put("a"), sample_events.put("b")], **setting)) == {DELIVERED}
    ((_, producer, records),) = batches(kafka, kafka.topic)
    assert records == 2
    assert (producer >= 0) is producers


@pytest.mark.parametrize("codec", CODECS)
def test_batches_are_compressed_by_each_codec(kafka: Log, codec: str) -> None:
    kafka.topic = f"{kafka.topic}-{codec}"
    kafka.create_topic(kafka.topic, 1)
    made = [sample_events.of_kilobyte(number, 5) for number in range(20)]
    assert set(kafka.delivered(made, compression_codec=codec)) == {DELIVERED}
    assert {found for found, _, _ in batches(kafka, kafka.topic)} == {CODECS[codec]}
    assert sorted(kafka.held()) == sorted((event.path, kafka.expected(event)) for event in made)


def test_each_target_of_a_process_has_its_own_level(kafka: Log) -> None:
    """The library has no levels, so what gives it some must not mix them up."""
    words = random.Random(1)
    texts = [" ".join(words.choices(["bucket", "object", "notification", "event"], k=80)) for _ in range(80)]
    made = [sample_events.put(f"object-{number}", metadata=text) for number, text in enumerate(texts)]
    levels = (("gzip", "1"), ("gzip", "9"), ("zstd", "1"), ("zstd", "19"), ("lz4", "1"), ("lz4", "12"))
    open_targets, topics = [], {}
    for codec, level in levels:
        kafka.topic = topics[codec, level] = f"{kafka.topic}-{codec}-{level}"[-200:]
        kafka.create_topic(kafka.topic, 1)
        target = kafka.target(kafka.values(), compression_codec=codec, compression_level=level)
        target.open()
        open_targets.append(target)
    for target in (*open_targets, *reversed(open_targets)):
        assert set(target.deliver(made, 1)) == {DELIVERED}
    for target in open_targets:
        target.close()
    sizes = {place: size_of(kafka, topic) for place, topic in topics.items()}
    for codec, low, high in (("gzip", "1", "9"), ("zstd", "1", "19"), ("lz4", "1", "12")):
        assert sizes[codec, high] < sizes[codec, low]


def test_a_codec_whose_package_is_missing_is_named(kafka: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.codec, "zstd", None)
    with pytest.raises(TargetUnavailable, match="compression_codec: zstd needs the package zstandard"):
        kafka.target(compression_codec="zstd").open()


@MECHANISMS
@pytest.mark.parametrize("secure", [False, True])
def test_each_sasl_mechanism_logs_in(
    kafka: Log, certificates: services.Certificates, mechanism: str, secure: bool
) -> None:
    values = kafka.by_sasl(mechanism)
    if secure:
        brokers = f"{services.LOOPBACK}:{kafka.server.sasl_tls_port}"
        values |= {"tls": "on", "tls_ca": str(certificates.ca), "brokers": brokers}
    assert kafka.delivered([sample_events.put("a")], 1, values) == [DELIVERED]


@pytest.mark.parametrize("as_source", [False, True])
def test_a_broker_that_the_cluster_advertises_by_a_wrong_address_is_named(
    kafka: Log, monkeypatch: pytest.MonkeyPatch, as_source: bool
) -> None:
    """The bootstrap broker, which the settings name, answers; what it names does not, as with advertised.listeners."""
    advertised, usual = kafka.server.port, client.inet.KafkaNetSocket.connect_ex

    def connect(self: Any, wire: Any, address: Any) -> int:
        return errno.ECONNREFUSED if address[1] == advertised else int(usual(self, wire, address))

    monkeypatch.setattr(client.inet.KafkaNetSocket, "connect_ex", connect)
    with services.proxy(advertised) as proxy:
        values = kafka.at_port(proxy.port) | {"timeout": "1s"}
        if as_source:
            chosen = load(KafkaSourceSettings, {name: values[name] for name in ("brokers", "topic", "timeout")})
            with closing(KafkaSource(chosen)) as source, pytest.raises(SourceUnavailable) as caught:
                source.open({})
            reason = str(caught.value)
        else:
            with closing(kafka.target(values)) as target:
                (outcome,) = attempt(target, [sample_events.put("a")], 1)
            assert isinstance(outcome, Unavailable)
            reason = outcome.reason
    assert f"at {services.LOOPBACK}:{advertised}, the address that the cluster advertises" in reason
    assert "advertised.listeners" in reason


@pytest.mark.parametrize("window", [1, 100])
def test_only_a_batch_with_an_offset_is_delivered_unless_the_broker_had_it_already(
    kafka: Log, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    advertised, usual = kafka.server.port, client.inet.KafkaNetSocket.connect_ex
    said, used = [b""], threading.Event()

    def connect(self: Any, wire: Any, address: Any) -> int:
        return int(usual(self, wire, (address[0], proxy.port)))

    def changed(answer: bytes) -> bytes:
        """Of one partition: error code, offset, no time of the broker's."""
        produced = rb"(\x02\x00{3}.)\x00\x00\x00{7}.(\xff{8}\x00{8})"
        if not said[0] or not re.search(produced, answer, re.DOTALL):
            return answer
        used.set()
        return re.sub(produced, lambda match: match[1] + said[0] + b"\xff" * 8 + match[2], answer, flags=re.DOTALL)

    monkeypatch.setattr(client.inet.KafkaNetSocket, "connect_ex", connect)
    with services.proxy(advertised, changed) as proxy, closing(kafka.target(kafka.values())) as target:
        made = [sample_events.put("a", number=number + 1) for number in range(2)]
        assert attempt(target, made, window) == [DELIVERED] * 2
        said[0] = b"\x00\x00"
        outcomes = attempt(target, made, window)
        assert used.is_set(), outcomes
        assert all(isinstance(outcome, Unavailable | NotAttempted) for outcome in outcomes), outcomes
        assert "offset -1, which is none" in outcomes[0].reason  # type: ignore[union-attr]  # it is Unavailable
        assert used.is_set()
        used.clear()
        said[0] = struct.pack(">h", errors.DuplicateSequenceNumberError.errno)
        assert attempt(target, made, window) == [DELIVERED] * 2
        assert used.is_set()


@pytest.mark.parametrize("mechanism", ["sha256", "sha512"])
@pytest.mark.parametrize("name", ["CN=writer,OU=events,O=Example", "=2C", "a b"])
def test_a_scram_user_may_have_any_name_and_password(kafka: Log, mechanism: str, name: str) -> None:
    """A distinguished name has `=` and `,`, which SCRAM's own messages use (RFC 5802, section 5.1)."""
    kind = getattr(ScramMechanism, f"SCRAM_SHA_{mechanism.removeprefix('sha')}")
    password = "pass=word,é"
    alteration = UserScramCredentialUpsertion(name, ScramCredentialInfo(kind, 4096), password.encode())
    admin = kafka.admin()
    admin.alter_user_scram_credentials([alteration])[name].result(20)
    values = kafka.by_sasl(mechanism) | {"sasl_username": name, "sasl_password": password}
    with closing(kafka.target(values)) as target:
        services.until(lambda: list(attempt(target, [sample_events.put("a")], 1)) == [DELIVERED], 20)
    login = {name: values[name] for name in ("brokers", "sasl", "sasl_username", "sasl_password", "sasl_mechanism")}
    source = KafkaSource(load(KafkaSourceSettings, {"topic": kafka.topic, **login}))
    with closing(source):
        source.open({})


@MECHANISMS
def test_a_wrong_password_is_unavailable_and_suspected(kafka: Log, mechanism: str) -> None:
    target = kafka.target(kafka.by_sasl(mechanism) | {"sasl_password": "wrong-s3cret"})
    began = time.monotonic()
    with pytest.raises(TargetUnavailable, match=r"login|uthentication") as caught:
        target.open()
    assert time.monotonic() - began < LIMIT
    assert "wrong-s3cret" not in caught.value.reason


def test_a_port_that_wants_tls_is_suspected(kafka: Log) -> None:
    with pytest.raises(TargetUnavailable, match="does it need tls=on"):
        kafka.target(kafka.at_port(kafka.server.tls_port)).open()


def test_a_client_certificate_is_shown(kafka: Log, certificates: services.Certificates) -> None:
    values = kafka.by_tls(certificates.ca) | {"brokers": f"{services.LOOPBACK}:{kafka.server.mtls_port}"}
    (refused,) = attempt(kafka.target(values), [sample_events.put("a")], 1)
    pair = {"client_tls_cert": str(certificates.client_cert), "client_tls_key": str(certificates.client_key)}
    assert kafka.delivered([sample_events.put("a")], 1, values, **pair) == [DELIVERED]
    assert isinstance(refused, Unavailable)


def test_verification_can_be_waived(kafka: Log, certificates: services.Certificates) -> None:
    target = kafka.target(kafka.by_tls(certificates.other_ca), tls_skip_verify="on")
    target.open()
    target.close()


def test_a_server_frozen_before_the_tls_handshake_does_not_hang_the_worker(
    kafka: Log, certificates: services.Certificates
) -> None:
    target = kafka.target(kafka.by_tls(certificates.ca))
    kafka.server.freeze()
    began = time.monotonic()
    try:
        (outcome,) = attempt(target, [sample_events.put("a")], 1)
        took = time.monotonic() - began
    finally:
        kafka.server.thaw()
        target.close()
    assert took < LIMIT
    assert isinstance(outcome, Unavailable)


@NIGHTLY
@pytest.mark.parametrize("version", ["", "0.10.2.0", "0.11.0.0", "1.0.0", "2.1.0", "3.9.0", "4.3.0"])
@pytest.mark.parametrize("codec", ["none", "gzip", "lz4"])
def test_an_old_broker_is_spoken_to_in_its_own_tongue(old: Log, version: str, codec: str) -> None:
    old.renew()
    made = [sample_events.put(key) for key in (*sample_events.ODD_KEYS, "same", "same")]
    assert set(old.delivered(made, 100, version=version, compression_codec=codec)) == {DELIVERED}
    assert sorted(old.held()) == sorted((event.path, old.expected(event)) for event in made)


@NIGHTLY
def test_the_oldest_protocol_has_neither_idempotence_nor_sasl_but_delivers(old: Log) -> None:
    old.renew()
    made = [sample_events.put("a"), sample_events.traced(sample_events.put("b"))]  # nor headers
    assert old.delivered(made, version="0.8.2.2") == [DELIVERED] * 2
    assert [message.headers() for message in old.messages()] == [None] * 2
    assert old.delivered(made[1:], version="0.8.2.2", payload="cloudevents") == [DELIVERED]
    value = next(message.value() for message in old.messages() if b"specversion" in message.value())
    cloud_events.assert_is(cloud_events.of_kafka({}, value), made[1])


@pytest.mark.nightly(
    "0.11 and 2.1: a protocol is chosen by comparing versions", when=lambda version: version in {"1.0.0", "4.3.0"}
)
@pytest.mark.parametrize("version", ["0.11.0.0", "1.0.0", "2.1.0", "4.3.0"])
def test_a_new_broker_is_spoken_to_in_an_older_tongue(kafka: Log, version: str) -> None:
    assert kafka.delivered([sample_events.put("a"), sample_events.put("a")], version=version) == [DELIVERED] * 2
    assert len(kafka.held()) == 2


def test_a_version_that_the_broker_no_longer_speaks_is_unavailable(kafka: Log) -> None:
    with closing(kafka.target(version="0.10.2.0")) as target:
        began = time.monotonic()
        (outcome,) = attempt(target, [sample_events.put("a")], 1)
    assert time.monotonic() - began < LIMIT
    assert isinstance(outcome, Unavailable)
    assert kafka.held() == []


def test_one_living_broker_of_the_list_is_enough(kafka: Log) -> None:
    dead = [f"{services.LOOPBACK}:{services.free_port()}" for _ in range(12)]
    assert kafka.delivered(
        [sample_events.put("a")],
        1,
        kafka.values() | {"brokers": ", ".join([*dead[:6], kafka.server.brokers, *dead[6:]])},
    ) == [DELIVERED]


def test_a_broker_that_makes_topics_makes_this_one(kafka: Log) -> None:
    kafka.topic = f"{kafka.topic}-new"
    assert kafka.delivered([sample_events.put("a")]) == [DELIVERED]
    assert len(kafka.held()) == 1


@WINDOWS
def test_a_topic_with_small_messages_gets_small_batches(kafka: Log, window: int) -> None:
    kafka.topic = f"{kafka.topic}-small"
    kafka.create_topic(kafka.topic, 1, **{"max.message.bytes": "100000"})
    with kafka.opened() as target:
        for first in (0, 200):
            made = [sample_events.of_kilobyte(number, 7) for number in range(first, first + 200)]
            assert set(target.deliver(made, window)) == {DELIVERED}
    assert [sample_events.number_of(document) for _, document in kafka.held()] == list(range(1, 401))


@WINDOWS
@pytest.mark.parametrize("idempotent", ["on", "off"])
def test_only_the_message_that_is_too_large_is_blamed(kafka: Log, window: int, idempotent: str) -> None:
    """Whatever else was under way: beside it in its batch, or on its way to other partitions."""
    kafka.topic = f"{kafka.topic}-strict"
    kafka.create_topic(kafka.topic, PARTITIONS, **{"max.message.bytes": "100000"})
    made = [sample_events.put(f"object-{number % 20}", number=number + 1) for number in range(60)]
    large = {17: "object-17", 30: "object-3", 31: "another"}
    for place, key in large.items():
        made[place] = sample_events.put(key, metadata="x" * 150_000)
    outcomes = kafka.delivered(made, window, idempotent=idempotent, timeout="5s")
    for place, outcome in enumerate(outcomes):
        if place in large:
            assert isinstance(outcome, Rejected)
            assert "MessageSizeTooLarge" in outcome.reason
            assert "150" in outcome.reason
        else:
            assert outcome == DELIVERED
    for path, numbers in kafka.numbers().items():
        sent = [place + 1 for place, event in enumerate(made) if event.path == path and place not in large]
        assert list(dict.fromkeys(numbers)) == sent


def test_a_renewed_certificate_is_taken_up(kafka: Log, certificates: services.Certificates, tmp_path: Any) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text(certificates.ca.read_text())
    with kafka.opened(kafka.by_tls(ca)) as target:
        ca.write_text(certificates.other_ca.read_text())
        with pytest.raises(TargetUnavailable, match="certificate"):
            target.deliver([sample_events.put("a")], 1)
        ca.write_text(certificates.ca.read_text())
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]


@pytest.mark.parametrize("name", ["tls_ca", "client_tls_cert"])
def test_a_certificate_file_that_cannot_be_read_is_named(
    kafka: Log, certificates: services.Certificates, tmp_path: Any, name: str
) -> None:
    absent = str(tmp_path / "absent.pem")
    changes = {name: absent} | ({"client_tls_key": absent} if name != "tls_ca" else {})
    with pytest.raises(TargetUnavailable) as caught:
        kafka.target(kafka.by_tls(certificates.ca) | changes).open()
    assert absent in caught.value.reason


# --- a template


@ONE_AT_A_TIME
@WINDOWS
def test_a_template_gives_each_event_its_topic(kafka: Log, window: int) -> None:
    made = [
        sample_events.put("photos/cat.jpg"), sample_events.delete("photos/cat.jpg"), sample_events.put("Über uns/a"),
        sample_events.put("photos/dog.jpg"), sample_events.put("photos/cat.jpg"),
    ]  # fmt: skip
    start = f"{kafka.topic}-{window}"
    assert kafka.delivered(made, window, topic=f"{start}.{{prefix:1}}.{{kind}}") == [DELIVERED] * 5
    held = {
        topic: sorted(message.value().decode() for message in kafka.messages(f"{start}.{topic}"))
        for topic in ("photos.ObjectCreated", "photos.ObjectRemoved", "_ber_uns.ObjectCreated")
    }
    assert held == {
        "photos.ObjectCreated": sorted(kafka.expected(made[place]) for place in (0, 3, 4)),
        "photos.ObjectRemoved": [kafka.expected(made[1])],
        "_ber_uns.ObjectCreated": [kafka.expected(made[2])],
    }


@ONE_AT_A_TIME
@WINDOWS
def test_a_topic_of_a_template_that_cannot_be_made_fails_its_events_alone(kafka: Log, window: int) -> None:
    start = f"{kafka.topic}-{window}"
    for name in ("a.b", "c.d"):  # Kafka makes no topic whose name differs from another one's by . and _ alone
        kafka.create_topic(f"{start}-{name}", 1)
    made = [sample_events.put(key) for key in ("ok/1", "a_b/1", "a_b/1", "c_d/1", "ok/2", "k")]
    with kafka.opened(topic=f"{start}-{{prefix:1}}", timeout="4s") as target:
        began = time.monotonic()
        outcomes = list(target.deliver(made, window))
        assert time.monotonic() - began < LIMIT
        assert list(target.deliver(made[:1], window)) == [DELIVERED]
        began = time.monotonic()
        for _ in range(3):
            again = list(target.deliver(made[:2], window))
            assert [type(each) for each in again] == [Delivered, Failed]
        assert time.monotonic() - began < 4, "it waits again for what was not there"
    assert [type(each) for each in outcomes] == [Delivered, Failed, NotAttempted, Failed, Delivered, Delivered]
    assert f"topic {start}-a_b: UnknownTopicOrPartitionError" in str(outcomes[1])


def test_a_topic_of_a_template_that_is_made_later_is_used_without_a_new_connection(kafka: Log) -> None:
    kafka.create_topic(f"{kafka.topic}-a.b", 1)
    made = [sample_events.put("a_b/1")]
    with kafka.opened(topic=f"{kafka.topic}-{{prefix:1}}") as target:
        assert [type(each) for each in target.deliver(made, 1)] == [Failed]
        admin = kafka.admin()
        admin.delete_topics([f"{kafka.topic}-a.b"])[f"{kafka.topic}-a.b"].result(20)
        services.until(lambda: list(target.deliver(made, 1)) == [DELIVERED], 30, what="a delivery to the topic")


def test_an_object_goes_on_in_another_topic_only_after_its_event_before(kafka: Log) -> None:
    kafka.create_topic(f"{kafka.topic}-ObjectCreated", 1, **{"max.message.bytes": "2000"})
    large = sample_events.put("a", metadata="x" * 5000)
    made = [sample_events.delete("b"), large, sample_events.delete("a"), sample_events.put("a")]
    first, refused, second, third = kafka.delivered(made, 100, topic=f"{kafka.topic}-{{kind}}")
    assert (first, second, third) == (DELIVERED,) * 3
    assert isinstance(refused, Rejected)
    assert len(kafka.messages(f"{kafka.topic}-ObjectRemoved")) == 2


@WINDOWS
def test_a_topic_that_is_too_long_rejects_its_event_alone(kafka: Log, window: int) -> None:
    made = [sample_events.put("a"), sample_events.put("k" * 300), sample_events.put("b")]
    first, long, last = kafka.delivered(made, window, topic=f"{kafka.topic}-{{name}}")
    assert (first, last) == (DELIVERED, DELIVERED)
    assert long == Rejected("topic of this event is not a topic name")


@ONE_AT_A_TIME
@WINDOWS
def test_a_template_gives_each_message_its_key(kafka: Log, window: int) -> None:
    made = [sample_events.put(key) for key in sample_events.ODD_KEYS]
    assert kafka.delivered(made, window, key="{bucket}|{name}") == [DELIVERED] * len(made)
    found = {message.key().decode(): message.partition() for message in kafka.messages()}
    names = [event.key.rpartition("/")[2] or "_" for event in made]
    assert found == {key: partition_of(key.encode(), PARTITIONS) for key in (f"images|{name}" for name in names)}
