"""What a scheduled run does beside looking."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cli.context import CommandContext
from app.outbox.engine.database import now_ms
from app.outbox.reconcile.runs import AlreadyRunning, Reconciliations
from app.outbox.reconcile.schedule import Schedule
from spark_jobs.__main__ import repairs
from tests.support.builders import add_target, migrated

MINUTE = 60_000


def test_a_scheduled_run_repairs_if_it_is_not_the_first_and_the_target_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/outbox.db"
    monkeypatch.setenv("BUCKETWIRE_DATABASE_URL", url)
    monkeypatch.setenv("BUCKETWIRE_DATA_DIR", str(tmp_path))
    database, shell = migrated(url), CommandContext()
    schedule, runs = Schedule(database), Reconciliations(database)
    values = {"reconcile": "* * * * *", "address": "127.0.0.1:9", "key": "rows"}
    looks = add_target(database, "looks", type_name="redis", values=values, bucket="bkt")
    mends = add_target(database, "mends", type_name="redis", values=values | {"reconcile_repair": "on"}, bucket="bkt")

    def wanted(now: int) -> dict[str, bool]:
        schedule.register(now)
        return {each.target.name: repairs(shell, each.target, each.run) for each in schedule.waiting()}

    now = now_ms()
    assert wanted(now) == {"looks": False, "mends": False}
    for each in schedule.waiting():
        runs.begin(each.target, "bkt", lease=MINUTE, run=each.run)
        runs.end(each.run, "failed" if each.target == looks else "drift", {})
        with pytest.raises(AlreadyRunning, match="has been begun before"):
            repairs(shell, each.target, each.run)
    assert wanted(now + MINUTE) == {"looks": False, "mends": True}
    other = add_target(database, "other", type_name="redis", values=values | {"reconcile_repair": "on"}, bucket="bkt")
    runs.end(runs.begin(other, "bkt", lease=MINUTE), "failed", {}, problem="no such bucket")
    assert wanted(now + 2 * MINUTE)["other"] is False  # it has never seen what it would repair
    assert mends in {each.target for each in schedule.waiting()}
    shell.close()
    database.close()
