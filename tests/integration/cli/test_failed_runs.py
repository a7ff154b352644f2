"""`bucketwire status` and `doctor` say which runs failed and which are overdue."""

from __future__ import annotations

import re

import pytest

from app.outbox import tables
from app.outbox.engine.database import Database, now_ms
from app.outbox.reconcile.runs import BACKFILLING, Reconciliations, begin_tables, end_tables, store_findings
from tests.integration.cli.conftest import Cli
from tests.support.builders import add_target

MIRROR = {"address": "127.0.0.1:9", "key": "rows"}
HOUR = 3_600_000


def warnings(cli: Cli) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in cli("doctor", "--json").json["findings"]:
        if one["grade"] == "warning":
            found.setdefault(one["subject"], []).append(one["text"])
    return found


def test_a_failed_run_is_said_with_what_the_last_good_one_found(cli: Cli, database: Database) -> None:
    mirror = add_target(database, "rows", type_name="redis", values=MIRROR)
    runs = Reconciliations(database)
    runs.end(runs.begin(mirror, "images", lease=60_000), "drift", {"missing": 5, "repaired": 2})
    assert warnings(cli) == {}
    runs.end(runs.begin(mirror, "images", lease=60_000), "failed", {}, problem="MySQL is away.")
    [text] = warnings(cli)["redis:rows"]
    assert re.sub(r"[0-9.]+ s", "N s", text) == (
        "its last reconciliation with images failed N s ago: MySQL is away; "
        "the last good one is older: it ended N s ago, and left 3 differences"
    )
    assert "its last reconciliation with images failed" in cli("status").err
    again = runs.begin(mirror, "images", lease=60_000)
    assert warnings(cli)["redis:rows"], "one that has only begun mends nothing"
    runs.end(again, "clean", {"in_flight": 2})
    assert warnings(cli) == {}
    runs.end(runs.begin(mirror, "images", lease=60_000), "failed", {}, problem="MySQL is away.")
    [text] = warnings(cli)["redis:rows"]
    assert text.endswith(", and left no drift; 2 keys with events in flight are left to the next run")
    for bucket in ("a", "b", "c", "d", "e", "f", "g"):
        runs.end(runs.begin(mirror, bucket, lease=60_000), "failed", {}, problem="no Java")
    [text] = warnings(cli)["redis:rows"]
    assert " and 2 more" in text
    runs.end(runs.begin(mirror, "docs", lease=60_000, state=BACKFILLING), "unfinished", {}, problem="SlowDown")
    assert any("its last backfill from docs failed" in text for text in warnings(cli)["redis:rows"])
    assert "backfill" in cli("reconcile", "ls").out


def test_what_a_run_found_is_printed_for_other_programs(cli: Cli, database: Database) -> None:
    mirror = add_target(database, "rows", type_name="redis", values=MIRROR)
    runs = Reconciliations(database)
    run = runs.begin(mirror, "acme:images", lease=60_000)
    found = [
        {"kind": "missing", "key": "a b/+%é", "modified": 1, "version": "v1"},
        {"kind": "stale", "key": "line\nfeed", "modified": 1, "version": ""},
        {"kind": "orphaned", "key": "gone", "modified": None},
        {"kind": "malformed", "key": "bad", "modified": None},
    ]
    store_findings(database, run, found)
    runs.end(run, "drift", {"missing": 1, "stale": 2, "orphaned": 1, "malformed": 1}, report="/reports/x")
    printed = cli("reconcile", "findings", run, "--format", "csv")
    assert printed.out.splitlines() == ["images,a%20b%2F%2B%25%C3%A9", "images,line%0Afeed"]
    assert "4 of 5 differences; all of them are in the report: /reports/x" in printed.err
    versions = cli("reconcile", "findings", run, "--format", "csv-versions", "--kind", "missing")
    assert (versions.out, versions.err) == ("images,a%20b%2F%2B%25%C3%A9,v1\n", "")
    combined = cli("reconcile", "findings", run, "--format", "combined").out
    assert combined.splitlines() == ["+ a b/+%é", "* line␊feed", "- gone", "! bad"]
    assert len(cli("reconcile", "findings", run, "--json", "--limit", "2").json) == 2


def test_what_is_overdue_is_said_where_neither_beat_nor_a_worker_runs(
    cli: Cli, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUCKETWIRE_TABLES_SCHEDULE", "0 * * * *")
    schedule = MIRROR | {"reconcile": "0 * * * *", "scan": "0 * * * *"}
    mirror = add_target(database, "rows", type_name="redis", values=schedule, bucket="images")
    assert warnings(cli) == {}
    runs = Reconciliations(database)
    runs.end(runs.begin(mirror, "images", lease=60_000), "clean", {})
    end_tables(database, begin_tables(database, lease=60_000))
    with database.writing() as connection:
        connection.execute(tables.reconciliations.update().values(started_at=now_ms() - 3 * HOUR))
        connection.execute(tables.targets.update().values(created_at=now_ms() - 3 * HOUR))
        connection.execute(tables.buckets.update().values(created_at=now_ms() - 3 * HOUR))
        connection.execute(tables.audit.update().values(at=now_ms() - 3 * HOUR))
    found = warnings(cli)
    assert sorted(text.partition(" is overdue")[0] for text in found["redis:rows"]) == [
        "its reconciliation with images", "its scan of images",
    ]  # fmt: skip
    [text] = found["tables"]
    assert text.startswith("its update is overdue: it was due ")
    assert "warning: tables: its update is overdue" in cli("status").err


def test_a_tables_run_that_failed_is_said(cli: Cli, database: Database) -> None:
    end_tables(database, begin_tables(database, lease=60_000), problem="LogMovedBack: another log")
    [text] = warnings(cli)["tables"]
    assert "LogMovedBack: another log" in text
    end_tables(database, begin_tables(database, lease=60_000))
    assert "tables" not in warnings(cli)


def test_a_difference_in_size_is_shown_with_both_sizes(cli: Cli, database: Database) -> None:
    mirror = add_target(database, "rows", type_name="redis", values=MIRROR)
    run = Reconciliations(database).begin(mirror, "images", lease=60_000)
    facts = {"kind": "stale", "key": "cat", "differs": "etag,size", "size": 1200, "row_size": 7}
    store_findings(database, run, [facts, facts | {"row_size": None}])
    out = " ".join(cli("reconcile", "findings", run).out.split())
    assert "etag, size 1,200 B, row 7 B" in out
    assert "etag, size 1,200 B, row unknown" in out
