"""Whether a refusal concerns an event or the target: tables of cases, no database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

from app.events.model import Event
from app.outbox.delivery.due_work import Refusals
from app.outbox.delivery.logged_events import LoggedEvent
from app.outbox.delivery.partition_reader import ParkedEvent
from tests.support.builders import event
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Delivered, Failed, Outcome, Rejected, Unavailable
from workers.delivery.retry import MAX_OPINIONS
from workers.delivery.second_opinion import SecondOpinion
from workers.delivery.settlement import Delivery, Suspicion

REFUSED = Unavailable("503")
UNREACHABLE = Unavailable("connection refused", unreachable=True)
Script = Callable[[Event], Outcome]


class Remote:
    """A target that stops at its first refusal and remembers its calls."""

    def __init__(self, script: Script, seconds: float = 0.0) -> None:
        self.script = script
        self.seconds = seconds  # that a refusal takes
        self.calls: list[list[str]] = []

    def call(self, events: Sequence[Event]) -> list[Outcome]:
        self.calls.append([one.key for one in events])
        outcomes: list[Outcome] = []
        for one in events:
            refused = any(isinstance(outcome, Unavailable) for outcome in outcomes)
            outcomes.append(NOT_ATTEMPTED if refused else self.script(one))
        return outcomes


def refusing(*keys: str, outcome: Outcome = REFUSED) -> Remote:
    return Remote(lambda one: outcome if one.key in keys else DELIVERED)


def logged(seq: int, key: str, partition: int = 0) -> LoggedEvent:
    return LoggedEvent(event(key), partition, seq, seq, 0)


def deliveries(keys: Sequence[str]) -> list[Delivery]:
    return [Delivery(one, one.event) for one in (logged(seq, key) for seq, key in enumerate(keys))]


def send(
    opinion: SecondOpinion, call: Callable[[Sequence[Event]], list[Outcome]], batch: list[Delivery], seconds: float = 0
) -> list[Delivery]:
    """Make the calls that are asked for, of which each that is refused takes so many seconds."""
    opinion.begin(batch)
    while some := opinion.next_call():
        outcomes = call([one.logged.event for one in some])
        refused = any(isinstance(outcome, Unavailable) for outcome in outcomes)
        opinion.record(some, outcomes, seconds if refused else 0)
    return batch


def ask(remote: Remote, keys: str, *, probing: bool = False, seed: int = 1) -> tuple[SecondOpinion, list[Delivery]]:
    opinion = SecondOpinion(Random(seed), probing=probing)
    return opinion, send(opinion, remote.call, deliveries(keys), remote.seconds)


def suspected(opinion: SecondOpinion) -> list[int]:
    """The numbers of the batch's events that are suspects."""
    return sorted(seq for _, seq in opinion.suspects())


def outcomes_of(batch: list[Delivery]) -> list[Outcome]:
    return [one.outcome for one in batch]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("poison", ["a", "c", "z", "cz", "acz", "ab"])
def test_what_is_refused_while_others_pass_is_suspected_and_all_else_is_delivered(poison: str, seed: int) -> None:
    keys = "abcdefghz"
    remote = refusing(*poison)
    opinion, answers = ask(remote, keys, seed=seed)
    assert [keys[index] for index in suspected(opinion)] == list(poison)
    assert [key for key, one in zip(keys, answers, strict=True) if one.outcome == DELIVERED] == sorted(
        {*keys} - {*poison}
    )
    in_doubt = poison.endswith("z")  # nothing was left to ask
    assert (opinion.verdict() is not None) == in_doubt
    assert opinion.answered


def test_an_objects_later_events_are_not_sent_after_one_that_was_refused() -> None:
    remote = refusing("a")
    opinion, answers = ask(remote, "abaab")
    assert outcomes_of(answers) == [REFUSED, DELIVERED, NOT_ATTEMPTED, NOT_ATTEMPTED, DELIVERED]
    assert suspected(opinion) == [0]


@pytest.mark.parametrize("seed", range(5))
def test_a_target_that_refuses_everything_is_asked_a_few_times_and_no_more(seed: int) -> None:
    remote = Remote(lambda one: REFUSED)
    opinion, answers = ask(remote, "abcdefghijklmnop", seed=seed)
    assert len(remote.calls) == 1 + MAX_OPINIONS
    assert [len(call) for call in remote.calls[1:]] == [1] * MAX_OPINIONS
    assert opinion.verdict() == REFUSED
    assert not opinion.answered
    assert DELIVERED not in outcomes_of(answers)


def test_a_target_that_names_a_time_is_asked_once_more() -> None:
    later = Unavailable("429", retry_after=30)
    remote = Remote(lambda one: later)
    opinion, _ = ask(remote, "abcdefgh")
    assert len(remote.calls) == 2
    assert opinion.verdict() == later


def test_a_target_that_cannot_be_reached_is_not_asked_again() -> None:
    remote = Remote(lambda one: UNREACHABLE)
    opinion, _ = ask(remote, "abcdefgh")
    assert len(remote.calls) == 1
    assert opinion.verdict() == UNREACHABLE
    assert suspected(opinion) == []


@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize("probing", [False, True])
def test_a_target_that_does_not_answer_costs_two_timeouts_at_most(size: int, *, probing: bool) -> None:
    remote = Remote(lambda one: Unavailable("no answer within 10 s"))
    opinion = SecondOpinion(Random(1), probing=probing)
    for batch in ("abcdefghijklmnop", "qrst", "uvwx"):  # parked events, a replay, the log
        if not opinion.is_certain:
            send(opinion, remote.call, deliveries(batch[:size]), seconds=10)
    assert len(remote.calls) == 2
    assert opinion.verdict() is not None
    assert not opinion.answered


def test_one_event_without_an_answer_does_not_make_the_target_unavailable() -> None:
    remote = refusing("a", outcome=Unavailable("no answer within 10 s"))
    opinion = SecondOpinion(Random(1), probing=True)
    send(opinion, remote.call, deliveries("a"), seconds=10)
    assert not opinion.is_certain
    assert outcomes_of(send(opinion, remote.call, deliveries("bc"), seconds=10)) == [DELIVERED] * 2
    assert opinion.verdict() is None


@pytest.mark.parametrize("answer", [DELIVERED, Failed("500"), Rejected("400")])
def test_any_answer_of_its_own_shows_that_the_target_is_up(answer: Outcome) -> None:
    opinion, _ = ask(Remote(lambda one: REFUSED if one.key == "a" else answer), "ab")
    assert suspected(opinion) == [0]
    assert opinion.verdict() is None


def test_a_probe_begins_with_a_single_event_and_goes_on_with_the_rest() -> None:
    remote = refusing()
    opinion, answers = ask(remote, "abcdefgh", probing=True)
    assert len(remote.calls[0]) == 1
    assert len(remote.calls) == 2
    assert {type(outcome) for outcome in outcomes_of(answers)} == {Delivered}
    assert not opinion.in_doubt


def test_a_doubt_outlasts_its_batch_and_ends_with_the_first_answer_of_the_next() -> None:
    remote = refusing("a")
    opinion, _ = ask(remote, "a")
    assert opinion.verdict() == REFUSED
    assert outcomes_of(send(opinion, remote.call, deliveries("bc"))) == [DELIVERED] * 2
    assert opinion.verdict() is None


@pytest.mark.parametrize("size", [2, 3, 10, 64, 200])
@pytest.mark.parametrize("seed", range(5))
def test_a_refusal_that_many_objects_share_is_narrowed_down(size: int, seed: int) -> None:
    keys = [f"k{number}" for number in range(size)]
    calls: list[int] = []

    def call(events: Sequence[Event]) -> list[Outcome]:
        calls.append(len(events))
        refused = any(one.key == keys[size // 2] for one in events)
        return [REFUSED if refused else DELIVERED] * len(events)

    opinion = SecondOpinion(Random(seed), probing=False)
    answers = send(opinion, call, deliveries(keys))
    assert suspected(opinion) == [size // 2]
    assert outcomes_of(answers).count(DELIVERED) == size - 1
    assert len(calls) <= 6 * size.bit_length(), calls


@pytest.mark.parametrize(
    ("keys", "known", "heeded"),
    [
        ("a", None, False),
        ("a", Refusals(0), False),
        ("a", Refusals(0, of_others=True), True),  # another object was refused too, and nothing was delivered since
        ("ab", None, True),
    ],
)
def test_what_one_answer_asks_of_all_is_heeded_only_where_several_objects_got_it(
    keys: str, known: Refusals | None, heeded: bool
) -> None:
    gone = Unavailable("410", retry_after=900, pause=True)
    opinion, _ = ask(Remote(lambda one: gone), keys)
    if known is not None:
        opinion.judge(known, 100)
    assert opinion.verdict() == (gone if heeded else Unavailable("410"))


@pytest.mark.parametrize(
    ("before", "delivered_at", "partitions", "parked", "is_up", "expected"),
    [
        # refused for the first time
        (0, 50, set(), False, True, "parked"),
        (0, 50, set(), True, False, "parked"),
        (0, 50, set(), False, False, "parked"),
        (0, 50, {3}, False, False, "stays"),  # an outage: the partition has one already
        (0, 50, {4}, False, False, "parked"),
        (0, 50, {3}, False, True, "parked"),
        # refused again
        (40, 50, set(), True, True, "attempt"),
        (40, 50, {3}, True, False, "attempt"),
        (50, 50, set(), True, True, "parked"),
        (60, 50, set(), True, True, "parked"),
        (60, 0, set(), True, False, "parked"),
    ],
)
def test_a_refusal_counts_once_the_target_delivered_something_since_the_one_before(
    before: int, delivered_at: int, partitions: set[int], parked: bool, is_up: bool, expected: str
) -> None:
    suspect, other = logged(1, "a", partition=3), logged(2, "b", partition=9)
    entry = ParkedEvent(suspect, 0, 0, "[]", 0, before) if parked else None
    batch = [Delivery(suspect, suspect.event, entry)] + [Delivery(other, other.event)] * is_up
    opinion = SecondOpinion(Random(1), probing=False)
    send(opinion, refusing("a").call, batch)
    opinion.judge(Refusals(delivered_at, frozenset(partitions)), 100)
    suspicion = batch[0].suspicion
    if expected == "stays":
        assert suspicion is None
    else:
        assert suspicion is not None
        # One that is up delivered after the refusal, one in doubt before it.
        assert suspicion.refused_at == 100 - is_up
        assert (suspicion.due is None) == (expected == "attempt")
        assert suspicion.due is None or 200 <= suspicion.due <= 300


def test_an_outage_parks_no_event_behind_one_of_its_partition_that_stays() -> None:
    places = [(0, "a"), (0, "b"), (1, "c"), (1, "d")]
    batch = [Delivery(one, one.event) for one in (logged(seq, key, place) for seq, (place, key) in enumerate(places))]
    opinion = SecondOpinion(Random(1), probing=True)
    opinion.begin(batch)
    # The first stays without suspicion: it was refused together with another one.
    for index in (1, 2, 3):
        opinion.record([batch[index]], [REFUSED], 0)
    batch[0].outcome = REFUSED
    opinion.judge(Refusals(0), 1)
    assert [one.suspicion is not None for one in batch] == [False, False, True, False]
    assert batch[2].suspicion == Suspicion(1, batch[2].suspicion.due if batch[2].suspicion else None)
