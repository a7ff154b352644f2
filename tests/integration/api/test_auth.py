"""Who may call what: scopes, tokens of both kinds, and no token at all."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from app.api.auth import ADMIN, INGEST, PUBLIC, READ, VISITOR, presented_token, scope_of
from app.config.errors import BadSettings, BadValue
from app.outbox import tables
from app.outbox.engine.database import Database
from app.outbox.errors import TokenExists, UnknownToken
from app.outbox.tokens import Tokens, check_listen
from app.server.application import create_app
from tests import services
from tests.integration.api.conftest import Api, Start, keys, problem, settings, token, url_of
from tests.support.api_requests import body

FROM_ENVIRONMENT = "e" * 40


def test_every_route_declares_its_scope(log: Database) -> None:
    app = create_app(settings(url_of(log)))
    declared = [(rule, scope_of(app, rule.endpoint)) for rule in app.url_map.iter_rules()]
    assert {scope for _, scope in declared} == {PUBLIC, VISITOR, INGEST, READ, ADMIN}, declared
    open_to_all = {rule.rule for rule, scope in declared if scope == PUBLIC}
    console = {f"/console/{path}" for path in ("sign-in", "openid", "openid-callback", "static/<path:name>")}
    assert open_to_all == {"/", "/v1/events", "/healthz", "/readyz", "/openapi.json", "/asyncapi.json"} | console
    assert {rule.rule.startswith("/console/") for rule, scope in declared if scope == VISITOR} == {True}
    for rule, scope in declared:
        if rule.rule.startswith("/console/"):
            continue  # it has forms, which it checks itself, and then calls the routes below
        if (rule.methods or set()) & {"POST", "PUT", "DELETE", "PATCH"}:
            assert scope == {"/v1/events": INGEST, "/v1/rules/match": READ}.get(rule.rule, ADMIN), rule


def test_a_route_without_a_scope_is_for_admins(log: Database) -> None:
    app = create_app(settings(url_of(log), api_tokens=f"minio:ingest+read:{FROM_ENVIRONMENT}"))
    app.add_url_rule("/forgotten", "forgotten", lambda: "seen")
    answer = app.test_client().get("/forgotten", headers={"Authorization": f"Bearer {FROM_ENVIRONMENT}"})
    assert answer.status_code == 403


def test_each_scope_opens_its_routes_and_no_others(log: Database, start: Start) -> None:
    plain = start(url_of(log))
    ingest, read, admin = (token(log, scope) for scope in ("ingest", "read", "admin"))
    get, post = plain.client.get, plain.client.post

    def knows_all() -> bool:  # the tokens are read once a second, perhaps when the last was not there yet
        return (get("/v1/rules").status_code, get("/v1/rules", headers=admin).status_code) == (401, 200)

    services.until(knows_all, what="the last token")
    for headers, posting, reading, changing in (
        (ingest, 202, 403, 403),
        (read, 403, 200, 403),
        (admin, 202, 200, 400),
        ({"Authorization": "Bearer wrong"}, 401, 401, 401),
        ({}, 401, 401, 401),
    ):
        assert post("/v1/events", content=body("a"), headers=headers).status_code == posting
        for path in ("/v1/rules", "/v1/targets", "/v1/dead-letters", "/v1/replays", "/metrics"):
            assert get(path, headers=headers).status_code == reading, path
        assert get("/v1/events?bucket=images&key=a", headers=headers).status_code == reading
        assert post("/v1/rules", json={}, headers=headers).status_code == changing
        for path in ("/healthz", "/openapi.json", "/v1/events", "/"):
            assert get(path, headers=headers).status_code == 200
    refused = get("/v1/rules")
    problem(refused, 401, "unauthorized")
    assert refused.headers["www-authenticate"].startswith("Bearer")
    assert problem(get("/v1/rules", headers=ingest), 403, "forbidden")["scope"] == "read"


def test_a_token_is_taken_in_every_way_that_senders_hand_it_on(log: Database, start: Start) -> None:
    api = start(url_of(log), api_tokens=f"minio:ingest:{FROM_ENVIRONMENT}")
    packed = base64.b64encode(f"user:{FROM_ENVIRONMENT}".encode()).decode()
    ways = (f"Bearer {FROM_ENVIRONMENT}", f"bearer  {FROM_ENVIRONMENT}", FROM_ENVIRONMENT, f"Basic {packed}")
    for way in ways:
        assert api.post(body("a"), authorization=way).status_code == 202, way
    for way in ("Basic !", f"Splunk {FROM_ENVIRONMENT}", "Bearer", "Bearer é"):
        assert api.client.post("/v1/events", headers={b"Authorization": way.encode()}).status_code == 401, way
    assert presented_token("") == ""


def test_a_token_holds_within_a_second_of_its_making_and_not_a_second_longer_than_its_end(
    log: Database, start: Start
) -> None:
    plain = start(url_of(log))
    assert plain.post(body("open")).status_code == 202
    tokens = Tokens(log)
    first, second = tokens.create("first", ["ingest"]), tokens.create("second", ["ingest"])
    services.until(lambda: plain.post(body("b")).status_code == 401, 3)
    for made in (first, second):
        services.until(lambda made=made: plain.post(body("c"), authorization=f"Bearer {made}").status_code == 202, 3)
    tokens.revoke("first")
    services.until(lambda: plain.post(body("d"), authorization=f"Bearer {first}").status_code == 401, 3)
    assert plain.post(body("e"), authorization=f"Bearer {second}").status_code == 202


def test_tokens_are_kept_as_digests_and_shown_once(log: Database) -> None:
    tokens = Tokens(log, settings(url_of(log), api_tokens=f"ops:read:{FROM_ENVIRONMENT}").api_tokens)
    made = tokens.create("minio", ["ingest", "read"])
    with log.reading() as connection:
        row = connection.execute(sa.select(tables.tokens).where(tables.tokens.c.name == "minio")).one()
    assert row.digest == hashlib.sha256(made.encode()).hexdigest()
    assert made not in str(row)
    assert len(made) > 40
    assert [(one.name, one.origin, sorted(one.scopes)) for one in tokens.list()] == [
        ("ops", "environment", ["read"]),
        ("minio", "stored", ["ingest", "read"]),
    ]
    for name in ("minio", "ops"):
        with pytest.raises(TokenExists):
            tokens.create(name, ["read"])
        with pytest.raises(BadValue, match="scope"):
            tokens.create("other", ["write"])
    with pytest.raises(BadValue, match="name"):
        tokens.create("a b", ["read"])
    with pytest.raises(BadValue, match="no scope"):
        tokens.create("other", [])
    tokens.revoke("minio")
    for name in ("minio", "ops", "nobody"):
        with pytest.raises(UnknownToken):
            tokens.revoke(name)


def test_an_open_address_without_a_token_is_refused_and_says_how_to_make_one(log: Database) -> None:
    url = url_of(log)
    for listen in ("0.0.0.0:8730", "[::]:8730", "192.0.2.1:8730"):
        with pytest.raises(BadSettings, match="bucketwire token create"):
            check_listen(settings(url, listen=listen), log)
    for listen in ("127.0.0.1:8730", "[::1]:8730", "localhost:8730"):
        check_listen(settings(url, listen=listen), log)
    check_listen(settings(url, listen="0.0.0.0:8730", api_tokens=f"a:admin:{FROM_ENVIRONMENT}"), log)
    Tokens(log).create("minio", ["ingest"])
    check_listen(settings(url, listen="0.0.0.0:8730"), log)


def test_an_api_that_would_be_open_to_the_network_does_not_start(log: Database) -> None:
    api = Api(url_of(log), {})
    api.settings = {"BUCKETWIRE_LISTEN": f"0.0.0.0:{api.port}"}
    with pytest.raises(RuntimeError, match="bucketwire token create"):
        api.start()
    assert "Traceback" not in api.log.read_text()


def test_an_address_that_others_reach_stays_closed_when_the_last_token_is_revoked(log: Database, start: Start) -> None:
    made = Tokens(log).create("minio", ["ingest"])
    api = Api(url_of(log), {})
    api.settings = {"BUCKETWIRE_LISTEN": f"0.0.0.0:{api.port}"}
    with api:
        api.start()
        assert api.post(body("a"), authorization=f"Bearer {made}").status_code == 202
        Tokens(log).revoke("minio")
        services.until(lambda: api.post(body("b"), authorization=f"Bearer {made}").status_code == 401, 10)
        assert "token create" in problem(api.post(body("c")), 401, "unauthorized")["detail"]
        api.client.close()
        for worker in psutil.Process(api.pid).children():
            worker.kill()
        api.ping()  # those that replace them serve too
    assert "c" not in keys(log)


def test_an_address_of_this_machine_stays_closed_when_the_last_token_is_revoked(
    log: Database, start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "spool"
    plain = start(url_of(log), spool_dir=folder)
    assert plain.post(body("open")).status_code == 202
    made = Tokens(log).create("minio", ["ingest"])
    services.until(lambda: plain.post(body("b")).status_code == 401, 10)
    Tokens(log).revoke("minio")
    services.until(lambda: "every token was revoked" in plain.post(body("c")).text, 10)
    for _ in range(5):
        said = problem(plain.post(body("c")), 401, "unauthorized")["detail"]
        assert "every token was revoked" in said
        assert "bucketwire token create" in said
    problem(plain.post(body("d"), authorization=f"Bearer {made}"), 401, "unauthorized")
    again = start(url_of(log), spool_dir=folder)  # another process, later
    assert again.client.get("/v1/targets").status_code == 401
    away = f"postgresql://nobody@{services.LOOPBACK}:{services.free_port()}/outbox"
    late = start(away, spool_dir=folder)  # this one begins while the database is away
    problem(late.post(body("e")), 401, "unauthorized")

    another = Tokens(log).create("minio", ["ingest"])
    services.until(lambda: plain.post(body("f"), authorization=f"Bearer {another}").status_code == 202, 10)
    assert keys(log)[0] == "open"
    assert set(keys(log)) <= {"open", "b", "f"}


def test_the_tokens_of_the_environment_close_the_api_for_good_too(log: Database, start: Start) -> None:
    with_token = start(url_of(log), api_tokens=f"minio:ingest:{FROM_ENVIRONMENT}")
    assert with_token.post(body("a"), authorization=f"Bearer {FROM_ENVIRONMENT}").status_code == 202
    services.until(Tokens(log).required)
    later = start(url_of(log))
    for headers in ({}, {"authorization": f"Bearer {FROM_ENVIRONMENT}"}):
        assert "every token was revoked" in problem(later.post(body("b"), **headers), 401, "unauthorized")["detail"]
    assert keys(log) == ["a"]


@pytest.mark.parametrize(
    "header",
    ["Forwarded: for=192.0.2.1", "X-Forwarded-For: 127.0.0.1", "X-Forwarded-Host: a", "X-Forwarded-Proto: https",
     "X-Forwarded-Prefix: /", "x-forwarded: 1", "X-Original-Forwarded-For: 127.0.0.1", "X-Real-IP: 127.0.0.1",
     "Via: 1.1 proxy", "True-Client-IP: 127.0.0.1", "CF-Connecting-IP: ::1", "X-Client-IP: ::1"],
)  # fmt: skip
def test_without_tokens_a_proxy_on_this_machine_gets_nowhere(plain: Api, plain_log: Database, header: str) -> None:
    name, _, value = header.partition(": ")
    for host in ("127.0.0.1", "localhost", f"[::1]:{plain.port}"):
        for more in ({}, {"Authorization": "Bearer x"}):
            headers = {"Host": host, name: value, **more}
            refused = plain.client.post("/v1/events", content=body("a"), headers=headers)
            said = problem(refused, 403, "loopback-only")["detail"]
            assert "proxy" in said
            assert "bucketwire token create" in said
            problem(plain.client.get("/v1/targets", headers=headers), 403, "loopback-only")
    assert plain.client.get("/healthz", headers={name: value}).status_code == 200
    assert keys(plain_log) == []


def test_with_a_token_a_proxy_may_forward(log: Database, start: Start) -> None:
    given = token(log, "ingest")
    proxied = start(url_of(log))
    forwarded = given | {"X-Forwarded-For": "192.0.2.1", "Via": "1.1 proxy"}
    assert proxied.client.post("/v1/events", content=body("a"), headers=forwarded).status_code == 202


def test_without_tokens_a_web_page_in_a_browser_gets_nowhere(plain: Api, plain_log: Database) -> None:
    for headers in (
        {"Host": "evil.example"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
    ):
        answer = plain.client.post("/v1/events", content=body("a"), headers=headers)
        problem(answer, 403, "loopback-only")
    problem(plain.client.post("/v1/dead-letters/purge", content=b'{"all":true}'), 415, "not-json")
    assert plain.client.post("/v1/events", content=body("b"), headers={"Host": "localhost:1"}).status_code == 202
    assert plain.client.post("/v1/events", content=body("c"), headers={"Origin": plain.url}).status_code == 202
    assert keys(plain_log) == ["b", "c"]
