"""One running server for each way of using a target, shared by the contract suite."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import certifi
import pytest

from app.outbox.engine.database import Database
from tests import services
from tests.contract.probes.base import Probe
from tests.contract.probes.registry import PROBES
from tests.contract.source_probes.base import SourceProbe
from tests.contract.source_probes.registry import SOURCE_PROBES
from tests.support.builders import migrated


@pytest.fixture(scope="package", autouse=True)
def few_authorities() -> Iterator[None]:
    """For a client that asks OpenSSL for authorities too there is but one: to read them all takes it 27 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", certifi.where())
        yield


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
def slow_to_start() -> Iterator[Callable[[Callable[[], services.Server]], services.Server]]:
    """A server that the probes of a type share, each of which may kill it, by the function that starts it."""
    with ExitStack() as stack:
        yield cache(lambda start: stack.enter_context(start()))


@pytest.fixture(scope="session", params=sorted(PROBES))
def running(
    request: pytest.FixtureRequest, slow_to_start: Callable[[Callable[[], services.Server]], services.Server]
) -> Iterator[Probe]:
    """Every probe in turn."""
    kind = PROBES[request.param]
    if kind.shared_server is not None:
        yield kind(slow_to_start(kind.shared_server))  # type: ignore[call-arg]  # those take their server
    else:
        with contextlib.closing(kind()) as probe:
            yield probe


@pytest.fixture
def probe(running: Probe) -> Probe:
    """Every probe in turn, its server running and empty."""
    running.renew()
    return running


@pytest.fixture(scope="session", params=sorted(SOURCE_PROBES))
def served(request: pytest.FixtureRequest) -> Iterator[SourceProbe]:
    """Every type of queue in turn."""
    with contextlib.closing(SOURCE_PROBES[request.param]()) as probe:
        yield probe


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """An empty outbox of the test's own."""
    with contextlib.closing(migrated(f"sqlite:///{tmp_path}/outbox.db", partitions=4)) as opened:
        yield opened
