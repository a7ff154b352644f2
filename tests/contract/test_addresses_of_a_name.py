"""A name of which the first address is dead, or accepts and says nothing: every target and source reaches the next."""

from __future__ import annotations

from contextlib import closing

import pytest

from app.config.declared_types import source_type
from app.config.target_settings import load
from app.events.limits import Limits
from tests import services
from tests.contract.probes.base import Probe
from tests.contract.source_probes.base import SourceProbe
from tests.support import sample_events
from tests.support.black_hole import NAME, Kind, hanging_up, name_with_dead_addresses, resetting, silent
from workers.delivery.outcomes import DELIVERED
from workers.source_test import run_source_test
from workers.targets import tcp

KINDS = pytest.mark.parametrize(
    "kind",
    [
        hanging_up,
        pytest.param(
            resetting, marks=pytest.mark.nightly("addresses that close each connection, and that say nothing")
        ),
        silent,
    ],
)


def named(values: dict[str, str]) -> dict[str, str]:
    """The settings with the name in place of the address of this machine."""
    return {key: value.replace(services.LOOPBACK, NAME) for key, value in values.items()}


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No address is remembered from a test before."""
    monkeypatch.setattr(tcp, "_remembered", {})


@KINDS
def test_a_target_passes_over_an_address_that_accepts_and_says_nothing(
    probe: Probe, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    if probe.type == "postgresql":
        pytest.skip("libpq resolves names itself, and goes on after an address that refuses only")
    with name_with_dead_addresses(monkeypatch, probe.port, kind=kind):
        target = probe.target(named(probe.values()))
        with closing(target):
            if kind is silent and probe.type == "webhook":  # which may answer late: sending again would be wrong
                assert list(target.deliver([sample_events.put("a")], 1)) != [DELIVERED]
            else:
                target.open()
            assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]


@KINDS
def test_a_source_passes_over_an_address_that_accepts_and_says_nothing(
    served: SourceProbe, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    served.renew()
    values = named({name: str(value) for name, value in served.values().items()})
    with name_with_dead_addresses(monkeypatch, served.server.port, kind=kind):
        steps = list(run_source_test(load(source_type(served.type), values), {}, Limits()))
    assert [step.ok for step in steps] == [True, True, True], steps


def test_a_target_reaches_the_next_address_of_a_name(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    if probe.type == "postgresql":
        pytest.skip("libpq resolves names itself, and limits the time for each address")
    with name_with_dead_addresses(monkeypatch, probe.port, dead=2):
        target = probe.target(named(probe.values()))
        with closing(target):
            target.open()
            assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]


def test_a_source_reaches_the_next_address_of_a_name(served: SourceProbe, monkeypatch: pytest.MonkeyPatch) -> None:
    served.renew()
    values = named({name: str(value) for name, value in served.values().items()})
    with name_with_dead_addresses(monkeypatch, served.server.port):
        steps = list(run_source_test(load(source_type(served.type), values), {}, Limits()))
    assert [(step.step, step.ok) for step in steps] == [("open", True), ("lag", True), ("read", True)], steps
