"""What an operator sees of a running service: logs in JSON, figures of its workers, queues that answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import orjson
import psutil
import pytest
import sqlalchemy as sa
from prometheus_client.parser import text_string_to_metric_families

from app.outbox import tables, upkeep
from app.outbox.engine.database import now_ms
from tests import services
from tests.services import Answer, until
from tests.support.builders import event
from tests.support.metric_expressions import expressions
from tests.support.service_processes import Role, System, start_all, system

Members = dict[str, Any]
PATIENCE = 90
TARGETS = ("good", "failing", "refusing", "away")


@dataclass
class Watched:
    """The service, and what its parts have written."""

    whole: System
    hook: services.Receiver

    def lines(self, role: Role) -> list[Members]:
        """Every whole line of a part's log; each has to be an object with the members that all have."""
        text = role.log.read_text()
        found = [orjson.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        for line in found:
            assert {"time", "level", "logger", "pid", "message"} <= line.keys(), line
        return found

    def of(self, name: str) -> list[Members]:
        """What the worker has written of a target."""
        return [line for line in self.lines(self.worker) if line.get("target") == f"arn:minio:sqs::{name}:webhook"]

    def ended(self, name: str, since: int) -> bool:
        """Whether, after so many lines, there is one of a batch in which its event was delivered or died."""
        return any(line.get("delivered") or line.get("dead") for line in self.of(name)[since:] if "partitions" in line)

    @property
    def worker(self) -> Role:
        return self.whole.workers[0]

    def place(self, role: Role) -> str:
        """Where a worker tells its figures, as it says itself."""
        until(lambda: "metrics at" in role.said(), PATIENCE, what="the address of the metrics")
        [found] = re.findall(r"metrics at (http://127\.0\.0\.1:\d+/metrics)", role.said())
        return str(found)

    def figures(self, name: str = "", role: Role | None = None) -> dict[str, float]:
        """The figures of a target, or of a worker, by name and the other labels."""
        found: dict[str, float] = {}
        place = self.place(role or self.worker)
        for family in text_string_to_metric_families(httpx.get(place, timeout=30, trust_env=False).text):
            for sample in family.samples:
                if not name or sample.labels.get("name") == name:
                    more = [value for label, value in sorted(sample.labels.items()) if label not in ("type", "name")]
                    found["|".join([sample.name, *more])] = sample.value
        return found

    def attempts(self, name: str, outcome: str) -> float:
        return self.figures(name).get(f"bucketwire_worker_attempts_total|{outcome}", 0)

    def post(self, name: str) -> str:
        """Post an event for the target of this name; the event's id."""
        receipt = self.whole.ask("POST", "/v1/events", content=event(bucket=name).record.encode()).json()
        return str(receipt["records"][0]["id"]) if "records" in receipt else ""


@pytest.fixture(scope="module")
def watched(postgres_server: services.Postgres) -> Iterator[Watched]:
    url = postgres_server.create_database(f"outbox_{uuid4().hex[:12]}")
    settings = {"log_format": "json", "metrics_listen": f"{services.LOOPBACK}:0"}
    with (
        services.redis() as broker,
        services.receiver() as hook,
        system(url, broker.url, concurrency=2, start=False, **settings) as whole,
    ):
        whole.beat.ready = "beat: Starting"
        start_all(whole.roles)
        hook.set(
            Answer(status=500, body="it broke", path="/failing"),
            Answer(status=422, body="not\nthis", path="/refusing"),
        )
        for name in TARGETS:
            endpoint = f"http://127.0.0.1:9/{name}" if name == "away" else f"{hook.url}{name}"
            whole.add_target(f"webhook:{name}", bucket=name, endpoint=endpoint, retry_base="1s", max_attempts="3")
        yield Watched(whole, hook)


def test_each_batch_and_each_event_that_did_not_go_well_has_a_line_with_its_members(watched: Watched) -> None:
    before = {name: len(watched.of(name)) for name in TARGETS}  # the lines of an earlier run of the test
    for name in TARGETS:
        watched.post(name)
    until(lambda: watched.whole.settled("webhook:good", "webhook:failing", "webhook:refusing"), PATIENCE)
    until(lambda: any("next_probe_in" in line for line in watched.of("away")), PATIENCE)
    for name in ("good", "failing", "refusing"):
        until(lambda name=name: watched.ended(name, before[name]), PATIENCE, what="its line")  # type: ignore[misc]

    [batch] = [line for line in watched.of("good")[before["good"] :] if "partitions" in line]
    assert {name: batch[name] for name in ("delivered", "superseded", "parked", "dead", "level")} == {
        "delivered": 1, "superseded": 0, "parked": 0, "dead": 0, "level": "INFO",
    }  # fmt: skip
    assert 0 < batch["duration"] < PATIENCE

    failures = [line for line in watched.of("failing")[before["failing"] :] if "event" in line]
    assert [(line["outcome"], line["attempt"], line["dead"], line["level"]) for line in failures] == [
        ("failed", 1, False, "INFO"), ("failed", 2, False, "INFO"), ("failed", 3, True, "WARNING"),
    ]  # fmt: skip
    assert len({line["event"] for line in failures}) == 1
    assert all("it broke" in line["reason"] and line["duration"] > 0 for line in failures)

    [refusal] = [line for line in watched.of("refusing")[before["refusing"] :] if "event" in line]
    assert (refusal["outcome"], refusal["attempt"], refusal["dead"]) == ("rejected", 1, True)
    assert "not" in refusal["reason"]

    away = [line for line in watched.of("away") if "outcome" in line]
    assert {(line["outcome"], line["level"]) for line in away} == {("unavailable", "WARNING")}
    assert not any("event" in line for line in watched.of("away")), "it did not fail, it waits"
    for role in watched.whole.roles:
        assert watched.lines(role), role.arguments


def test_a_worker_tells_its_figures_and_they_are_so(watched: Watched) -> None:
    watched.post("good")
    until(lambda: watched.attempts("good", "delivered") >= 1, PATIENCE)
    for name, outcome in (("failing", "failed"), ("refusing", "rejected"), ("away", "unavailable")):
        watched.post(name)
        until(lambda outcome=outcome, name=name: watched.attempts(name, outcome) >= 1, PATIENCE)  # type: ignore[misc]
    found = watched.figures("good")
    delivered = found["bucketwire_worker_attempts_total|delivered"]
    assert found["bucketwire_worker_batch_events_sum"] == delivered
    assert found["bucketwire_worker_delivery_seconds_count"] == delivered
    assert found["bucketwire_worker_delivery_seconds_bucket|60.0"] == delivered
    assert found["bucketwire_target_request_seconds_count"] == delivered
    assert found["bucketwire_worker_leases_lost_total"] == 0
    assert watched.figures("away")["bucketwire_worker_breaker_openings_total"] == 1


def test_drains_that_fail_are_counted_and_found_while_the_database_answers(watched: Watched) -> None:
    def drains(outcome: str) -> float:
        return watched.figures(role=watched.whole.drain)[f"bucketwire_worker_drains_total|{outcome}"]

    def found() -> str:
        findings = watched.whole.ask("GET", "/v1/doctor").json()["findings"]
        return next((one["text"] for one in findings if one["subject"] in ("upkeep", "drain")), "")

    until(lambda: drains("succeeded") > 0, PATIENCE, what="a drain")
    with watched.whole.database.writing() as connection:
        connection.execute(sa.text("ALTER TABLE redeliveries RENAME TO redeliveries_gone"))
    try:
        until(lambda: drains("unexpected") > 0, PATIENCE, what="a drain that failed")
        until(lambda: "failed " in found(), PATIENCE, what="the finding")
        assert "unexpected ProgrammingError; the worker's log says more" in found()
    finally:
        with watched.whole.database.writing() as connection:
            connection.execute(sa.text("ALTER TABLE redeliveries_gone RENAME TO redeliveries"))
    before = drains("succeeded")
    until(lambda: drains("succeeded") > before, PATIENCE, what="a drain again")
    until(lambda: "failed " not in found(), PATIENCE, what="the end of the finding")


def test_attempts_and_delivery_times_of_a_real_worker_are_on_record(watched: Watched) -> None:
    key = uuid4().hex
    for name in ("good", "failing"):
        watched.whole.ask("POST", "/v1/events", content=event(key, bucket=name).record.encode())

    def timeline(name: str) -> list[Members]:
        [found] = watched.whole.ask("GET", "/v1/events", params={"bucket": name, "key": key}).json()["events"]
        [state] = watched.whole.ask("GET", f"/v1/events/{found['id']}").json()["delivery_states"]
        made: list[Members] = state["timeline"]
        return made

    until(lambda: len(timeline("good")) == 1 and len(timeline("failing")) == 3, PATIENCE, what="its attempts")
    [delivered] = timeline("good")
    assert (delivered["outcome"], delivered["reason"]) == ("delivered", "")
    assert delivered["duration"] >= 0
    failures = timeline("failing")
    assert [(one["outcome"], one["attempt"]) for one in failures] == [("failed", number) for number in (1, 2, 3)]
    assert all("it broke" in one["reason"] for one in failures)

    def sampled() -> Members | None:
        [series] = watched.whole.ask("GET", "/v1/series", params={"target": "webhook:good"}).json()["series"]
        return next((sample for sample in series["samples"] if sample["p50"] is not None), None)

    until(sampled, PATIENCE, what="a sample with a delivery time")
    sample = sampled()
    assert sample is not None
    assert 0 < sample["p50"] <= sample["p99"] < PATIENCE


def test_every_figure_of_a_worker_that_dashboard_alerts_and_guide_use_exists(watched: Watched) -> None:
    used = {name for text in expressions() for name in re.findall(r"\bbucketwire_worker_\w+", text)}
    assert len(used) >= 6
    found = {name.partition("|")[0] for name in watched.figures()}
    assert used - found == set()


def test_figures_go_on_when_a_process_of_the_pool_is_killed(watched: Watched) -> None:
    watched.post("good")
    until(lambda: watched.attempts("good", "delivered") >= 1, PATIENCE)
    until(lambda: watched.whole.settled("webhook:good"), PATIENCE)
    before = watched.attempts("good", "delivered")
    files = sorted(path.name for path in figures_folder(watched).iterdir())
    old = {child.pid for child in watched.worker.children()}
    for child in watched.worker.children():
        child.kill()
    until(lambda: len({child.pid for child in watched.worker.children()} - old) == 2, PATIENCE)
    watched.post("good")
    until(lambda: watched.attempts("good", "delivered") == before + 1, PATIENCE)
    assert sorted(path.name for path in figures_folder(watched).iterdir()) == files
    for child in watched.worker.children():
        listening = [one for one in child.net_connections("tcp") if one.status == "LISTEN"]
        assert listening == [], "it would keep the address when its parent is gone"


def test_a_lease_that_is_lost_is_counted_and_told(watched: Watched) -> None:
    watched.hook.set(Answer(delay=3, path="/good", times=1), Answer(status=500, path="/failing"))
    watched.hook.forget()
    watched.post("good")
    until(lambda: watched.hook.requests("/good"), PATIENCE, what="the call in which the lease is lost")
    with watched.whole.database.writing() as connection:
        held = sa.and_(tables.cursors.c.leased_until > 0, tables.cursors.c.lease_token != "")
        connection.execute(tables.cursors.update().where(held).values(lease_token="another", leased_until=0))
    until(lambda: watched.figures("good")["bucketwire_worker_leases_lost_total"] == 1, PATIENCE)
    assert any("lease lost" in line["message"] and line["level"] == "WARNING" for line in watched.of("good"))
    until(lambda: watched.whole.settled("webhook:good"), PATIENCE)


def test_each_queue_is_known_to_be_served(watched: Watched) -> None:
    def served() -> list[bool]:
        return [queue["served_at"] is not None for queue in watched.whole.ask("GET", "/v1/processes").json()["queues"]]

    until(lambda: served() == [True] * len(TARGETS), PATIENCE, what="a heartbeat of the worker")
    text = watched.whole.ask("GET", "/metrics").text
    silent = re.findall(r'bucketwire_target_worker_heartbeat_age_seconds{name="(\w+)",type="webhook"} ([\d.]+)', text)
    assert {name for name, _ in silent} == set(TARGETS)
    assert all(float(seconds) < PATIENCE for _, seconds in silent)


def test_nothing_of_opentelemetry_is_loaded_unless_it_is_asked_for(watched: Watched) -> None:
    """Its protobuf library would be mapped: test_opentelemetry.py sees it in the processes that export."""
    watched.post("good")
    until(lambda: watched.whole.settled("webhook:good"), PATIENCE)
    for role in watched.whole.roles:
        for pid in (role.pid, *(child.pid for child in role.children())):
            assert "_upb" not in Path(f"/proc/{pid}/maps").read_text(), role.arguments


def test_nothing_is_logged_where_nothing_happens(watched: Watched) -> None:
    watched.whole.ask("POST", "/v1/targets/webhook/away/pause", json={"reason": "a rest"})
    until(lambda: watched.whole.settled("webhook:good", "webhook:failing", "webhook:refusing"), PATIENCE)

    def logs_nothing() -> bool:
        """No line in three seconds of drains; targets that are opened for the first time, or probed, have lines."""
        sizes, began = [role.log.stat().st_size for role in watched.whole.roles], now_ms()
        until(lambda: drained(watched) > began + 3_000, PATIENCE, what="drains for three seconds")
        return [role.log.stat().st_size for role in watched.whole.roles] == sizes

    until(logs_nothing, PATIENCE, what="the end of whatever was under way")


def test_a_worker_that_ends_leaves_no_files_and_one_that_was_killed_only_until_the_next(watched: Watched) -> None:
    folder = figures_folder(watched)
    watched.worker.kill_alone()
    until(lambda: not watched.worker.orphans(), PATIENCE)
    assert folder.exists()
    watched.worker.start()
    until(lambda: "metrics at" in watched.worker.said(), PATIENCE)
    assert not folder.exists()
    folder = figures_folder(watched)
    watched.worker.stop()
    assert not folder.exists()
    watched.worker.start()  # for a second run of the test


def figures_folder(watched: Watched) -> Path:
    """The folder of the worker's figures."""
    folders = Path(watched.whole.settings["BUCKETWIRE_DATA_DIR"]) / "metrics"
    opened = (Path(file.path) for file in psutil.Process(watched.worker.pid).open_files())
    [lock] = (path for path in opened if path.name == "lock" and path.parent.parent == folders)
    return lock.parent


def drained(watched: Watched) -> int:
    with watched.whole.database.reading() as connection:
        return upkeep.last_drain(connection) or 0
