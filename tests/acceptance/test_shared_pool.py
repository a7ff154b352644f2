"""Targets that share a worker's pool: one that takes long for each request leaves a process to the others."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests import services
from tests.services import Receiver, until
from tests.support.builders import event
from tests.support.service_processes import System, system

LONG, GENEROUS = 50, 30  # seconds: how long each request of the slow target takes, and those for an event of the other
PARTITIONS, EVENTS = 4, 200  # so many of different objects that each partition is worth a wake-up of its own


@pytest.fixture
def whole() -> Iterator[System]:
    """The whole service, with two processes that deliver."""
    folder = services.new_folder("shared-pool")
    with (
        services.redis() as broker,
        system(
            f"sqlite:///{folder}/outbox.db", broker.url, concurrency=2, partitions=PARTITIONS, drain_interval="1s"
        ) as running,
    ):
        yield running


@pytest.fixture
def bad(whole: System) -> Iterator[Receiver]:
    """The slow target's server; it ends before the service does, which waits for the requests under way."""
    del whole
    with services.receiver() as server:
        yield server


@pytest.fixture
def silent(whole: System) -> Iterator[int]:
    """The port of a server that connects and never answers; it ends before the service does."""
    del whole
    with socket.create_server((services.LOOPBACK, 0), backlog=100) as listening:
        port: int = listening.getsockname()[1]
        yield port


def post(whole: System, bucket: str, *keys: str) -> None:
    whole.post(f'{{"Records":[{",".join(event(key, bucket=bucket).record for key in keys)}]}}'.encode())


def add_webhook(whole: System, name: str, port: int, read_timeout: str = f"{LONG + 10}s") -> None:
    endpoint = f"http://{services.LOOPBACK}:{port}/"
    whole.add_target(f"webhook:{name}", name, endpoint=endpoint, read_timeout=read_timeout, sync="on")


def delivered(receiver: Receiver, key: str) -> bool:
    return any(key.encode() in request.body for request in receiver.requests())


@pytest.mark.nightly(
    "one that hangs: a process that waits is not free, whatever it waits for",
    when=lambda fault: fault in {"drips", "is slow"},
)
@pytest.mark.parametrize("fault", ["hangs", "drips", "is slow"])
def test_the_other_target_of_a_pool_is_served_while_one(
    whole: System, bad: Receiver, receiver: Receiver, fault: str
) -> None:
    with services.proxy(bad.port) as proxy:
        if fault == "drips":
            proxy.drip(1)
        else:
            bad.set(delay=600 if fault == "hangs" else LONG)
        add_webhook(whole, "good", receiver.port)
        add_webhook(whole, "bad", proxy.port)
        post(whole, "good", "first")
        until(lambda: delivered(receiver, "first"), GENEROUS, what="the first event")
        post(whole, "bad", *(f"bad-{number}" for number in range(EVENTS)))
        until(bad.requests, GENEROUS, what="a request that takes long")
        for number in range(5):
            post(whole, "good", f"next-{number}")
            until(lambda: delivered(receiver, f"next-{number}"), GENEROUS, what="an event of the other")  # noqa: B023
        bad.kill()
        bad.set()
        bad.start()
        proxy.cut()
        proxy.heal()
        until(lambda: whole.settled("webhook:bad", "webhook:good"), 120, what="each event, once the fault is over")
        assert all(delivered(bad, f"bad-{number}") for number in range(EVENTS))


def test_a_single_target_is_served_by_all_processes(whole: System, bad: Receiver) -> None:
    bad.set(delay=LONG)
    add_webhook(whole, "only", bad.port)
    post(whole, "only", *(f"key-{number}" for number in range(EVENTS)))
    until(lambda: len(bad.requests()) == 2, GENEROUS, what="two requests under way at the same time")


@pytest.mark.parametrize("limit", ["1h", "10s"])
def test_a_third_target_is_served_while_two_hang(whole: System, silent: int, receiver: Receiver, limit: str) -> None:
    """None of them is known before: the first two may take all processes, and one of these is taken back."""
    for name in ("hanging", "silent"):
        add_webhook(whole, name, silent, limit)
        post(whole, name, *(f"{name}-{number}" for number in range(8)))
    add_webhook(whole, "good", receiver.port, limit)
    for number in range(5):
        post(whole, "good", f"next-{number}")
        until(lambda: delivered(receiver, f"next-{number}"), 2 * GENEROUS, what="an event of the third")  # noqa: B023
