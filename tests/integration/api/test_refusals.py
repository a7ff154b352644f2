"""Requests that are refused, by a real API: in its log, its metrics, the findings, the overview and the alerts."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.api.errors import PROBLEM_TYPES
from app.api.s3.errors import CODES, S3Error
from app.outbox.engine.database import Database, now_ms
from app.outbox.tokens import Tokens
from app.resources import refusal
from app.resources.refusal import COUNTED_REASONS, REASONS
from tests import services
from tests.integration.api.conftest import S3, Api, Start, url_of
from tests.support.api_requests import body
from tests.support.builders import add_target, event, migrated
from tests.support.metric_expressions import ALERTS
from tests.support.outboxes import NAME, Outboxes

SURFACES = (
    refusal.INTAKE, refusal.API, refusal.S3, refusal.ADMIN, refusal.STREAM, refusal.CONSOLE, refusal.SIGN_IN,
    refusal.HTTP,
)  # fmt: skip
SECRET = "0a-token-that-nobody-knows"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def refused(api: Api, token: str, surface: str = "intake") -> dict[str, int]:
    """What `/metrics` says was refused, by reason, if it was."""
    text = api.client.get("/metrics", headers=bearer(token)).text
    return {
        sample.labels["reason"]: int(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "bucketwire_refused_requests_total" and sample.labels["surface"] == surface and sample.value
    }


def by_status(api: Api, token: str, route: str) -> dict[int, int]:
    text = api.client.get("/metrics", headers=bearer(token)).text
    return {
        int(sample.labels["status"]): int(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "bucketwire_http_requests_total" and sample.labels["route"] == route
    }


def findings(api: Api, token: str, subject: str = "posts") -> list[dict[str, Any]]:
    found = api.client.get("/v1/doctor", headers=bearer(token)).json()["findings"]
    return [finding for finding in found if finding["subject"] == subject]


def lines(api: Api) -> list[dict[str, Any]]:
    """The lines about refusals in a log in JSON."""
    text = api.log.read_text()
    whole = [line for line in text[: text.rfind("\n") + 1].splitlines() if line.startswith("{")]
    return [line for line in map(orjson.loads, whole) if "reason" in line and "surface" in line]


def overview(api: Api, token: str) -> str:
    """The overview of the console, after a sign-in with the token."""
    with httpx.Client(base_url=api.url, timeout=60, trust_env=False) as browser:
        form = re.findall(r'name="form" value="([^"]+)"', browser.get("/console/sign-in").text)
        answer = browser.post("/console/sign-in", data={"form": form[0], "token": token})
        assert answer.status_code == 303, answer.text
        return browser.get("/console/").text


def post_until(api: Api, status: int, token: str, content: bytes = b"") -> None:
    """Post until the API knows the token, or knows it no more, for which it takes a second."""
    services.until(lambda: api.post(content or body("a"), **bearer(token)).status_code == status, 10)


def lose_connection(api: Api, token: str) -> None:
    """Begin a body, and reset the connection."""
    head = (
        f"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: 99\r\n\r\n{{"
    )
    with socket.create_connection((services.LOOPBACK, api.port), 30) as connection:
        connection.sendall(head.encode())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_posts_that_are_refused_are_seen_by_log_metric_finding_alert_and_overview(log: Database, start: Start) -> None:
    add_target(log, "other")
    add_target(log, "full", bucket="full", queue_limit="1", queue_full="reject")
    tokens = Tokens(log)
    reader, gone = tokens.create("reader", ["read"]), tokens.create("gone", ["ingest"])
    ends = now_ms() + 1500
    expiring, limited = (
        tokens.create("expiring", ["ingest"], expires_at=ends),
        tokens.create("limited", ["ingest"], buckets=["films"]),
    )
    api = start(url_of(log), processes=1, log_format="json", body_limit=4096)
    post_until(api, 202, gone, body("first"))
    tokens.revoke("gone")
    post_until(api, 401, gone)
    post_until(api, 401, expiring)
    good = tokens.create("good", ["ingest"])
    full = event("full", bucket="full").record.encode()
    post_until(api, 202, good, full)
    sent: list[tuple[int, str, bytes, str]] = [
        (401, gone, body("lost"), "token-revoked"),
        (401, expiring, body("lost"), "token-expired"),
        (401, SECRET, body("lost"), "token-unknown"),
        (403, reader, body("lost"), "scope"),
        (403, limited, body("lost"), "limits"),
        (400, good, b'{"Records": 1, "' + SECRET.encode() + b'": 1}', "bad-events"),
        (413, good, body("x").ljust(5000), "too-large"),
        (503, good, event("more", bucket="full").record.encode(), "queue-full"),
    ]
    for status, token, content, _ in sent:
        for _ in range(20):
            assert api.post(content, **bearer(token)).status_code == status

    lose_connection(api, good)

    reasons = {reason for *_, reason in sent}
    services.until(lambda: "client-gone" in refused(api, reader), 30)
    services.until(lambda: min(refused(api, reader).get(reason, 0) for reason in reasons) >= 20, 30)
    reasons.add("client-gone")
    assert set(refused(api, reader)) == reasons
    assert by_status(api, reader, "POST /v1/events").keys() == {202, 400, 401, 403, 413, 503}

    by_reason = {line["reason"]: line for line in lines(api)}
    assert by_reason.keys() == reasons
    assert {reason: line["actor"] for reason, line in by_reason.items()} == {
        "token-revoked": "token:gone", "token-expired": "token:expiring", "token-unknown": "", "scope": "token:reader",
        "limits": "token:limited", "bad-events": "token:good", "too-large": "token:good", "queue-full": "token:good",
        "client-gone": "token:good",
    }  # fmt: skip
    assert all(line["level"] == "WARNING" and line["address"] == "127.0.0.1" for line in by_reason.values())
    assert len(lines(api)) <= 2 * len(reasons), "one a minute, after the first"

    found = findings(api, reader)
    by_grade = {grade: [one["text"] for one in found if one["grade"] == grade] for grade in ("problem", "warning")}
    assert len(found) >= 5
    for text in ("token gone was revoked at 20", "token expiring expired at 20", "token reader lacks the scope ingest"):
        assert any(text in problem for problem in by_grade["problem"]), text
    assert any("full: webhook:full; speed up the target" in problem for problem in by_grade["problem"])
    page = overview(api, reader)
    assert "token gone was revoked at" in page
    assert "Traceback" not in api.log.read_text()
    everything = api.log.read_text() + page + str(found) + api.client.get("/metrics", headers=bearer(reader)).text
    assert SECRET not in everything
    assert gone not in everything


def test_a_finding_ends_when_the_sender_has_a_token_that_is_valid(log: Database, start: Start) -> None:
    tokens = Tokens(log)
    reader, old = tokens.create("reader", ["read"]), tokens.create("minio", ["ingest"])
    api = start(url_of(log), processes=1)
    post_until(api, 202, old)
    tokens.revoke("minio")
    post_until(api, 401, old)
    services.until(lambda: bool(findings(api, reader)), 30)
    new = tokens.create("minio", ["ingest"])
    services.until(lambda: api.client.get("/v1/rules", headers=bearer(new)).status_code == 403, 10)
    assert api.post(body("b"), **bearer(new)).status_code == 202
    services.until(lambda: not findings(api, reader), 60, what="nothing is refused any more")


def test_every_surface_counts_what_it_refuses(s3: S3) -> None:
    """Those of S3 and `mc admin` by the names of keys, the server's too; what is accepted is no refusal."""
    api, token = s3.api, Tokens(s3.database).create("reader", ["read"])
    services.until(lambda: api.client.get("/v1/targets").status_code == 401, 10)
    assert s3.ask("PUT", "/images").status_code == 200
    asked = [
        s3.ask("GET", "/images?notification", secret="wrong-" + SECRET),
        s3.ask("GET", "/images?notification", key=SECRET),
        s3.ask("PUT", "/images?notification", b"<a/>", key="WATCHER", secret="only-looks-on"),
        api.client.get("/images?notification"),
        api.client.get("/minio/admin/v3/info"),
        api.client.post("/", content=body("elsewhere"), headers=bearer(SECRET)),
        api.client.post("/v1/event", content=body("elsewhere"), headers=bearer(SECRET)),
        api.client.post("/wp-login.php", content=b"a scan"),
        api.client.get("/v1/events/stream"),
        api.client.get("/v1/targets", headers=bearer(SECRET)),
        api.client.put("/v1/targets/webhook/x", json={}, headers=bearer(token)),
    ]
    assert [answer.status_code for answer in asked] == [403, 403, 403, 403, 403, 405, 404, 404, 401, 401, 403]
    for _ in range(3):
        with socket.create_connection((services.LOOPBACK, api.port), 30) as connection:
            connection.sendall(f"{SECRET}\r\n\r\n".encode())
            assert b" 400 " in connection.recv(65536)
    expected = {
        "s3": {"wrong-signature": 1, "key-unknown": 1, "scope": 1, "not-signed": 1},
        "admin": {"not-signed": 1}, "intake": {"wrong-path": 2}, "stream": {"token-missing": 1},
        "http": {"not-http": 3},
    }  # fmt: skip
    services.until(lambda: refused(api, token, "http") == expected["http"], 30)
    services.until(lambda: {surface: refused(api, token, surface) for surface in expected} == expected, 30)
    of_api = refused(api, token, "api")
    assert (of_api.pop("token-unknown"), of_api.pop("scope")) == (1, 1)
    assert by_status(api, token, "PUT /<bucket>") == {200: 1}
    assert by_status(api, token, "S3") == {403: 4}
    text = api.log.read_text()
    for said in ("not by the secret of key default", "key watch lacks the scope admin", "access key is unknown"):
        assert said in text
    assert text.count("Invalid request from ip=") <= 2, "one a minute of each kind in each process"
    assert SECRET not in text
    assert SECRET not in str(findings(api, token, "requests"))
    assert {one["grade"] for one in findings(api, token, "requests")} == {"warning", "note"}


@pytest.fixture(scope="module")
def server() -> Iterator[services.Postgres]:
    with services.postgres() as running:
        yield running


@pytest.mark.parametrize("spools", [False, True], ids=["", "spool"])
def test_while_the_database_is_away_a_wrong_token_is_401_and_all_refusals_are_stored_when_it_is_back(
    server: services.Postgres, outboxes: Outboxes, start: Start, tmp_path: Path, spools: bool
) -> None:
    log = migrated(outboxes.on(server))
    tokens = Tokens(log)
    reader, good, gone = (
        tokens.create("reader", ["read"]),
        tokens.create("good", ["ingest"]),
        tokens.create("gone", ["ingest"]),
    )
    tokens.revoke("gone")
    spool = {"spool_dir": tmp_path / "spool"} if spools else {}
    api = start(server.url(NAME), processes=1, log_format="json", **spool)
    post_until(api, 202, good)
    post_until(api, 401, gone)
    log.close()
    server.stop()
    for _ in range(5):
        assert api.post(body("b"), **bearer(good)).status_code == (202 if spools else 503)
        for wrong in (SECRET, gone):
            answer = api.post(body("b"), **bearer(wrong))
            assert answer.status_code == 401, answer.text
        assert "was revoked" in answer.json()["detail"]
        assert api.post(body("b")).status_code == 401
        assert api.client.get("/metrics").status_code == 401
    reasons = {"token-unknown", "token-revoked", "token-missing", *(() if spools else ("database-unavailable",))}
    services.until(lambda: {line["reason"] for line in lines(api) if line["surface"] == "intake"} == reasons)
    assert "bucketwire_database_up 0.0" in api.client.get("/metrics", headers=bearer(reader)).text
    server.start()
    services.until(lambda: refused(api, reader).keys() == reasons, 60)
    assert refused(api, reader)["token-unknown"] == 5
    if not spools:
        assert refused(api, reader)["database-unavailable"] == 5
        [finding] = [one for one in findings(api, reader) if "database" in one["text"]]
        assert (finding["grade"], finding["text"][:7]) == ("problem", "5 posts")
        post_until(api, 202, good)
        services.until(lambda: not any("database" in one["text"] for one in findings(api, reader)), 60)


def test_every_problem_by_which_a_caller_is_refused_has_a_reason_for_operators() -> None:
    kinds = {kind for kind, (status, _) in PROBLEM_TYPES.items() if status in (401, 403, 413, 503, 507)}
    assert kinds - {"unauthorized"} <= REASONS.keys(), "each of these says why"
    assert {reason for code in CODES if (reason := S3Error(code).reason)} <= REASONS.keys()


def test_the_alerts_select_surfaces_and_reasons_that_there_are() -> None:
    selecting = set()
    for rule in ALERTS:
        for selector in re.findall(r"bucketwire_refused_requests_total\{([^}]+)\}", rule["expr"]):
            selecting.add(rule["alert"])
            for label, pattern in re.findall(r'(\w+)(?:=~|!~|=|!=)"([^"]+)"', selector):
                values = {"surface": SURFACES, "reason": REASONS}[label]
                for each in pattern.split("|"):
                    assert any(re.fullmatch(each, value) for value in values), (rule["alert"], each)
    assert len(selecting) == 4


def test_every_reason_of_a_post_belongs_to_one_of_two_alerts() -> None:
    """But for a database that is away: an alert of its own says so, while there are no other metrics."""
    refused, not_taken = (
        re.findall(r'reason(=~|!~)"([^"]+)"', rule["expr"])
        for rule in ALERTS
        if rule["alert"] in ("BucketwirePostsRefused", "BucketwirePostsNotTaken")
    )
    for reason in COUNTED_REASONS["intake"]:
        fires = [not re.fullmatch(refused[0][1], reason), bool(re.fullmatch(not_taken[0][1], reason))]
        assert sum(fires) == (0 if reason == "database-unavailable" else 1), reason
