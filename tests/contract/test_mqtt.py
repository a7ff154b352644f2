"""What is MQTT's own: schemes, versions, qualities of service, and what a broker says no to or says nothing about."""

from __future__ import annotations

import contextlib
import re
import socket
import socketserver
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread
from urllib.parse import quote, unquote

import psutil
import pytest
from paho.mqtt import client as paho

from app.config import target_settings
from tests import services
from tests.contract.probes import fixtures
from tests.contract.probes.base import LIMIT, assert_no_socket_is_left, attempt
from tests.contract.probes.mqtt import TOPIC, Qos1, Subscriber, Watched
from tests.support import cloud_events, sample_events
from tests.support.doc_consumers import consumers
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Failed, NotAttempted, Outcome, Rejected, Unavailable
from workers.systems.mqtt.link import outcome_of_code
from workers.targets import create, payloads
from workers.targets.base import TargetUnavailable

ONE_AT_A_TIME = pytest.mark.nightly(
    "up to 100 at a time: a topic is found before anything is sent", when=lambda window: window == 1
)

NIGHTLY = pytest.mark.nightly(
    "each version, and each quality of service with one of them: one changes properties, the other confirmations",
    when=lambda version, qos: (version, qos) not in {("3.1.1", "0"), ("5", "1"), ("3.1.1", "2")},
)

WINDOWS = pytest.mark.parametrize("window", [1, 100])
VERSIONS = pytest.mark.parametrize("version", ["3.1.1", "5"])
QUALITIES = pytest.mark.parametrize("qos", ["0", "1", "2"])


running = fixtures.running(Qos1)
broker = fixtures.renewed()


@contextlib.contextmanager
def configured(settings: str) -> Iterator[Qos1]:
    """A broker of its own with these settings besides."""
    probe = Qos1.__new__(Qos1)
    probe.server = Watched()
    file = probe.server.folder / "mosquitto.conf"
    file.write_text(f"{settings}\n{file.read_text()}")
    probe.server.start()
    try:
        yield probe
    finally:
        probe.close()


def connections(broker: Qos1) -> list[str]:
    """The broker's lines about our connections."""
    lines = re.findall(r"New client connected from .* as (\S+ \(.*\))", broker.server.said())
    return [line for line in lines if line.startswith("bucketwire")]


# --- connecting


@VERSIONS
@pytest.mark.parametrize("scheme", ["tcp", "tcps", "ssl", "tls", "ws", "wss"])
def test_every_scheme_leads_to_the_broker(
    broker: Qos1, certificates: services.Certificates, scheme: str, version: str
) -> None:
    ports = {"tcp": broker.server.port, "ws": broker.server.ws_port, "wss": broker.server.wss_port}
    port = ports.get(scheme, broker.server.tls_port)
    changes = {"broker": f"{scheme}://localhost:{port}{'/mqtt?x=1' if scheme.startswith('ws') else ''}"}
    if scheme not in ("tcp", "ws"):
        changes["tls_ca"] = str(certificates.ca)
    with closing(broker.target(version=version, **changes)) as target:
        made = [sample_events.put(f"object-{number}") for number in range(50)]
        assert list(target.deliver(made, 100)) == [DELIVERED] * 50
    assert broker.held() == [(event.path, payloads.log(event)) for event in made]


@VERSIONS
def test_a_client_certificate_is_shown(broker: Qos1, certificates: services.Certificates, version: str) -> None:
    values = {
        "broker": f"tls://127.0.0.1:{broker.server.mtls_port}",
        "tls_ca": str(certificates.ca),
        "version": version,
    }
    (refused,) = attempt(broker.target(**values), [sample_events.put("a")], 1)
    assert isinstance(refused, Unavailable)
    assert "certificate required" in refused.reason.lower()
    ours = {"client_cert": str(certificates.client_cert), "client_key": str(certificates.client_key)}
    assert broker.delivered([sample_events.put("a")], **values, **ours) == [DELIVERED]


def test_verification_can_be_waived(broker: Qos1, certificates: services.Certificates) -> None:
    assert broker.delivered(
        [sample_events.put("a")], 1, broker.by_tls(certificates.other_ca), tls_skip_verify="on"
    ) == [DELIVERED]


@VERSIONS
def test_a_login_may_stand_in_the_url(broker: Qos1, version: str) -> None:
    password = "p:a/s%s?#"
    subprocess.run(
        ["mosquitto_passwd", "-b", str(broker.server.folder / "passwords"), "us/er", password], check=True, timeout=10
    )
    psutil.Process(broker.server.pid).send_signal(1)  # SIGHUP: mosquitto reads its passwords again
    login = f"{quote('us/er', safe='')}:{quote(password, safe='')}"
    values = {"broker": f"tcp://{login}@127.0.0.1:{broker.server.port}", "username": "", "password": ""}
    target = broker.target(**values, version=version)

    def opens() -> bool:
        with contextlib.suppress(TargetUnavailable):
            target.open()
            return True
        return False

    services.until(opens, what="the broker knows the new user")
    assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
    target.close()


@VERSIONS
def test_a_wrong_password_is_unavailable_with_the_brokers_words(broker: Qos1, version: str) -> None:
    with pytest.raises(TargetUnavailable, match=r"Not authorized|Bad user name or password"):
        broker.target(broker.as_stranger(), version=version).open()


@VERSIONS
@pytest.mark.parametrize(("interval", "seconds"), [("0s", 10), ("45s", 45), ("300ms", 1)])
def test_the_broker_is_told_version_and_keep_alive(broker: Qos1, version: str, interval: str, seconds: int) -> None:
    target = broker.target(version=version, keep_alive_interval=interval, reconnect_interval="1m")
    target.open()
    target.close()
    services.until(lambda: f"(p{'5' if version == '5' else '2'}, c1, k{seconds}, u'alice')" in connections(broker)[-1])


def test_version_3_1_can_be_chosen(broker: Qos1) -> None:
    assert broker.delivered([sample_events.put("a")], version="3.1") == [DELIVERED]
    services.until(lambda: "(p1, c1, " in connections(broker)[-1])


@pytest.mark.parametrize("answer", [b"\x20\x02\x00\x01", b""], ids=["by a code", "without a word"])
def test_a_broker_that_refuses_3_1_1_is_served_by_3_1(broker: Qos1, answer: bytes) -> None:
    with refusing_3_1_1(broker.server.port, answer) as port:
        with closing(broker.target(broker.at_port(port))) as target:
            made = [sample_events.put(f"object-{number}") for number in range(5)]
            assert list(target.deliver(made, 100)) == [DELIVERED] * 5
        assert broker.held() == [(event.path, payloads.log(event)) for event in made]
        with pytest.raises(TargetUnavailable):
            broker.target(broker.at_port(port) | {"version": "5"}).open()
        with pytest.raises(TargetUnavailable, match=r"Bad user name or password|Not authorized|was lost"):
            broker.target(broker.at_port(port) | {"password": "wrong"}).open()


@contextlib.contextmanager
def refusing_3_1_1(port: int, answer: bytes) -> Iterator[int]:
    """Relay connections of MQTT 3.1 to the broker, and end others as a broker of 2013 does."""

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            begin = self.request.recv(4096)
            if b"MQIsdp\x03" not in begin[:12]:
                self.request.sendall(answer)
                return
            with socket.create_connection((services.LOOPBACK, port)) as onward:
                onward.sendall(begin)
                ends = {self.request: onward, onward: self.request}
                while True:
                    for ready in wait(list(ends)):
                        if not (content := ready.recv(65536)):
                            return
                        ends[ready].sendall(content)

    with socketserver.ThreadingTCPServer((services.LOOPBACK, 0), Relay) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_many_workers_have_each_a_name_of_its_own_that_any_broker_takes(broker: Qos1) -> None:
    before = len(connections(broker))
    targets = [broker.target() for _ in range(30)]
    for target in targets:
        target.open()
    for target in targets:
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
        target.close()
    names = [line.split()[0] for line in connections(broker)[before:]]
    assert len(set(names)) == len(names) == 30
    assert all(re.fullmatch("bucketwire[0-9a-f]{12}", name) for name in names)


@pytest.mark.parametrize("wrong", ["password", "certificate", "port", "tls", "websocket"])
def test_a_refusal_leaves_no_socket_open(broker: Qos1, certificates: services.Certificates, wrong: str) -> None:
    plain = f"127.0.0.1:{broker.server.port}"
    target = broker.target({
        "password": broker.as_stranger(),
        "certificate": broker.by_tls(certificates.other_ca),
        "port": broker.at_port(services.free_port()),
        "tls": broker.values() | {"broker": f"tls://{plain}"},
        "websocket": broker.values() | {"broker": f"ws://{plain}/"},
    }[wrong])  # fmt: skip
    assert_no_socket_is_left(target)


# --- messages


@QUALITIES
def test_a_trace_context_is_user_properties_in_version_5_and_nothing_before(broker: Qos1, qos: str) -> None:
    made = [sample_events.put("a"), sample_events.traced(sample_events.put("a"))]
    subscriber = Subscriber(version=5)
    subscriber.subscribe(broker.server.port)
    for version in ("3.1.1", "5"):
        assert broker.delivered(made, 100, version=version, qos=qos) == [DELIVERED] * 2
    services.until(lambda: len(subscriber.heard()) == 4)
    subscriber.leave()
    assert subscriber.payloads == [payloads.log(event) for event in made] * 2
    assert subscriber.properties == [{}, {}, {}, sample_events.TRACE]


@pytest.mark.parametrize("payload", ["cloudevents", "cloudevents-binary"])
@QUALITIES
def test_a_cloud_event_is_in_the_body_or_in_properties_of_version_5(broker: Qos1, qos: str, payload: str) -> None:
    made = [sample_events.put(key) for key in sample_events.ODD_KEYS]
    made.append(sample_events.traced(sample_events.put("traced")))
    subscriber = Subscriber(version=5)
    subscriber.subscribe(broker.server.port)
    assert broker.delivered(made, version="5", qos=qos, payload=payload) == [DELIVERED] * len(made)
    services.until(lambda: len(subscriber.heard()) == len(made))
    subscriber.leave()
    for number, event in enumerate(made):
        body, user = subscriber.payloads[number], subscriber.properties[number]
        if payload == "cloudevents":
            assert subscriber.content_types[number] == "application/cloudevents+json; charset=utf-8"
            assert user == (sample_events.TRACE if event.trace else {})
            found = cloud_events.structured(body)
        else:
            assert body == payloads.log(event)
            found = cloud_events.of_attributes(user | {"datacontenttype": subscriber.content_types[number]}, body)
        cloud_events.assert_is(found, event)


def test_a_trace_context_counts_for_the_brokers_limit() -> None:
    with configured("max_packet_size 20000") as broker:
        plain = len(payloads.log(sample_events.put("a", metadata="x", number=1)).encode())
        # The fixed header, the topic, the identifier, the properties with their length.
        around = (
            4 + 2 + len(TOPIC) + 2 + 1 + sum(5 + len(name) + len(value) for name, value in sample_events.TRACE.items())
        )
        room = 20_000 - around - plain + 1
        beyond, fits = (
            sample_events.traced(sample_events.put("a", metadata="x" * (room + more), number=1)) for more in (1, 0)
        )
        with closing(broker.target(version="5")) as target:
            first, second = target.deliver([beyond, fits], 1)
        assert (type(first), second) == (Rejected, DELIVERED)


@NIGHTLY
@VERSIONS
@QUALITIES
@pytest.mark.parametrize("retain", ["off", "on"])
def test_the_broker_keeps_the_last_event_only_if_asked(broker: Qos1, version: str, qos: str, retain: str) -> None:
    topic = f"{TOPIC}/{version}/{qos}/{retain}"
    with closing(broker.target(version=version, qos=qos, retain=retain, topic=topic)) as target:
        batch = [sample_events.put("a"), sample_events.put("b")]
        assert list(target.deliver(batch, 1)) == [DELIVERED] * 2
    later = Subscriber(topic)
    later.subscribe(broker.server.port)
    try:
        assert later.heard() == ([payloads.log(batch[-1])] if retain == "on" else [])
    finally:
        later.leave()


@ONE_AT_A_TIME
@NIGHTLY
@VERSIONS
@QUALITIES
@WINDOWS
def test_a_large_event_arrives_whole(version: str, qos: str, window: int) -> None:
    with configured("") as broker:
        limits = broker.server.folder / "mosquitto.conf"
        limits.write_text(re.sub("message_size_limit.*", "", limits.read_text()))
        broker.server.stop()
        broker.server.start()
        large = sample_events.put("large", metadata="x" * 3_000_000)
        assert (
            broker.delivered([large, sample_events.put("small")], window, version=version, qos=qos, timeout="20s")
            == [DELIVERED] * 2
        )
        assert broker.held()[0] == (large.path, payloads.log(large))


@pytest.mark.parametrize("answer", [b"", b"\x20\x02\x00\x01", b"\x20\x03\x00\x84\x00"])
def test_a_broker_without_version_5_is_suspected(answer: bytes) -> None:
    """It closes the connection, or answers with the code of 3.1.1 or of 5 for an unknown version."""

    def serve() -> None:
        wire, _ = listening.accept()
        with wire:
            wire.recv(1000)
            wire.sendall(answer)

    with socket.create_server((services.LOOPBACK, 0)) as listening:
        thread = Thread(target=serve)
        thread.start()
        settings = {"broker": f"tcp://{services.LOOPBACK}:{listening.getsockname()[1]}", "topic": "t", "version": "5"}
        target = create("mqtt", target_settings.load("mqtt", settings))
        with pytest.raises(TargetUnavailable, match=r"does the broker speak MQTT 5\? if not, set version=3\.1\.1"):
            target.open()
        thread.join()


# --- what is said no to


@pytest.mark.parametrize(
    ("code", "kind"),
    [(0x00, type(DELIVERED)), (0x10, type(DELIVERED)), (0x80, Failed), (0x83, Failed), (0x87, Unavailable),
     (0x90, Unavailable), (0x91, Failed), (0x95, Rejected), (0x97, Unavailable), (0x99, Rejected), (0xEE, Failed)],
)  # fmt: skip
def test_every_code_of_version_5_has_its_outcome(code: int, kind: type[Outcome]) -> None:
    outcome = outcome_of_code(code, "because")
    assert type(outcome) is kind
    if not isinstance(outcome, type(DELIVERED)):
        assert outcome.reason.endswith(f"(0x{code:02X}): because")


@pytest.mark.parametrize("qos", ["1", "2"])
@WINDOWS
def test_a_topic_that_is_not_ours_is_unavailable_where_the_broker_can_say_so(
    tmp_path: Path, qos: str, window: int
) -> None:
    rights = tmp_path / "rights"
    rights.write_text(f"user {services.USER}\ntopic read #\n")
    with configured(f"acl_file {rights}") as broker:
        batch = [sample_events.put(f"object-{number % 20}") for number in range(60)]
        with closing(broker.target(version="5", qos=qos)) as target:
            outcomes = attempt(target, batch, window)
            assert all(isinstance(outcome, Unavailable | NotAttempted) for outcome in outcomes)
            assert "not authorised (0x87)" in str(outcomes[0])
        # Version 3.1.1 has no word for it: the page says so.
        assert broker.delivered(batch[:1], window, version="3.1.1", qos=qos) == [DELIVERED]
        assert broker.held() == []


@WINDOWS
@QUALITIES
def test_a_packet_larger_than_the_broker_takes_is_rejected_without_being_sent(window: int, qos: str) -> None:
    fits = sample_events.put("x")
    size = len(payloads.log(fits).encode()) + len(TOPIC) + 2 + (2 if qos != "0" else 0) + 1 + 3  # to the byte
    with configured(f"max_packet_size {size}") as broker:
        with broker.opened(version="5", qos=qos) as target:
            batch = [fits, sample_events.put("xy"), sample_events.put("x", metadata="x" * 5000), fits]
            outcomes = list(target.deliver(batch, window))
            assert [type(outcome) for outcome in outcomes] == [type(DELIVERED), Rejected, Rejected, type(DELIVERED)]
            assert "more than the broker accepts" in str(outcomes[1])
        assert len(connections(broker)) == 1
        assert broker.held() == [(fits.path, payloads.log(fits))] * 2


@WINDOWS
@pytest.mark.parametrize("qos", ["1", "2"])
def test_an_event_that_makes_the_broker_hang_up_fails_and_does_not_stop_the_others(window: int, qos: str) -> None:
    large, others = (
        sample_events.put("large", metadata="x" * 5000),
        [sample_events.put(f"object-{number}") for number in range(5)],
    )
    with configured("max_packet_size 2000") as broker:
        target = broker.target(qos=qos)
        (*before, last) = target.deliver([*others, large], window)
        failed = [outcome for outcome in (*before, last) if isinstance(outcome, Failed)]
        assert len(failed) == 1
        if window == 1:
            assert last is failed[0]
        assert [type(each) for each in target.deliver([large], window)] == [Failed]
        assert list(target.deliver([large, sample_events.put("large")], window))[1] == NOT_ATTEMPTED
        assert list(target.deliver(others, window)) == [DELIVERED] * 5
        broker.server.kill()
        (outcome,) = attempt(target, [large], window)
        assert isinstance(outcome, Unavailable)


@pytest.mark.parametrize(
    ("setting", "changes", "words"),
    [
        ("max_qos 1", {"qos": "2"}, "at most QoS 1"),
        ("retain_available false", {"retain": "on"}, "does not support retained messages"),
        ("max_packet_size 200", {}, "of up to 200 bytes: no event is so small"),
    ],
)
def test_what_the_broker_cannot_do_is_found_out_when_opening(setting: str, changes: dict[str, str], words: str) -> None:
    before = psutil.Process().num_fds()
    with configured("") as broker:
        file = broker.server.folder / "mosquitto.conf"
        broker.server.stop()
        first, divider, rest = file.read_text().partition(f"listener {broker.server.port} {services.LOOPBACK}\n")
        file.write_text(
            f"{first}{divider}{setting}\n{rest}"
            if setting.startswith("max_qos")
            else f"{setting}\n{first}{divider}{rest}"
        )
        broker.server.start()
        with pytest.raises(TargetUnavailable, match=words):
            broker.target(version="5", **changes).open()
    assert psutil.Process().num_fds() == before


# --- the connection


@NIGHTLY
@VERSIONS
@QUALITIES
def test_a_connection_idle_for_longer_than_its_keep_alive_costs_nothing(broker: Qos1, version: str, qos: str) -> None:
    with closing(broker.target(keep_alive_interval="1s", version=version, qos=qos)) as target:
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
        name = connections(broker)[-1].split()[0]
        services.until(lambda: f"Client {name} has exceeded timeout" in broker.server.said())
        assert list(target.deliver([sample_events.put("b")], 100)) == [DELIVERED]
    assert [path for path, _ in broker.held()] == ["images/a", "images/b"]


def test_a_connection_that_ends_just_when_something_is_sent_after_a_pause_costs_no_attempt(broker: Qos1) -> None:
    with services.proxy(broker.server.port) as proxy, closing(broker.target(broker.at_port(proxy.port))) as target:
        assert list(target.deliver([sample_events.put("before")], 1)) == [DELIVERED]
        proxy.lose_answer_to(b"images/a")
        (outcome,) = attempt(target, [sample_events.put("a")], 1)
        assert isinstance(outcome, Unavailable)
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]


def test_a_connection_that_the_broker_closed_meanwhile_costs_nothing(broker: Qos1) -> None:
    with closing(broker.target(keep_alive_interval="10m")) as target:
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
        broker.server.stop()
        broker.server.start()
        assert list(target.deliver([sample_events.put("b")], 1)) == [DELIVERED]


@NIGHTLY
@VERSIONS
@QUALITIES
def test_a_broker_that_falls_silent_is_found_out_by_the_keep_alive(broker: Qos1, version: str, qos: str) -> None:
    with services.proxy(broker.server.port) as wire:
        changes = {"version": version, "qos": qos, "keep_alive_interval": "1s", "timeout": "1m"}
        with broker.opened(broker.at_port(wire.port), **changes) as target:
            wire.mute()
            began = time.monotonic()
            (outcome,) = attempt(target, [sample_events.put("a")], 1)
            assert time.monotonic() - began < LIMIT
    assert isinstance(outcome, Unavailable)
    assert "keep-alive interval of 1 s" in outcome.reason


@pytest.mark.parametrize(
    ("version", "qos", "window", "most"),
    [("3.1.1", "0", 1, 1), ("3.1.1", "0", 100, 100), ("3.1.1", "1", 1, 1), ("3.1.1", "1", 100, 100), ("5", "1", 1, 1),
     ("5", "1", 10, 10), ("5", "1", 100, 20), ("5", "0", 100, 100)],
)  # fmt: skip
def test_no_more_than_the_window_is_ever_unconfirmed_nor_more_than_the_broker_allows(
    broker: Qos1, version: str, qos: str, window: int, most: int
) -> None:
    with (
        services.proxy(broker.server.port) as wire,
        broker.opened(broker.at_port(wire.port), version=version, qos=qos) as target,
    ):
        wire.mute()
        outcomes = attempt(target, [sample_events.put(f"object-{number}") for number in range(300)], window)
    refused = [outcome.reason for outcome in outcomes if isinstance(outcome, Unavailable)]
    assert len(refused) == len(broker.held()) == most
    assert all("no answer within 2 s" in reason for reason in refused)
    assert outcomes.count(NOT_ATTEMPTED) == 300 - most, "what was not sent has no part in it"


@pytest.mark.parametrize(("version", "most"), [("3.1.1", 70), ("5", 7)])
def test_an_objects_next_event_waits_where_the_one_before_may_be_refused(broker: Qos1, version: str, most: int) -> None:
    with (
        services.proxy(broker.server.port) as wire,
        broker.opened(broker.at_port(wire.port), version=version) as target,
    ):
        wire.mute()
        attempt(target, [sample_events.put(f"object-{number % 7}") for number in range(70)], 100)
    assert len(broker.held()) == most


@NIGHTLY
@VERSIONS
@QUALITIES
def test_what_was_given_up_is_not_sent_behind_our_back(broker: Qos1, version: str, qos: str) -> None:
    with broker.opened(version=version, qos=qos) as target:
        broker.server.freeze()
        given_up = [sample_events.put(f"object-{number}") for number in range(50)]
        assert all(isinstance(outcome, Unavailable | NotAttempted) for outcome in attempt(target, given_up, 100))
        broker.server.kill()
        broker.server.start()
        broker.renew()
        event = sample_events.put("next")
        assert list(target.deliver([event], 100)) == [DELIVERED]
        assert broker.held() == [("images/next", payloads.log(event))]


def test_an_interrupted_call_does_not_leave_its_connection_to_the_next(
    broker: Qos1, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker.opened() as target:

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        before = len(connections(broker))
        with monkeypatch.context() as patch:
            patch.setattr(paho.Client, "loop_write", interrupted)
            with pytest.raises(KeyboardInterrupt):
                target.deliver([sample_events.put("a")], 1)
        event = sample_events.put("b")
        assert list(target.deliver([event], 1)) == [DELIVERED]
    assert len(connections(broker)) == before + 1
    assert broker.held() == [("images/b", payloads.log(event))]


def test_the_consumer_of_the_page_reads_what_was_delivered() -> None:
    with configured("") as broker:
        broker.server.stop()
        file = broker.server.folder / "mosquitto.conf"
        file.write_text(file.read_text().replace("allow_anonymous false", "allow_anonymous true"))
        broker.server.start()
        (program,) = consumers("mqtt", **{"1883": str(broker.server.port)})
        log = services.new_folder("consumer") / "log"
        target = broker.target()
        with log.open("w") as output:
            child = subprocess.Popen([sys.executable, "-u", "-c", program], stdout=output, stderr=output)
        try:

            def delivered_and_read() -> bool:
                assert child.poll() is None, log.read_text()
                assert list(target.deliver([sample_events.put("cat.jpg")], 1)) == [DELIVERED]
                return "s3:ObjectCreated:Put images cat.jpg\n" in log.read_text()

            services.until(delivered_and_read)
        finally:
            child.kill()
            child.wait()
            target.close()


# --- a template


@contextlib.contextmanager
def listening(broker: Qos1, topic: str) -> Iterator[Subscriber]:
    """Who hears all of these topics."""
    subscriber = Subscriber(topic)
    subscriber.subscribe(broker.server.port)
    try:
        yield subscriber
    finally:
        subscriber.leave()


@NIGHTLY
@VERSIONS
@QUALITIES
def test_a_template_gives_each_event_its_topic(broker: Qos1, qos: str, version: str) -> None:
    keys = [key for key in sample_events.ODD_KEYS if key != "k" * 1000]
    made = [*(sample_events.put(key) for key in keys), sample_events.delete("a+b/#/c")]
    with listening(broker, "s3/#") as subscriber:
        assert broker.delivered(made, 100, topic="s3/{kind}/{key}", qos=qos, version=version) == [DELIVERED] * len(made)
        subscriber.heard()
    assert [unquote(topic) for topic in subscriber.topics] == [
        *(f"s3/ObjectCreated/{key}" for key in keys), "s3/ObjectRemoved/a+b/#/c",
    ]  # fmt: skip
    assert subscriber.topics[-1] == "s3/ObjectRemoved/a%2Bb/%23/c"


def test_an_event_never_goes_to_the_brokers_own_topics(broker: Qos1) -> None:
    with listening(broker, "%24SYS/#") as subscriber:
        assert broker.delivered([sample_events.put("$SYS/a")], topic="{key}", version="5") == [DELIVERED]
        subscriber.heard()
    assert subscriber.topics == ["%24SYS/a"]


@ONE_AT_A_TIME
@WINDOWS
def test_a_topic_of_a_template_that_is_not_allowed_fails_its_event_alone(tmp_path: Path, window: int) -> None:
    rights = tmp_path / "acl"
    rights.write_text(f"user {services.USER}\ntopic readwrite minio/ok\ntopic read minio/#\n")
    made = [sample_events.put(key) for key in ("ok/a", "no/a", "no/a", "ok/b")]
    with configured(f"acl_file {rights}") as broker, broker.opened(version="5", topic="minio/{prefix:1}") as target:
        first, refused, later, last = target.deliver(made, window)
    assert (first, later, last) == (DELIVERED, NOT_ATTEMPTED, DELIVERED)
    assert isinstance(refused, Failed)
    assert "not authorised (0x87)" in refused.reason


@ONE_AT_A_TIME
@WINDOWS
def test_a_topic_with_more_levels_than_the_broker_takes_holds_up_no_other_object(broker: Qos1, window: int) -> None:
    deep, other = sample_events.put("/" * 300), sample_events.put("a")
    with broker.opened(topic="{key}") as target:
        first, _ = attempt(target, [deep, other], window)
        assert isinstance(first, Failed)
        assert list(target.deliver([other], window)) == [DELIVERED]
