"""What a worker logs of a source that cannot be pulled from: the 1st, 2nd, 4th … failure, and each new reason."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from app.events.limits import Limits
from app.outbox.engine.clock import DatabaseClock
from app.outbox.engine.database import Database, now_ms
from app.outbox.sources.rows import SourceLeases
from tests.support import databases
from tests.support.pulled_events import Sources
from workers.sources.base import SourceUnavailable
from workers.sources.source_thread import Outbox, SourceThread

pytestmark = databases.ONE


class Failing(SourceThread):
    """Cannot be pulled from, for the reason that its name has."""

    reason = "refused"

    def _take(self, settings: object) -> None:
        raise SourceUnavailable(self.reason)


def test_a_source_that_is_away_for_long_fills_no_log(
    database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sources, leases = Sources(database), SourceLeases(database, 60_000)
    source = sources.put("kafka", {"brokers": "127.0.0.1:9", "topic": "t"})
    outbox = Outbox(
        database=database,
        leases=leases,
        registry=sources.registry,
        clock=DatabaseClock(database),
        lease_ms=60_000,
        retention_ms=60_000,
        limits=Limits,
        wake=lambda _: None,
    )
    caplog.set_level(logging.WARNING, "bucketwire.sources")

    def fail() -> bool:
        caplog.clear()
        lease = leases.claim(sources.stored(source), now_ms() + 3_600_000)
        assert lease is not None
        Failing(outbox, lease, threading.Event()).run()
        return bool(caplog.records)

    assert [fail() for _ in range(9)] == [True, True, False, True, False, False, False, True, False]
    monkeypatch.setattr(Failing, "reason", "the login is refused")
    assert [fail() for _ in range(2)] == [True, False]
