"""Flower from the first day: which target and partitions a task was about, what it came to, and nothing of the
events.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import httpx
import pytest

from app.config.arn import parse_arn
from tests import services
from tests.services import until
from tests.support.builders import event
from tests.support.flower import Flower
from tests.support.service_processes import System, system


class Elsewhere(Flower):
    """On an address that does not look like loopback, though it is: the old short form of 127.0.0.1."""

    @property
    def host(self) -> str:
        return "127.1"

    @property
    def login(self) -> tuple[str, str] | None:
        return ("operator", "pass-of-flower")

    def env(self) -> Mapping[str, str]:
        return {**super().env(), "FLOWER_BASIC_AUTH": "operator:pass-of-flower"}


def changes_nothing(flower: Flower) -> None:
    worker = next(iter(flower.ask("/api/workers")))
    assert flower.post(f"/api/worker/shutdown/{worker}") == 403
    assert flower.post("/api/task/async-apply/purge") == 403


@pytest.fixture(scope="module")
def whole(postgres_server: services.Postgres) -> Iterator[System]:
    url = postgres_server.create_database(f"outbox_{uuid4().hex[:12]}")
    with services.redis() as broker, system(url, broker.url) as whole:
        yield whole


def test_flower_shows_targets_partitions_and_outcomes_and_nothing_of_the_events(
    whole: System, redis_server: services.Redis
) -> None:
    name = f"seen-{uuid4().hex[:12]}"
    place = f"{services.LOOPBACK}:{redis_server.port}"
    whole.add_target(f"redis:{name}", address=place, key=name, format="access")
    with Flower(settings=whole.settings).start() as flower:
        whole.post(event("telling-key.txt", bucket="telling-bucket").record.encode())
        until(lambda: whole.counters()[f"redis:{name}"].delivered, 10, what="the delivery")

        def outcomes() -> list[Any]:
            return [task["result"] for task in flower.ask("/api/tasks").values() if task["state"] == "SUCCESS"]

        until(lambda: any("delivered=1" in str(result) for result in outcomes()), 10, what="the outcome in Flower")
        tasks = [task for task in flower.ask("/api/tasks").values() if task["received"]]  # else it ran before Flower
        workers = flower.ask("/api/workers")
        changes_nothing(flower)
    assert "deliver" in {task["name"] for task in tasks} <= {"deliver", "purge"}
    for task in tasks:
        if task["name"] == "purge":
            assert task["args"] == "()"
            continue
        [named] = ast.literal_eval(task["args"])
        assert task["args"] == str((named,))
        assert parse_arn(named)
        assert task["kwargs"] == "{}"
    assert "telling" not in str(tasks)
    assert {worker.partition("@")[0] for worker in workers} == {"drain", "targets"}


def test_a_web_page_can_neither_read_flower_nor_change_anything_by_it(whole: System) -> None:
    settings = {**whole.settings, "FLOWER_READ_ONLY": "false", "BUCKETWIRE_FLOWER_URL": "https://flower.example.com"}
    with Flower(settings=settings).start() as flower, httpx.Client(timeout=30, trust_env=False) as client:
        [worker, *_] = flower.ask("/api/workers")
        shutdown, own = f"/api/worker/shutdown/{worker}", {"Origin": flower.url, "Sec-Fetch-Site": "same-origin"}

        def status(method: str, path: str, **headers: str) -> int:
            answer = client.request(method, f"{flower.url}{path}", headers=headers)
            assert not [name for name in answer.headers if name.startswith("access-control")], (method, path, headers)
            return answer.status_code

        elsewhere = [
            {"Origin": origin, **site}
            for origin in (
                "http://evil.example",
                f"http://{services.LOOPBACK}:1",
                "http://localhost",
                "null",
                "http://[",
            )
            for site in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"})
        ]
        for headers in elsewhere:
            for path in ("/api/workers", "/api/queues/length", "/metrics", "/"):
                assert status("GET", path, **headers) == 403, (path, headers)
            for method, path in (("POST", shutdown), ("OPTIONS", shutdown), ("POST", "/api/task/async-apply/purge")):
                assert status(method, path, **headers) == 403, (method, path, headers)
            assert status("GET", "/", Upgrade="websocket", Connection="Upgrade", **headers) == 403
        for site in ("cross-site", "same-site"):
            assert status("POST", shutdown, **{"Sec-Fetch-Site": site, "Content-Type": "text/plain"}) == 403
            assert status("GET", "/workers", **{"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}) == 200, "a link"
        assert status("POST", shutdown, Host="evil.example", Origin="http://evil.example") == 421
        assert client.get(flower.url).headers["x-frame-options"] == "DENY"
        assert all(role.running for role in whole.roles)
        # Its own pages, a program, and its pages through a proxy that has another name.
        for headers in (own, {}, {"Origin": settings["BUCKETWIRE_FLOWER_URL"]}):
            assert status("POST", "/api/worker/shutdown/nobody@nowhere", **headers) == 404, headers


def test_flower_elsewhere_asks_who_it_is_and_changes_nothing_even_then(whole: System) -> None:
    with Elsewhere(settings=whole.settings).start() as flower:
        for path in ("/", "/workers", "/api/workers", "/api/tasks"):
            for login in (None, ("operator", "wrong")):
                assert httpx.get(f"{flower.url}{path}", auth=login, timeout=5, trust_env=False).status_code == 401
        changes_nothing(flower)
    assert all(role.running for role in whole.roles)


def test_flower_elsewhere_does_not_start_without_a_login(whole: System) -> None:
    class Open(Elsewhere):
        def env(self) -> Mapping[str, str]:
            return {**super().env(), "FLOWER_BASIC_AUTH": ""}

    with pytest.raises(Exception, match="FLOWER_BASIC_AUTH"):
        Open(settings=whole.settings).start()
