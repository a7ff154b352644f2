"""What a process of the API counts of its requests, within bounds, and how often it says what was refused."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from app.api import request_counts
from app.api.listen.broadcaster import SocketHandedOver
from app.api.request_counts import CountedRequests, RequestCounts
from app.api.wsgi_layers import Refusal, set_refusal, set_route
from app.outbox import audit
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.refusals import AnswerKind, RefusalKind, read_counts, read_recent
from app.resources.refusal import INTAKE_ROUTE, SIGN_IN
from tests.services import until
from tests.support.builders import migrated
from tests.support.tuning import tune

SIGN_IN_ROUTE = "POST /console/sign-in"
UNKNOWN = Refusal("token-unknown")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = migrated(f"sqlite:///{tmp_path}/outbox.db")
    yield opened
    opened.close()


@pytest.fixture
def counts(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[RequestCounts]:
    """Counts that are stored at once; a line about the same follows only after an hour."""
    tune(monkeypatch, request_counts, "REFUSALS", flush_seconds=0.02, count_seconds=0.02, line_seconds=3600)
    made = RequestCounts(database)
    yield made
    made.close()


def environ(refusal: Refusal | None = None, route: str = INTAKE_ROUTE, **more: str) -> dict[str, Any]:
    made: dict[str, Any] = {"REQUEST_METHOD": "POST", "PATH_INFO": "/v1/events", "REMOTE_ADDR": "10.0.0.7", **more}
    set_route(made, route)
    if refusal is not None:
        set_refusal(made, refusal)
    return made


def stored(database: Database) -> dict[AnswerKind, int]:
    with database.reading() as connection:
        return read_counts(connection)


def refused(database: Database) -> dict[RefusalKind, int]:
    with database.reading() as connection:
        return {one.kind: one.number for one in read_recent(connection, database_now(connection))}


def test_requests_of_many_threads_are_all_counted(counts: RequestCounts, database: Database) -> None:
    begin = threading.Barrier(8)

    def ask(_number: int) -> None:
        begin.wait(30)
        for _ in range(500):
            counts.count(environ(), 202)
            counts.count(environ(UNKNOWN), 401)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    expected = {AnswerKind(INTAKE_ROUTE, 202): 4000, AnswerKind(INTAKE_ROUTE, 401, "token-unknown"): 4000}
    until(lambda: stored(database) == expected)
    assert refused(database) == {RefusalKind("intake", "token-unknown", ""): 4000}


def test_an_application_is_counted_by_what_it_answers_and_probes_are_not(
    counts: RequestCounts, database: Database
) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        if environ["PATH_INFO"] == "/stream":
            raise SocketHandedOver(lambda _: None)
        start_response("202 ACCEPTED", [])
        return []

    counted = CountedRequests(app, counts)
    for path in ("/v1/events", "/healthz", "/readyz", "/minio/health/live"):
        counted(environ(PATH_INFO=path), lambda *_: None)
    with pytest.raises(SocketHandedOver):
        counted(environ(PATH_INFO="/stream", route="GET /v1/events/stream"), lambda *_: None)
    until(lambda: len(stored(database)) == 2)
    assert stored(database) == {AnswerKind(INTAKE_ROUTE, 202): 1, AnswerKind("GET /v1/events/stream", 200): 1}


def test_what_cannot_be_stored_waits_for_the_database_and_is_no_line_and_no_error_of_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tune(monkeypatch, request_counts, "REFUSALS", flush_seconds=0.02)
    folder = tmp_path / "away"
    away = Database(f"sqlite:///{folder}/outbox.db")
    counts = RequestCounts(away)
    failures: list[Exception] = []
    store = request_counts.refusals.record

    def recorded(*given: Any) -> None:
        try:
            store(*given)
        except Exception as error:
            failures.append(error)
            raise

    monkeypatch.setattr(request_counts.refusals, "record", recorded)
    for number in range(3):
        for _ in range(100):
            counts.count(environ(Refusal("database-unavailable")), 503)
        until(lambda number=number: len(failures) > number)  # type: ignore[misc]
    folder.mkdir()
    migrated(f"sqlite:///{folder}/outbox.db").close()
    kind = AnswerKind(INTAKE_ROUTE, 503, "database-unavailable")
    until(lambda: stored(away) == {kind: 300})
    assert refused(away) == {RefusalKind("intake", "database-unavailable", ""): 300}
    assert len(caplog.messages) == 1, "the first refusal has a line"
    away.close()


def test_the_first_refusal_of_a_kind_has_a_line_at_once_and_the_others_one_a_minute_with_their_number(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1000.0]
    monkeypatch.setattr(request_counts, "elapsed", lambda: now[0])
    counts = RequestCounts(database)
    revoked = Refusal("token-revoked", "token:minio", " at 2026-12-01 14:03 UTC")
    counts.count(environ(revoked), 401)
    until(lambda: len(caplog.records) == 1)
    said = "token minio was revoked at 2026-12-01 14:03 UTC; the last came from 10.0.0.7"
    assert caplog.messages == [f"1 post was refused (401, token-revoked): {said}"]
    record: Any = caplog.records[0]
    assert (record.levelno, record.actor, record.reason, record.status, record.route, record.requests) == (
        logging.WARNING, "token:minio", "token-revoked", 401, INTAKE_ROUTE, 1,
    )  # fmt: skip
    for _ in range(19):
        counts.count(environ(revoked), 401)
    counts.count(environ(UNKNOWN), 401)
    until(lambda: len(caplog.records) == 2)
    assert caplog.messages[1].startswith("1 post was refused (401, token-unknown)")
    now[0] += 61
    counts.count(environ(revoked), 401)
    until(lambda: len(caplog.records) == 3)
    assert caplog.messages[2].startswith("20 posts were refused (401, token-revoked)")
    counts.close()


def test_a_flood_with_many_names_has_few_rows_and_lines(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tune(monkeypatch, request_counts, "REFUSALS", max_kinds=20, line_seconds=3600)
    counts = RequestCounts(database)
    for number in range(10_000):
        counts.count(environ(Refusal("token-revoked", f"token:{number}")), 401)
    counts.close()
    found = refused(database)
    assert (len(found), sum(found.values())) == (21, 10_000)
    assert found[RefusalKind("intake", "token-revoked", "others")] > 9_000
    assert len(caplog.records) <= 21
    assert stored(database) == {AnswerKind(INTAKE_ROUTE, 401, "token-revoked"): 10_000}


def test_a_refused_sign_in_is_in_the_audit_log_with_its_reason_and_once_a_minute(
    counts: RequestCounts, database: Database
) -> None:
    for _ in range(50):
        counts.count(environ(Refusal("scope", "token:minio", "read"), SIGN_IN_ROUTE), 401)
        counts.count(environ(UNKNOWN, SIGN_IN_ROUTE), 401)
    counts.count(environ(UNKNOWN), 401)
    until(lambda: len(audit.entries(database, audit.AuditFilter(), limit=10)) == 2)
    entries = audit.entries(database, audit.AuditFilter(actions=["session.refuse"]), limit=10)
    assert {(one.actor.name, one.actor.address, one.actor.via, one.details["reason"]) for one in entries} == {
        ("token:minio", "10.0.0.7", SIGN_IN_ROUTE, "scope"),
        ("unknown", "10.0.0.7", SIGN_IN_ROUTE, "token-unknown"),
    }
    assert all(entry.resource == "session:console" for entry in entries)
    until(lambda: sum(refused(database).values()) == 101)
    assert {kind.surface for kind in refused(database)} == {SIGN_IN, "intake"}
    assert len(audit.entries(database, audit.AuditFilter(), limit=10)) == 2


def test_the_name_of_a_person_is_no_line_of_its_own(
    counts: RequestCounts, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    counts.count(environ(Refusal("openid-claim", "openid:x#y (a\nERROR b\0)"), SIGN_IN_ROUTE), 403)
    until(lambda: bool(refused(database)))
    [kind] = refused(database)
    assert kind.actor == "openid:x#y (a\\nERROR b\\x00)"
    assert [message for message in caplog.messages if "\n" in message] == []


def test_a_process_that_ends_stores_what_it_has_counted(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, request_counts, "REFUSALS", count_seconds=3600)
    counts = RequestCounts(database)
    counts.count(environ(), 202)
    assert stored(database) == {}
    counts.close()
    assert stored(database) == {AnswerKind(INTAKE_ROUTE, 202): 1}
