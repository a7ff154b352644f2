"""What is NATS' own: confirmation by PING, the ways to log in, TLS, and a connection between two calls."""

from __future__ import annotations

import re
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests import provision, services
from tests.contract.probes import fixtures
from tests.contract.probes.base import attempt, one_outcome, unavailable
from tests.contract.probes.nats import SUBJECT, Core
from tests.contract.probes.nats_servers import Configured, assert_cloud_event, at
from tests.contract.probes.nats_wire import Wire
from tests.services.messaging import http_json
from tests.support import nats_identities, sample_events
from tests.support.doc_consumers import consumers, following
from tests.support.forking import in_a_child
from tests.support.recording_proxy import Wiretap
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Delivered, Failed, NotAttempted, Rejected, Unavailable
from workers.targets import payloads
from workers.targets.base import TargetUnavailable

WINDOWS = pytest.mark.parametrize("window", [1, 100])
OTHER_HOST = "127.0.0.2"  # reaches a server on this machine, and no certificate names it


@dataclass(eq=False)
class HandshakeFirst(services.Nats):
    """A newer server, which begins with TLS at once."""

    name = "new_nats"

    def configuration(self) -> str:
        return super().configuration().replace("tls {", "tls { handshake_first: true,")

    def argv(self) -> list[str | Path]:
        return [provision.NEW_NATS / "nats-server", "-c", self.folder / "nats.conf"]


running = fixtures.running(Core)
core = fixtures.renewed()


def nobody(server: services.Nats, **login: str) -> dict[str, str]:
    """What reaches this server without user and password, or by another login."""
    return {"address": f"{services.LOOPBACK}:{server.port}", "subject": SUBJECT} | login


def taken(server: services.Nats) -> int:
    """How many messages the server has read from clients."""
    return int(http_json(f"http://{services.LOOPBACK}:{server.monitor_port}/varz")["in_msgs"])


# --- what is confirmed


@pytest.mark.parametrize(("window", "runs"), [(1, [1, 1, 1, 1, 1, 1]), (4, [4, 2]), (100, [6])])
def test_each_window_of_messages_is_followed_by_a_ping(core: Core, window: int, runs: list[int]) -> None:
    with Wiretap(core.server) as tap, core.opened(core.at_port(tap.port)) as target:
        before = len(tap.said)
        assert list(target.deliver([sample_events.put(f"object-{n}") for n in range(6)], window)) == [DELIVERED] * 6
    found = re.findall(rb"^(PUB|PING)\b", tap.said[before:], re.MULTILINE)
    assert found == [command for run in runs for command in [b"PUB"] * run + [b"PING"]]


@WINDOWS
def test_a_message_that_the_user_may_not_publish_is_not_taken_for_delivered(window: int) -> None:
    login = 'authorization { users: [ { user: alice, password: s3cret, permissions: { publish: "other" } } ] }\n'
    with Configured(login=login).start() as server:
        probe = at(server)
        assert "permissions violation for publish" in unavailable(one_outcome(probe, probe.values(), window))


@WINDOWS
def test_a_connection_cut_before_the_ping_is_answered_is_unavailable_at_once(core: Core, window: int) -> None:
    with core.opened(timeout="60s") as target:
        core.server.freeze()
        killer = threading.Timer(0.2, core.server.kill)
        killer.start()
        outcomes = attempt(target, [sample_events.put("a"), sample_events.put("a"), sample_events.put("b")], window)
        killer.join()
    assert "connection" in unavailable(outcomes[0])
    assert outcomes[1] == NOT_ATTEMPTED
    assert isinstance(outcomes[2], Unavailable if window > 1 else NotAttempted), "what was not sent was not refused"


@WINDOWS
def test_no_more_than_a_window_is_sent_to_a_server_that_does_not_answer(core: Core, window: int) -> None:
    with core.opened(timeout="300ms") as target:
        core.server.freeze()
        batch = [sample_events.put(f"object-{number}") for number in range(300)]
        assert all(isinstance(outcome, Unavailable | NotAttempted) for outcome in attempt(target, batch, window))
    core.server.thaw()
    services.until(lambda: len(core.held()) == window, what="what was sent")
    assert [path for path, _ in core.held()] == [event.path for event in batch[:window]]


@WINDOWS
def test_a_call_of_many_megabytes_keeps_its_order(core: Core, window: int) -> None:
    made = [sample_events.put("large", number=number + 1, metadata="x" * 300_000) for number in range(20)]
    assert core.delivered(made, window) == [DELIVERED] * 20
    assert core.numbers()["images/large"] == list(range(1, 21))


def test_a_trace_context_is_the_headers_of_its_message_alone(core: Core) -> None:
    made = [sample_events.put("a"), sample_events.traced(sample_events.put("a"))]
    assert core.delivered(made, 100) == [DELIVERED] * 2
    lines = "".join(f"{name}: {value}\r\n" for name, value in sample_events.TRACE.items())
    found = [(each.headers, each.body) for each in core.server.messages()]
    assert found == [("", payloads.log(made[0])), (f"NATS/1.0\r\n{lines}\r\n", payloads.log(made[1]))]


@pytest.mark.parametrize("payload", ["cloudevents", "cloudevents-binary"])
def test_a_cloud_event_is_in_the_body_or_in_headers(core: Core, payload: str) -> None:
    made = [sample_events.put(key) for key in sample_events.ODD_KEYS]
    made.append(sample_events.traced(sample_events.put("traced")))
    assert core.delivered(made, 100, payload=payload) == [DELIVERED] * len(made)
    for event, received in zip(made, core.server.messages(), strict=True):
        assert_cloud_event(event, received, payload)


def test_a_message_beyond_a_limit_of_the_servers_own_is_rejected_with_both_sizes() -> None:
    with Configured(more="max_payload: 2000\n").start() as server:
        probe = at(server)
        with closing(probe.target()) as target:
            small, large = sample_events.put("small"), sample_events.put("large", metadata="x" * 2000)
            first, second, third = target.deliver([small, large, small], 100)
        assert (first, third, taken(server)) == (DELIVERED, DELIVERED, 2)
        assert isinstance(second, Rejected)
        assert re.search(r"the message has \d+ bytes, max_payload is 2000", second.reason)


# --- logging in


def test_a_token_lets_in_and_a_wrong_one_does_not() -> None:
    with services.nats(token="t0ken-s3cret") as server:
        probe = at(server)
        assert one_outcome(probe, nobody(server, token="t0ken-s3cret")) == DELIVERED
        reason = unavailable(one_outcome(probe, nobody(server, token="wrong-s3cret")))
        assert "authorization violation" in reason.lower()
        assert "s3cret" not in reason


def test_an_nkey_lets_in_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    known, stranger = nats_identities.user(), nats_identities.user()
    file = tmp_path / "seed"
    with Configured(login=f"authorization {{ users: [ {{ nkey: {known.public} }} ] }}\n").start() as server:
        probe = at(server)
        for text in (known.seed, f"# ours\n{known.seed}\n"):
            file.write_text(text)
            assert one_outcome(probe, nobody(server, nkey_seed=str(file))) == DELIVERED
        file.write_text(stranger.seed)
        reason = unavailable(one_outcome(probe, nobody(server, nkey_seed=str(file))))
        assert "authorization violation" in reason.lower()
        assert stranger.seed not in reason


def test_a_credentials_file_lets_in_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    ours, theirs = nats_identities.Operator(), nats_identities.Operator()
    file = tmp_path / "user.creds"
    with Configured(login=ours.configuration()).start() as server:
        probe = at(server)
        file.write_text(ours.credentials())
        assert one_outcome(probe, nobody(server, user_credentials=str(file))) == DELIVERED
        file.write_text(theirs.credentials())
        reason = unavailable(one_outcome(probe, nobody(server, user_credentials=str(file))))
        assert "authorization violation" in reason.lower()


@pytest.mark.parametrize("key", ["nkey_seed", "user_credentials"])
def test_a_file_to_log_in_with_that_cannot_be_used_is_named_and_not_quoted(
    core: Core, tmp_path: Path, key: str
) -> None:
    absent, empty, wrong = (tmp_path / name for name in ("absent", "empty", "wrong"))
    empty.touch()
    wrong.write_text("SUAWRONG\n-----BEGIN USER NKEY SEED-----\nSUAWRONG\n------END USER NKEY SEED------\n")
    for file in (absent, empty, wrong):
        with pytest.raises(TargetUnavailable, match=key) as caught:
            core.target(nobody(core.server, **{key: str(file)})).open()
        assert str(file) in caught.value.reason
        assert "SUAWRONG" not in caught.value.reason


def test_a_missing_login_is_unavailable(core: Core) -> None:
    assert "authorization violation" in unavailable(one_outcome(core, nobody(core.server))).lower()


# --- TLS


def test_a_client_certificate_is_shown(certificates: services.Certificates) -> None:
    with services.nats(client_cert=True) as server:
        probe = at(server)
        secure = probe.values() | {"cert_authority": str(certificates.ca)}
        ours = {"client_cert": str(certificates.client_cert), "client_key": str(certificates.client_key)}
        theirs = {"client_cert": str(certificates.other_cert), "client_key": str(certificates.other_key)}
        assert one_outcome(probe, secure | ours) == DELIVERED
        assert isinstance(one_outcome(probe, secure | theirs), Unavailable)
        assert isinstance(one_outcome(probe, secure), Unavailable)
        assert taken(server) == 1


def test_verification_can_be_waived_as_the_key_says(certificates: services.Certificates) -> None:
    """Unlike MinIO, which verifies all the same (§4.5)."""
    with services.nats(tls=True) as server:
        probe = at(server)
        wrong = probe.values() | {"tls": "on", "cert_authority": str(certificates.other_ca)}
        assert "certificate" in unavailable(one_outcome(probe, wrong))
        assert one_outcome(probe, wrong | {"tls_skip_verify": "on"}) == DELIVERED
        # With nothing said of authorities the system's count, which do not know ours.
        assert "certificate" in unavailable(one_outcome(probe, probe.values() | {"secure": "on"}))


def test_a_certificate_for_another_host_is_refused(certificates: services.Certificates) -> None:
    with services.nats(tls=True) as server, Wiretap(server, OTHER_HOST) as tap:
        probe = at(server)
        values = probe.values() | {"cert_authority": str(certificates.ca), "address": f"{OTHER_HOST}:{tap.port}"}
        assert "certificate" in unavailable(one_outcome(probe, values))
        assert b"s3cret" not in tap.said


def test_tls_that_the_server_demands_is_spoken_unasked(certificates: services.Certificates) -> None:
    """As nats.go does, with the system's authorities; here they know the server by SSL_CERT_FILE."""
    with services.nats(tls=True) as server, pytest.MonkeyPatch.context() as patch:
        probe = at(server)
        assert "certificate" in unavailable(one_outcome(probe, probe.values()))
        patch.setenv("SSL_CERT_FILE", str(certificates.ca))
        assert one_outcome(probe, probe.values()) == DELIVERED


@pytest.mark.parametrize("login", [{}, {"username": "", "password": "", "token": "t0ken-s3cret"}])
def test_no_secret_goes_to_a_server_that_does_not_speak_tls(core: Core, login: dict[str, str]) -> None:
    with Wiretap(core.server) as tap:
        values = core.at_port(tap.port) | login
        assert "does not ask for TLS" in unavailable(one_outcome(core, values | {"tls": "on"}))
        assert b"s3cret" not in tap.said
        one_outcome(core, values)
        assert b"s3cret" in tap.said  # so it would have been seen


def test_a_server_that_begins_with_tls_needs_a_client_that_does(certificates: services.Certificates) -> None:
    with HandshakeFirst(tls=True).start() as server:
        probe = at(server)
        secure = probe.values() | {"cert_authority": str(certificates.ca)}
        first = {"tls_handshake_first": "on"}
        assert one_outcome(probe, secure | first) == DELIVERED
        assert "tls_handshake_first=on" in unavailable(one_outcome(probe, secure | {"timeout": "500ms"}))
        wrong = {"cert_authority": str(certificates.other_ca)}
        assert "certificate" in unavailable(one_outcome(probe, secure | first | wrong))
    with services.nats(tls=True) as ordinary:
        probe = at(ordinary)
        assert isinstance(one_outcome(probe, probe.values() | first), Unavailable)


# --- between two calls


def test_an_idle_connection_answers_the_servers_pings() -> None:
    with (
        Configured(more='ping_interval: "100ms"\nping_max: 1\n').start() as server,
        Wiretap(server) as tap,
        at(server).opened(at(server).at_port(tap.port)) as target,
    ):
        before = len(tap.said)
        services.until(lambda: tap.said[before:].count(b"PONG") >= 10, what="ten answers")
        assert tap.said.count(b"CONNECT") == 1
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
        assert tap.said.count(b"CONNECT") == 1


def test_an_idle_connection_is_tested_every_ping_interval(core: Core) -> None:
    with Wiretap(core.server) as tap, core.opened(core.at_port(tap.port), ping_interval="1"):
        before = len(tap.said)
        services.until(lambda: b"PING" in tap.said[before:], 20, what="a PING that no call asked for")


def test_a_server_restarted_between_two_calls_costs_nothing(core: Core) -> None:
    with core.opened() as target:
        core.server.stop()
        core.server.start()
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]


def test_a_forked_worker_makes_a_connection_of_its_own(core: Core, tmp_path: Path) -> None:
    target = core.target()

    def work() -> None:
        assert list(target.deliver([sample_events.put("child")], 1)) == [DELIVERED]
        target.close()

    target.open()
    assert list(target.deliver([sample_events.put("before")], 1)) == [DELIVERED]
    in_a_child(work, tmp_path / "said")
    assert list(target.deliver([sample_events.put("after")], 1)) == [DELIVERED]
    target.close()
    assert [path for path, _ in core.held()] == ["images/before", "images/child", "images/after"]


def test_a_host_without_an_address_is_unavailable_and_leaves_no_thread(core: Core) -> None:
    outcome = one_outcome(core, core.values() | {"address": "no-such-host.invalid:4222"})
    assert "no-such-host.invalid" in unavailable(outcome)


# --- the reference page


def test_the_consumer_of_the_page_reads_what_was_delivered() -> None:
    with Configured(login="\n").start() as server:
        program = consumers("nats", **{"localhost:4222": f"{services.LOOPBACK}:{server.port}"})[0]

        def subscribed() -> bool:
            place = f"http://{services.LOOPBACK}:{server.monitor_port}/subsz?subs=1&test={SUBJECT}"
            return bool(http_json(place).get("total"))

        with following(program) as lines:
            services.until(subscribed, what="the consumer's subscription")
            assert one_outcome(at(server), nobody(server)) == DELIVERED
            services.until(lambda: lines() == ["s3:ObjectCreated:Put images/a"], what="the consumer's line")


# --- a template


@WINDOWS
def test_a_template_gives_each_event_its_subject(core: Core, window: int) -> None:
    made = [
        sample_events.put("photos/cat.jpg"), sample_events.put("a*b.>/x", bucket="my.bucket"),
        sample_events.delete("photos/cat.jpg"), sample_events.put("no-folder"),
    ]  # fmt: skip
    assert core.delivered(made, window, subject="minio.{bucket}.{prefix:1}.{kind}") == [DELIVERED] * 4
    assert [each.subject for each in core.server.messages()] == [
        "minio.images.photos.ObjectCreated", "minio.my%2Ebucket.a%2Ab%2E%3E.ObjectCreated",
        "minio.images.photos.ObjectRemoved", "minio.images._.ObjectCreated",
    ]  # fmt: skip


@WINDOWS
def test_any_key_is_one_token_of_a_subject(core: Core, window: int) -> None:
    made = [sample_events.put(key) for key in sample_events.ODD_KEYS]
    assert core.delivered(made, window, subject="minio.{key}.end") == [DELIVERED] * len(made)
    subjects = [each.subject for each in core.server.messages()]
    assert [subject.count(".") for subject in subjects] == [2] * len(made)
    assert [unquote(subject)[6:-4] for subject in subjects] == list(sample_events.ODD_KEYS)


@WINDOWS
def test_a_subject_that_is_too_long_rejects_its_event_alone(core: Core, window: int) -> None:
    made = [sample_events.put("a"), sample_events.put("k" * 1020), sample_events.put("a")]
    first, long, last = core.delivered(made, window, subject="minio.{key}")
    assert (first, last) == (DELIVERED, DELIVERED)
    assert long == Rejected("subject of this event is longer than 1024 bytes")


@WINDOWS
def test_a_subject_that_the_user_may_not_publish_to_fails_its_event_alone(window: int) -> None:
    login = 'authorization { users: [ { user: alice, password: s3cret, permissions: { publish: "m.Ok" } } ] }\n'
    made = [sample_events.put(key) for key in ("Ok/a", "No/a", "No/a", "Ok/b", "Other/a", "Ok/c")]
    with Configured(login=login).start() as server:
        probe = at(server)
        with probe.opened(subject="m.{prefix:1}") as target:
            outcomes = list(target.deliver(made, window))
            assert list(target.deliver(made[:1], window)) == [DELIVERED]
    assert [type(outcome) for outcome in outcomes] == [Delivered, Failed, NotAttempted, Delivered, Failed, Delivered]
    assert isinstance(outcomes[1], Failed)
    assert "the user may not publish to 'm.No'" in outcomes[1].reason


@pytest.mark.promise
@WINDOWS
def test_an_objects_later_event_does_not_overtake_one_whose_subject_is_refused(window: int) -> None:
    login = (
        'authorization { users: [ { user: alice, password: s3cret, permissions: { publish: "m.ObjectRemoved" } } ] }\n'
    )
    made = [sample_events.put("a"), sample_events.delete("a"), sample_events.delete("b")]
    with Configured(login=login).start() as server, closing(Wire(server)) as wire:
        wire.subscribe("m.>")
        with at(server).opened(subject="m.{kind}") as target:
            outcomes = list(target.deliver(made, window))
        wire.flush()
        assert [received.body for received in wire.received] == [payloads.log(made[2])]
    assert [type(outcome) for outcome in outcomes] == [Failed, NotAttempted, Delivered]
