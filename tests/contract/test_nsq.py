"""What is NSQ's own: one command for a batch, nsqd's errors, TLS, and a connection between two calls."""

from __future__ import annotations

import json
import os
import resource
import socket
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from app.config import target_settings
from app.config.targets.nsq import NsqSettings
from tests import services
from tests.contract.probes import fixtures
from tests.contract.probes.base import attempt, one_outcome, unavailable
from tests.contract.probes.nsq import DURABLE, TOPIC, Log, queued
from tests.services.messaging import http_json
from tests.support import sample_events
from tests.support.doc_consumers import consumers, following
from tests.support.forking import in_a_child
from tests.support.recording_proxy import Wiretap
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Failed, NotAttempted, Rejected, Unavailable
from workers.systems.nsq.target import NsqTarget
from workers.targets.base import TargetUnavailable

WINDOWS = pytest.mark.parametrize("window", [1, 100])
OTHER_HOST = "127.0.0.2"  # reaches a server on this machine, and no certificate names it


running = fixtures.running(Log)
nsq = fixtures.renewed()


def at(server: services.Nsqd) -> Log:
    """What reaches this server."""
    probe = Log.__new__(Log)
    probe.server, probe._strict = server, None
    return probe


# --- a kept-alive connection


@WINDOWS
def test_a_connection_that_ends_while_it_is_idle_costs_no_attempt(nsq: Log, window: int) -> None:
    with services.proxy(nsq.server.port) as proxy, closing(nsq.target(nsq.at_port(proxy.port))) as target:
        assert list(target.deliver([sample_events.put("before")], window)) == [DELIVERED]
        proxy.lose_answer_to(b"MPUB")
        assert list(target.deliver([sample_events.put("a")], window)) == [DELIVERED]
        assert proxy.lost.is_set()


def test_a_connection_that_ends_at_its_first_command_is_that_events_fault(nsq: Log) -> None:
    with services.proxy(nsq.server.port) as proxy, closing(nsq.target(nsq.at_port(proxy.port))) as target:
        proxy.lose_answer_to(b"MPUB")
        (outcome,) = target.deliver([sample_events.put("a")], 1)
    assert isinstance(outcome, Failed)


# --- one command for a batch


@WINDOWS
def test_a_batch_is_one_command(nsq: Log, window: int) -> None:
    with Wiretap(nsq.server) as tap:
        assert (
            nsq.delivered([sample_events.put(f"object-{n}") for n in range(200)], window, nsq.at_port(tap.port))
            == [DELIVERED] * 200
        )
        assert tap.said.count(b"MPUB minio_events\n") == 1


@WINDOWS
def test_a_call_larger_than_a_command_keeps_its_order(nsq: Log, window: int) -> None:
    made = [sample_events.put("large", number=number + 1, metadata="x" * 300_000) for number in range(20)]
    assert nsq.delivered(made, window) == [DELIVERED] * 20
    assert nsq.numbers() == {"images/large": list(range(1, 21))}


def test_a_topic_may_be_ephemeral(nsq: Log) -> None:
    assert one_outcome(nsq, nsq.values() | {"topic": "events#ephemeral"}) == DELIVERED


# --- nsqd's errors


@pytest.mark.parametrize("places", [[0], [49], [7, 8], [0, 25, 49], list(range(50))])
def test_messages_beyond_nsqds_limit_are_found_among_the_others(places: Sequence[int]) -> None:
    with services.nsqd(extra=(*DURABLE, "-max-msg-size=2000")) as server:
        probe = at(server)
        batch = [
            sample_events.put(
                f"object-{number % 5}", number=number + 1, metadata="x" * 2000 if number in places else ""
            )
            for number in range(50)
        ]
        with closing(probe.target()) as target:
            outcomes = list(target.deliver(batch, 1))
        for number, outcome in enumerate(outcomes):
            if number in places:
                assert isinstance(outcome, Rejected)
                assert "E_BAD_MESSAGE MPUB message too big" in outcome.reason
            else:
                assert outcome == DELIVERED
        left = [number + 1 for number in range(50) if number not in places]
        assert [sample_events.number_of(body) for _, body in probe.held()] == left


def test_a_limit_that_no_event_keeps_blames_none() -> None:
    with services.nsqd(extra=(*DURABLE, "-max-msg-size=200")) as server, closing(at(server).target()) as target:
        outcomes = attempt(target, [sample_events.put("a"), sample_events.put("b")], 1)
    assert all(isinstance(outcome, Unavailable | NotAttempted) for outcome in outcomes), outcomes
    assert "too big" in unavailable(outcomes[0])


def test_a_batch_beyond_nsqds_limit_is_sent_in_parts() -> None:
    with services.nsqd(extra=(*DURABLE, "-max-body-size=20000")) as server:
        probe = at(server)
        assert probe.delivered([sample_events.of_kilobyte(number, 50) for number in range(50)]) == [DELIVERED] * 50
        assert [sample_events.number_of(body) for _, body in probe.held()] == list(range(1, 51))


def test_a_topic_that_nsqd_refuses_is_unavailable_as_no_event_is_to_blame(nsq: Log) -> None:
    """Settings refuse such names first."""
    settings = target_settings.load(NsqSettings, nsq.values())
    target = NsqTarget(replace(settings, topic="bad!"))
    outcomes = attempt(target, [sample_events.put("a"), sample_events.put("b")], 1)
    target.close()
    assert 'E_BAD_TOPIC MPUB topic name "bad!" is not valid' in unavailable(outcomes[0])
    assert isinstance(outcomes[1], Unavailable)


def test_an_nsqd_that_asks_for_auth_is_unavailable() -> None:
    with services.nsqd(extra=(f"-auth-http-address={services.LOOPBACK}:{services.free_port()}",)) as server:
        assert "asks for AUTH" in unavailable(one_outcome(at(server), at(server).values()))


# --- a connection that is lost


def test_an_event_over_which_the_connection_is_lost_fails_alone(nsq: Log) -> None:
    """nsqd's word on a message that is too large can get lost, as it closes the connection with unread bytes in it."""
    with Wiretap(nsq.server, cut_at=b"poison") as tap, closing(nsq.target(nsq.at_port(tap.port))) as target:
        batch = [sample_events.put(f"object-{number % 4}", number=number + 1) for number in range(20)]
        batch[9] = sample_events.put("object-1", number=10, metadata="poison")
        outcomes = list(target.deliver(batch, 1))
    for number, outcome in enumerate(outcomes):
        if number == 9:
            assert isinstance(outcome, Failed)
            assert "closed the connection" in outcome.reason
        else:
            assert outcome == (NOT_ATTEMPTED if number in (13, 17) else DELIVERED)
    held = [list(dict.fromkeys(numbers)) for _, numbers in sorted(nsq.numbers().items())]
    assert held == [[1, 5, 9, 13, 17], [2, 6], [3, 7, 11, 15, 19], [4, 8, 12, 16, 20]]


def test_an_nsqd_that_loses_every_connection_is_unavailable(nsq: Log) -> None:
    with Wiretap(nsq.server, cut_at=b"MPUB") as tap:
        with closing(nsq.target(nsq.at_port(tap.port))) as target:
            outcomes = attempt(target, [sample_events.put(f"object-{number}") for number in range(100)], 1)
        assert tap.said.count(b"MPUB") < 50
    assert isinstance(outcomes[0], Failed)
    assert "closed the connection" in unavailable(outcomes[-1])
    assert nsq.held() == []


# --- TLS


@dataclass(eq=False)
class WithoutTLS(services.Nsqd):
    """An nsqd that was given no certificate."""

    def argv(self) -> list[str | Path]:
        return [each for each in super().argv() if not str(each).startswith("-tls")]

    def ping(self) -> None:
        http_json(f"http://{services.LOOPBACK}:{self.http_port}/stats?format=json")


def test_verification_can_be_waived(nsq: Log, certificates: services.Certificates) -> None:
    wrong = nsq.values() | {"tls": "on", "tls_ca": str(certificates.other_ca)}
    assert "certificate" in unavailable(one_outcome(nsq, wrong))
    assert one_outcome(nsq, wrong | {"tls_skip_verify": "on"}) == DELIVERED


def test_a_certificate_for_another_host_is_refused(nsq: Log, certificates: services.Certificates) -> None:
    with Wiretap(nsq.server, OTHER_HOST) as tap:
        values = nsq.values() | {"nsqd_address": f"{OTHER_HOST}:{tap.port}", "tls": "on"}
        reason = unavailable(one_outcome(nsq, values | {"tls_ca": str(certificates.ca)}))
    assert "certificate is not valid for '127.0.0.2'" in reason


def test_a_client_certificate_is_shown_where_nsqd_demands_one(certificates: services.Certificates) -> None:
    with services.nsqd(strict=True) as server:
        probe = at(server)
        plain = probe.values()
        secure = plain | {"tls": "on", "tls_ca": str(certificates.ca)}
        ours = {"client_cert": str(certificates.client_cert), "client_key": str(certificates.client_key)}
        assert one_outcome(probe, secure | ours) == DELIVERED
        assert isinstance(one_outcome(probe, secure), Unavailable)
        assert "TLS required" in unavailable(one_outcome(probe, plain))


def test_an_nsqd_without_tls_is_unavailable_to_those_who_ask_for_it() -> None:
    with WithoutTLS().start() as server, Wiretap(server) as tap:
        values = at(server).at_port(tap.port)
        assert "nsqd offers no TLS" in unavailable(one_outcome(at(server), values | {"tls": "on"}))
        assert b"MPUB" not in tap.said
        assert one_outcome(at(server), values) == DELIVERED


def test_a_certificate_file_that_cannot_be_read_is_named(nsq: Log, tmp_path: Path) -> None:
    with pytest.raises(TargetUnavailable, match="tls_ca"):
        nsq.target(tls="on", tls_ca=str(tmp_path / "absent.pem")).open()


# --- between two calls


def test_an_idle_connection_is_kept_where_one_with_heartbeats_is_dropped(nsq: Log) -> None:
    with Wiretap(nsq.server) as tap:
        with nsq.opened(nsq.at_port(tap.port)) as target:
            said = bytes(tap.said).partition(b"IDENTIFY\n")[2]
            identity = json.loads(said[4:])
            with _identified(nsq.server, identity | {"heartbeat_interval": 1000}) as other:
                while other.recv(1024):  # its heartbeats, which it does not answer
                    pass
            with _identified(nsq.server, identity) as like_ours:
                like_ours.settimeout(1.5)
                assert b'"version"' in like_ours.recv(1024)
                with pytest.raises(TimeoutError):
                    like_ours.recv(1024)
            assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
        assert tap.said.count(b"IDENTIFY") == 1


def _identified(server: services.Nsqd, identity: object) -> socket.socket:
    body = json.dumps(identity).encode()
    made = socket.create_connection((services.LOOPBACK, server.port), timeout=10)
    made.sendall(b"  V2IDENTIFY\n" + len(body).to_bytes(4, "big") + body)
    return made


def test_a_server_restarted_between_two_calls_costs_nothing(nsq: Log) -> None:
    with nsq.opened() as target:
        nsq.server.stop()
        nsq.server.start()
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]


def test_a_connection_whose_descriptor_is_high_is_kept(nsq: Log) -> None:
    """A process has many open files; select() takes none beyond 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2_048)), hard))
        null = stack.enter_context(Path(os.devnull).open())
        while null.fileno() < 1_024:
            null = stack.enter_context(Path(os.devnull).open())
        target = stack.enter_context(nsq.opened())
        for key in ("first", "second"):
            assert list(target.deliver([sample_events.put(key)], 1)) == [DELIVERED]


def test_a_forked_worker_makes_a_connection_of_its_own(nsq: Log, tmp_path: Path) -> None:
    def work() -> None:
        assert list(target.deliver([sample_events.put("child")], 1)) == [DELIVERED]
        target.close()

    with Wiretap(nsq.server) as tap:
        target = nsq.target(nsq.at_port(tap.port))
        target.open()
        in_a_child(work, tmp_path / "said")
        assert list(target.deliver([sample_events.put("parent")], 1)) == [DELIVERED]
        target.close()
        assert tap.said.count(b"IDENTIFY") == 2


# --- the reference page


def test_the_consumer_of_the_page_reads_what_was_delivered() -> None:
    with services.nsqd() as server:
        (program,) = consumers("nsq", **{"localhost:4150": f"{services.LOOPBACK}:{server.port}"})
        assert at(server).delivered([sample_events.put("cat.jpg"), sample_events.put("dog.jpg")]) == [DELIVERED] * 2
        expected = [f"s3:ObjectCreated:Put images/{name}.jpg" for name in ("cat", "dog")]
        with following(program) as lines:
            services.until(lambda: sorted(lines()) == expected, what="both lines")
        assert list(queued(server, TOPIC)) == []
