"""The account of the memory that requests hold."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.api import request_body
from app.api.errors import ApiProblem
from app.api.request_body import BoundedAnswers, Cost, Memory, Pool
from tests.services import until


def test_who_wants_more_than_is_left_waits_for_a_moment_and_is_refused_then() -> None:
    pool = Pool(10, patience=0.01)
    with pool.share() as first, pool.share() as second:
        first.resize(7)
        second.resize(3)
        with pytest.raises(ApiProblem) as caught:
            second.resize(4)
        assert (caught.value.kind, second.size, pool.used) == ("overloaded", 3, 10)
        assert caught.value.response().headers["Retry-After"]
        first.resize(6)
        second.resize(4)
    assert pool.used == 0


def test_those_that_wait_are_served_in_order() -> None:
    pool, order = Pool(10, patience=60), []

    def take(size: int) -> None:
        with pool.share() as share:
            share.resize(size)
            order.append(size)

    with pool.share() as first, ThreadPoolExecutor(2) as threads:
        first.resize(9)
        large = threads.submit(take, 10)
        until(lambda: pool._waiting, 10)
        small = threads.submit(take, 1)  # there would be room for it, but then the other might wait for ever
        until(lambda: len(pool._waiting) == 2, 10)
        first.resize(0)
        large.result(10), small.result(10)
    assert order == [10, 1]


def test_no_more_wait_than_leave_threads_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "_MAX_WAITING", 0)
    pool = Pool(10, patience=60)
    with pool.share() as first, pool.share() as second:
        first.resize(10)
        with pytest.raises(ApiProblem):
            second.resize(1)


def test_the_largest_request_has_all_for_itself() -> None:
    pool = Pool(10)
    with pool.share() as share:
        share.resize(1000)
        assert share.size == pool.used == 10


@pytest.mark.parametrize(
    ("parts", "least"),
    [((b"x" * 1000,), 3500), (("é" * 500).encode().split(b"!"), 7500), ((b"[1,2]", b",{}"), 2 * 80 + 2 * 250)],
)
def test_what_a_body_takes_is_estimated_by_what_is_in_it(parts: list[bytes], least: int) -> None:
    cost = Cost()
    for part in parts:
        cost.add(part)
    assert cost.bytes >= least


class _Answer(list[bytes]):
    closed = False

    def close(self) -> None:
        self.closed = True


def test_a_larger_answer_has_a_share_until_it_is_closed() -> None:
    answer, begun = _Answer([b"x" * 100_000]), list[Any]()

    def app(_environ: Any, start_response: Any) -> _Answer:
        start_response("200 OK", [("Content-Length", "100000")])
        return answer

    account = Memory(1)
    sent: Any = BoundedAnswers(app, account)({}, lambda *head: begun.append(head))
    assert account.clients.used == 100_000
    assert b"".join(sent) == answer[0]
    sent.close()
    assert (account.clients.used, answer.closed, [head[0] for head in begun]) == (0, True, ["200 OK"])


def test_an_answer_for_which_there_is_no_room_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "_MAX_WAITING", 0)
    answer, begun = _Answer([b"x" * 100_000]), list[Any]()

    def app(_environ: Any, start_response: Any) -> _Answer:
        start_response("200 OK", [("Content-Length", "100000")])
        return answer

    account = Memory(1)
    with account.clients.share() as other:
        other.resize(account.clients.limit)
        sent = b"".join(BoundedAnswers(app, account)({"REQUEST_METHOD": "GET"}, lambda *head: begun.append(head)))
    assert b"overloaded" in sent
    assert answer.closed
    assert [head[0][:3] for head in begun] == ["503"]
