"""What probes and Prometheus are told."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from prometheus_client.parser import text_string_to_metric_families

from app.asked_servers import READY, problem_of
from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.delivery.availability import open_breaker
from app.outbox.engine.database import Database, now_ms
from app.outbox.migration import migrate
from tests import services
from tests.integration.api.conftest import Api, Start, url_of
from tests.support.api_requests import body
from tests.support.builders import add_target, registry
from tests.support.outbox_rows import bury, heartbeats

LABELS = {"type": "webhook", "name": "x"}


def test_ready_means_database_schema_and_drain(api: Api, database: Database) -> None:
    def ready() -> tuple[int, dict[str, bool]]:
        answer = api.client.get("/readyz")
        return answer.status_code, {name: check["ok"] for name, check in answer.json()["checks"].items()}

    assert api.client.get("/healthz").json() == {"status": "ok"}
    unready = (503, {"database": True, "schema": True, "drain": False, "beat": True})
    services.until(lambda: ready() == unready)  # a beat of an earlier version would not be known
    heartbeats(database, 1000)
    services.until(lambda: ready() == (200, {"database": True, "schema": True, "drain": True, "beat": True}))
    for probe in ("live", "ready", "cluster", "cluster/read"):  # MinIO's
        assert api.client.get(f"/minio/health/{probe}").status_code == 200
    heartbeats(database, 31_000)
    services.until(lambda: ready() == (503, {"database": True, "schema": True, "drain": False, "beat": False}))
    assert "does a beat run" in api.client.get("/readyz").json()["checks"]["beat"]["reason"]
    assert "beat" in api.client.get("/readyz").json()["checks"]["drain"]["reason"]
    assert api.client.get("/minio/health/cluster").status_code == 503
    assert api.client.get("/minio/health/live").status_code == 200


def test_a_target_that_takes_nothing_and_a_queue_that_nobody_serves_make_nothing_unready(
    log: Database, start: Start
) -> None:
    for name in ("away", "paused", "unserved"):
        add_target(log, name)
    targets = registry(log)
    row_id = targets.target(TargetId("webhook", "away")).row_id
    open_breaker(log, row_id, "no route", now_ms() + 60_000, probing=False)
    targets.pause(TargetId("webhook", "paused"), "a new disk")
    with log.writing() as connection:
        connection.execute(tables.targets.update().values(created_at=1))
    heartbeats(log, 0)
    api = start(url_of(log))
    assert api.client.get("/readyz").status_code == 200
    states = {target["name"]: target["state"] for target in api.client.get("/v1/targets").json()["targets"]}
    assert states == {"away": "unavailable", "paused": "paused", "unserved": "running"}
    silent = 'bucketwire_target_worker_heartbeat_age_seconds{name="unserved",type="webhook"} '
    [seconds] = [line for line in api.client.get("/metrics").text.splitlines() if line.startswith(silent)]
    assert float(seconds.removeprefix(silent)) > 1e9


def test_a_database_without_tables_is_told_by_what_to_do(postgres_database: str, start: Start) -> None:
    database = Database(postgres_database)
    api = start(postgres_database, api_tokens=f"minio:ingest:{'t' * 32}")
    answer = api.client.get("/readyz")
    assert answer.status_code == 503
    assert "bucketwire migrate" in answer.json()["checks"]["schema"]["reason"]
    refused = api.post(body("a"), authorization="Bearer " + "t" * 32)
    assert refused.status_code == 503
    assert "bucketwire migrate" in refused.json()["detail"]
    migrate(database)
    services.until(lambda: api.post(body("a"), authorization="Bearer " + "t" * 32).status_code == 202)
    database.close()


def test_the_figures_are_those_of_the_counters(api: Api, database: Database) -> None:
    target = add_target(database, queue_limit=4)
    api.post(body("a", "b"))
    bury(database, target)
    with database.writing() as connection:
        connection.execute(tables.dead_letters.delete().where(tables.dead_letters.c.seq == 1))
        connection.execute(tables.targets.update().values(purged=1))
    api.post(body("c", "d", "e", "f"))
    open_breaker(database, registry(database).target(target).row_id, "x", 1, probing=False)
    answer = api.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }

    def figure(metric: str, /, **labels: str) -> float:
        return found[metric, tuple(sorted(labels.items()))]

    own = {
        "recorded_events_total": 6, "delivered_events_total": 0, "superseded_events_total": 0,
        "discarded_events_total": 0, "purged_events_total": 1, "pending_events": 4, "parked_events": 0,
        "dead_events": 1, "breaker_open": 1,
    }  # fmt: skip
    assert {name: figure(f"bucketwire_target_{name}", **LABELS) for name in own} == own
    assert 0 <= figure("bucketwire_target_oldest_event_age_seconds", **LABELS) < 60
    assert figure("bucketwire_target_state", **LABELS, state="unavailable") == 1
    assert figure("bucketwire_target_state", **LABELS, state="running") == 0
    minio = {"target_id": "x", "target_name": "webhook"}
    assert figure("minio_notify_target_total_events", **minio) == 6
    assert figure("minio_notify_target_failed_events", **minio) == 0
    assert figure("minio_notify_target_queue_length", **minio) == 4
    assert figure("minio_notify_events_skipped_total") == 0
    api.post(body("g"))
    assert 'bucketwire_target_discarded_events_total{name="x",type="webhook"} 1.0' in api.client.get("/metrics").text
    assert figure("bucketwire_database_up") == 1
    before = figure("bucketwire_posted_events_total")
    api.post(body("h", "i"))
    assert f"bucketwire_posted_events_total {before + 3}" in api.client.get("/metrics").text, "with the one above"


def test_a_file_that_was_set_aside_is_no_longer_ready(log: Database, start: Start, tmp_path: Path) -> None:
    api = start(url_of(log), spool_dir=f"{tmp_path}/spool")
    heartbeats(log, 0)
    services.until(lambda: api.client.get("/readyz").status_code == 200)
    Path(f"{tmp_path}/spool/{7:020d}.events").write_bytes(b"broken")
    services.until(lambda: api.client.get("/readyz").json()["checks"]["spool"]["quarantined"] == 1)
    assert api.client.get("/readyz").status_code == 503
    assert problem_of(api.url, READY) == "answers 503 Service Unavailable: spool: 1 file in quarantine"
    assert "bucketwire_spool_quarantined_files 1.0" in api.client.get("/metrics").text
    assert f"{7:020d}" in api.log.read_text()
    assert api.post(body("a")).json()["recorded"] == 1
    with log.reading() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(tables.events)).scalar_one() == 1
