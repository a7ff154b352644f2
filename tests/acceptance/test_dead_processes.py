"""What an operator sees when an API, beat or a worker is dead: doctor and status, a metric, its alert, and the console.

Within a minute after it was killed (an API within half of one), and the opposite within half a minute after its start.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from uuid import uuid4

import httpx
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import services
from tests.services import forking, until
from tests.support.metric_expressions import ALERTS
from tests.support.service_processes import Api, System, start_all, stop_all, system

HALF_A_MINUTE, MINUTE = 30, 60
_EXPRESSION = re.compile(r"(min|max)(?: by \(([a-z, ]+)\))?\s*\((\w+)\) (>|==) (\d+)")
_ALERTS = ("BucketwireApiDown", "BucketwireBeatStopped", "BucketwireHostSilent", "BucketwireWorkersHindered")
Samples = Mapping[str, list[tuple[Mapping[str, str], float]]]


@dataclass
class Watched:
    """The service, with a second API that is asked when the first one is dead."""

    whole: System
    second: Api

    def run(self, *command: str) -> tuple[int, str]:
        """The exit code of a command on this machine, and what it prints."""
        environment = {**self.whole.settings, "PATH": "/usr/bin:/bin"}
        ended = subprocess.run(
            [forking.command(), *command], env=environment, capture_output=True, text=True, check=False
        )
        return ended.returncode, ended.stdout + ended.stderr

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.second.url}{path}", timeout=30, trust_env=False, follow_redirects=True)

    def samples(self) -> Samples:
        found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for family in text_string_to_metric_families(self.get("/metrics").text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    def fires(self, alert: str) -> bool:
        """Whether the expression of an alert is true of what Prometheus would scrape now."""
        [rule] = [rule for rule in ALERTS if rule["alert"] == alert]
        aggregate, _, metric, operator, limit = _EXPRESSION.fullmatch(rule["expr"]).groups()  # type: ignore[union-attr]
        values = [value for _, value in self.samples().get(metric, [])]
        # Each of the groups that `by` makes has one sample here.
        assert aggregate in ("min", "max")
        return any(value > float(limit) if operator == ">" else value == float(limit) for value in values)

    def findings(self) -> dict[str, str]:
        """The subjects of findings that need somebody, by an API that runs."""
        found = self.get("/v1/doctor").json()["findings"]
        return {one["subject"]: one["text"] for one in found if one["grade"] in ("problem", "warning")}

    def console(self, page: str) -> str:
        return " ".join(re.sub(r"<[^>]+>", " ", self.get(f"/console/{page}").text).split())

    def has_settled(self) -> bool:
        """Whether each process has recorded another heartbeat than its first, so that none looks like a successor."""
        known = self.get("/v1/processes").json()["processes"]
        return len(known) == len(self.whole.roles) + 1 and all(one["heartbeat_at"] > one["started_at"] for one in known)

    def is_well(self) -> bool:
        return not self.findings() and not any(map(self.fires, _ALERTS))


@pytest.fixture(scope="module")
def watched(postgres_server: services.Postgres) -> Iterator[Watched]:
    url = postgres_server.create_database(f"outbox_{uuid4().hex[:12]}")
    with services.redis() as broker, services.receiver() as hook, system(url, broker.url, start=False) as whole:
        second = Api(["api", "--workers", "1"], whole.settings)
        whole.api.arguments = ["api", "--workers", "1"]
        try:
            start_all([*whole.roles, second])
            whole.add_target("webhook:all", endpoint=hook.url)
            found = Watched(whole, second)
            until(found.has_settled, MINUTE, what="several heartbeats of each")
            until(found.is_well, MINUTE, what="a service that is well")
            yield found
        finally:
            stop_all([second])


def test_a_dead_api_is_seen_by_who_needs_none_and_at_another_api(watched: Watched) -> None:
    api = watched.whole.api
    assert watched.run("doctor")[0] == watched.run("status")[0] == 0
    api.kill_alone()
    until(lambda: not api.orphans(), HALF_A_MINUTE, what="the end of its workers")
    for command in ("doctor", "status"):
        code, text = watched.run(command)
        assert code == 1, text
        assert f"{api.url} on " in text
        assert "does not answer: connection refused" in text
    until(lambda: watched.fires("BucketwireApiDown"), HALF_A_MINUTE, what="the alert")
    assert f"{api.url} on " in watched.findings()["api"]
    assert "does not answer: connection refused" in watched.console("")
    assert "✕ silent" in watched.console("processes")
    api.start()
    until(watched.is_well, HALF_A_MINUTE, what="the opposite")
    assert watched.run("doctor")[0] == watched.run("status")[0] == 0
    assert "✕" not in watched.console("processes")


def test_apis_that_have_all_ended_in_order_are_missed_too(watched: Watched) -> None:
    stop_all([watched.whole.api, watched.second])
    for command in ("doctor", "status"):
        code, text = watched.run(command)
        assert (code, "none runs: the last one, on " in text) == (1, True), text
    start_all([watched.whole.api, watched.second])
    until(watched.is_well, HALF_A_MINUTE, what="the opposite")
    assert watched.run("status")[0] == 0


def test_a_dead_beat_is_seen_while_events_flow_and_what_it_missed_is_said(watched: Watched) -> None:
    watched.whole.beat.kill_alone()
    until(lambda: watched.fires("BucketwireBeatStopped"), MINUTE, what="the alert")
    text = watched.findings()["beat"]
    assert "is `bucketwire beat` running?" in text
    assert "samples of the curves" in text
    assert watched.get("/readyz").json()["checks"]["beat"]["ok"] is False
    code, said = watched.run("status")
    assert (code, "beat: last worked" in said) == (1, True), said
    assert "nothing is scheduled, purged or sampled" in watched.console("")
    assert "✕ silent" in watched.console("processes")
    watched.whole.beat.start()
    until(watched.is_well, HALF_A_MINUTE, what="the opposite")
    assert watched.get("/readyz").status_code == 200
    code, said = watched.run("doctor", "--json")
    notes = [
        one["text"] for one in orjson.loads(said)["findings"] if (one["subject"], one["grade"]) == ("beat", "note")
    ]
    assert code == 0
    assert re.search(r"did nothing for [\d.]+ \w until .* missed: \d+ samples", notes[0])


def test_a_dead_worker_is_a_finding_of_its_host_until_another_has_replaced_it(watched: Watched) -> None:
    [worker] = watched.whole.workers
    worker.kill_alone()
    until(lambda: watched.fires("BucketwireHostSilent"), MINUTE, what="the alert")
    live = {labels["serves"]: value for labels, value in watched.samples()["bucketwire_live_workers"]}
    assert live == {"drain": 1, "targets": 0}
    [(subject, text)] = [item for item in watched.findings().items() if item[0].startswith("host ")]
    assert "is silent: 1 worker (targets) recorded no heartbeat for " in text
    assert "nobody else serves targets" in text
    code, said = watched.run("status")
    assert (code, subject in said) == (1, True), said
    assert subject in watched.console("")
    assert "✕ silent" in watched.console("processes")
    worker.start()
    until(watched.is_well, HALF_A_MINUTE, what="the opposite")
    live = {labels["serves"]: value for labels, value in watched.samples()["bucketwire_live_workers"]}
    assert live == {"drain": 1, "targets": 1}
    assert watched.run("status")[0] == 0


@pytest.mark.nightly("killed ones; that a frozen one is seen, test_api_answer.py and test_processes.py")
def test_a_frozen_api_and_a_frozen_pool_are_seen(watched: Watched) -> None:
    api, [worker] = watched.whole.api, watched.whole.workers
    pool = worker.children()
    api.freeze()
    for process in pool:
        process.suspend()
    try:
        assert watched.run("status")[0] == 1
        assert "does not answer: no answer within 3 s" in watched.findings()["api"]
        assert "does not answer: no answer within 3 s" in watched.console("")
        until(lambda: watched.fires("BucketwireApiDown"), HALF_A_MINUTE, what="the alert")
        until(lambda: watched.fires("BucketwireWorkersHindered"), MINUTE, what="the alert")
        [text] = [text for subject, text in watched.findings().items() if subject.startswith("host ")]
        assert "1 worker (targets) served nothing for " in text
        assert "all processes of its pool are stopped" in text
    finally:
        api.thaw()
        for process in pool:
            process.resume()
    until(watched.is_well, HALF_A_MINUTE, what="the opposite")
