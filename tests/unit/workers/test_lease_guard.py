"""How long a worker may believe in its lease."""

from __future__ import annotations

import pytest

from workers.delivery import lease_term, retry
from workers.delivery.lease_term import LeaseGuard
from workers.targets.base import LeaseExpired

LEASE = 10.0  # seconds


class Renewals:
    """In place of an outbox: each renewal is one at once, and its answer comes so many seconds later."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moment, self.takes, self.succeeds = 0.0, 0.0, True
        monkeypatch.setattr(lease_term, "elapsed", lambda: self.moment)

    def renew(self, *_: object) -> bool:
        self.moment += self.takes
        return self.succeeds


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> Renewals:
    return Renewals(monkeypatch)


def guard(renewals: Renewals) -> LeaseGuard:
    return LeaseGuard(renewals, None, 0.0, LEASE, lambda: 0)  # type: ignore[arg-type]  # in place of an outbox


def test_a_renewed_lease_counts_from_before_its_renewal_however_late_the_answer_comes(renewals: Renewals) -> None:
    held = guard(renewals)
    renewals.moment, renewals.takes = LEASE, LEASE - 1
    assert not held.holds
    held.check()
    assert renewals.moment == 2 * LEASE - 1
    assert not held.holds, "the database has renewed it nine seconds ago, and a margin is left at its end"
    renewals.takes = 1.0
    held.check()
    assert held.holds
    renewals.moment += LEASE * (1 - retry.LEASE_MARGIN) - 1
    assert not held.holds


def test_a_lease_that_cannot_be_renewed_is_never_believed_in_again(renewals: Renewals) -> None:
    held = guard(renewals)
    renewals.moment, renewals.succeeds = LEASE, False
    with pytest.raises(LeaseExpired):
        held.check()
    renewals.succeeds = True
    with pytest.raises(LeaseExpired):
        held.check()
    assert not held.holds
