from __future__ import annotations

from datetime import UTC, datetime

import pytest

from app.config.errors import BadValue
from app.config.fields.times import Cron, last_moment
from app.config.target_settings import BadSettings, load
from app.config.targets.postgresql import PostgresSettings
from app.outbox.policies import RECONCILIATIONS
from app.outbox.reconcile.schedule import is_due

HOST = {"host": "db", "table": "rows"}


def at(text: str) -> int:
    """Milliseconds of a time in UTC."""
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "now", "moment"),
    [
        ("0 3 * * *", "2026-11-21T14:30:00", "2026-11-21T03:00:00"),
        ("0 3 * * *", "2026-11-21T02:59:59.999", "2026-11-20T03:00:00"),
        ("0 3 * * *", "2026-11-21T03:00:00", "2026-11-21T03:00:00"),
        ("*/20  1-5 * * *", "2026-11-21T06:00:00", "2026-11-21T05:40:00"),
        ("30 2 * * SUN", "2026-11-21T00:00:00", "2026-11-15T02:30:00"),
        ("0 0 29 2 *", "2026-11-21T00:00:00", "2024-02-29T00:00:00"),
        ("0 0 13 * 5", "2026-11-21T00:00:00", "2026-11-20T00:00:00"),  # the 13th or a Friday, as cron has it
    ],
)
def test_the_last_moment_of_an_expression_is_found(text: str, now: str, moment: str) -> None:
    assert last_moment(Cron().parse(text), at(now)) == at(moment)


@pytest.mark.parametrize(
    "text",
    ["", "nightly", "@daily", "0 3 * *", "0 0 3 * * *", "60 3 * * *", "0 24 * * *", "0 3 0 * *", "0 3 * 13 *",
     "0 3 * * 8", "*/0 * * * *", "5-1 * * * *", "0 3 * * MON-", "0 0 31 2 *", "0 0 30 2 */7", "x" * 9000],
)  # fmt: skip
def test_what_is_no_cron_expression_is_refused_with_one_that_is(text: str) -> None:
    with pytest.raises(BadValue) as refused:
        Cron().parse(text)
    assert "0 3 * * *" in refused.value.hint


def test_a_run_is_due_once_for_each_moment_and_only_soon_after_it() -> None:
    three = at("2026-11-21T03:00:00")
    assert not is_due("0 3 * * *", 0, three - 1)
    assert is_due("0 3 * * *", 0, three)
    assert is_due("0 3 * * *", three - 1, three + RECONCILIATIONS.max_delay_ms)
    assert not is_due("0 3 * * *", three - 1, three + RECONCILIATIONS.max_delay_ms + 1)
    assert not is_due("0 3 * * *", three, three + 1000)
    assert not is_due("0 3 * * *", three + 500, three + 1000)
    assert is_due("0 3 * * *", three + 500, three + 86_400_000)


def test_a_schedule_is_a_setting_of_a_mirror_alone() -> None:
    mirror = load("postgresql", {**HOST, "reconcile": " 0  3 * * * ", "reconcile_repair": "on"})
    assert isinstance(mirror, PostgresSettings)
    assert (mirror.reconcile, mirror.reconcile_repair) == ("0 3 * * *", True)
    for values, key in (
        ({"reconcile": "0 3 * * *", "format": "access"}, "reconcile"),
        ({"reconcile_repair": "on"}, "reconcile_repair"),
        ({"reconcile": "at night"}, "reconcile"),
    ):
        with pytest.raises(BadSettings) as refused:
            load("postgresql", {**HOST, **values})
        assert [problem.key for problem in refused.value.problems] == [key]
