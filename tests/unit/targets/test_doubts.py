"""Whose fault a refusal is that may be the target's."""

from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Rejected, Unavailable
from workers.targets.batch import Doubt, resolve

DOUBT, REJECTED, UNAVAILABLE = Doubt("why"), Rejected("why"), Unavailable("why")


def test_an_event_is_blamed_only_if_a_later_one_was_accepted() -> None:
    assert resolve([DOUBT, DELIVERED, DOUBT], [1, 1, 1]) == [REJECTED, DELIVERED, UNAVAILABLE]
    assert resolve([DELIVERED, DOUBT, DOUBT], [1, 1, 1]) == [DELIVERED, UNAVAILABLE, UNAVAILABLE]


def test_an_accepted_event_of_another_kind_or_that_wrote_nothing_is_no_evidence() -> None:
    assert resolve([DOUBT, DELIVERED], ["put", "delete"]) == [UNAVAILABLE, DELIVERED]
    assert resolve([DOUBT, DELIVERED], ["put", "put"], [True, False]) == [UNAVAILABLE, DELIVERED]


def test_other_outcomes_stay_as_they_are() -> None:
    outcomes = [REJECTED, DELIVERED, NOT_ATTEMPTED]
    assert resolve(outcomes, [1, 1, 1]) == outcomes
