"""A value that is read from the database now and then, in a process that may have no more threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.cached_probe import CachedProbe, NoAnswer
from tests.services import until


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


def test_few_wait_for_a_query_that_takes_long_and_others_get_the_last_value() -> None:
    go_on, values = threading.Event(), iter(range(9))

    def read() -> int:
        assert go_on.wait(60)
        return next(values)

    probe = CachedProbe(read, age=0.0, patience=60.0, max_waiting=2)
    with ThreadPoolExecutor(2) as callers:
        waiting = [callers.submit(probe.get) for _ in range(2)]
        until(lambda: probe._known.get().waiting == 2)
        first = probe.get()
        assert (first.value, type(first.error)) == (None, NoAnswer), "there is no last value yet"
        go_on.set()
        assert [caller.result().value for caller in waiting] == [0, 0]
        go_on.clear()
        waiting = [callers.submit(probe.get) for _ in range(2)]
        until(lambda: probe._known.get().waiting == 2)
        others = [probe.get() for _ in range(5)]
        assert {(other.value, other.error) for other in others} == {(0, None)}
        go_on.set()
        assert [caller.result().value for caller in waiting] == [1, 1]
    assert probe._known.get().waiting == 0
