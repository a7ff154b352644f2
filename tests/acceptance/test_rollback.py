"""A version is rolled back: this code takes over from a later one at the later schema, and nothing is lost."""

from __future__ import annotations

from pathlib import Path
from random import Random
from uuid import uuid4

import httpx
import pytest

from app.outbox import schema_version
from tests import services
from tests.services import forking, until
from tests.services.server_process import run_to_end
from tests.support.builders import body, event
from tests.support.later_schema import LATER, migrate_further
from tests.support.service_processes import source_worker, start_all, stop_all, system
from tests.support.target_readers import posted
from tests.support.traffic import Poster, Traffic

PATIENCE = 90
NOTE = f"is at revision {LATER}, which is newer than this version's {schema_version.head()}; this version works with it"


@pytest.mark.promise
def test_a_service_is_rolled_back_under_traffic_with_dead_letters_and_a_source(
    postgres_server: services.Postgres, redis_server: services.Redis, receiver: services.Receiver, tmp_path: Path
) -> None:
    name = f"rollback_{uuid4().hex[:12]}"
    url = postgres_server.create_database(name)
    place = f"{services.LOOPBACK}:{redis_server.port}"
    with (
        services.redis() as broker,
        services.receiver() as refuses,
        redis_server.client() as queue,
        system(url, broker.url) as whole,
    ):
        sources = source_worker(whole.settings)
        roles = [*whole.roles, sources]
        try:
            sources.start()
            whole.add_target("webhook:all", bucket="plain", endpoint=receiver.url)
            rule = {"bucket": "versioned", "events": ["*"], "target": "webhook:all"}
            whole.ask("POST", "/v1/rules", json=rule)
            whole.add_target("redis:pulled", bucket="pulled", address=place, key=name, format="access")
            refuses.set(status=400)
            whole.add_target("webhook:refused", bucket="refused", endpoint=refuses.url)
            whole.post(body(event("died", bucket="refused")))
            until(lambda: whole.counters()["webhook:refused"].dead == 1, PATIENCE, what="a dead letter")
            whole.ask("PUT", "/v1/sources/redis/minio", json={"address": place, "key": f"{name}-in"})
            flow = Traffic(whole, [Poster(0, Random(0))])
            with flow.running():
                flow.allow_more(40)
                until(lambda: flow.all_taken, PATIENCE, what="posts taken")
                migrate_further(whole.database)  # the later version is rolled out …
                flow.allow_more(40)
                until(lambda: flow.all_taken, PATIENCE, what="posts taken at the later schema")
                stop_all(roles)  # … and back: what compose, the chart and systemd run, and then the processes
                run_to_end([forking.command(), "migrate"], tmp_path / "migrate", env=whole.settings)
                start_all(roles)
                flow.allow_more(40)
                until(lambda: flow.all_taken, PATIENCE, what="posts taken after rolling back")
                queue.rpush(f"{name}-in", *(body(event(f"k{n}", bucket="pulled")) for n in range(3)))
                until(lambda: queue.llen(name) == 3, PATIENCE, what="what a source pulled")
                refuses.set(status=200)
                whole.ask("POST", "/v1/dead-letters/replay", json={"target": "webhook:refused"})
                until(lambda: whole.counters()["webhook:refused"].delivered == 1, PATIENCE, what="a replayed letter")
                until(lambda: whole.settled("webhook:all", "redis:pulled"), PATIENCE, what="everything delivered")
            flow.expected().check(posted(receiver), "webhook")
            assert NOTE.removeprefix("is ") in (tmp_path / "migrate").read_text()
            assert [role.said().count(NOTE) for role in roles if role.arguments[0] in ("api", "worker")] == [1] * 4
            ready = httpx.get(f"{whole.api.url}/readyz", timeout=PATIENCE, trust_env=False)
            assert (ready.status_code, ready.json()["checks"]["schema"]["revision"]) == (200, LATER)
            findings = whole.ask("GET", "/v1/doctor").json()["findings"]
            assert {"database": "ok", "schema": "note"}.items() <= {
                each["subject"]: each["grade"] for each in findings
            }.items()
            assert all(audit.difference == 0 for audit in whole.audits())
        finally:
            stop_all([sources])
