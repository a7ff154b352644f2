"""What is JetStream's and NATS Streaming's own: acknowledgements one by one, ids, streams, and being a client."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from tests import services
from tests.contract.probes import fixtures
from tests.contract.probes.base import attempt, one_outcome, unavailable
from tests.contract.probes.nats import SUBJECT
from tests.contract.probes.nats_jetstream import STREAM, JetStream
from tests.contract.probes.nats_servers import Configured, assert_cloud_event, at
from tests.contract.probes.nats_streaming import AsyncStreaming, Streaming
from tests.contract.probes.nats_wire import Wire
from tests.services.messaging import http_json
from tests.support import sample_events
from tests.support.doc_consumers import consumers, following
from tests.support.recording_proxy import Wiretap
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Failed, NotAttempted, Rejected, Unavailable
from workers.systems.nats.connection import CLIENT_NAME
from workers.systems.nats.publishers import decoded, encoded
from workers.targets import payloads
from workers.targets.base import TargetUnavailable

WINDOWS = pytest.mark.parametrize("window", [1, 100])


running = fixtures.running(JetStream)
jetstream = fixtures.renewed()


@pytest.fixture(scope="module")
def streaming_server() -> Iterator[services.NatsStreaming]:
    with services.nats_streaming() as server:
        yield server


@pytest.fixture
def streaming(streaming_server: services.NatsStreaming) -> AsyncStreaming:
    return _streaming(streaming_server)


def _streaming(server: services.NatsStreaming) -> AsyncStreaming:
    probe = AsyncStreaming.__new__(AsyncStreaming)
    probe.server, probe._secure = server, None
    probe.renew()
    return probe


# --- JetStream


def test_each_message_bears_its_events_id_so_that_the_stream_keeps_it_once(jetstream: JetStream) -> None:
    made = [sample_events.put("a"), sample_events.put("b"), sample_events.put("a")]
    for _ in range(2):
        assert jetstream.delivered(made, 100) == [DELIVERED] * 3
    found = jetstream.messages()
    assert {each.headers for each in found} == {f"NATS/1.0\r\nNats-Msg-Id: {event.id}\r\n\r\n" for event in made}
    assert len(found) == 3


def test_a_trace_context_stands_beside_the_id_and_counts_for_the_servers_limit(jetstream: JetStream) -> None:
    with closing(Wire(jetstream.server)) as wire:
        most = wire.info["max_payload"]
    plain = len(payloads.log(sample_events.put("a", metadata="x", number=100)).encode())
    event = sample_events.traced(sample_events.put("a"))
    header = "".join(
        f"{name}: {value}\r\n" for name, value in ({"Nats-Msg-Id": event.id} | sample_events.TRACE).items()
    )
    header = f"NATS/1.0\r\n{header}\r\n"
    room = most - len(header) - plain + 1
    beyond, fits = (
        sample_events.traced(sample_events.put("a", metadata="x" * (room + more), number=101 + more)) for more in (1, 0)
    )
    with closing(jetstream.target()) as target:
        outcomes = target.deliver([event, beyond, fits], 1)
    assert [type(outcome) for outcome in outcomes] == [type(DELIVERED), Rejected, type(DELIVERED)]
    assert [each.headers for each in jetstream.messages()] == [header, header.replace(event.id, fits.id)]


@pytest.mark.parametrize("payload", ["cloudevents", "cloudevents-binary"])
def test_a_cloud_event_stands_beside_the_id(jetstream: JetStream, payload: str) -> None:
    made = [sample_events.put("a é\n"), sample_events.traced(sample_events.put("b"))]
    assert jetstream.delivered(made, payload=payload) == [DELIVERED] * 2
    for event, received in zip(made, jetstream.messages(), strict=True):
        assert f"Nats-Msg-Id: {event.id}\r\n" in received.headers
        assert_cloud_event(event, received, payload)


@WINDOWS
def test_a_missing_stream_is_unavailable_and_not_made(jetstream: JetStream, window: int) -> None:
    with jetstream.opened(subject="nobody.listens") as target:
        batch = [sample_events.put("a"), sample_events.put("b"), sample_events.put("a")]
        outcomes = attempt(target, batch, window)
    reason = unavailable(outcomes[0])
    assert "no JetStream stream has the subject 'nobody.listens'" in reason
    assert "--subjects=nobody.listens" in reason
    assert outcomes[2] == NOT_ATTEMPTED
    with closing(Wire(jetstream.server)) as wire:
        assert wire.ask("STREAM.NAMES")["streams"] == [STREAM]


@WINDOWS
def test_a_subject_of_a_template_that_no_stream_has_fails_its_event_alone(jetstream: JetStream, window: int) -> None:
    made = [sample_events.put(key) for key in ("events/a", "others/a", "others/a", "events/b")]
    with jetstream.opened(subject="minio.{prefix:1}") as target:
        first, refused, later, last = target.deliver(made, window)
    assert (first, later, last) == (DELIVERED, NOT_ATTEMPTED, DELIVERED)
    assert isinstance(refused, Failed)
    assert "no JetStream stream has the subject 'minio.others'" in refused.reason
    assert "--subjects=minio.*`" in refused.reason


@WINDOWS
def test_a_subject_of_a_template_that_is_not_allowed_fails_its_event_alone(window: int) -> None:
    rights = '{ publish: "minio.events", subscribe: "_INBOX.>" }'
    users = f"[ {{ user: alice, password: s3cret }}, {{ user: bob, password: pass, permissions: {rights} }} ]"
    made = [sample_events.put(key) for key in ("events/a", "others/a", "events/b", "k" * 1020)]
    with Configured(jetstream=True, login=f"authorization {{ users: {users} }}\n").start() as server:
        probe = JetStream.__new__(JetStream)
        probe.server, probe._secure = server, None
        probe.make_stream()
        with probe.opened(username="bob", password="pass", subject="minio.{prefix:1}") as target:
            first, refused, last, _ = target.deliver(made, window)
        with probe.opened(username="bob", password="pass", subject="minio.{name}") as target:
            (long,) = target.deliver(made[3:], window)
    assert (first, last) == (DELIVERED, DELIVERED)
    assert isinstance(refused, Failed)
    assert "may not publish to 'minio.others'" in refused.reason
    assert isinstance(long, Rejected)


def test_a_stream_made_meanwhile_is_used(jetstream: JetStream) -> None:
    with closing(Wire(jetstream.server)) as wire:
        wire.ask(f"STREAM.DELETE.{STREAM}")
    with closing(jetstream.target()) as target:
        event = sample_events.put("a")
        assert "no JetStream stream" in unavailable(attempt(target, [event], 1)[0])
        jetstream.make_stream()
        assert list(target.deliver([event], 1)) == [DELIVERED]


def test_a_server_without_jetstream_is_unavailable() -> None:
    with services.nats() as server:
        probe = at(server)
        assert "enable JetStream" in unavailable(one_outcome(probe, probe.values() | {"jetstream": "on"}))


@WINDOWS
def test_a_full_stream_is_unavailable_until_there_is_room(jetstream: JetStream, window: int) -> None:
    jetstream.make_stream(max_msgs=3, discard="new")
    batch = [sample_events.put("a", number=number + 1) for number in range(5)]
    with closing(jetstream.target()) as target:
        outcomes = attempt(target, batch, window)
        assert outcomes[:3] == [DELIVERED] * 3
        assert "maximum messages exceeded" in unavailable(outcomes[3])
        assert outcomes[4] == NOT_ATTEMPTED
        with closing(Wire(jetstream.server)) as wire:
            wire.ask(f"STREAM.PURGE.{STREAM}")
        assert list(target.deliver(batch[3:], window)) == [DELIVERED] * 2
    assert jetstream.numbers() == {"images/a": [4, 5]}


@WINDOWS
def test_a_message_beyond_the_streams_limit_is_rejected_alone(jetstream: JetStream, window: int) -> None:
    jetstream.make_stream(max_msg_size=2000)
    small, large, after = sample_events.put("a"), sample_events.put("a", metadata="x" * 2000), sample_events.put("a")
    with closing(jetstream.target()) as target:
        first, second, third = target.deliver([small, large, after], window)
    assert (first, third) == (DELIVERED, DELIVERED)
    assert isinstance(second, Rejected)
    assert "message size exceeds maximum allowed" in second.reason
    assert [body for _, body in jetstream.held()] == [payloads.log(small), payloads.log(after)]


def test_the_header_counts_for_the_servers_limit(jetstream: JetStream) -> None:
    """Else the server closes the connection over it, again and again."""
    with closing(Wire(jetstream.server)) as wire:
        most = wire.info["max_payload"]
    plain = len(payloads.log(sample_events.put("a", metadata="x")).encode())
    with closing(jetstream.target()) as target:
        header = len("NATS/1.0\r\nNats-Msg-Id: \r\n\r\n") + 32
        fits, beyond = (sample_events.put("a", metadata="x" * (most - header - plain + 1 + more)) for more in (0, 1))
        assert {len(payloads.log(each).encode()) for each in (fits, beyond)} == {most - header, most - header + 1}
        first, second = target.deliver([fits, beyond], 1)
    assert first == DELIVERED
    assert isinstance(second, Rejected)
    assert f"the message has {most + 1} bytes, max_payload is {most}" in second.reason


@WINDOWS
def test_an_answer_from_no_stream_is_no_acknowledgement(jetstream: JetStream, window: int) -> None:
    with Wiretap(jetstream.server) as tap, closing(Wire(jetstream.server)) as service:
        service.subscribe("a.service")
        with jetstream.opened(jetstream.at_port(tap.port), subject="a.service", timeout="5s") as target:

            def answer() -> None:
                services.until(lambda: b"a.service" in tap.said)
                reply = tap.said.split(b"a.service ")[1].split()[0].decode()
                service._send(f"PUB {reply} 3\r\n[1]\r\n".encode())
                service.flush()

            thread = threading.Thread(target=answer)
            thread.start()
            (outcome,) = attempt(target, [sample_events.put("a")], window)
            thread.join()
    assert "is not a JetStream acknowledgement" in unavailable(outcome)


@pytest.mark.parametrize(("window", "objects", "sent"), [(1, 15, 1), (10, 15, 10), (10, 3, 3)])
def test_of_each_object_one_message_is_under_way_and_of_all_a_window(
    jetstream: JetStream, window: int, objects: int, sent: int
) -> None:
    with (  # by a wire that stays connected: an answer to a closed connection has the server lose what it has not read
        Wiretap(jetstream.server) as tap,
        jetstream.opened(jetstream.at_port(tap.port), timeout="300ms") as target,
    ):
        batch = [sample_events.put(f"object-{number % objects}", number=number + 1) for number in range(100)]
        jetstream.server.freeze()
        outcomes = attempt(target, batch, window)
        assert all(isinstance(outcome, Unavailable | NotAttempted) for outcome in outcomes)
        jetstream.server.thaw()
        services.until(lambda: len(jetstream.held()) == sent, what="what was sent before the time was over")
        assert [path for path, _ in jetstream.held()] == [f"images/object-{number}" for number in range(sent)]


def test_a_user_needs_only_the_documented_rights() -> None:
    rights = '{ publish: "minio.events", subscribe: "_INBOX.>" }'
    users = f"[ {{ user: alice, password: s3cret }}, {{ user: bob, password: pass, permissions: {rights} }} ]"
    with Configured(jetstream=True, login=f"authorization {{ users: {users} }}\n").start() as server:
        probe = JetStream.__new__(JetStream)
        probe.server, probe._secure = server, None
        probe.make_stream()
        bob = probe.values() | {"username": "bob", "password": "pass"}
        assert one_outcome(probe, bob) == DELIVERED
        assert "permissions violation" in unavailable(one_outcome(probe, bob | {"subject": "minio.others"}))


def test_the_consumer_of_the_page_reads_a_stream() -> None:
    with Configured(jetstream=True, login="\n").start() as server:
        probe = JetStream.__new__(JetStream)
        probe.server, probe._secure = server, None
        probe.make_stream()
        program = consumers("nats", **{"localhost:4222": f"{services.LOOPBACK}:{server.port}"})[1]
        event = sample_events.put("cat.jpg")
        assert probe.delivered([event], username="", password="") == [DELIVERED]
        with following(program) as lines:
            services.until(lambda: lines() == [f"s3:ObjectCreated:Put images/cat.jpg {event.id}"])
        with closing(Wire(server)) as wire:
            assert wire.ask(f"CONSUMER.INFO.{STREAM}.mine")["ack_floor"]["stream_seq"] == 1


# --- NATS Streaming


def clients(server: services.NatsStreaming) -> list[str]:
    """The ids of those who are registered."""
    place = f"http://{services.LOOPBACK}:{server.monitor_port}/streaming/clientsz?limit=100"
    return [each["id"] for each in http_json(place).get("clients", [])]


def answers(server: services.NatsStreaming) -> int:
    """How many messages the server has had from targets."""
    found = http_json(f"http://{services.LOOPBACK}:{server.monitor_port}/connz")["connections"]
    return sum(int(each["in_msgs"]) for each in found if each.get("name") == CLIENT_NAME)


def test_a_wrong_cluster_id_is_unavailable(streaming: Streaming) -> None:
    with pytest.raises(TargetUnavailable, match="there is no NATS Streaming server of cluster 'tset-cluster'"):
        streaming.target(streaming_cluster_id="tset-cluster").open()


def test_a_server_that_is_no_streaming_server_is_unavailable() -> None:
    with services.nats() as server:
        probe = at(server)
        values = probe.values() | {"streaming": "on", "streaming_cluster_id": "test-cluster"}
        assert "there is no NATS Streaming server" in unavailable(one_outcome(probe, values))


def test_every_connection_has_a_client_id_of_its_own_and_gives_it_back(streaming: Streaming) -> None:
    server = streaming.server
    earlier = set(clients(server))
    first, second = streaming.target(), streaming.target()
    first.open()
    second.open()
    both = set(clients(server)) - earlier
    assert len(both) == 2
    second.close()
    first.close()
    assert set(clients(server)) == earlier
    first.open()
    (third,) = set(clients(server)) - earlier
    assert third not in both
    server.kill()
    server.start()
    assert list(first.deliver([sample_events.put("a")], 1)) == [DELIVERED]
    assert set(clients(server)) > {third}  # the server remembers the one that it did not see leave
    first.close()


def test_heartbeats_are_answered_between_two_calls() -> None:
    with _Impatient().start() as server:
        probe = _streaming(server)
        with probe.opened() as target:
            (ours,) = clients(server)
            before = answers(server)
            services.until(lambda: answers(server) >= before + 10, what="ten heartbeats answered")
            assert clients(server) == [ours]
            assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
            assert clients(server) == [ours]


@dataclass(eq=False)
class _Impatient(services.NatsStreaming):
    """A server that gives a client up after one heartbeat."""

    def configuration(self) -> str:
        text = super().configuration()
        return text.replace("store: file", 'hb_interval: "100ms", hb_timeout: "100ms", hb_fail_count: 1, store: file')


@dataclass(eq=False)
class _Guarded(_Impatient):
    """The same with a second user, who may do what the reference page says."""

    def configuration(self) -> str:
        rights = '{ publish: ["_STAN.>", "_INBOX.>"], subscribe: "_INBOX.>" }'
        users = f"[ {{ user: alice, password: s3cret }}, {{ user: bob, password: pass, permissions: {rights} }} ]"
        return re.sub(r"authorization .*\n", f"authorization {{ users: {users} }}\n", super().configuration())


def test_a_client_that_the_server_has_given_up_registers_anew(streaming: Streaming) -> None:
    before = set(clients(streaming.server))
    with streaming.opened() as target:
        (ours,) = set(clients(streaming.server)) - before
        with closing(Wire(streaming.server)) as wire:
            answer = _request(wire, "_STAN.discover.test-cluster", {1: "probe", 2: "_INBOX.heartbeats"})
            for client in (ours, "probe"):
                assert decoded(_ask(wire, answer[4], {1: client})) == {}
        (outcome,) = attempt(target, [sample_events.put("a")], 1)
        assert "invalid publish request" in unavailable(outcome)
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]


def _request(wire: Wire, subject: str, fields: dict[int, Any]) -> dict[int, Any]:
    return decoded(_ask(wire, subject.encode(), fields))


def _ask(wire: Wire, subject: bytes | int, fields: dict[int, Any]) -> bytes:
    assert isinstance(subject, bytes)
    body = encoded(fields)
    wire.subscribe("_INBOX.answer")
    wire._send(b"PUB %s _INBOX.answer %d\r\n%s\r\n" % (subject, len(body), body))
    while not wire.received:
        wire.flush()
    return wire.received.pop().body.encode()


def test_a_user_of_nats_streaming_needs_only_the_documented_rights() -> None:
    with _Guarded().start() as server:
        probe = _streaming(server)
        bob = probe.values() | {"username": "bob", "password": "pass"}
        with probe.opened(bob) as target:
            before = answers(server)
            services.until(lambda: answers(server) >= before + 5, what="five heartbeats answered")
            assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
        assert clients(server) == []


def test_a_channel_beyond_the_servers_limit_is_unavailable() -> None:
    with _Narrow().start() as server:
        probe = _streaming(server)
        assert one_outcome(probe, probe.values()) == DELIVERED
        reason = unavailable(one_outcome(probe, probe.values() | {"subject": "minio.second"}))
        assert "too many channels" in reason


@dataclass(eq=False)
class _Narrow(services.NatsStreaming):
    """A server for one channel."""

    def configuration(self) -> str:
        return super().configuration().replace("store: file", "store_limits: { max_channels: 1 }, store: file")


@pytest.mark.parametrize(
    ("asynchronous", "most", "window", "sent"),
    [("off", "0", 10, 1), ("on", "0", 1, 1), ("on", "0", 10, 10), ("on", "4", 10, 4), ("on", "40", 10, 10)],
)
def test_no_more_than_is_asked_for_is_unacknowledged(
    streaming: Streaming, asynchronous: str, most: str, window: int, sent: int
) -> None:
    how = {"timeout": "300ms", "streaming_async": asynchronous, "streaming_max_pub_acks_in_flight": most}
    with (  # over such a wire, too
        Wiretap(streaming.server) as tap,
        streaming.opened(streaming.at_port(tap.port), **how) as target,
    ):
        batch = [sample_events.put(f"object-{number % 15}", number=number + 1) for number in range(100)]
        streaming.server.freeze()
        outcomes = attempt(target, batch, window)
        streaming.server.thaw()
        assert all(isinstance(outcome, Unavailable | NotAttempted) for outcome in outcomes)
        services.until(lambda: len(streaming.held()) == sent, what="what was sent before the time was over")


def test_a_template_gives_each_event_its_channel(streaming: Streaming) -> None:
    words, _, number = streaming.subject.rpartition(".")
    made = [sample_events.put(f"{number}/a"), sample_events.put("others/a")]
    assert streaming.delivered(made, 1, subject=f"{words}.{{prefix:1}}") == [DELIVERED] * 2
    assert [path for path, _ in streaming.held()] == [made[0].path]


def test_what_goes_to_nats_streaming_goes_by_its_subject_alone(streaming: Streaming) -> None:
    """`minio.events` and `minio.events.2` are two channels."""
    assert one_outcome(streaming, streaming.values() | {"subject": f"{SUBJECT}.elsewhere"}) == DELIVERED
    assert streaming.held() == []
