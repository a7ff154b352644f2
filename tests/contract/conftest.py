"""One running server for each way of using a target, shared by the contract suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract import probes
from tests.contract.probes.base import Probe


@pytest.fixture(scope="session", params=sorted(probes.PROBES))
def running(request: pytest.FixtureRequest) -> Iterator[Probe]:
    """Every probe in turn."""
    probe = probes.start(request.param)
    yield probe
    probe.close()


@pytest.fixture
def probe(running: Probe) -> Probe:
    """Every probe in turn, its server running and empty."""
    running.renew()
    return running
