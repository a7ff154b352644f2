"""Who wakes the drain: without beat everything is delivered by wake-ups, and a lost one costs one interval of beat."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests import services
from tests.services import until
from tests.support.builders import event
from tests.support.service_processes import System, start_all, system


@pytest.fixture(scope="module")
def beatless() -> Iterator[System]:
    """The whole service, except that beat does not run."""
    folder = services.new_folder("wakeups")
    with (
        services.redis() as broker,
        system(f"sqlite:///{folder}/outbox.db", broker.url, start=False, concurrency=1, drain_interval="1s") as whole,
    ):
        start_all([role for role in whole.roles if role is not whole.beat])
        yield whole


@pytest.fixture
def target(beatless: System, receiver: services.Receiver) -> Iterator[str]:
    """A webhook that gets the events of a bucket named like it."""
    name = f"w{time.monotonic_ns()}"
    beatless.add_target(f"webhook:{name}", bucket=name, endpoint=receiver.url, retry_base="300ms", retry_max_delay="1s")
    yield name
    beatless.ask("DELETE", f"/v1/targets/webhook/{name}?force=true")


def post(whole: System, bucket: str, *keys: str) -> None:
    whole.post(f'{{"Records":[{",".join(event(key, bucket=bucket).record for key in keys)}]}}'.encode())


def delivered(receiver: services.Receiver, key: str) -> bool:
    return any(key.encode() in request.body and request.status == 200 for request in receiver.requests())


def test_a_recorded_event_wakes_the_drain(beatless: System, target: str, receiver: services.Receiver) -> None:
    for number in range(5):
        post(beatless, target, f"event-{number}")
        until(lambda: delivered(receiver, f"event-{number}"), 60, what="the event")  # noqa: B023


def test_a_retry_and_a_probe_wake_the_drain_themselves(
    beatless: System, target: str, receiver: services.Receiver
) -> None:
    receiver.set(status=503, containing="refused", times=4)
    post(beatless, target, "refused", *(f"other-{number}" for number in range(3)))
    until(lambda: delivered(receiver, "refused"), 60, what="the refused event, in the end")
    receiver.set(status=503, times=6)
    post(beatless, target, "while-away")
    until(lambda: delivered(receiver, "while-away"), 60, what="the event, after some probes")
    until(lambda: beatless.settled(f"webhook:{target}"), 30, what="everything settled")


def test_a_resumed_target_and_a_replay_wake_the_drain(
    beatless: System, target: str, receiver: services.Receiver
) -> None:
    beatless.ask("POST", f"/v1/targets/webhook/{target}/pause", json={})
    post(beatless, target, "paused")
    beatless.ask("POST", f"/v1/targets/webhook/{target}/resume", json={})
    until(lambda: delivered(receiver, "paused"), 60, what="the event, after the pause")
    until(lambda: beatless.settled(f"webhook:{target}"), 30, what="it settled")
    seen = len(receiver.requests())
    beatless.ask("POST", "/v1/replays", json={"target": f"webhook:{target}", "all": True})
    until(lambda: len(receiver.requests()) > seen, 60, what="the event once more")


def test_work_that_outlasts_a_lease_is_continued(beatless: System, target: str, receiver: services.Receiver) -> None:
    """Events that are recorded while the partition is leased are found by nobody else."""
    receiver.set(delay=0.2)
    for number in range(10):
        post(beatless, target, f"same-object-{number}")
        time.sleep(0.05)
    until(lambda: delivered(receiver, "same-object-9"), 60, what="the last")


def test_a_lost_wakeup_costs_one_interval_of_beat(beatless: System, target: str, receiver: services.Receiver) -> None:
    deaf = replace(beatless.api, settings={**beatless.api.settings, "BUCKETWIRE_BROKER_URL": "redis://127.0.0.1:9/0"})
    posted: list[str] = []

    def is_unannounced() -> bool:
        """Nobody finds the event of one more post, as soon as the wake-ups of what was before are used up."""
        posted.append(f"unannounced-{len(posted)}")
        post(replace(beatless, api=deaf), target, posted[-1])
        time.sleep(1)
        return not delivered(receiver, posted[-1])

    beatless.api.stop()
    try:
        deaf.start()
        until(is_unannounced, 60, what="an event that nobody knows of")
        beatless.beat.start()
        until(lambda: delivered(receiver, posted[-1]), 60, what="the event, by beat's drain")
    finally:
        beatless.beat.stop()
        deaf.stop()
        beatless.api.start()
