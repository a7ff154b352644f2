"""What holds of a table in any SQL database, put to a probe of it by the tests of each."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

from app.events.model import Event
from tests.contract.probes.base import Probe
from tests.support import sample_events
from workers.delivery.outcomes import DELIVERED, Outcome
from workers.targets import payloads
from workers.targets.base import Target


def a_mix_leaves_what_its_events_leave_one_by_one(probe: Probe, rounds: int) -> None:
    """A batch with poison in it ends as the same events do, each in a call of its own."""
    rng = random.Random(3)
    for _ in range(rounds):
        batch = [_any_event(rng, probe) for _ in range(40)]
        at_once, held = _left(probe, batch, len(batch))
        one_by_one, held_then = _left(probe, batch, 1)
        assert held == held_then
        for together, alone in zip(at_once, one_by_one, strict=True):
            # What a later event of the same batch replaces need not be found to be poison.
            assert isinstance(together, type(alone)) or together == DELIVERED


def _left(probe: Probe, batch: list[Event], size: int) -> tuple[list[Outcome], dict[str, str]]:
    probe.renew()
    target = probe.target()
    target.open()
    outcomes: list[Outcome] = []
    for start in range(0, len(batch), size):
        outcomes += target.deliver(batch[start : start + size], 1)
    target.close()
    return outcomes, dict(probe.held())


def _any_event(rng: random.Random, probe: Probe) -> Event:
    key, version = rng.choice("abcd"), rng.choice(["", "v1", "v2"])
    kinds = [sample_events.put(key, version=version), sample_events.delete(key), sample_events.head(key)]
    event = rng.choice([*kinds, probe.poison(key)] if rng.random() < 0.3 else kinds)
    return event._replace(effect=payloads.compatible_effect(event))


def a_version_is_removed_only_while_the_row_describes_it(probe: Probe) -> None:
    """Absent, empty and `null` are one version; any other is the row's or leaves it alone."""
    target = probe.target()
    target.open()
    rows = [
        sample_events.put("versioned", version="v2"),
        sample_events.put("plain"),
        sample_events.put("null", version="null"),
    ]
    assert set(target.deliver(rows, 1)) == {DELIVERED}
    others = [("versioned", "v1"), ("versioned", "v0"), ("plain", "v1"), ("null", "v1"), ("absent", "v'1")]
    assert set(target.deliver([sample_events.delete_version(*each) for each in others], 1)) == {DELIVERED}
    assert len(probe.held()) == 3
    same = [("versioned", "v1"), ("versioned", "v2"), ("plain", ""), ("null", "null")]
    assert set(target.deliver([sample_events.delete_version(*each) for each in same], 1)) == {DELIVERED}
    assert probe.held() == []
    target.close()


def many_workers_may_create_the_table_at_once(probe: Probe) -> None:
    """Of many that find no table each goes on with the one that one of them has made."""
    targets = [probe.target() for _ in range(8)]
    start = threading.Barrier(len(targets))

    def open_at_once(target: Target) -> None:
        start.wait()
        target.open()

    with ThreadPoolExecutor(len(targets)) as threads:
        opened = [threads.submit(open_at_once, target) for target in targets]
    for each, target in zip(opened, targets, strict=True):
        each.result()
        target.close()
