"""The end of an API, which its main process records before it ends."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from app.config.settings import Settings
from app.outbox.engine.database import Database
from app.outbox.policies import HEARTBEATS
from app.server.api_heartbeat import ApiHeartbeat


def test_an_api_that_ends_waits_for_its_record_as_long_as_the_database_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else an API that was stopped on a busy host was missed, and its alert fired until another one began."""

    def away(_: ApiHeartbeat) -> Database:
        raise sa.exc.OperationalError("SELECT", None, Exception("it does not answer"))

    waited: list[float | None] = []
    monkeypatch.setattr(ApiHeartbeat, "_open", away)
    monkeypatch.setattr(threading.Thread, "join", lambda _, timeout=None: waited.append(timeout))
    heartbeat = ApiHeartbeat(Settings.from_environ({}))
    with heartbeat._lock:
        heartbeat.end()
    [seconds] = waited
    assert seconds is not None
    assert HEARTBEATS.patience_seconds < seconds < 5, "what is left of 35 s after the requests that are answered"
