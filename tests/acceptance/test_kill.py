"""Everything is killed again and again while events flow: nothing is lost, made up or out of order."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from random import Random

import pytest

from tests.services import until
from tests.support.fault_injection import (
    PATIENCE,
    Servers,
    Victim,
    Watch,
    kill,
    make_targets,
    serving,
    texts,
    victims,
)
from tests.support.properties import times
from tests.support.service_processes import system
from tests.support.target_readers import appended, hashed, listed, posted, rows
from tests.support.traffic import Poster, Traffic

pytestmark = pytest.mark.promise

EVENTS = times(1_800, 9_600)
POSTERS = 4
ROUNDS = 1  # how often each is killed; `make chaos` does it as often as one likes


@pytest.fixture
def servers() -> Iterator[Servers]:
    with serving() as running:
        yield running


def report(flow: Traffic, marked: Sequence[Victim], took: float, repeats: dict[str, int]) -> str:
    """What it came to, for people."""
    again = flow.refused.total()
    kills = sum(len(victim.resumed) for victim in marked)
    lines = [f"\n{flow.taken} events, {kills} kills in {took:.0f} s; posts repeated {again}; repeats {repeats}\n"]
    lines += [
        f"  {victim.name}: at work again after {max(victim.resumed):.1f} s, "
        f"everything from before delivered after {max(victim.recovered):.1f} s\n"
        for victim in marked
    ]
    return "".join(lines)


@pytest.mark.timeout(400)
def test_whatever_is_killed_nothing_is_lost_and_every_object_stays_in_order(
    servers: Servers, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = Random(os.environ.get("SEED", "1"))
    with system(servers.create_outbox(), servers.broker.url) as whole:
        make_targets(whole, servers)
        began = time.monotonic()
        flow = Traffic(whole, [Poster(number, Random(rng.random())) for number in range(POSTERS)])
        marked = victims(whole, servers, rng)
        order = [victim for _ in range(ROUNDS) for victim in rng.sample(marked, len(marked))]
        share = EVENTS // POSTERS // (len(order) + 1)
        with flow.running(), Watch(flow).running() as watch:
            flow.allow_more(share)
            for victim in order:
                kill(victim, flow, watch, rng, share)
            flow.allow_more(EVENTS // POSTERS - share * (len(order) + 1))
            until(lambda: flow.all_taken, PATIENCE, what="the last event taken")
        until(whole.settled, PATIENCE, what="the last event delivered")
        took = time.monotonic() - began

        expected = flow.expected()
        assert expected.count == flow.taken == EVENTS
        repeats = {
            "webhook": expected.check(posted(servers.receiver), "webhook"),
            "Redis list": expected.check(listed(servers.redis, "list"), "Redis list"),
            "PostgreSQL access": expected.check(appended(servers.postgres, "target", "log"), "PostgreSQL access"),
        }
        assert texts(hashed(servers.redis, "rows")) == texts(flow.rows())
        assert texts(rows(servers.postgres, "target", "rows")) == texts(flow.rows())
        for entry in whole.audits():
            assert entry.difference == 0
            counters = entry.counters
            assert (counters.recorded, counters.delivered + counters.superseded, counters.discarded) == (
                EVENTS,
                EVENTS,
                0,
            )
        assert not whole.workers[0].orphans()
    with capsys.disabled():
        sys.stdout.write(report(flow, marked, took, repeats))
