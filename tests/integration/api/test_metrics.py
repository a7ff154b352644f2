"""What dashboards, alerts and people are told exists on a real `/metrics`, and says what is so."""

from __future__ import annotations

import math
import re
import socket
from pathlib import Path
from uuid import uuid4

import sqlalchemy as sa
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

from app.api.routes.metrics import listing_metrics
from app.config.arn import TargetId
from app.config.tls import Validity
from app.outbox import refusals, tables, upkeep
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.policies import DATABASE, HEARTBEATS
from app.outbox.processes import Process, record_certificates_of_target, record_process
from app.outbox.reconcile.runs import DRIFT, Reconciliations
from app.outbox.refusals import AnswerKind
from app.outbox.sources.rows import SourceLeases
from app.outbox.tokens import Tokens
from tests import services
from tests.integration.api.conftest import Api, Start, url_of
from tests.support.api_requests import body
from tests.support.builders import add_target, event
from tests.support.metric_expressions import ALERTS, DASHBOARD, ROOT, SCALE_OUT, dashboard_expressions, expressions
from tests.support.outbox_rows import bury, heartbeats
from tests.support.pulled_events import Sources
from tests.support.watched_bucket import Known
from workers.telemetry.metrics import WorkerMetrics

RUNBOOKS = ROOT / "docs/how-to/alerts.md"
METRICS = (ROOT / "docs/reference/metrics.md").read_text()
X = (("name", "x"), ("type", "webhook"))
Found = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def figures(api: Api) -> Found:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(api.client.get("/metrics").text)
        for sample in family.samples
    }


def audited(api: Api) -> Found:
    """The figures once the first audit, which goes on beside the scrape, and the API's heartbeat are there."""
    here = (("address", api.url), ("host", socket.gethostname()))
    awaited = {("bucketwire_target_counter_mismatch_events", X), ("bucketwire_api_up", here)}
    services.until(lambda: awaited <= figures(api).keys())
    return figures(api)


def reconciled(database: Database, **counts: int) -> None:
    runs = Reconciliations(database)
    runs.end(runs.begin(TargetId("webhook", "x"), "images", lease=60_000), DRIFT, counts)


def answered(database: Database) -> None:
    """Have requests counted."""
    refusals.record(database, {AnswerKind("POST /v1/events", 202): 1}, {})


def expiring(database: Database) -> dict[str, str]:
    """Have a target with a certificate that ends, and a token in use that expires; the header of the token."""
    with database.reading() as connection:
        [row, *_] = connection.execute(sa.select(tables.targets.c.id, tables.targets.c.revision)).all()
    record_certificates_of_target(database, row.id, row.revision, {"hook.example.com": Validity(0, now_ms())}, now_ms())
    token = Tokens(database).create("prometheus", ["read"], expires_at=now_ms() + 600_000)
    with database.writing() as connection:
        connection.execute(tables.tokens.update().values(used_at=now_ms()))
    return {"Authorization": f"Bearer {token}"}


def killed(database: Database) -> None:
    """Have a worker for all targets fall silent, and another one be there and serve nothing."""
    worker = record_process(database, Process("there:7:x", "targets@there", "1", "prefork", ["targets"]), age=60_000)
    assert worker.served_at < now_ms() - 50_000
    record_process(database, Process("there:8:x", "drain@there", "1", "prefork", ["drain"], problem="no broker"))


def pulled(database: Database) -> None:
    """Set a source whose queue has answered."""
    sources, leases = Sources(database), SourceLeases(database, 60_000)
    lease = leases.claim(sources.stored(sources.put("kafka", {"brokers": "127.0.0.1:9", "topic": "t"})), now_ms())
    assert lease is not None
    leases.report(lease, now_ms(), 0)


def listed(database: Database) -> None:
    """Set a watched bucket that has been listed."""
    Known(database).finish(now_ms(), created=1)


def test_events_whose_name_is_not_known_are_counted(log: Database, start: Start) -> None:
    api = start(url_of(log))
    assert figures(api)["bucketwire_unknown_name_events", ()] == 0
    Log(log).append([[event("a"), event("b", name="s3:ObjectRemoved:Deleted"), event("c", name="s3:New:Put")]])
    assert figures(api)["bucketwire_unknown_name_events", ()] == 2


def test_every_metric_that_dashboard_alerts_and_guide_use_exists(log: Database, start: Start, tmp_path: Path) -> None:
    add_target(log)
    pulled(log)
    listed(log)
    killed(log)
    heartbeats(log, 0)
    upkeep.begin_all(log, now_ms())
    reconciled(log, missing=1)
    answered(log)
    header = expiring(log)
    api = start(url_of(log), spool_dir=f"{tmp_path}/spool")
    api.client.headers.update(header)
    found = audited(api)
    used = {name for text in expressions() for name in re.findall(r"\b(?:bucketwire|minio)_\w+", text)}
    assert len(used) >= 15
    workers = {name for name in used if name.startswith(("bucketwire_worker_", "bucketwire_target_request_"))}
    assert used - workers - {name for name, _ in found} == set()


def test_alerts_and_pages_know_a_stopped_drain_and_an_unserved_queue_as_the_service_does() -> None:
    limits = {rule["alert"]: rule["expr"].rpartition(" > ")[2] for rule in ALERTS}
    assert int(limits["BucketwireNotDraining"]) * 1000 == HEARTBEATS.drain_silence_ms
    assert int(limits["BucketwireBeatStopped"]) * 1000 == HEARTBEATS.silence_ms
    assert int(limits["BucketwireQueueNotServed"]) * 1000 == HEARTBEATS.unserved_ms
    said = f"within {HEARTBEATS.drain_silence_ms // 1000} seconds"
    assert said in (ROOT / "docs/reference/api.md").read_text()


def test_the_figures_of_the_drain_the_partitions_the_dead_and_the_drift_are_so(log: Database, start: Start) -> None:
    target = add_target(log)
    api = start(url_of(log))
    assert figures(api)["bucketwire_drain_age_seconds", ()] == math.inf, "the alert fires if it never ran"
    api.post(body("a", "b"))
    bury(log, target)
    heartbeats(log, 40_000)
    reconciled(log, missing=9)
    reconciled(log, missing=3, stale=2, orphaned=1, malformed=1, repaired=4)
    with log.writing() as connection:
        some = tables.cursors.update().where(tables.cursors.c.partition.in_([0, 1, 2]))
        connection.execute(some.values(lease_token=uuid4().hex, leased_until=now_ms() + 60_000, dead=2))
    found = audited(api)
    assert found["bucketwire_target_dead_lettered_events_total", X] == 6
    assert found["bucketwire_target_dead_events", X] == 2
    assert 40 <= found["bucketwire_drain_age_seconds", ()] < 100
    assert found["bucketwire_target_leased_partitions", X] == 3
    assert found["minio_notify_current_send_in_progress", ()] == 3
    assert found["minio_notify_target_current_send_in_progress", (("target_id", "x"), ("target_name", "webhook"))] == 3
    assert found["bucketwire_reconcile_drift", (("bucket", "images"), *X)] == 3
    assert found["bucketwire_target_counter_mismatch_events", X] == 0


def test_counters_that_do_not_balance_are_told(log: Database, start: Start) -> None:
    add_target(log)
    with log.writing() as connection:
        connection.execute(tables.targets.update().values(recorded=7))
    assert audited(start(url_of(log)))["bucketwire_target_counter_mismatch_events", X] == 7


def test_the_figures_can_be_read_from_each_kind_of_database(api: Api, database: Database) -> None:
    add_target(database)
    reconciled(database, missing=3)
    found = figures(api)
    assert found["bucketwire_reconcile_drift", (("bucket", "images"), *X)] == 3
    assert (
        found["bucketwire_target_dead_lettered_events_total", X] == found["bucketwire_target_leased_partitions", X] == 0
    )
    for version in ("minio_notify", "minio_notification"):
        for name in ("current_send_in_progress", "events_sent_total", "events_errors_total", "events_skipped_total"):
            assert found[f"{version}_{name}", ()] == 0


def test_the_guides_backlog_query_counts_what_is_not_settled(log: Database) -> None:
    add_target(log)
    with log.writing() as connection:
        connection.execute(tables.targets.update().values(recorded=50, purged=4))
        connection.execute(
            tables.cursors.update().where(tables.cursors.c.partition < 2).values(delivered=9, superseded=1)
        )
        connection.execute(
            tables.cursors.update().where(tables.cursors.c.partition == 0).values(replayed=3)
        )  # of those delivered
    [query] = re.findall(r"```sql\n(.*?)```", SCALE_OUT, re.DOTALL)
    with log.reading() as connection:
        assert connection.exec_driver_sql(query).scalar_one() == 29
        connection.execute(tables.targets.update().values(paused=True))
        assert connection.exec_driver_sql(query).scalar_one() == 0


def test_a_failed_and_an_overdue_run_are_figures_of_their_kind(log: Database, start: Start) -> None:
    target = add_target(log)
    api = start(url_of(log), tables_schedule="0 * * * *")
    reconciled(log)
    runs, images = Reconciliations(log), (("bucket", "images"), ("kind", "reconcile"), *X)
    found = figures(api)
    assert (found["bucketwire_run_failed", images], found["bucketwire_run_overdue_seconds", images]) == (0, 0)
    runs.end(runs.begin(target, "images", lease=60_000), "failed", {}, problem="no Java")
    with log.writing() as connection:
        connection.execute(tables.targets.update().values(created_at=now_ms() - 7_200_000))
    found = figures(api)
    of_tables = (("bucket", ""), ("kind", "tables"), ("name", ""), ("type", ""))
    assert (found["bucketwire_run_failed", images], found["bucketwire_run_failed", of_tables]) == (1, 0)
    assert 3600 <= found["bucketwire_run_overdue_seconds", of_tables] < 7260
    assert found["bucketwire_reconcile_drift", (("bucket", "images"), *X)] == 0, "of the last one that compared"


def test_what_runs_by_time_is_a_figure_of_its_task_when_it_fails_or_is_overdue(log: Database, start: Start) -> None:
    upkeep.begin_all(log, now_ms() - 600_000)
    upkeep.record_failure(log, "audit", now_ms(), "unexpected KeyError")
    upkeep.record_success(log, "samples", now_ms())
    found = figures(start(url_of(log)))

    def of(task: str) -> tuple[float, float]:
        place = (("task", task),)
        return found["bucketwire_upkeep_failed", place], found["bucketwire_upkeep_overdue_seconds", place]

    assert (of("audit"), of("samples"), of("retention")) == ((1, 0), (0, 0), (0, 0))
    failed, seconds = of("purge")
    assert (failed, 580 < seconds < 3_000) == (0, True)


def test_every_alert_has_its_runbook() -> None:
    headings = re.findall(r"^## (\w+)$", RUNBOOKS.read_text(), re.MULTILINE)
    assert headings == [rule["alert"] for rule in ALERTS]
    for rule in ALERTS:
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert ROOT / page == RUNBOOKS
        assert anchor == rule["alert"].lower()
        assert rule["annotations"]["description"].endswith(".")


def test_an_alert_fires_when_no_api_is_scraped_whatever_its_job_is_called(log: Database, start: Start) -> None:
    """Every other alert resolves then: its metrics are gone."""
    [absent] = [rule for rule in ALERTS if rule["alert"] == "BucketwireApiAbsent"]
    [metric] = re.findall(r"^absent\((\w+)\)$", absent["expr"])
    assert (metric, ()) in figures(start(url_of(log))), "each API has it"


def test_an_alert_fires_for_each_process_of_the_documented_jobs() -> None:
    [down] = [rule for rule in ALERTS if rule["alert"] == "BucketwireProcessDown"]
    [pattern] = re.findall(r"^up\{job=~'([^']+)'\} == 0$", down["expr"])
    jobs = re.findall(r"job_name: (\S+)", (ROOT / "docs/how-to/monitor.md").read_text())
    assert [job for job in jobs if re.fullmatch(pattern, job)] == ["bucketwire-api", "bucketwire-workers"]


def test_a_scrape_may_take_longer_than_a_connection_to_a_database_that_is_away() -> None:
    """Otherwise no scrape says so, and it is the API that counts as away."""
    page = (ROOT / "docs/how-to/monitor.md").read_text()
    chart = (ROOT / "deploy/helm/bucketwire/values.yaml").read_text()
    limits = re.findall(r"scrape_timeout: (\d+)s", page) + re.findall(r"scrapeTimeout: (\d+)s", chart)
    assert len(limits) == 2
    assert min(map(int, limits)) > DATABASE.connect_seconds + 1


def test_the_dashboard_selects_targets_by_its_variables() -> None:
    defined = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert defined == {"datasource", "type", "target"}
    used = {name for expr in dashboard_expressions() for name in re.findall(r"\$(\w+)", expr)}
    assert used == {"type", "target"}
    for expr in dashboard_expressions():
        for metric, selector in re.findall(r"\b(bucketwire_(?:target|worker|reconcile)_\w+)(\{[^}]*\})?", expr):
            assert 'type=~"$type", name=~"$target"' in selector, f"{metric} in {expr}"


def test_the_dashboard_begins_with_single_values_of_now_and_of_what_is_missing() -> None:
    panels = sorted(DASHBOARD["panels"], key=lambda panel: (panel["gridPos"]["y"], panel["gridPos"]["x"]))
    assert [(panel["type"], panel["title"]) for panel in panels[:13] if panel["type"] != "stat"] == [
        ("row", "Now"), ("row", "What is missing"),
    ]  # fmt: skip
    assert [panel["title"] for panel in panels[:13] if panel["type"] == "stat"] == [
        "Backlog", "Oldest undelivered event", "Dead letters", "Open circuit breakers", "Time since the last drain",
        "APIs that do not answer", "Time since beat worked", "Silent workers", "Posts refused in 5 minutes",
        "Runs and upkeep that failed or are overdue", "Sources that are not pulled",
    ]  # fmt: skip


def test_what_is_missing_has_a_panel_for_each_alert_about_it() -> None:
    watched = {"api_up", "beat_age", "silent_workers", "refused_requests", "run_failed", "run_overdue", "upkeep_failed"}
    watched |= {"upkeep_overdue", "source_answer_age", "live_workers", "certificate_expiry", "token_expiry"}
    shown = " ".join(dashboard_expressions())
    assert [name for name in sorted(watched) if f"bucketwire_{name}" not in shown] == []


def test_each_metric_of_watched_buckets_has_a_panel() -> None:
    shown = " ".join(dashboard_expressions())
    assert [metric.name for metric in listing_metrics((), {}, 0) if metric.name not in shown] == []


def test_no_panel_of_the_dashboard_covers_another() -> None:
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len({*cells}) == len(cells)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)


def test_the_metrics_page_lists_every_metric_and_nothing_else(log: Database, start: Start, tmp_path: Path) -> None:
    add_target(log)
    pulled(log)
    listed(log)
    killed(log)
    heartbeats(log, 0)
    upkeep.begin_all(log, now_ms())
    reconciled(log, missing=1)
    answered(log)
    header = expiring(log)
    api = start(url_of(log), spool_dir=f"{tmp_path}/spool")
    api.client.headers.update(header)
    audited(api)
    exported = {(name, frozenset(dict(labels))) for name, labels in figures(api)}
    workers = WorkerMetrics()
    for collector in (value for value in vars(workers).values() if isinstance(value, MetricWrapperBase)):
        [family] = collector.describe()
        suffix = "_total" if family.type == "counter" else ""
        exported.add((family.name + suffix, frozenset(collector._labelnames)))
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| \w+ \|([^|]*)\| [^|]+ \|$", METRICS, re.MULTILINE)
    documented = {
        (name, frozenset(re.findall(r"`(\w+)`", labels)))
        for names, labels in rows
        for name in re.findall(r"`(\w+)`", names)
    }
    assert documented == exported
    assert len(documented) > 30
