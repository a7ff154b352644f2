"""Whether a scheduled run repairs."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cli_common.context import ServiceContext
from app.cli_common.run import run_command
from app.outbox.engine.database import now_ms
from app.outbox.errors import AlreadyRunning
from app.outbox.reconcile.runs import Reconciliations
from app.outbox.reconcile.schedule import RunRequests, Schedule
from spark_jobs.__main__ import jobs
from spark_jobs.commands.reconcile import may_repair
from spark_jobs.jobs.reconcile import ReconcileConfig
from tests.support.builders import add_target, migrated

MINUTE = 60_000


def test_a_scheduled_run_repairs_if_it_is_not_the_first_and_the_settings_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/outbox.db"
    monkeypatch.setenv("BUCKETWIRE_DATABASE_URL", url)
    monkeypatch.setenv("BUCKETWIRE_DATA_DIR", str(tmp_path))
    database, context = migrated(url), ServiceContext()
    schedule, runs = Schedule(database), Reconciliations(database)
    values = {"reconcile": "* * * * *", "address": "127.0.0.1:9", "key": "rows"}
    compares = add_target(database, "compares", type_name="redis", values=values, bucket="bkt")
    repairs = add_target(
        database, "repairs", type_name="redis", values=values | {"reconcile_repair": "on"}, bucket="bkt"
    )

    def repairing(now: int) -> dict[str, bool]:
        schedule.register(now)
        return {each.target.name: may_repair(context, each.target, each.run) for each in schedule.waiting()}

    now = now_ms()
    assert repairing(now) == {"compares": False, "repairs": False}
    for each in schedule.waiting():
        runs.begin(each.target, "bkt", lease=MINUTE, run=each.run)
        runs.end(each.run, "failed" if each.target == compares else "drift", {})
        with pytest.raises(AlreadyRunning, match="has already been started"):
            may_repair(context, each.target, each.run)
    assert repairing(now + MINUTE) == {"compares": False, "repairs": True}
    other = add_target(database, "other", type_name="redis", values=values | {"reconcile_repair": "on"}, bucket="bkt")
    runs.end(runs.begin(other, "bkt", lease=MINUTE), "failed", {}, problem="no such bucket")
    assert repairing(now + 2 * MINUTE)["other"] is False  # its first run has not finished
    assert repairs in {each.target for each in schedule.waiting()}
    for wanted in (True, False):
        asked = RunRequests(database, context.registry).start(
            compares, f"asked-{wanted}".lower(), repair=wanted, unknown_bucket=True
        )
        assert may_repair(context, compares, asked.run) is wanted  # though it is the first
    context.close()
    database.close()


@pytest.mark.parametrize("repairs", [False, True])
def test_a_scheduled_run_does_what_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repairs: bool) -> None:
    """Where a run begins: test_cluster.py has one that repairs in full."""
    database = migrated(f"sqlite:///{tmp_path}/outbox.db")
    monkeypatch.setenv("BUCKETWIRE_DATABASE_URL", f"sqlite:///{tmp_path}/outbox.db")
    monkeypatch.setenv("BUCKETWIRE_DATA_DIR", str(tmp_path))
    values = {"reconcile": "* * * * *", "address": "127.0.0.1:9", "key": "rows"}
    add_target(database, "rows", type_name="redis", values=values, bucket="bkt")
    Schedule(database).register(now_ms())
    [waiting] = Schedule(database).waiting()
    begun = list[ReconcileConfig]()

    def run(_open: object, _database: object, _registry: object, config: ReconcileConfig, *_: object) -> None:
        begun.append(config)
        raise KeyboardInterrupt

    monkeypatch.setattr("spark_jobs.jobs.reconcile.run", run)
    monkeypatch.setattr("spark_jobs.session.launch", lambda *_, **__: lambda: None)
    monkeypatch.setattr("spark_jobs.runs.end_with_input", lambda: None)
    monkeypatch.setattr("spark_jobs.commands.reconcile.may_repair", lambda *_: repairs)
    with pytest.raises(SystemExit):
        run_command(jobs, ["reconcile", "run", "bkt", "--target", "redis:rows", "--scheduled", waiting.run])
    assert [(each.run, each.repair) for each in begun] == [(waiting.run, repairs)]
    database.close()
