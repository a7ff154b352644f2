"""Events that are too large for the outbox database are refused by name, also while it is away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from app.outbox.engine.database import Database
from app.outbox.log.spool import Spool
from tests import services
from tests.integration.api.conftest import Start, keys, problem
from tests.support.builders import event, migrated
from tests.support.outboxes import NAME, Outboxes

PACKET = 1 << 20


@pytest.fixture(
    scope="module", params=["mysql", pytest.param("mariadb", marks=pytest.mark.nightly("MySQL, with the same driver"))]
)
def own_server(request: pytest.FixtureRequest) -> Iterator[services.MySQL]:
    made: Callable[[], services.MySQL] = {"mysql": services.mysql, "mariadb": services.mariadb}[request.param]
    with made() as running:
        yield running


@pytest.fixture
def server(own_server: services.MySQL) -> services.MySQL:
    """A server that may be stopped, and takes statements of at most 1 MiB; it runs when a test begins."""
    if not own_server.running:
        own_server.start()
    _limit(own_server)
    return own_server


@pytest.fixture
def outbox(server: services.MySQL, outboxes: Outboxes) -> Iterator[Database]:
    opened = migrated(outboxes.on(server))
    yield opened
    opened.close()


def _limit(server: services.MySQL) -> None:
    with server.connection() as connection, connection.cursor() as cursor:
        cursor.execute(f"SET GLOBAL max_allowed_packet = {PACKET}")


def body(key: str, size: int) -> bytes:
    record = orjson.loads(event(key).record) | {"pad": "x" * size}
    return orjson.dumps({"Records": [orjson.loads(event(f"beside-{key}").record), record]})


def test_a_large_event_is_refused_by_name_whether_the_database_is_there_or_not(
    server: services.MySQL, outbox: Database, start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "spool"
    api = start(server.url(NAME), spool_dir=folder)
    # The first request of a process, which has not asked the database before.
    problem(api.post(body("first", PACKET)), 400, "bad-events")
    found = problem(api.post(body("large", PACKET)), 400, "bad-events")
    assert found["index"] == 1
    assert "max_allowed_packet" in found["detail"]
    taken = api.post(body("large", PACKET), query="?partial=true")
    assert taken.json()["recorded"] == 1
    assert taken.json()["refused"][0]["index"] == 1
    assert api.post(body("small", PACKET // 2)).json()["recorded"] == 2
    services.until(lambda: Spool(folder).largest_event() is not None)
    server.stop()
    assert api.post(body("spooled", PACKET // 2)).json()["spooled"] == 2
    problem(api.post(body("large", PACKET)), 400, "bad-events")
    api.kill()
    api.start()  # a process that never asked the database
    problem(api.post(body("large", PACKET)), 400, "bad-events")
    assert api.post(body("again", PACKET // 2)).json()["spooled"] == 2
    server.start()
    _limit(server)
    services.until(lambda: not Spool(folder).pending(), 60)
    assert not Spool(folder).damaged()
    outbox.close()
    assert keys(outbox) == [
        "beside-large",
        "beside-small",
        "small",
        "beside-spooled",
        "spooled",
        "beside-again",
        "again",
    ]


def test_what_is_too_large_for_some_databases_is_not_staged_before_this_one_was_ever_asked(
    server: services.MySQL, outbox: Database, start: Start, tmp_path: Path
) -> None:
    server.stop()
    token = "t" * 32
    api = start(server.url(NAME), spool_dir=tmp_path / "spool", api_tokens=f"minio:ingest:{token}")
    headers = {"authorization": f"Bearer {token}"}
    assert api.post(body("usual", 1000), **headers).json()["spooled"] == 2
    problem(api.post(body("large", 5_000_000), **headers), 503, "database-unavailable")
