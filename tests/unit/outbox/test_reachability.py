"""The loss and the return of the outbox database are logged once each, whatever fails meanwhile."""

from __future__ import annotations

import logging
import time

import pytest
import sqlalchemy as sa

from app.outbox.engine.db_errors import OutboxState

REFUSED = sa.exc.OperationalError("SELECT 1", None, OSError("connection refused"))


class Wire:
    """A driver's connection."""

    closed = 0


@pytest.fixture
def state(caplog: pytest.LogCaptureFixture) -> OutboxState:
    caplog.set_level(logging.INFO, "bucketwire.outbox")
    watched = OutboxState()
    watched.watch()
    return watched


def test_a_loss_and_its_end_are_logged_once_and_no_failure_between_them(
    state: OutboxState, caplog: pytest.LogCaptureFixture
) -> None:
    opened = time.monotonic()
    state.connected(Wire())
    for _ in range(3):
        state.lost(REFUSED)
        state.failed(sa.exc.TimeoutError("no connection is free"))
    for _ in range(3):
        state.connected(Wire())
    state.lost(REFUSED, opened)  # a connection that nobody has used since
    assert caplog.messages == [
        "the outbox database is unavailable: connection refused", "the outbox database is available again",
    ]  # fmt: skip
    state.lost(REFUSED, time.monotonic())
    assert len(caplog.messages) == 3


def test_a_failure_that_is_no_loss_is_logged_once_a_minute_with_their_number(
    state: OutboxState, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(why: str) -> None:
        state.failed(sa.exc.OperationalError("", None, OSError(why)))

    for why in ("lock timeout", "lock timeout", "lock timeout", "read only"):
        fail(why)
    assert caplog.messages == [f"the outbox database is unavailable: {why}" for why in ("lock timeout", "read only")]
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    fail("lock timeout")
    assert [record.__dict__["failures"] for record in caplog.records] == [1, 1, 3]


def test_a_command_says_itself_why_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    state = OutboxState()
    state.lost(REFUSED)
    state.failed(REFUSED)
    assert caplog.messages == []
