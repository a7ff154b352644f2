"""What a transaction writes for some requests, decided under the lock for which all other appends wait."""

from __future__ import annotations

from app.config.arn import TargetId
from app.outbox.log.append import Batch
from app.outbox.log.routing import Matches, Routing
from app.rules.matching import compile_rules
from tests.support.builders import event

_EVENTS, _TARGETS = 20, 200
_compared: list[int] = []


class Number(int):
    """A target's id that counts how often it is compared with another one."""

    def __eq__(self, other: object) -> bool:
        _compared.append(self)
        return int.__eq__(self, other)  # type: ignore[operator]  # ids are compared with ids only

    __hash__ = int.__hash__


def batch(room: dict[int, int]) -> Batch:
    numbers = tuple(Number(number) for number in range(1, _TARGETS + 1))
    ids = {number: TargetId("webhook", f"t{number}") for number in numbers}
    events = [event(f"k{number}") for number in range(_EVENTS)]
    routing = Routing(1, ids, {}, frozenset(), compile_rules(()))
    return Batch([events], Matches(routing, {one.id: numbers for one in events}), 16, room=room)


def test_a_full_queue_among_many_targets_costs_no_more_than_looking_at_each_once_for_each_event() -> None:
    _compared.clear()
    made = batch({_TARGETS: 0})
    assert len(_compared) < 4 * _EVENTS * _TARGETS
    assert (made.discarded, sum(made.recorded.values())) == ({_TARGETS: _EVENTS}, _EVENTS * (_TARGETS - 1))


def test_targets_whose_queues_are_full_follow_as_negative_numbers() -> None:
    made = batch(dict.fromkeys(range(4, _TARGETS + 1), 0) | {2: 0})
    [texts] = {row[9] for row in made.rows}
    assert texts.startswith(",1,3,-2,-4,-5,")


def test_a_target_s_arrivals_reach_from_its_first_event_to_its_last_in_whichever_request_they_came() -> None:
    a, b = 1, 2
    targets = [(a,), (a, b), (a,), (b,), (a, b)]
    events = [event() for _ in targets]
    routing = Routing(1, {a: TargetId("webhook", "a"), b: TargetId("webhook", "b")}, {}, frozenset(), compile_rules(()))
    matches = Matches(routing, {one.id: some for one, some in zip(events, targets, strict=True)})
    made = Batch([events[:3], events[3:]], matches, 16)
    [partition] = {row[0] for row in made.rows}
    assert made.arrivals == {(a, partition): (1, 5), (b, partition): (2, 5)}
    alone = Batch([events[:3]], matches, 16)
    assert alone.arrivals == {(a, partition): (1, 3), (b, partition): (2, 2)}
