"""Beat while nobody serves the service queue: it stops sending, without any clock, and goes on when somebody does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from kombu import Connection, Queue

from app import broker
from app.doctor.processes import beat_findings
from app.outbox.engine.clock import database_now
from app.outbox.processes import read_processes
from app.outbox.upkeep import beat_at
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


def test_a_service_queue_that_rabbitmq_refuses_is_said_of_beat_until_it_is_mended(
    rabbitmq_server: services.RabbitMQ, tmp_path: Path
) -> None:
    forget(rabbitmq_server)
    with Connection(rabbitmq_server.url) as connection:  # as another program declares it
        queue = Queue(
            broker.SERVICE_QUEUE, routing_key=broker.SERVICE_QUEUE, queue_arguments={"x-queue-type": "classic"}
        )
        queue.bind(connection.channel()).declare()
    probed = f"{services.LOOPBACK}:{services.free_port()}"
    options: Any = {"start": False, "workers": 0, "probe_listen": probed}
    with system(f"sqlite:///{tmp_path}/outbox.db", rabbitmq_server.url, **options) as whole:
        whole.beat.ready = "refuses the queue"
        whole.beat.start()

        def said() -> str:
            with whole.database.reading() as connection:
                beats, now = read_processes(connection), database_now(connection)
            [finding, *_] = beat_findings(beats, None, None, now)
            return f"{finding.grade}: {finding.text}"

        def ready() -> int:
            return httpx.get(f"http://{probed}/readyz", trust_env=False).status_code

        until(lambda: "refuses the queue bucketwire: " in said(), 30, what="the finding")
        assert said().startswith("problem: it runs, on ")
        assert "PRECONDITION_FAILED" in said()
        assert ready() == 503
        with whole.database.reading() as connection:
            assert beat_at(read_processes(connection)) is None, "as the metric and the API's /readyz have it"
        forget(rabbitmq_server)
        until(lambda: said().startswith("ok: last worked"), 30, what="that it works")
        until(lambda: ready() == 200, 30, what="that it is ready")
        log = whole.beat.said()
        assert (log.count("refuses the queue"), log.count("accepts the queue"), log.count("Traceback")) == (1, 1, 0), (
            log
        )
        whole.beat.kill()
    forget(rabbitmq_server)
