"""Flower from the first day: which target and lanes a task was about, what it came to, and nothing of the events."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests import services
from tests.builders import event
from tests.services import until
from tests.system import Role, System, system


class Flower(Role):
    """Flower; ready when its API knows workers."""

    @property
    def url(self) -> str:
        return f"http://{services.LOOPBACK}:{self.port}"

    def argv(self) -> list[Any]:
        return [*super().argv(), "flower", "--listen", f"{services.LOOPBACK}:{self.port}"]

    def ping(self) -> None:
        assert self.ask("/api/workers")

    def ask(self, path: str) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(f"{self.url}{path}", timeout=5, trust_env=False).raise_for_status().json()
        return answer


@pytest.fixture
def whole(postgres_server: services.Postgres) -> Iterator[System]:
    url = postgres_server.create_database(f"outbox_{uuid4().hex[:12]}")
    with services.redis() as broker, system(url, broker.url) as whole:
        yield whole


def test_flower_shows_targets_lanes_and_outcomes_and_nothing_of_the_events(
    whole: System, redis_server: services.Redis
) -> None:
    name = f"seen-{uuid4().hex[:12]}"
    place = f"{services.LOOPBACK}:{redis_server.port}"
    arn = whole.add_target(f"redis:{name}", address=place, key=name, format="access")
    with Flower(settings=whole.settings).start() as flower:
        whole.post(event("telling-key.txt", bucket="telling-bucket").record.encode())
        until(lambda: whole.books()[f"redis:{name}"].delivered, 10, what="the delivery")

        def outcomes() -> list[Any]:
            return [task["result"] for task in flower.ask("/api/tasks").values() if task["state"] == "SUCCESS"]

        until(lambda: any("delivered=1" in str(result) for result in outcomes()), 10, what="the outcome in Flower")
        tasks = flower.ask("/api/tasks").values()
        workers = flower.ask("/api/workers")
    assert {task["name"] for task in tasks} == {"deliver"}
    for task in tasks:
        _, lanes = ast.literal_eval(task["args"])
        assert task["args"] == str((arn, lanes))
        assert set(lanes) <= set("0123456789-,")
        assert task["kwargs"] == "{}"
    assert "telling" not in str(list(tasks))
    assert {worker.partition("@")[0] for worker in workers} == {"drain", "targets"}
