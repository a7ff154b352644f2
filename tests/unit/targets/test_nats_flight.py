"""Which events may be under way at once, and what is said of those that are not."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.events.model import Event
from tests.support import sample_events
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Failed, Outcome, Rejected, Unavailable
from workers.systems.nats.publishers import Flight, decoded, encoded, text
from workers.targets.batch import Batch

REJECTED, UNAVAILABLE = Rejected("too large"), Unavailable("full")


def flight(keys: str, window: int = 100) -> Flight:
    return Flight(Batch([sample_events.put(key) for key in keys]), window)


def send(under_way: Flight, size: int = 1) -> str:
    """Send all that may go; the keys of it."""
    sent = ""
    while (index := under_way.take()) is not None:
        under_way.sent(index, size)
        sent += under_way.batch.events[index].key
    return sent


def test_of_each_object_one_event_goes_at_a_time() -> None:
    made = flight("aabab")
    assert send(made) == "ab"
    made.settle(2, DELIVERED)
    assert send(made) == "b"
    made.settle(0, DELIVERED)
    assert send(made) == "a"
    made.settle(1, DELIVERED)
    assert send(made) == "a"
    assert not made.is_over
    made.settle(4, DELIVERED)
    made.settle(3, DELIVERED)
    assert made.is_over
    assert made.batch.outcomes() == [DELIVERED] * 5


def test_no_more_than_a_window_goes_at_a_time() -> None:
    made = flight("abcdef", 2)
    assert send(made) == "ab"
    made.settle(1, DELIVERED)
    assert send(made) == "c"


def test_no_more_than_some_bytes_go_at_a_time_but_one_message_always_may() -> None:
    made = flight("abcdef")
    assert send(made, 1_000_000) == "ab"
    made.settle(0, DELIVERED)
    assert send(made, 5_000_000) == "c"
    made.settle(1, DELIVERED)
    made.settle(2, DELIVERED)
    assert send(made, 5_000_000) == "d"


def test_a_rejected_event_holds_up_nothing() -> None:
    made = flight("aa")
    send(made)
    made.settle(0, REJECTED)
    assert send(made) == "a"
    made.settle(1, DELIVERED)
    assert made.batch.outcomes() == [REJECTED, DELIVERED]


def test_a_failed_event_holds_up_its_own_object() -> None:
    made = flight("aabb")
    send(made)
    made.settle(0, Failed("once"))
    made.settle(2, DELIVERED)
    assert send(made) == "b"
    made.settle(3, DELIVERED)
    assert made.is_over
    assert made.batch.outcomes() == [Failed("once"), NOT_ATTEMPTED, DELIVERED, DELIVERED]


def test_after_an_unavailable_nothing_goes_but_what_is_under_way_counts() -> None:
    made = flight("abcab", 2)
    assert send(made) == "ab"
    made.settle(1, UNAVAILABLE)
    assert send(made) == ""
    assert not made.is_over
    made.settle(0, DELIVERED)
    assert made.is_over
    assert made.batch.outcomes() == [DELIVERED, UNAVAILABLE, NOT_ATTEMPTED, NOT_ATTEMPTED, NOT_ATTEMPTED]


@given(st.text("abcd", max_size=40), st.integers(1, 10), st.randoms(use_true_random=False))
def test_whatever_the_answers_each_object_keeps_its_order(keys: str, window: int, chance: random.Random) -> None:
    made = flight(keys, window)
    sent: list[Event] = []
    stuck: set[str] = set()
    while not made.is_over:
        while (index := made.take()) is not None:
            made.sent(index, 1)
            sent.append(made.batch.events[index])
            assert made.batch.events[index].path not in stuck
        assert 1 <= len(made.under_way) <= window
        assert len({made.batch.events[index].path for index in made.under_way}) == len(made.under_way)
        index = chance.choice(list(made.under_way))
        outcome: Outcome = chance.choice([DELIVERED] * 5 + [REJECTED, Failed("x")])
        if isinstance(outcome, Failed):
            stuck.add(made.batch.events[index].path)
        made.settle(index, outcome)
    for key in set(keys):
        in_order = [event for event in made.batch.events if event.key == key]
        gone = [event for event in sent if event.key == key]
        assert gone == in_order[: len(gone)]
    assert len(made.batch.outcomes()) == len(keys)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, b""),
        ({1: "minio"}, b"\x0a\x05minio"),
        ({1: "a", 3: 1}, b"\x0a\x01a\x18\x01"),
        ({3: 300}, b"\x18\xac\x02"),
        ({5: b"x" * 300}, b"\x2a\xac\x02" + b"x" * 300),
        ({100: "é"}, b"\xa2\x06\x02\xc3\xa9"),
    ],
)
def test_protobuf_is_written_and_read_as_its_encoding_says(
    fields: dict[int, str | bytes | int], message: bytes
) -> None:
    assert encoded(fields) == message
    read = decoded(message)
    assert read == {number: value.encode() if isinstance(value, str) else value for number, value in fields.items()}


def test_a_field_that_is_not_there_is_an_empty_text() -> None:
    assert text(decoded(b"").get(4)) == ""
    assert text(decoded(b"\x0a\x01a")[1]) == "a"


@pytest.mark.parametrize("message", [b"\x0a", b"\x0a\x05min", b"\x80", b"\x0d\x00\x00\x00\x00"])
def test_what_is_no_protobuf_is_refused(message: bytes) -> None:
    with pytest.raises((LookupError, ValueError)):
        decoded(message)
