"""One running server for each way of using a target, shared by the contract suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from tests import services
from tests.contract import probes
from tests.contract.probes.base import Probe


@pytest.fixture(scope="session")
def elastic() -> Iterator[services.Elasticsearch]:
    """An Elasticsearch without TLS, shared by the session: use indices of your own."""
    with services.elasticsearch() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[services.Kafka]:
    """A Kafka shared by the session: use topics of your own."""
    with services.kafka() as server:
        yield server


@pytest.fixture(scope="session")
def slow_to_start() -> Iterator[Callable[[str], services.Server | None]]:
    """By a probe's name the server that it shares with others, which may kill it; None where each has its own."""
    kinds: dict[str, Callable[[], services.Server]] = {
        "amqp": services.rabbitmq, "elasticsearch": lambda: services.elasticsearch(tls=True),
    }  # fmt: skip
    with ExitStack() as stack:

        @cache
        def server(kind: str) -> services.Server | None:
            return stack.enter_context(kinds[kind]()) if kind in kinds else None

        yield lambda name: server(name.partition("-")[0])


@pytest.fixture(scope="session", params=sorted(probes.PROBES))
def running(request: pytest.FixtureRequest, slow_to_start: Callable[[str], services.Server | None]) -> Iterator[Probe]:
    """Every probe in turn."""
    shared = slow_to_start(request.param)
    probe = probes.start(request.param, *filter(None, [shared]))
    yield probe
    if shared is None:
        probe.close()


@pytest.fixture
def probe(running: Probe) -> Probe:
    """Every probe in turn, its server running and empty."""
    running.renew()
    return running
