"""Fixtures of a module that has one probe to itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from tests import services
from tests.contract.probes.base import Probe


@contextmanager
def started(kind: type[Probe], slow_to_start: Callable[[Any], services.Server]) -> Iterator[Probe]:
    """A probe of this kind, with the server that others of its type have too, or one of its own."""
    if kind.shared_server is not None:
        probe = kind(slow_to_start(kind.shared_server))  # type: ignore[call-arg]  # those take their server
        try:
            yield probe
        finally:
            probe.close_gateways()
    else:
        with closing(kind()) as probe:
            yield probe


def running(kind: type[Probe]) -> Any:
    """A fixture `running`: a probe of this kind, for all tests of the module, in place of every probe in turn."""

    @pytest.fixture(scope="module")
    def running(slow_to_start: Callable[[Any], services.Server]) -> Iterator[Probe]:
        with started(kind, slow_to_start) as probe:
            yield probe

    return running


def renewed() -> Any:
    """A fixture: the running probe, with nothing held."""

    @pytest.fixture
    def renewed(running: Probe) -> Probe:
        running.renew()
        return running

    return renewed
