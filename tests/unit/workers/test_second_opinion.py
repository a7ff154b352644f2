"""Whether a refusal concerns an event or the target: tables of cases, no database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

from app.events.model import Event
from app.outbox.delivery.partition_reader import Refusals
from tests.support.builders import event
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Delivered, Failed, Outcome, Rejected, Unavailable
from workers.delivery.second_opinion import MOST_ASKED, Answer, RefusedAgain, SecondOpinion, Suspect, judged

REFUSED = Unavailable("503")
UNREACHABLE = Unavailable("connection refused", unreachable=True)
Script = Callable[[Event], Outcome]


class Remote:
    """A target that stops at its first refusal and remembers its calls."""

    def __init__(self, script: Script) -> None:
        self.script = script
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


def ask(remote: Remote, keys: str, *, probing: bool = False, seed: int = 1) -> tuple[SecondOpinion, list[Answer]]:
    opinion = SecondOpinion(remote.call, Random(seed), probing=probing)
    return opinion, opinion.send([event(key) for key in keys], lambda: False)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("poison", ["a", "c", "z", "cz", "acz", "ab"])
def test_what_is_refused_while_others_pass_is_suspected_and_all_else_is_delivered(poison: str, seed: int) -> None:
    keys = "abcdefghz"
    remote = refusing(*poison)
    opinion, answers = ask(remote, keys, seed=seed)
    assert [key for key, answer in zip(keys, answers, strict=True) if isinstance(answer, Suspect)] == list(poison)
    assert [key for key, answer in zip(keys, answers, strict=True) if answer == DELIVERED] == sorted(
        {*keys} - {*poison}
    )
    in_doubt = poison.endswith("z")  # nothing was left to ask
    assert (opinion.verdict(None) is not None) == in_doubt
    assert opinion.answered


def test_an_objects_later_events_are_not_sent_after_one_that_was_refused() -> None:
    remote = refusing("a")
    _, answers = ask(remote, "abaab")
    assert [type(answer).__name__ for answer in answers] == [
        "Suspect", "Delivered", "NotAttempted", "NotAttempted", "Delivered",
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_a_target_that_refuses_everything_is_asked_a_few_times_and_no_more(seed: int) -> None:
    remote = Remote(lambda one: REFUSED)
    opinion, answers = ask(remote, "abcdefghijklmnop", seed=seed)
    assert len(remote.calls) == 1 + MOST_ASKED
    assert [len(call) for call in remote.calls[1:]] == [1] * MOST_ASKED
    assert opinion.verdict(None) == REFUSED
    assert not opinion.answered
    assert DELIVERED not in answers


def test_a_target_that_names_a_time_is_asked_once_more() -> None:
    later = Unavailable("429", retry_after=30)
    remote = Remote(lambda one: later)
    opinion, _ = ask(remote, "abcdefgh")
    assert len(remote.calls) == 2
    assert opinion.verdict(None) == later


def test_a_target_that_cannot_be_reached_is_not_asked_again() -> None:
    remote = Remote(lambda one: UNREACHABLE)
    opinion, answers = ask(remote, "abcdefgh")
    assert len(remote.calls) == 1
    assert opinion.verdict(None) == UNREACHABLE
    assert not any(isinstance(answer, Suspect) for answer in answers)


@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize("probing", [False, True])
def test_a_target_that_does_not_answer_costs_two_timeouts_at_most(
    monkeypatch: pytest.MonkeyPatch, size: int, *, probing: bool
) -> None:
    now = [0.0]
    monkeypatch.setattr("workers.delivery.second_opinion.time.monotonic", lambda: now[0])

    def hang(_: Event) -> Outcome:
        now[0] += 10
        return Unavailable("no answer within 10 s")

    remote = Remote(hang)
    opinion = SecondOpinion(remote.call, Random(1), probing=probing)
    for batch in ("abcdefghijklmnop", "qrst", "uvwx"):  # parked events, a replay, the log
        if not opinion.is_certain:
            opinion.send([event(key) for key in batch[:size]], lambda: False)
    assert len(remote.calls) == 2
    assert opinion.verdict(None) is not None
    assert not opinion.answered


def test_one_event_without_an_answer_does_not_make_the_target_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("workers.delivery.second_opinion.time.monotonic", lambda: now[0])

    def answer(one: Event) -> Outcome:
        if one.key != "a":
            return DELIVERED
        now[0] += 10
        return Unavailable("no answer within 10 s")

    opinion = SecondOpinion(Remote(answer).call, Random(1), probing=True)
    opinion.send([event("a")], lambda: False)
    assert not opinion.is_certain
    assert opinion.send([event("b"), event("c")], lambda: False) == [DELIVERED] * 2
    assert opinion.verdict(None) is None


@pytest.mark.parametrize("answer", [DELIVERED, Failed("500"), Rejected("400")])
def test_any_answer_of_its_own_shows_that_the_target_is_up(answer: Outcome) -> None:
    opinion, answers = ask(Remote(lambda one: REFUSED if one.key == "a" else answer), "ab")
    assert isinstance(answers[0], Suspect)
    assert opinion.verdict(None) is None


def test_a_probe_begins_with_a_single_event_and_goes_on_with_the_rest() -> None:
    remote = refusing()
    opinion, answers = ask(remote, "abcdefgh", probing=True)
    assert len(remote.calls[0]) == 1
    assert len(remote.calls) == 2
    assert {type(answer) for answer in answers} == {Delivered}
    assert not opinion.in_doubt


def test_a_doubt_outlasts_its_batch_and_ends_with_the_first_answer_of_the_next() -> None:
    remote = refusing("a")
    opinion, _ = ask(remote, "a")
    assert opinion.verdict(None) == REFUSED
    assert opinion.send([event("b"), event("c")], lambda: False) == [DELIVERED] * 2
    assert opinion.verdict(None) is None


@pytest.mark.parametrize("size", [2, 3, 10, 64, 200])
@pytest.mark.parametrize("seed", range(5))
def test_a_refusal_that_many_objects_share_is_narrowed_down(size: int, seed: int) -> None:
    keys = [f"k{number}" for number in range(size)]
    calls: list[int] = []

    def call(events: Sequence[Event]) -> list[Outcome]:
        calls.append(len(events))
        refused = any(one.key == keys[size // 2] for one in events)
        return [REFUSED if refused else DELIVERED] * len(events)

    opinion = SecondOpinion(call, Random(seed), probing=False)
    answers = opinion.send([event(key) for key in keys], lambda: False)
    assert [index for index, answer in enumerate(answers) if isinstance(answer, Suspect)] == [size // 2]
    assert answers.count(DELIVERED) == size - 1
    assert len(calls) <= 6 * size.bit_length(), calls


def test_nothing_more_is_sent_when_the_lease_is_to_end() -> None:
    remote = refusing("a")
    opinion = SecondOpinion(remote.call, Random(1), probing=False)
    opinion.send([event("a"), event("b"), event("c")], lambda: True)
    assert len(remote.calls) == 1


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
    assert opinion.verdict(known) == (gone if heeded else Unavailable("410"))


@pytest.mark.parametrize(
    ("before", "delivered_at", "partitions", "parked", "is_up", "expected"),
    [
        # refused for the first time
        (0, 50, set(), False, True, Suspect),
        (0, 50, set(), True, False, Suspect),
        (0, 50, set(), False, False, Suspect),
        (0, 50, {3}, False, False, Unavailable),  # an outage: the partition has one already
        (0, 50, {4}, False, False, Suspect),
        (0, 50, {3}, False, True, Suspect),
        # refused again
        (40, 50, set(), True, True, RefusedAgain),
        (40, 50, {3}, True, False, RefusedAgain),
        (50, 50, set(), True, True, Suspect),
        (60, 50, set(), True, True, Suspect),
        (60, 0, set(), True, False, Suspect),
    ],
)
def test_a_refusal_counts_once_the_target_delivered_something_since_the_one_before(
    before: int, delivered_at: int, partitions: set[int], parked: bool, is_up: bool, expected: type
) -> None:
    [decided] = judged(
        [Suspect(REFUSED)],
        [3],
        [before],
        Refusals(delivered_at, frozenset(partitions)),
        parked=parked,
        is_up=is_up,
        refused_at=100,
        due=lambda refusal: 200,
    )
    assert type(decided) is expected
    if isinstance(decided, Suspect):
        assert (decided.refused_at, decided.due) == (100, 200)


def test_an_outage_parks_no_event_behind_one_of_its_partition_that_stays() -> None:
    answers: list[Answer] = [REFUSED, Suspect(REFUSED), Suspect(REFUSED), Suspect(REFUSED)]
    decided = judged(
        answers, [0, 0, 1, 1], [0] * 4, Refusals(0), parked=False, is_up=False, refused_at=1, due=lambda refusal: 2
    )
    assert [type(answer) for answer in decided] == [Unavailable, Unavailable, Suspect, Unavailable]
