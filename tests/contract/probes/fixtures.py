"""Fixtures of a module that has one probe to itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.contract.probes.base import Probe


def running(kind: Callable[[], Probe]) -> Any:
    """A fixture `running`: a probe of this kind, for all tests of the module, in place of every probe in turn."""

    @pytest.fixture(scope="module")
    def running() -> Iterator[Probe]:
        with closing(kind()) as probe:
            yield probe

    return running


def renewed() -> Any:
    """A fixture: the running probe, with nothing held."""

    @pytest.fixture
    def renewed(running: Probe) -> Probe:
        running.renew()
        return running

    return renewed
