"""The database goes away: 503 and nothing claimed, or 202 from the spool folder and everything once, in order."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.outbox.engine.database import Database
from app.outbox.log.spool import Spool
from tests import services
from tests.integration.api.conftest import Api, Start, keys, problem, token
from tests.support.api_requests import body
from tests.support.builders import event, migrated
from tests.support.outboxes import NAME, Outboxes


@pytest.fixture(scope="module")
def own_server() -> Iterator[services.Postgres]:
    with services.postgres() as running:
        yield running


@pytest.fixture
def server(own_server: services.Postgres) -> services.Postgres:
    """A PostgreSQL that may be stopped; it runs when a test begins, however the one before has left it."""
    if not own_server.running:
        own_server.start()
    return own_server


@pytest.fixture
def outbox(server: services.Postgres, outboxes: Outboxes) -> Iterator[Database]:
    opened = migrated(outboxes.on(server))
    yield opened
    opened.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def read(database: Database) -> list[str]:
    """The recorded keys, by a connection that the server's restart has not cut."""
    database.close()
    return keys(database)


def empty(folder: Path) -> Callable[[], bool]:
    return lambda: not Spool(folder).pending()


@pytest.mark.nightly(
    "a database that is killed: what is done then does not ask how it came", when=lambda hurt: hurt == "stop"
)
@pytest.mark.parametrize("hurt", ["stop", "kill"])
def test_a_database_that_is_away_is_503_and_nothing_is_claimed(
    server: services.Postgres, outbox: Database, start: Start, hurt: str
) -> None:
    api = start(server.url(NAME))
    assert api.post(body("before")).status_code == 202
    getattr(server, hurt)()
    for _ in range(3):
        answer = api.post(body("lost"))
        problem(answer, 503, "database-unavailable")
        assert int(answer.headers["retry-after"]) > 0
        assert services.PASSWORD not in answer.text
        assert str(server.port) not in answer.text
    assert api.client.get("/healthz").status_code == 200
    ready = api.client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["checks"]["database"]["ok"] is False
    problem(api.client.get("/v1/targets"), 503, "database-unavailable")
    assert "bucketwire_database_up 0.0" in api.client.get("/metrics").text
    server.start()
    services.until(lambda: api.post(body("after")).status_code == 202)
    assert read(outbox)[0] == "before"
    assert "lost" not in read(outbox)


def test_a_wrong_token_is_401_also_while_the_database_is_away(
    server: services.Postgres, outbox: Database, start: Start
) -> None:
    made = token(outbox, "ingest")["Authorization"]
    api = start(server.url(NAME), processes=1)  # another one could begin after the database has gone
    assert api.post(body("before"), authorization=made).status_code == 202
    server.stop()
    problem(api.post(body("lost"), authorization=made), 503, "database-unavailable")
    for presented in ({}, {"authorization": f"Bearer {'w' * 40}"}):
        problem(api.post(body("lost"), **presented), 401, "unauthorized")


# A first event is committed by the thread for groups. Those that follow one by one commit themselves, unless the
# database's clock was last read a second ago.
@pytest.mark.nightly(
    "a hang that a request notices is answered with 503, and one that the thread notices is spooled",
    when=lambda before: len(before) == 1,
)
@pytest.mark.parametrize("before", [["before"], ["before", "by itself", "by itself, too"]], ids=["thread", "itself"])
def test_a_database_that_hangs_is_503_in_time_for_the_sender(
    server: services.Postgres, outbox: Database, start: Start, before: list[str]
) -> None:
    api = start(server.url(NAME))
    for key in before:
        assert api.post(body(key)).status_code == 202
    server.freeze()
    try:
        began = time.monotonic()
        problem(api.post(body("slow")), 503, "database-unavailable")
        assert time.monotonic() - began < 12
        assert api.client.get("/healthz").status_code == 200
        assert api.client.get("/readyz").status_code == 503
    finally:
        server.thaw()
    services.until(lambda: api.post(body("after")).status_code == 202, 30)
    recorded = read(outbox)
    assert recorded[: len(before)] == before
    assert recorded.count("slow") <= 1


def findings(api: Api) -> list[dict[str, Any]]:
    return list(api.client.get("/v1/doctor").json()["findings"])


def test_what_comes_while_the_database_is_away_is_spooled_and_fed_in_order(
    server: services.Postgres, outbox: Database, start: Start, folder: Path
) -> None:
    api = start(server.url(NAME), spool_dir=folder)
    sent = ["before"]
    assert api.post(body("before")).json()["recorded"] == 1
    server.stop()
    for number in range(50):
        sent += [f"{number}-a", f"{number}-b"]
        answer = api.post(body(*sent[-2:]))
        assert answer.status_code == 202, answer.text
        assert answer.json()["spooled"] == 2
    assert "bucketwire_spool_files 50.0" in api.client.get("/metrics").text
    oldest = min(folder.glob("*.events"))
    os.utime(oldest, (0, time.time() - 90))
    [age] = re.findall(r"bucketwire_spool_age_seconds (\d+)", api.client.get("/metrics").text)
    assert 90 <= int(age) < 900
    assert api.client.get("/readyz").json()["checks"]["spool"]["age"] >= 90
    services.until(lambda: "spool" in {one["subject"] for one in findings(api)}, 30)
    [finding] = [one for one in findings(api) if one["subject"] == "spool"]
    assert finding["grade"] == "warning"
    assert f"this API on {socket.gethostname()}: 50 spooled files of events not recorded yet" in finding["text"]
    os.utime(oldest, (0, time.time() - 400))
    services.until(lambda: [one["grade"] for one in findings(api) if one["subject"] == "spool"] == ["problem"], 30)
    server.start()
    while (answer := api.post(body(f"during-{len(sent)}"))).json().get("spooled"):
        sent.append(f"during-{len(sent)}")
    sent.append(f"during-{len(sent)}")
    services.until(empty(folder))
    assert read(outbox) == sent
    assert api.post(body("after")).json()["recorded"] == 1


@pytest.mark.nightly(
    "a hang that a request notices is answered with 503, and one that the thread notices is spooled",
    when=lambda before: len(before) > 1,
)
@pytest.mark.parametrize("before", [["before"], ["before", "by itself", "by itself, too"]], ids=["thread", "itself"])
def test_a_database_that_hangs_is_spooled_in_time_and_recorded_once(
    server: services.Postgres, outbox: Database, start: Start, folder: Path, before: list[str]
) -> None:
    api = start(server.url(NAME), spool_dir=folder)
    for key in before:
        assert api.post(body(key)).status_code == 202
    server.freeze()
    try:
        began = time.monotonic()
        assert api.post(body("first")).json()["spooled"] == 1
        assert time.monotonic() - began < 4.5
        began = time.monotonic()
        assert api.post(body("second")).json()["spooled"] == 1
        assert time.monotonic() - began < 2
    finally:
        server.thaw()
    services.until(empty(folder), 30)
    assert read(outbox) == [*before, "first", "second"]


def test_an_api_that_is_killed_loses_nothing_that_it_had_answered(
    server: services.Postgres, outbox: Database, start: Start, folder: Path
) -> None:
    api = start(server.url(NAME), spool_dir=folder)
    server.stop()
    answered: list[list[str]] = [[] for _ in range(8)]

    def post(sender: int) -> None:
        with httpx.Client() as client:
            for number in range(10_000):
                sent = body(f"{sender}-{number}")
                try:
                    answer = client.post(f"{api.url}/v1/events", content=sent, timeout=10)
                except httpx.HTTPError:
                    return
                assert answer.status_code == 202, answer.text
                answered[sender].append(f"{sender}-{number}")

    with ThreadPoolExecutor(8) as threads:
        senders = [threads.submit(post, sender) for sender in range(8)]
        services.until(lambda: sum(map(len, answered)) > 200, 30)
        api.kill()
        for sender in senders:
            sender.result()
    server.start()
    api.start()
    services.until(empty(folder), 30)
    found = read(outbox)
    assert len(found) == len(set(found))
    for sender, sent in enumerate(answered):
        mine = [key for key in found if key.startswith(f"{sender}-")]
        # The last request may have been kept without its answer having got away.
        assert mine in (sent, [*sent, f"{sender}-{len(sent)}"])


def test_an_api_that_is_killed_while_it_feeds_records_everything_once(
    server: services.Postgres, outbox: Database, start: Start, folder: Path
) -> None:
    spool = Spool(folder)
    sent = [[event(f"{number:05d}-{place}") for place in range(3)] for number in range(2000)]
    for events in sent:
        spool.append(events)
    api = Api(server.url(NAME), {"BUCKETWIRE_SPOOL_DIR": str(folder)})
    for _ in range(6):
        left = len(spool.files())
        if not left:
            break
        with api:
            try:
                api.start()
                services.until(lambda left=left: len(spool.files()) < left, 10)
            finally:
                api.kill()
    with api:
        api.start()
        services.until(empty(folder), 30)
    assert read(outbox) == [one.key for events in sent for one in events]


def test_a_spool_folder_that_is_gone_is_503(
    server: services.Postgres, outbox: Database, start: Start, folder: Path
) -> None:
    # One process: another that is still starting would make the folder again.
    api = start(server.url(NAME), processes=1, spool_dir=folder, api_tokens=f"minio:ingest:{'t' * 32}")
    server.stop()
    folder.rename(folder.with_name("moved"))
    api.client.headers["Authorization"] = f"Bearer {'t' * 32}"
    answer = api.post(body("lost"))
    problem(answer, 503, "spool-unavailable")
    assert str(folder) not in answer.text
    folder.with_name("moved").rename(folder)
    assert api.post(body("kept")).json()["spooled"] == 1


def test_the_api_starts_while_the_database_is_away(
    server: services.Postgres, outbox: Database, start: Start, folder: Path
) -> None:
    server.stop()
    api = start(server.url(NAME), spool_dir=folder, api_tokens=f"minio:ingest:{'t' * 32}")
    headers = {"authorization": f"Bearer {'t' * 32}"}
    assert api.post(body("early"), **headers).json()["spooled"] == 1
    # The tokens in the database were never known here, so nobody else gets in.
    problem(api.post(body("lost"), authorization="Bearer " + "u" * 32), 503, "database-unavailable")
    server.start()
    services.until(empty(folder), 30)
    assert read(outbox) == ["early"]


def test_an_api_that_begins_while_the_database_is_away_remembers_the_tokens(
    server: services.Postgres, outbox: Database, start: Start, folder: Path
) -> None:
    made = token(outbox, "ingest")["Authorization"]
    api = start(server.url(NAME), spool_dir=folder)
    assert api.post(body("before"), authorization=made).status_code == 202
    assert made.removeprefix("Bearer ") not in (folder / "tokens.json").read_text()
    server.stop()
    api.kill()
    api.start()
    assert api.post(body("meanwhile"), authorization=made).json()["spooled"] == 1
    for presented in ({}, {"authorization": f"Bearer {'w' * 40}"}):
        problem(api.post(body("lost"), **presented), 401, "unauthorized")
    server.start()
    services.until(empty(folder), 30)
    assert read(outbox) == ["before", "meanwhile"]
