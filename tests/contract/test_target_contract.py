"""The contract of `workers/targets/base.py`, put to every target on its real server."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from app.config import target_settings, tls
from app.config.declared_types import TYPES
from app.config.fields.fields import fields_of
from app.events.model import Event
from tests import services
from tests.contract import ways
from tests.contract.probes.base import LIMIT, TIMEOUT, Probe, attempt, opened
from tests.services import speed
from tests.support import cloud_events, sample_events
from tests.support.forking import in_a_child, local_ports
from tests.support.host_of_worker import HostOfWorker, without_secrets
from tests.support.properties import times
from tests.support.recording_proxy import Wiretap
from workers.delivery.outcomes import (
    DELIVERED,
    NOT_ATTEMPTED,
    Delivered,
    Failed,
    NotAttempted,
    Outcome,
    Rejected,
    Unavailable,
)
from workers.targets import create, messages, payloads
from workers.targets.base import LeaseExpired, Target, TargetUnavailable
from workers.targets.tls import seen_with

WINDOWS = pytest.mark.parametrize("window", [1, 100])


def assert_held(probe: Probe, expected: Sequence[Event]) -> None:
    """The server holds these events and nothing else: all of them, or of each object the last."""
    wanted = list({event.path: event for event in expected}.values()) if probe.is_namespace else list(expected)
    held = probe.held()
    assert sorted(path for path, _ in held) == sorted(event.path for event in wanted)
    remaining = list(held)
    for event in wanted:
        document = probe.expected(event)
        match = next((each for each in remaining if each[0] == event.path and probe.same(each[1], document)), None)
        assert match, f"{document} is not among {[each for each in held if each[0] == event.path]}"
        remaining.remove(match)


def assert_orderly(batch: Sequence[Event], outcomes: Sequence[Outcome]) -> None:
    """One outcome for each event, and nothing of an object after one of it that did not get through."""
    assert len(outcomes) == len(batch)
    stuck = set()
    for event, outcome in zip(batch, outcomes, strict=True):
        if event.path in stuck:
            assert outcome == NOT_ATTEMPTED, f"{event.path} went on with {outcome}"
        elif isinstance(outcome, Failed | Unavailable):
            stuck.add(event.path)


def deliver_until_all_are(target: Target, batch: Sequence[Event], window: int) -> None:
    """Offer what is not delivered again and again, in order, as a worker would."""
    waiting = list(batch)
    deadline = speed.deadline(30)
    while waiting:
        assert time.monotonic() < deadline, f"{len(waiting)} events are still not delivered"
        outcomes = attempt(target, waiting, window)
        assert not any(isinstance(outcome, Rejected) for outcome in outcomes)
        waiting = [event for event, outcome in zip(waiting, outcomes, strict=True) if outcome != DELIVERED]


def test_opens_creates_what_is_missing_and_delivers(probe: Probe) -> None:
    event = sample_events.put("first.txt")
    assert probe.delivered([event]) == [DELIVERED]
    assert_held(probe, [event])


@pytest.mark.nightly(
    "four types: one function writes the messages of all that store them",
    when=lambda running: running not in {"amqp-queue", "kafka", "mqtt-qos1", "nats-core"},
)
def test_messages_have_the_members_of_the_old_guides_if_asked(probe: Probe) -> None:
    event = sample_events.put("guide.txt")
    if "body_shape" not in fields_of(TYPES[probe.type]):
        pytest.skip("it stores no messages")
    assert probe.delivered([event], body_shape="guide") == [DELIVERED]
    assert probe.held() == [(event.path, payloads.log(event, "guide"))]


@pytest.mark.nightly(
    "one way of each type; each format's shapes in test_asyncapi.py", when=lambda running: running in ways.SECOND
)
def test_cloud_events_in_json_arrive_whole_and_the_same_each_time(probe: Probe) -> None:
    if probe.is_namespace or "guide" in probe.values().values():
        pytest.skip("it has one entry for each object, or the shape of the guides")
    made = [sample_events.put(key) for key in sample_events.ODD_KEYS]
    made.append(sample_events.traced(sample_events.put("traced")))
    with closing(probe.target(payload="cloudevents")) as target:
        assert list(target.deliver(made, 100)) == [DELIVERED] * len(made)
        once = sorted(probe.held())
        assert list(target.deliver(made, 1)) == [DELIVERED] * len(made)
    assert sorted(set(probe.held())) == once
    assert sorted(path for path, _ in once) == sorted(event.path for event in made)
    documents = dict(once)
    for event in made:
        assert probe.same(documents[event.path], messages.structured(event))
        cloud_events.assert_is(cloud_events.structured(documents[event.path]), event)


@ways.opening_again
def test_opens_what_it_created_before(probe: Probe) -> None:
    first, second = sample_events.put("first.txt"), sample_events.put("second.txt")
    for event in (first, second):
        assert probe.delivered([event]) == [DELIVERED]
    assert_held(probe, [first, second])


@ways.connecting
def test_an_empty_call_has_no_outcomes(probe: Probe) -> None:
    with probe.opened() as target:
        assert list(target.deliver([], 1)) == []
        assert list(target.deliver([], 100)) == []


@ways.connecting
def test_a_closed_port_is_unavailable_within_the_time_limit(probe: Probe) -> None:
    target = probe.target(probe.at_port(services.free_port()))
    began = time.monotonic()
    with pytest.raises(TargetUnavailable) as caught:
        target.open()
    assert time.monotonic() - began < LIMIT
    assert "refused" in caught.value.reason.lower()
    target.close()


@ways.connecting
def test_a_wrong_password_is_unavailable_within_the_time_limit_and_not_told(probe: Probe) -> None:
    with closing(probe.target(probe.as_stranger())) as target:
        began = time.monotonic()
        (outcome,) = attempt(target, [sample_events.put("secret.txt")], 1)
        assert time.monotonic() - began < LIMIT
    assert isinstance(outcome, Unavailable)
    assert "wrong-s3cret" not in outcome.reason
    assert probe.secret not in outcome.reason
    assert probe.held() == []


@ways.connecting
def test_the_right_certificate_is_accepted(probe: Probe, certificates: services.Certificates) -> None:
    event = sample_events.put("tls.txt")
    values = probe.by_tls(certificates.ca)
    settings = target_settings.load(probe.type, {"timeout": f"{TIMEOUT}s"} | values)
    with opened(create(probe.type, settings)) as target:
        assert target.deliver([event], 1) == [DELIVERED]
    assert_held(probe, [event])
    seen = seen_with(settings).unrecorded()
    known = [tls.validities_of_file(str(file))[0] for file in (certificates.ca, certificates.cert)]
    assert len(seen) == 2 + ("client_cert" in values), "the authority's, the server's, and the client's own"
    assert set(seen.values()) == set(known)


@ways.connecting
def test_nothing_of_the_host_is_used_with_a_login_or_without(
    probe: Probe, certificates: services.Certificates, host_of_worker: HostOfWorker
) -> None:
    used = host_of_worker.connect("target", kind=probe.type, values=probe.by_tls(certificates.ca))
    used.assert_nothing(but=probe.opens_of_host)
    assert used.outcome == str([DELIVERED])
    with Wiretap(probe) as tap:
        values = without_secrets(TYPES[probe.type], probe.at_port(tap.port))
        if values is None:
            pytest.skip("its settings need a login")
        used = host_of_worker.connect("target", kind=probe.type, values=values)
        used.assert_nothing(but=probe.opens_of_host)
        used.assert_not_sent(bytes(tap.said))


@ways.connecting
def test_a_wrong_certificate_is_refused(probe: Probe, certificates: services.Certificates) -> None:
    target = probe.target(probe.by_tls(certificates.other_ca))
    with pytest.raises(TargetUnavailable, match="certificate"):
        target.open()
    (outcome,) = attempt(target, [sample_events.put("tls.txt")], 1)
    target.close()
    assert isinstance(outcome, Unavailable)
    assert probe.held() == []


@ways.storing
@WINDOWS
def test_the_exact_body_arrives_of_all_that_a_real_minio_sent(probe: Probe, window: int) -> None:
    captured = [event for _, event in sample_events.captured()]
    kept = [event for event in captured if event.effect.name == "UPSERT"] if probe.is_namespace else captured
    assert probe.delivered(kept, window) == [DELIVERED] * len(kept)
    assert_held(probe, kept)


@ways.storing
@WINDOWS
def test_odd_keys_survive(probe: Probe, window: int) -> None:
    made = [sample_events.put(key) for key in sample_events.ODD_KEYS]
    with probe.opened() as target:
        assert list(target.deliver(made, window)) == [DELIVERED] * len(made)
        assert_held(probe, made)
        if probe.is_namespace:
            gone = [sample_events.delete(key) for key in sample_events.ODD_KEYS]
            assert list(target.deliver(gone, window)) == [DELIVERED] * len(made)
            assert probe.held() == []


@ways.sending
@WINDOWS
def test_buckets_of_one_name_of_two_tenants_are_two(probe: Probe, window: int) -> None:
    made = [sample_events.put(f"k{number % 5}", bucket=f"{'aB'[number % 2]}:images") for number in range(20)]
    with probe.opened() as target:
        assert list(target.deliver(made, window)) == [DELIVERED] * len(made)
        assert_held(probe, made)
        if probe.is_namespace:
            gone = [sample_events.delete(f"k{number}", bucket="a:images") for number in range(5)]
            assert list(target.deliver(gone, window)) == [DELIVERED] * len(gone)
            assert_held(probe, [event for event in made if event.bucket == "B:images"])


@ways.sending
@WINDOWS
def test_each_objects_events_keep_their_order(probe: Probe, window: int) -> None:
    count = 100 if window > 1 else times(20, 100)
    made = [sample_events.put(f"object-{number % 7}", number=number + 1) for number in range(times(2, 3) * count)]
    with probe.opened() as target:
        for start in range(0, len(made), count):
            assert set(target.deliver(made[start : start + count], window)) == {DELIVERED}
    for numbers in probe.numbers().values():
        assert numbers == sorted(numbers)
    assert_held(probe, made)


@ways.sending
@WINDOWS
def test_a_batch_with_one_poison_event_rejects_that_one_alone(probe: Probe, window: int) -> None:
    if not probe.can_reject:
        pytest.skip(f"{probe.type} takes whatever fits into its memory")
    made = [sample_events.put(f"object-{number}") for number in range(50)]
    poison = probe.poison("object-poison")
    batch = [*made[:33], poison, *made[33:]]
    with probe.opened() as target:
        outcomes = list(target.deliver(batch, window))
    assert isinstance(outcomes[33], Rejected)
    assert outcomes[33].reason
    assert outcomes[:33] + outcomes[34:] == [DELIVERED] * 50
    assert_held(probe, made)


@ways.storing
@ways.combining
@WINDOWS
def test_a_poison_event_holds_up_nothing_of_its_own_object(probe: Probe, window: int) -> None:
    if not probe.can_reject:
        pytest.skip(f"{probe.type} takes whatever fits into its memory")
    before, poison, other = sample_events.put("same.txt"), probe.poison("same.txt"), sample_events.put("other.txt")
    with probe.opened() as target:
        outcomes = list(target.deliver([before, poison, other], window))
        assert [type(outcome) for outcome in outcomes] == [Delivered, Rejected, Delivered]
        assert_held(probe, [before, other])
        after = sample_events.put("same.txt")
        assert list(target.deliver([after], window)) == [DELIVERED]
    assert_held(probe, [after, other] if probe.is_namespace else [before, other, after])


@ways.storing
@ways.combining
@WINDOWS
def test_delivering_twice_leaves_a_namespace_unchanged(probe: Probe, window: int) -> None:
    made = [sample_events.put(f"object-{number % 20}", number=number + 1) for number in range(50)]
    batch = [*made, sample_events.delete("object-3")] if probe.is_namespace else made
    with probe.opened() as target:
        assert set(target.deliver(batch, window)) == {DELIVERED}
        once = sorted(probe.held())
        assert set(target.deliver(batch, window)) == {DELIVERED}
    assert sorted(probe.held()) == (once if probe.is_namespace or probe.drops_repeats else sorted(once * 2))


class Ending:
    """A lease that ends when it was looked at so many times."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.looks = 0
        self._lock = threading.Lock()

    def check(self) -> None:
        """Count, and say so when it is over."""
        with self._lock:
            self.looks += 1
            if self.looks > self.after:
                raise LeaseExpired("it was only for a test")

    def has_time(self) -> bool:
        """There is time until it ends."""
        return True


class TimeIsUp:
    """A lease that holds, but whose time to be worked off is over."""

    def check(self) -> None:
        """It holds."""

    def has_time(self) -> bool:
        """No."""
        return False


@ways.sending
@ways.ending
@WINDOWS
def test_once_the_time_is_up_one_request_is_made_and_the_rest_is_not_attempted(probe: Probe, window: int) -> None:
    made = [sample_events.put(f"object-{number % 10}", number=number + 1) for number in range(40)]
    with probe.opened() as target:
        waiting, calls = made, 0
        while waiting:
            outcomes = list(target.deliver(waiting, window, TimeIsUp()))
            assert_orderly(waiting, outcomes)
            assert set(outcomes) <= {DELIVERED, NOT_ATTEMPTED}
            assert DELIVERED in outcomes
            waiting = [event for event, outcome in zip(waiting, outcomes, strict=True) if outcome != DELIVERED]
            calls += 1
    assert window > 1 or calls > 1 or probe.one_request
    assert_held(probe, made)


@ways.sending
@ways.ending
@WINDOWS
def test_nothing_is_sent_once_the_lease_has_ended(probe: Probe, window: int) -> None:
    """Neither when it ends before the first request, nor in the middle, nor before the last, which may be a COMMIT."""
    with probe.opened() as target:
        lease = Ending(1_000_000)
        assert list(target.deliver([sample_events.put(f"whole-{number}") for number in range(30)], window, lease)) == (
            [DELIVERED] * 30
        )
        assert lease.looks > 0
        for after in sorted({0, lease.looks // 2, lease.looks - 1}):
            with pytest.raises(LeaseExpired):
                target.deliver(
                    [sample_events.put(f"ended-{after}-{number}") for number in range(30)], window, Ending(after)
                )
            again = sample_events.put(f"after-{after}")
            assert list(target.deliver([again], window)) == [DELIVERED]
            held = [path for path, _ in probe.held()]
            assert again.path in held
            sent = sum(f"/ended-{after}-" in path for path in held)
            # What the SQL targets have not committed is rolled back; elsewhere what was sent before stays.
            assert sent == 0 if after == 0 or probe.type in ("postgresql", "mysql") else sent < 30


class Offered:
    """What a target was offered while its server was killed, and of that what it did not deliver."""

    def __init__(self, probe: Probe, window: int) -> None:
        self.target, self.window = probe.target(), window
        self.events: list[Event] = []
        self.waiting: list[Event] = []
        self.paths = {event.path for event in self._batch(0)}
        self.target.open()

    def _batch(self, first: int) -> list[Event]:
        return [
            sample_events.put(f"by-{self.window}-{number % 40}", number=number + 1)
            for number in range(first, first + 200)
        ]

    def until_it_is_unavailable(self) -> None:
        """Batch after batch."""
        outcomes: Sequence[Outcome] = ()
        deadline = speed.deadline(60)
        while not any(isinstance(outcome, Unavailable) for outcome in outcomes):
            assert time.monotonic() < deadline
            batch = self._batch(len(self.events))
            self.events += batch
            try:
                outcomes = self.target.deliver(batch, self.window)
            except TargetUnavailable as error:
                outcomes = [Unavailable(error.reason)] * len(batch)
            else:
                assert_orderly(batch, outcomes)
            self.waiting += [event for event, outcome in zip(batch, outcomes, strict=True) if outcome != DELIVERED]

    def assert_arrived(self, probe: Probe, held: Mapping[str, Sequence[int]]) -> None:
        """The server holds each object's events in order, however often; or, of a namespace, the last."""
        again = {sample_events.number_of(probe.expected(event)) for event in self.waiting}
        for path in {event.path for event in self.events}:
            sent = [sample_events.number_of(probe.expected(event)) for event in self.events if event.path == path]
            first_seen = list(dict.fromkeys(held.get(path, ())))
            if not probe.keeps:  # the rest was confirmed before the server was killed
                sent = [number for number in sent if number in again or number in first_seen]
            assert first_seen == (sent[-1:] if probe.is_namespace else sent), path


def kill_while_they_send(probe: Probe, sending: Sequence[Offered]) -> None:
    """Kill the server when something of each has arrived; returns when each has noticed."""

    def begun() -> bool:
        arrived = probe.numbers().keys()
        return all(each.paths & arrived for each in sending)

    with ThreadPoolExecutor() as threads:
        noticing = [threads.submit(each.until_it_is_unavailable) for each in sending]
        try:
            services.until(begun, 30, what="the first events at the server")
        finally:
            probe.server.kill()
        for one in noticing:
            one.result()


@pytest.mark.nightly("the other types, whose servers start again sooner", when=lambda running: running == "sqs")
@ways.confirming
def test_a_killed_server_is_unavailable_and_gets_everything_when_it_is_back(probe: Probe) -> None:
    """One kill for both ways of sending, and for a target without work, which may be closed whatever happened."""
    for windows in [(1,), (100,)] if probe.one_writer else [(1, 100)]:
        probe.renew()
        time.sleep(probe.settles)
        idle = probe.target()
        idle.open()
        assert list(idle.deliver([sample_events.put("idle.txt")], 1)) == [DELIVERED]
        sending = [Offered(probe, window) for window in windows]
        kill_while_they_send(probe, sending)
        idle.close()
        idle.close()
        for each in sending:
            each.target.close()
            (down,) = attempt(each.target, each.waiting[:1], each.window)
            assert isinstance(down, Unavailable)
        probe.server.start()
        for each in sending:
            deliver_until_all_are(each.target, each.waiting, each.window)
            each.target.close()

        held: dict[str, list[int]] = {}
        # Who reads may find a server that was just started busy with itself, and then gets nothing.
        services.until(lambda: held.update(probe.numbers()) or held, 30, what="what the server holds")  # noqa: B023
        for each in sending:
            each.assert_arrived(probe, held)


@ways.confirming
def test_a_frozen_server_does_not_hang_the_worker(probe: Probe) -> None:
    target, window = probe.target(), 100
    target.open()
    before = sample_events.put("before.txt")
    assert list(target.deliver([before], window)) == [DELIVERED]
    batch = [sample_events.put("frozen.txt"), sample_events.put("frozen.txt")]
    probe.server.freeze()
    began = time.monotonic()
    outcomes = attempt(target, batch, window)
    assert time.monotonic() - began < LIMIT
    assert isinstance(outcomes[0], Failed | Unavailable)
    assert isinstance(outcomes[1], Unavailable | NotAttempted)  # the former where no call was made at all
    probe.server.thaw()
    deliver_until_all_are(target, batch, window)
    target.close()
    # A server that was frozen a moment ago may not show all that it holds yet.
    services.until(lambda: batch[0].path in probe.numbers(), 30, what="the events at the server")
    first_seen = list(dict.fromkeys(probe.numbers()[batch[0].path]))
    numbers = [sample_events.number_of(probe.expected(event)) for event in batch]
    assert first_seen == (numbers[-1:] if probe.is_namespace else numbers)


@pytest.mark.nightly(
    "Kafka; a wire without answers at each: what is frozen sends nothing, as what has no wire",
    when=lambda running: running != "kafka",
)
def test_a_frozen_server_cannot_hang_an_opening_either(probe: Probe) -> None:
    with closing(probe.target()) as target:
        probe.server.freeze()
        began = time.monotonic()
        (outcome,) = attempt(target, [sample_events.put("frozen.txt")], 1)
        took = time.monotonic() - began
        probe.server.thaw()
    assert took < LIMIT
    assert isinstance(outcome, Failed | Unavailable)


@ways.connecting
def test_closing_is_harmless_at_any_time(probe: Probe) -> None:
    target = probe.target()
    target.close()
    target.open()
    target.close()
    target.close()
    target.open()
    assert list(target.deliver([sample_events.put("again.txt")], 1)) == [DELIVERED]
    target.close()
    target.close()


@ways.opening_again
def test_a_closed_target_opens_itself_when_it_is_given_events(probe: Probe) -> None:
    target = probe.target()
    target.open()
    target.close()
    event = sample_events.put("reopened.txt")
    assert list(target.deliver([event], 1)) == [DELIVERED]
    target.close()
    assert_held(probe, [event])


@ways.connecting
def test_no_thread_socket_or_file_is_left_after_close(probe: Probe) -> None:
    this = psutil.Process()

    def use() -> None:
        with probe.opened() as target:
            made = [sample_events.put(f"object-{number}") for number in range(100)]
            assert set(target.deliver(made[:20], 1)) == {DELIVERED}
            assert set(target.deliver(made, 100)) == {DELIVERED}

    def taken() -> tuple[int, int, int]:
        return this.num_fds(), this.num_threads(), len(this.net_connections())

    left: list[object] = []  # of each use, with what there is then, so that a failure says what it was

    def leaves_nothing() -> bool:
        """Whether there is no more than before; the kernel ends a thread a moment after Python has joined it."""
        before = taken()
        use()
        deadline = time.monotonic() + 10
        while any(now > then for now, then in zip(taken(), before, strict=True)):
            if time.monotonic() > deadline:
                files = sorted(str(place.readlink()) for place in Path("/proc/self/fd").iterdir() if place.is_symlink())
                left.append((before, taken(), threading.enumerate(), files))
                return False
            time.sleep(0.05)
        return True

    gc.freeze()  # or it would be looked through what all tests before this one have left
    use()  # what a driver keeps for the life of the process it takes now
    gc.collect()
    gc.disable()
    try:
        # Others of this process may open something meanwhile; a target that leaves something leaves it each time.
        assert any(leaves_nothing() for _ in range(4)), left
    finally:
        gc.enable()


@ways.connecting
def test_a_child_makes_a_connection_of_its_own_and_leaves_its_parents_alone(probe: Probe, tmp_path: Path) -> None:
    before, within, after = (
        sample_events.put("before.txt"),
        sample_events.put("within.txt"),
        sample_events.put("after.txt"),
    )
    gc.freeze()  # or the child would look through what all tests before this one have left, and copy it
    inherited = [probe.target()]
    inherited[0].open()
    assert list(inherited[0].deliver([before], 1)) == [DELIVERED]
    of_parent = local_ports()
    report = tmp_path / "ports"

    def work() -> None:
        # As `context.forget()`. A driver that says goodbye on the shared connection would end the parent's.
        inherited.clear()
        gc.collect()
        with probe.opened() as target:
            assert list(target.deliver([within], 1)) == [DELIVERED]
            report.write_text(" ".join(map(str, local_ports() - of_parent)))

    own = in_a_child(work, report)
    assert own, "the child had no connection but its parent's"
    assert list(inherited[0].deliver([after], 1)) == [DELIVERED]
    if of_parent:  # a webhook's may have been closed by its endpoint meanwhile
        assert local_ports() & of_parent, "the parent's connection was lost"
    inherited[0].close()
    assert_held(probe, [before, within, after])
