"""One running server for each way of using a target, shared by the contract suite."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar, cast

import certifi
import pytest

from app.outbox.engine.database import Database
from tests import services
from tests.contract.probes import fixtures
from tests.contract.probes.base import Probe
from tests.contract.probes.registry import PROBES
from tests.contract.source_probes.base import SourceProbe
from tests.contract.source_probes.registry import SOURCE_PROBES
from tests.support.builders import migrated
from tests.support.distribution import group
from tests.support.host_of_worker import HostOfWorker

S = TypeVar("S", bound=services.Server)


@pytest.fixture(scope="package", autouse=True)
def few_authorities() -> Iterator[None]:
    """For a client that asks OpenSSL for authorities too there is but one: to read them all takes it 27 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", certifi.where())
        yield


class Shared:
    """The servers that take long to start: each is started once, and again where it has ended meanwhile."""

    def __init__(self) -> None:
        self._started: dict[Callable[[], services.Server], services.Server] = {}

    def __call__(self, start: Callable[[], S]) -> S:
        """The server that this function starts, running; and who is given it may kill it."""
        if start not in self._started:
            self._started[start] = start()
        server = self._started[start]
        if not server.running:
            server.stop()
            server.start()
        return cast(S, server)

    def stop(self) -> None:
        """Stop them all."""
        for server in self._started.values():
            server.stop()


_shared = Shared()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop what only a group of tests uses at its end: idle servers take processor time from all later tests."""
    if nextitem is None or group(nextitem.nodeid) != group(item.nodeid):
        _shared.stop()


@pytest.fixture(scope="session")
def slow_to_start() -> Shared:
    """A server that the probes of a type share, each of which may kill it, by the function that starts it."""
    return _shared


@pytest.fixture(scope="module")
def elastic(slow_to_start: Shared) -> services.Elasticsearch:
    """An Elasticsearch without TLS for the tests of a group, with which it ends: use indices of your own."""
    return slow_to_start(services.elasticsearch)


@pytest.fixture(scope="module")
def kafka_server(slow_to_start: Shared) -> services.Kafka:
    """A Kafka for the tests of a group, with which it ends: use topics of your own."""
    return slow_to_start(services.kafka)


@pytest.fixture(scope="session", params=sorted(PROBES))
def running(request: pytest.FixtureRequest, slow_to_start: Shared) -> Iterator[Probe]:
    """Every probe in turn."""
    with fixtures.started(PROBES[request.param], slow_to_start) as probe:
        yield probe


@pytest.fixture
def probe(running: Probe) -> Probe:
    """Every probe in turn, its server running and empty."""
    running.renew()
    return running


@pytest.fixture(scope="session", params=sorted(SOURCE_PROBES))
def served(request: pytest.FixtureRequest, slow_to_start: Shared) -> Iterator[SourceProbe]:
    """Every type of queue in turn."""
    kind = SOURCE_PROBES[request.param]
    with fixtures.started(kind.way, slow_to_start) as target:
        yield kind(target)


@pytest.fixture(scope="session")
def host_of_worker(
    tmp_path_factory: pytest.TempPathFactory, certificates: services.Certificates
) -> Iterator[HostOfWorker]:
    """A process on a host that is full of what drivers read by themselves."""
    with HostOfWorker(tmp_path_factory.mktemp("host"), certificates) as host:
        yield host


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """An empty outbox of the test's own."""
    with contextlib.closing(migrated(f"sqlite:///{tmp_path}/outbox.db", partitions=4)) as opened:
        yield opened
