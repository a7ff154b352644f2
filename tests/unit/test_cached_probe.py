"""A value that is read from the database now and then, in a process that may have no more threads."""

from __future__ import annotations

import threading

import pytest

from app.outbox.engine.cached_probe import CachedProbe


def test_after_a_thread_could_not_start_the_next_caller_reads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter(range(9))
    probe = CachedProbe(lambda: next(values), age=0.0, patience=30.0)
    assert probe.get().value == 0
    start = threading.Thread.start
    refused = iter([True, False])

    def refuse_once(thread: threading.Thread) -> None:
        if next(refused, False):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    first = probe.get()
    assert (first.value, str(first.error)) == (0, "can't start new thread")
    again = probe.get()
    assert (again.value, again.error) == (1, None)
