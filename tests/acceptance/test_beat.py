"""Beat while nobody serves the service queue: it stops sending, without any clock, and goes on when somebody does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection

from app import broker
from tests import services
from tests.services import until
from tests.support.service_processes import start_all, system

MOST = 20  # messages that wait for whoever serves the queue next


def waiting(url: str) -> int:
    """How many messages wait in the service queue; 0 while there is none."""
    with Connection(url, transport_options=broker.transport_options(url)) as connection:
        try:
            return broker.waiting(connection.channel(), broker.SERVICE_QUEUE)
        except connection.channel_errors:
            return 0


@pytest.fixture(params=["redis", pytest.param("rabbitmq", marks=pytest.mark.nightly("few messages wait in Redis"))])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a broker without a service queue: of the session's RabbitMQ, which takes long to start."""
    if request.param == "redis":
        with services.redis() as server:
            yield server.url
        return
    rabbitmq: services.RabbitMQ = request.getfixturevalue("rabbitmq_server")
    forget(rabbitmq)
    yield rabbitmq.url
    forget(rabbitmq)


def forget(rabbitmq: services.RabbitMQ) -> None:
    """Delete the service queue, with whatever other services have left in it."""
    with rabbitmq.connection() as connection:
        connection.channel().queue_delete(broker.SERVICE_QUEUE)


def test_a_few_messages_wait_for_a_drain_however_long_none_runs(url: str, tmp_path: Path) -> None:
    options: Any = {"start": False, "workers": 0, "drain_interval": "10ms"}
    with system(f"sqlite:///{tmp_path}/outbox.db", url, **options) as whole:
        whole.beat.start()
        until(lambda: waiting(url) >= 3, 60, what="messages in the service queue")
        began = time.monotonic()
        counts = [waiting(url)]
        until(lambda: counts.append(waiting(url)) or time.monotonic() - began > 2, 60, what="200 turns")
        assert max(counts) <= MOST
        start_all([whole.drain])
        until(lambda: waiting(url) == 0, 60, what="the queue worked off")
        assert "Error" not in whole.beat.said()
        # Asked to stop amid so many messages it may wait for an answer of RabbitMQ's that it has read half.
        whole.beat.kill()


@pytest.mark.nightly("a broker that is killed in test_kill.py, and a deaf one in test_faults.py")
def test_a_broker_that_is_away_is_said_once(tmp_path: Path) -> None:
    with services.redis() as broker:
        options = {"start": False, "workers": 0, "drain_interval": "10ms"}
        with system(f"sqlite:///{tmp_path}/outbox.db", broker.url, **options) as whole:
            whole.beat.start()
            until(lambda: waiting(broker.url), 60, what="messages in the service queue")
            broker.kill()
            until(lambda: "beat sends nothing" in whole.beat.said(), 60, what="the line")
            began = time.monotonic()
            until(lambda: time.monotonic() - began > 2, 60, what="200 turns")
            broker.start()
            until(lambda: "the broker works again" in whole.beat.said(), 60, what="the other line")
            start_all([whole.drain])
            until(lambda: waiting(broker.url) == 0, 60, what="the queue worked off")
            said = whole.beat.said()
            assert (said.count("beat sends nothing"), said.count("Traceback")) == (1, 0), said
            whole.beat.kill()
