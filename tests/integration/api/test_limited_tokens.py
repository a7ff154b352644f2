"""Tokens that are limited to buckets and targets: what they allow, and that everything else is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from app.config.arn import TargetId
from app.config.declared_types import TYPES
from app.outbox import tables
from app.outbox.admin.replays import Replays, Selection
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.outbox.tokens import Tokens
from tests.integration.api.conftest import Start, keys, problem, token, url_of
from tests.services import until
from tests.support.builders import add_target, event, registry
from tests.support.properties import times
from tests.support.scripted_target import Courier, ScriptedTarget
from workers.delivery.outcomes import DELIVERED, Failed, Rejected

SCOPES = ("ingest", "read", "admin")
MINE, OTHER = TargetId("webhook", "mine"), TargetId("webhook", "other")


@pytest.fixture
def limited(log: Database, start: Start) -> Iterator[Callable[..., httpx.Client]]:
    """Start an API over `log`, which has two targets, and return a client whose token is limited."""
    with ExitStack() as stack:

        def made(**limits: Any) -> httpx.Client:
            for target in (MINE, OTHER):
                add_target(log, target.name)
            token = Tokens(log).create("limited", SCOPES, **limits)  # first: an API knows tokens for a second
            headers = {"Authorization": f"Bearer {token}"}
            api = start(url_of(log))
            client = stack.enter_context(httpx.Client(base_url=api.url, headers=headers, timeout=60, trust_env=False))
            tokens_known(client)
            return client

        yield made


def tokens_known(client: httpx.Client) -> None:
    """Wait until every process of the API has read the tokens: on a busy machine the first request may be too early."""
    until(lambda: all(client.get("/v1/targets").status_code != 503 for _ in range(8)), 60)


def body(*names: tuple[str, str]) -> dict[str, Any]:
    records = [
        {
            "eventVersion": "2.0", "eventSource": "minio:s3", "eventTime": "2026-11-21T00:33:56.082Z",
            "eventName": "s3:ObjectCreated:Put",
            "s3": {"bucket": {"name": bucket}, "object": {"key": key, "sequencer": "18E9E833E5D35C00"}},
        }
        for bucket, key in names
    ]  # fmt: skip
    return {"Records": records}


# What a token without any bucket or target of its own may do besides: probes, and lists that are empty for it.
OPEN = {
    "GET /", "GET /healthz", "GET /readyz", "GET /openapi.json", "GET /asyncapi.json", "GET /v1/events",
    "GET /v1/targets", "GET /v1/series", "GET /v1/replays", "GET /v1/doctor",
}  # fmt: skip


def test_every_route_refuses_a_limited_token_that_names_none_of_its_own(limited: Callable[..., httpx.Client]) -> None:
    values = {"type_name": "webhook", "name": "other", "number": 1, "event_id": "x", "run": "x"}
    client = limited(buckets=["elsewhere"])
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method in methods:
            if f"{method.upper()} {path}" not in OPEN:
                answer = client.request(method, path.format(**values), json={} if method != "get" else None)
                assert answer.status_code in (400, 403, 404), f"{method} {path}: {answer.text}"
    assert client.get("/v1/targets").json() == {"targets": []}
    assert client.get("/v1/series").json()["series"] == []
    assert client.get("/v1/replays").json() == {"replays": []}
    assert client.get("/v1/doctor").json()["findings"] == []
    problem(client.get("/v1/events", params={"limit": 5}), 403, "forbidden")


def test_events_are_posted_and_read_for_its_buckets_only(log: Database, limited: Callable[..., httpx.Client]) -> None:
    client = limited(buckets=["images", "films"])
    posted = client.post("/v1/events", json=body(("images", "a"), ("films", "b")))
    assert (posted.status_code, posted.json()["matched"]) == (202, {}), "it does not learn which targets there are"
    refused = problem(client.post("/v1/events", json=body(("images", "c"), ("salaries", "d"))), 403, "forbidden")
    assert "images" in refused["detail"]
    assert keys(log) == ["a", "b"]
    other = event("secret", bucket="salaries")
    Log(log).append([[other]])
    [found] = client.get("/v1/events", params={"bucket": "images"}).json()["events"]
    assert found["key"] == "a"
    assert found["delivery_states"] == [], "it is limited to buckets, and has no target"
    assert client.get("/v1/events", params={"bucket": "images", "key": "a"}).json()["events"]
    assert client.get(f"/v1/events/{found['id']}").json()["delivery_states"] == []
    assert client.get(f"/v1/events/{found['id']}").json()["origin"] == {"kind": "request", "frontend": "minio"}
    for origin in ("source kafka:secret minio 7 0", "request secret minio"):
        pulled = event(origin)._replace(origin=origin)
        Log(log).append([[pulled]])
        shown = client.get(f"/v1/events/{pulled.id}").text
        assert "secret" not in shown.replace(pulled.key, ""), "it learns no names of other tokens, and of no source"
    problem(client.get(f"/v1/events/{other.id}"), 403, "forbidden")
    for query in ({"bucket": "salaries"}, {"prefix": "s"}, {"bucket": "images", "target": "webhook:other"},
                  {"bucket": "images", "state": "dead"}):  # fmt: skip
        problem(client.get("/v1/events", params=query), 403, "forbidden")
    problem(client.get("/v1/targets/webhook/mine"), 403, "forbidden")


def test_two_tenants_with_a_bucket_of_one_name_share_nothing(
    log: Database, limited: Callable[..., httpx.Client]
) -> None:
    client = limited(tenant="acme")
    other = {"Authorization": f"Bearer {Tokens(log).create('other', SCOPES, tenant='other')}"}
    until(lambda: client.get("/v1/targets", headers=other).status_code == 200, 60)
    posted = body(("images", "a"))
    for headers in ({}, other):
        for recorded in (1, 0):  # the same record of the other is another event
            answer = client.post("/v1/events", json=posted, headers=headers).json()
            assert (answer["recorded"], answer["matched"]) == (recorded, {})
    for name, arn in (("other:images", ""), ("images", "arn:aws:s3:default:other:images")):
        forged = body((name, "b"))
        forged["Records"][0]["s3"]["bucket"]["arn"] = arn
        problem(client.post("/v1/events", json=forged), 400, "bad-events")
    assert keys(log) == ["a", "a"]
    [mine] = client.get("/v1/events", params={"bucket": "acme:images"}).json()["events"]
    [theirs] = client.get("/v1/events", params={"bucket": "other:images"}, headers=other).json()["events"]
    assert (mine["bucket"], theirs["bucket"]) == ("acme:images", "other:images")
    assert mine["id"] != theirs["id"]
    assert client.get(f"/v1/events/{mine['id']}").json()["origin"] == {"kind": "request", "frontend": "minio"}
    problem(client.get(f"/v1/events/{theirs['id']}"), 403, "forbidden")
    for bucket in ("other:images", "images", "acme", "*", "Acme:images"):
        refused = problem(client.get("/v1/events", params={"bucket": bucket}), 403, "forbidden")
        assert refused["detail"] == "the token 'limited' is limited to the buckets acme:…"
        problem(client.get("/v1/events", params={"bucket": bucket, "key": "a"}), 403, "forbidden")
        problem(client.get("/v1/events/stream", params={"bucket": bucket}), 403, "forbidden")
    unknown = [
        client.get("/v1/events/stream", params={"bucket": "acme:images", "after": event_id})
        for event_id in (theirs["id"], "0" * 32)
    ]
    assert (unknown[0].status_code, unknown[0].text) == (400, unknown[1].text), "it learns not that there is one"
    replay = {"target": "webhook:mine", "bucket": "other:images"}
    for path in ("/v1/replays", "/v1/rules", "/v1/reconciliations"):
        problem(client.post(path, json=replay), 403, "forbidden")
    problem(client.get("/v1/rules"), 403, "forbidden")
    problem(client.get("/v1/targets/webhook/mine"), 403, "forbidden")


def test_a_rule_for_a_tenants_bucket_gets_its_events_and_no_others(log: Database, start: Start) -> None:
    add_target(log, "mine", bucket="acme:images")
    add_target(log, "bare", bucket="images")
    admin, by_arn = token(log, "admin"), {"Authorization": f"Bearer {Tokens(log).create('ceph', SCOPES, tenant='arn')}"}
    with httpx.Client(base_url=start(url_of(log)).url, headers=by_arn, timeout=60, trust_env=False) as client:
        tokens_known(client)
        matched = {}
        for tenant in ("acme", "other", ""):
            sent = body(("images", "a"))
            sent["Records"][0]["s3"]["bucket"]["arn"] = f"arn:aws:s3:default:{tenant}:images"
            matched[tenant] = client.post("/v1/events", json=sent).json()["matched"]
        assert matched == {"acme": {MINE.arn(""): 1}, "other": {}, "": {TargetId("webhook", "bare").arn(""): 1}}
        asked = {"bucket": "acme:images", "key": "a", "event": "s3:ObjectCreated:Put"}
        [rule] = client.post("/v1/rules/match", json=asked, headers=admin).json()["rules"]
        assert rule["bucket"] == "acme:images"
        assert {one["tenant"] for one in client.get("/v1/tokens", headers=admin).json()["tokens"]} == {"", "arn"}
        new = {"name": "x", "scopes": ["ingest"], "tenant": "acme", "buckets": ["images"]}
        refused = problem(client.post("/v1/tokens", json=new, headers=admin), 400, "bad-value")
        assert "write acme:images" in str(refused)


def test_an_event_says_by_which_token_or_source_it_came(log: Database, start: Start) -> None:
    tokens = Tokens(log)
    sent = tokens.create("ceph-east", ("ingest", "read"), frontend="ceph")
    headers = {"Authorization": f"Bearer {sent}"}
    client = httpx.Client(base_url=start(url_of(log)).url, headers=headers, timeout=60, trust_env=False)
    with client:
        tokens_known(client)
        record = body(("images", "a"))["Records"][0] | {"eventSource": "ceph:s3"}
        assert client.post("/v1/events", json={"Records": [record]}).status_code == 202
        pulled = event("pulled")._replace(origin="source kafka:minio minio 1235 3")
        Log(log).append([[pulled, event("unknown")]])
        found = {
            one["key"]: one.get("origin") for one in client.get("/v1/events", params={"limit": 9}).json()["events"]
        }
        assert found == {
            "a": {"kind": "request", "token": "ceph-east", "frontend": "ceph"},
            "pulled": {
                "kind": "source", "source": "kafka:minio", "frontend": "minio", "share": "3", "position": "1235",
            },
            "unknown": None,
        }  # fmt: skip
        assert client.get(f"/v1/events/{pulled.id}").json()["origin"] == found["pulled"]
        [of_object] = client.get("/v1/events", params={"bucket": "images", "key": "a"}).json()["events"]
        assert of_object["origin"] == found["a"]


def test_its_targets_are_read_and_managed_and_no_others(log: Database, limited: Callable[..., httpx.Client]) -> None:
    def answer(one: object) -> Any:
        return {"dead": Rejected("no"), "slow": Failed("later", retry_after=60)}.get(getattr(one, "key", ""), DELIVERED)

    client = limited(targets=[MINE])
    Log(log).append([[event("dead"), event("slow")]])
    for target in (MINE, OTHER):
        Courier(log, target, ScriptedTarget(answer)).run(turns=1)
    for params in ({}, {"brief": "true"}):
        assert [one["name"] for one in client.get("/v1/targets", params=params).json()["targets"]] == ["mine"]
    assert {one["subject"] for one in client.get("/v1/doctor").json()["findings"]} == {str(MINE)}
    [series] = client.get("/v1/series").json()["series"]
    assert series["target"] == MINE.arn("")
    for path, params in (
        ("/v1/targets/webhook/mine", {}),
        ("/v1/targets/webhook/mine/partitions", {}),
        ("/v1/dead-letters", {"target": "webhook:mine"}),
        ("/v1/dead-letters/reasons", {"target": "webhook:mine"}),
        ("/v1/retries", {"target": MINE.arn("")}),
        ("/v1/series", {"target": "webhook:mine"}),
    ):
        assert client.get(path, params=params).status_code == 200, path
        other = dict.fromkeys(params, "webhook:other")
        problem(client.get(path.replace("mine", "other"), params=other), 403, "forbidden")
    for path, content in (
        ("/v1/targets/webhook/mine/pause", {"reason": "x"}),
        ("/v1/targets/webhook/mine/resume", {}),
        ("/v1/retries/now", {"target": "webhook:mine"}),
        ("/v1/dead-letters/replay", {"target": "webhook:mine"}),
        ("/v1/replays", {"target": "webhook:mine", "bucket": "images"}),
    ):
        problem(client.post(path.replace("mine", "other"), json=_of_other(content)), 403, "forbidden")
        assert client.post(path, json=content).status_code in (200, 201), path
    others = Replays(log).begin(OTHER, Selection(bucket="images")).replay_id
    [replay] = client.get("/v1/replays").json()["replays"]
    assert replay["target"] == MINE.arn("")
    for method in ("GET", "DELETE"):
        problem(client.request(method, f"/v1/replays/{others}", json={}), 403, "forbidden")
        assert client.request(method, f"/v1/replays/{replay['id']}", json={}).status_code == 200
    for path in ("/v1/dead-letters", "/v1/dead-letters/reasons", "/v1/retries"):
        problem(client.get(path), 403, "forbidden")
    for path in ("/v1/dead-letters/purge", "/v1/retries/give-up"):
        problem(client.post(path, json={"all": True}), 403, "forbidden")
    changed = client.put("/v1/targets/webhook/mine", json={"endpoint": "http://127.0.0.1:9/new"})
    assert changed.status_code == 200, changed.text
    for beyond in ({"auth_token": "file:/etc/hostname"}, {"auth_token": "env:HOME"}, {"allow_private": "on"},
                   {"queue_limit": "1", "queue_full": "reject"}, {"allow_private": "True"}, {"allow_private": True},
                   {"headers": {"X-A": "env:HOME"}}, {"headers": '{"X-A": "\\u0065nv:HOME"}'}):  # fmt: skip
        changed = {"endpoint": "http://127.0.0.1:9/new", **beyond}
        problem(client.put("/v1/targets/webhook/mine", json=changed), 403, "forbidden")
    repair = client.post("/v1/targets/webhook/mine/events", params={"after": "0"}, json=body(("salaries", "d")))
    problem(repair, 403, "forbidden")
    asked = {"target": "webhook:mine", "bucket": "salaries", "repair": True}
    problem(client.post("/v1/reconciliations", json=asked), 403, "forbidden")
    problem(client.put("/v1/targets/webhook/third", json={"endpoint": "http://127.0.0.1:9/"}), 403, "forbidden")
    problem(client.post("/v1/events", json=body(("images", "a"))), 403, "forbidden")
    problem(client.post("/v1/tokens", json={"name": "more", "scopes": ["admin"]}), 403, "forbidden")
    registry(log).remove(MINE, force=True)
    add_target(log, "mine-of-another")
    gone = problem(client.get("/v1/targets/webhook/mine"), 404, "unknown-target")
    assert gone["detail"] == "there is no target webhook:mine", "it learns no name of another's"


def test_what_is_beyond_the_limits_of_a_token_is_answered_as_what_is_not_there(
    log: Database, limited: Callable[..., httpx.Client]
) -> None:
    """Of each route the answers for a number or a name that is another's, and for one that nobody has."""
    client = limited(targets=[MINE], buckets=["images"])
    secret = event("secret", bucket="salaries")
    Log(log).append([[secret]])
    replay = Replays(log).begin(OTHER, Selection(bucket="images")).replay_id
    made = Tokens(log)
    made.create("another", ["read"])
    values = {
        "event_id": (secret.id, "0" * 32), "number": (replay, 10**9), "type_name": ("webhook", "webhook"),
        "name": ("other", "none"), "run": ("a", "b"),
    }  # fmt: skip
    routes = client.get("/openapi.json").json()["paths"]
    tried = set()
    for path, methods in routes.items():
        if "{" not in path:
            continue
        for method in methods:
            answers = []
            for which in (0, 1):
                chosen = {name: several[which] for name, several in values.items()}
                name = "another" if which == 0 and path.startswith("/v1/tokens") else chosen["name"]
                answer = client.request(
                    method, path.format(**chosen | {"name": name}), json={} if method != "get" else None
                )
                answers.append((answer.status_code, answer.text.replace(str(chosen["number"]), "")))
            assert answers[0] == answers[1], (method, path)
            assert answers[0][0] in (400, 403), (method, path)
            tried.add(path)
    assert {"/v1/events/{event_id}", "/v1/replays/{number}", "/v1/targets/{type_name}/{name}"} <= tried
    for path, params in (
        ("/v1/dead-letters", {"target": "webhook:{}"}), ("/v1/retries", {"target": "webhook:{}"}),
        ("/v1/series", {"target": "webhook:{}"}), ("/v1/events", {"bucket": "images", "target": "webhook:{}"}),
        ("/v1/events/stream", {"bucket": "images", "target": "webhook:{}"}), ("/v1/events", {"bucket": "{}"}),
    ):  # fmt: skip
        both = [
            client.get(path, params={name: text.format(who) for name, text in params.items()})
            for who in ("other", "none")
        ]
        assert [one.status_code for one in both] == [403, 403], path
        assert both[0].text == both[1].text, path


# What a target can name of the workers' host, and the same target without it.
HOSTS_OWN: dict[str, list[tuple[dict[str, str], dict[str, str]]]] = {
    "webhook": [({"endpoint": "https://127.0.0.1:9/", "client_cert": "/etc/other.pem", "client_key": "/etc/other.key"},
                 {"endpoint": "https://127.0.0.1:9/"})],
    "nats": [({"address": "127.0.0.1:9", "subject": "s", "user_credentials": "/etc/other.creds"},
              {"address": "127.0.0.1:9", "subject": "s"})],
    "amqp": [({"url": "amqps://127.0.0.1:9/?certfile=/etc/c&keyfile=/etc/k", "routing_key": "q"},
              {"url": "amqps://127.0.0.1:9/", "routing_key": "q"})],
    "redis": [({"address": "/run/redis.sock", "key": "k"}, {"address": "127.0.0.1:9", "key": "k"})],
    "mysql": [({"dsn_string": "u:p@unix(/run/mysqld.sock)/d", "table": "t"},
               {"dsn_string": "u:p@tcp(127.0.0.1:9)/d", "table": "t"})],
    "sqs": [({"queue_url": "https://sqs.us-east-1.amazonaws.com/1/q", "instance_role": "on"},
             {"queue_url": "https://sqs.us-east-1.amazonaws.com/1/q", "access_key": "a", "secret_key": "s"})],
    "kafka": [({"brokers": "127.0.0.1:9", "topic": "t", "tls": "on", "client_tls_cert": "/c", "client_tls_key": "/k"},
               {"brokers": "127.0.0.1:9", "topic": "t", "tls": "on"})],
    "mqtt": [({"broker": "ssl://127.0.0.1:9", "topic": "t", "client_cert": "/c", "client_key": "/k"},
              {"broker": "ssl://127.0.0.1:9", "topic": "t"})],
    "nsq": [({"nsqd_address": "127.0.0.1:9", "topic": "t", "tls": "on", "tls_ca": "/ca"},
             {"nsqd_address": "127.0.0.1:9", "topic": "t"})],
    "elasticsearch": [({"url": "https://127.0.0.1:9/", "index": "i", "client_cert": "/c", "client_key": "/k"},
                       {"url": "https://127.0.0.1:9/", "index": "i"})],
    "postgresql": [
        ({"connection_string": text, "table": "t"}, {"connection_string": "host=127.0.0.1 dbname=d", "table": "t"})
        for text in (
            "user=u dbname=d", "host=/run/postgresql user=u dbname=d", "host=127.0.0.1,/run user=u dbname=d",
            "host=127.0.0.1 passfile=/etc/other dbname=d", "host=127.0.0.1 sslcrldir=/etc dbname=d",
            "service=other", "postgresql:///d", "postgresql://u@%2Frun%2Fpostgresql/d",
            "postgresql://u@127.0.0.1/d?host=/run", "postgresql://u@127.0.0.1/d?sslkey=/etc/k",
            # What libpq reads differently from a reader of URLs or of words.
            "postgresql://u:p?host=127.0.0.1@%2Frun/d", "postgresql://u@%2Frun/d?hostaddr=127.0.0.1&hostaddr=",
            "host=@abstract user=u dbname=d",
            # Tickets of the host, and a helper of its system.
            "host=127.0.0.1 gssdelegation=1", "host=127.0.0.1 krbsrvname=other", "host=127.0.0.1 gssencmode=require",
            "host=127.0.0.1 requirepeer=root", "host=127.0.0.1 require_auth=password,gss",
        )
    ],
}  # fmt: skip


def test_a_limited_token_names_no_file_and_no_socket_of_the_host(
    log: Database, limited: Callable[..., httpx.Client]
) -> None:
    client = limited(targets=[TargetId(kind, "own") for kind in HOSTS_OWN])
    admin = token(log, "admin")
    until(lambda: client.get("/v1/tokens", headers=admin).status_code == 200, 60)
    for kind, pairs in HOSTS_OWN.items():
        path = f"/v1/targets/{kind}/own"
        for beyond, _ in pairs:
            refused = problem(client.put(path, json=beyond), 403, "forbidden")
            assert "of this host" in refused["detail"], refused
            problem(client.post(f"{path}/test-settings", json=beyond), 403, "forbidden")
        for beyond, allowed in pairs[: times(1, len(pairs))]:
            assert client.put(path, json=allowed).status_code in (200, 201), allowed
            assert client.put(path, json=beyond, headers=admin).status_code == 200, "an operator may"
            changed = client.put(path, json=beyond | {"comment": "mine"})
            assert changed.status_code == 200, f"what is stored may stay: {changed.text}"
            assert client.put(path, json=allowed).status_code == 200
    for kind, pairs in HOSTS_OWN.items():
        path, (beyond, _) = f"/v1/targets/{kind}/own", pairs[0]
        assert client.put(path, json=beyond, headers=admin).status_code == 200
        elsewhere = {name: _elsewhere(value) for name, value in beyond.items()}
        if elsewhere != beyond:
            refused = problem(client.put(path, json=elsewhere), 403, "forbidden")
            assert "of this host" in refused["detail"], f"who gets what the host has: {refused}"
    path, stored = "/v1/targets/postgresql/own", "host=127.0.0.1 sslcert=/etc/c"
    settings = {"connection_string": stored, "table": "t"}
    assert client.put(path, json=settings, headers=admin).status_code == 200
    other = settings | {"connection_string": stored.replace("sslcert", "passfile")}
    problem(client.put(path, json=other), 403, "forbidden")  # a stored file in another place


def test_a_secret_of_the_host_goes_only_where_an_operator_sends_it(
    log: Database, limited: Callable[..., httpx.Client]
) -> None:
    client, path = limited(targets=[MINE]), "/v1/targets/webhook/mine"
    admin = token(log, "admin")
    until(lambda: client.get("/v1/tokens", headers=admin).status_code == 200, 60)
    stored = {"endpoint": "http://127.0.0.1:9/new", "auth_token": "env:HOME"}
    assert client.put(path, json=stored, headers=admin).status_code == 200
    assert client.put(path, json=stored | {"max_in_flight": "7"}).status_code == 200
    for more in ({"endpoint": "http://127.0.0.1:9/other"}, {"path": "/{key}"}, {"headers": {"X-A": "b"}}):
        refused = problem(client.put(path, json=stored | more), 403, "forbidden")
        assert f"{next(iter(more))} is changed while auth_token uses what is of this host" in refused["detail"]
    assert client.put(path, json={"endpoint": "http://127.0.0.1:9/other", "auth_token": "mine"}).status_code == 200


def signed(client: httpx.Client, method: str, path: str, body: bytes) -> httpx.Response:
    """Send a request of S3 or of MinIO's admin API that is signed by the name of the token and the token."""
    secret = client.headers["authorization"].removeprefix("Bearer ")
    request = AWSRequest(method, str(client.base_url.join(path)), data=body)
    S3SigV4Auth(Credentials("limited", secret), "s3", "us-east-1").add_auth(request)
    return httpx.request(method, request.url, content=body, headers=dict(request.headers.items()), timeout=60)


def test_no_other_way_sets_anything_for_a_limited_token(log: Database, limited: Callable[..., httpx.Client]) -> None:
    """Not even its own target or bucket, which it may set by its route."""
    client = limited(targets=[MINE], buckets=["images"])
    mine = {"endpoint": "http://127.0.0.1:9/changed"}
    declared = {"targets": {"webhook:mine": mine}}
    rule = {"bucket": "images", "events": ["*"], "target": "webhook:mine"}
    source = {"brokers": "127.0.0.1:9", "topic": "t"}
    xml = b"<NotificationConfiguration/>"
    before = everything(log)
    for method, path, body in (
        ("POST", "/v1/declaration", declared), ("POST", "/v1/declaration?dry_run=true", declared),
        ("PATCH", "/v1/declaration", declared), ("POST", "/v1/declaration", {"rules": [rule]}),
        ("POST", "/v1/declaration", {"buckets": {"images": {"endpoint": "http://127.0.0.1:9"}}}),
        ("POST", "/v1/rules", rule), ("POST", "/v1/rules/remove", {"rules": [1]}), ("DELETE", "/v1/rules/1", None),
        ("PUT", "/v1/settings/api", {}), ("PUT", "/v1/sources/kafka/mine", source),
        ("POST", "/v1/sources/kafka/mine/pause", {}), ("DELETE", "/v1/buckets/images", None),
        ("POST", "/v1/tokens", {"name": "more", "scopes": ["admin"]}), ("DELETE", "/v1/tokens/limited", None),
    ):  # fmt: skip
        answer = problem(client.request(method, path, json=body), 403, "forbidden")
        assert "is limited" in answer["detail"], (method, path)
    for method, path in (
        ("PUT", "/images?notification"), ("GET", "/images?notification"), ("DELETE", "/images"), ("PUT", "/images"),
        ("PUT", "/minio/admin/v3/set-config-kv"), ("GET", "/minio/admin/v3/get-config-kv?key=notify_webhook"),
        ("PUT", "/minio/admin/v3/config"), ("DELETE", "/minio/admin/v3/del-config-kv"),
    ):  # fmt: skip
        assert client.request(method, path, content=xml).status_code in (403, 404), (method, path)
        assert signed(client, method, path, xml).status_code == 403, (method, path)
    assert everything(log) == before


def everything(log: Database) -> dict[str, list[str]]:
    """What was ever set."""
    kinds = (tables.targets, tables.rules, tables.sources, tables.buckets, tables.bucket_settings, tables.audit)
    with log.reading() as connection:
        found = {table.name: sorted(map(repr, connection.execute(sa.select(table)))) for table in kinds}
        return found | {"tokens": sorted(connection.execute(sa.select(tables.tokens.c.name)).scalars())}


# What lets a process of the workers wait for long, by type of target, and settings that are enough otherwise.
_DSN, _LIBPQ = "u:p@tcp(127.0.0.1:9)/d?", "host=127.0.0.1 dbname=d "
PATIENT: dict[str, tuple[dict[str, str], list[dict[str, str]]]] = {
    "webhook": ({"endpoint": "http://127.0.0.1:9/"}, [{"read_timeout": "1h"}, {"read_timeout": "61s"}]),
    "mysql": (
        {"dsn_string": _DSN, "table": "t"},
        [{"dsn_string": f"{_DSN}{name}=61s"} for name in ("timeout", "readTimeout", "writeTimeout")],
    ),
    "postgresql": (
        {"connection_string": _LIBPQ, "table": "t"},
        [
            {"connection_string": text}
            for text in (
                f"{_LIBPQ} connect_timeout=61", f"{_LIBPQ} connect_timeout=0", f"{_LIBPQ} connect_timeout=-1",
                f"{_LIBPQ} tcp_user_timeout=61000", f"{_LIBPQ} tcp_user_timeout=0",
                "postgresql://127.0.0.1/d?connect_timeout=3600", f"host={','.join(['127.0.0.1'] * 20)} dbname=d",
            )
        ],
    ),
}  # fmt: skip
OF_ALL_TYPES = [{"timeout": "61s"}, {"timeout": "1h"}, {"max_in_flight": "1001"}, {"batch_size": "1001"}]


def test_a_limited_token_has_no_worker_wait_for_long(log: Database, limited: Callable[..., httpx.Client]) -> None:
    kinds = sorted(TYPES)
    client = limited(targets=[TargetId(kind, "own") for kind in kinds])
    admin = token(log, "admin")
    until(lambda: client.get("/v1/tokens", headers=admin).status_code == 200, 60)
    for kind in kinds:
        path = f"/v1/targets/{kind}/own"
        plain, others = PATIENT.get(kind, (dict(TYPES[kind].example), []))
        for beyond in [*others, *OF_ALL_TYPES]:
            for refused in (
                problem(client.put(path, json=plain | beyond), 403, "forbidden"),
                problem(client.post(f"{path}/test-settings", json=plain | beyond), 403, "forbidden"),
            ):
                assert refused["detail"].startswith(next(iter(beyond))), refused
                assert "is the most" in refused["detail"], refused
        most = {"timeout": "60s", "max_in_flight": "1000", "batch_size": "1000"}
        assert client.put(path, json=plain | most).status_code == 201, "not too long"
    path, (plain, (beyond, *_)) = "/v1/targets/webhook/own", PATIENT["webhook"]
    assert client.put(path, json=plain | beyond, headers=admin).status_code == 200, "an operator may"
    changed = client.put(path, json=plain | beyond | {"comment": "mine"})
    assert changed.status_code == 200, f"what is stored may stay: {changed.text}"


# Link-local addresses in each notation, and where a type of target has its address.
LINK_LOCAL = [
    "169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "[fe80::1]", "[::ffff:169.254.1.1]",
    "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::1]", "[::ffff:a9fe:101]",
]  # fmt: skip
PLACES: dict[str, dict[str, str]] = {
    "webhook": {"endpoint": "http://{}:9/"},
    "kafka": {"brokers": "127.0.0.1:9,{}:9", "topic": "t"},
    "redis": {"address": "{}:9", "key": "k"},
    "elasticsearch": {"url": "http://{}:9", "index": "i"},
}


def test_a_limited_token_sets_no_link_local_address(log: Database, limited: Callable[..., httpx.Client]) -> None:
    client = limited(targets=[TargetId(kind, "own") for kind in PLACES])
    admin = token(log, "admin")
    until(lambda: client.get("/v1/tokens", headers=admin).status_code == 200, 60)
    for kind, settings in PLACES.items():
        path = f"/v1/targets/{kind}/own"
        for address in LINK_LOCAL:
            beyond = {name: text.format(address) for name, text in settings.items()}
            for method, place in (("PUT", path), ("POST", f"{path}/test-settings")):
                answer = client.request(method, place, json=beyond)
                if address.startswith(("169.", "[")):  # a number is no host for most types
                    assert "link-local" in problem(answer, 403, "forbidden")["detail"]
                assert answer.status_code in (400, 403), (kind, address, answer.text)
    path, stored = "/v1/targets/webhook/own", {"endpoint": "http://169.254.1.1:9/"}
    assert client.put(path, json=stored, headers=admin).status_code in (200, 201), "an operator may"
    assert client.put(path, json=stored | {"comment": "mine"}).status_code == 200, "what is stored may stay"


def test_a_test_of_a_limited_token_reaches_no_link_local_address(
    log: Database, limited: Callable[..., httpx.Client]
) -> None:
    client, path = limited(targets=[TargetId("redis", "own")]), "/v1/targets/redis/own"
    admin = token(log, "admin")
    until(lambda: client.get("/v1/tokens", headers=admin).status_code == 200, 60)
    settings = {"address": "169.254.1.1:9", "key": "k", "timeout": "1s"}
    assert client.put(path, json=settings, headers=admin).status_code == 201
    for headers, refused in (({}, True), (admin, False)):
        tried = client.post(f"{path}/test-settings", json=settings, headers=headers).json()
        assert not tried["ok"]
        assert ("is link-local" in tried["steps"][-1]["message"]) == refused, tried


def test_a_limited_token_schedules_nothing_that_it_may_not_request(
    log: Database, limited: Callable[..., httpx.Client]
) -> None:
    client, path = limited(targets=[TargetId("redis", "own")]), "/v1/targets/redis/own"
    admin = token(log, "admin")
    until(lambda: client.get("/v1/tokens", headers=admin).status_code == 200, 60)
    plain = {"address": "127.0.0.1:9", "key": "k"}
    nightly, repairing = {"reconcile": "0 3 * * *"}, {"reconcile_repair": "on"}
    stored: dict[str, str] = {}
    for more in (nightly, repairing, {"scan": "0 4 * * *"}):
        refused = problem(client.put(path, json=plain | stored | more), 403, "forbidden")
        assert f"{next(iter(more))} schedules runs over every bucket" in refused["detail"]
        stored |= more
        assert client.put(path, json=plain | stored, headers=admin).status_code in (200, 201)
        problem(client.put(path, json=plain | stored | {"reconcile": "0 5 * * *"}), 403, "forbidden")
    changed = client.put(path, json=plain | stored | {"comment": "mine"})
    assert changed.status_code == 200, f"what is stored may stay: {changed.text}"
    assert client.put(path, json=plain).status_code == 200, "and may end"


def _elsewhere(value: str) -> str:
    return value.replace("127.0.0.1", "127.0.0.2").replace("us-east-1", "eu-west-1")


def _of_other(content: dict[str, str]) -> dict[str, str]:
    return {name: value.replace("mine", "other") for name, value in content.items()}


def test_a_token_says_which_frontend_posts_with_it(log: Database, limited: Callable[..., httpx.Client]) -> None:
    client = limited(frontend="versity")
    sent = body(("b", "a+b"))
    sent["Records"][0] |= {"eventSource": "my-gateway:s3", "eventName": "ObjectCreated:Put"}
    assert client.post("/v1/events", json=sent).status_code == 202
    assert client.post("/v1/events", json=sent, params={"frontend": "aws"}).status_code == 202
    assert set(keys(log)) == {"a+b", "a b"}
    [listed] = client.get("/v1/tokens").json()["tokens"]
    assert (listed["name"], listed["frontend"]) == ("limited", "versity")
    created = client.post("/v1/tokens", json={"name": "more", "scopes": ["ingest"], "frontend": "ceph"})
    assert (created.status_code, created.json()["frontend"]) == (201, "ceph")
    refused = client.post("/v1/tokens", json={"name": "odd", "scopes": ["ingest"], "frontend": "cep"})
    assert (refused.status_code, "did you mean ceph?" in refused.text) == (400, True)


def test_a_limited_token_is_created_and_listed_with_its_limits(log: Database, start: Start) -> None:
    admin = token(log, "admin")
    api = start(url_of(log))
    tokens_known(api.client)
    limits = {"buckets": ["images"], "targets": ["webhook:mine"]}
    wanted = {"name": "team", "scopes": ["read"], **limits}
    made = api.client.post("/v1/tokens", json=wanted, headers=admin)
    assert made.status_code == 201, made.text
    listed = {one["name"]: one for one in api.client.get("/v1/tokens", headers=admin).json()["tokens"]}
    for found in (made.json(), listed["team"]):
        assert {name: found[name] for name in limits} == limits
    assert (listed["admin"]["buckets"], listed["admin"]["targets"]) == ([], [])
    expiring = api.client.post("/v1/tokens", json={"name": "soon", "scopes": ["read"], "expires": "90d"}, headers=admin)
    assert expiring.status_code == 201, expiring.text
    ends = datetime.fromisoformat(expiring.json()["expires_at"])
    assert timedelta(days=89) < ends - datetime.now(UTC) < timedelta(days=91)
    listed = {one["name"]: one for one in api.client.get("/v1/tokens", headers=admin).json()["tokens"]}
    assert listed["soon"]["expires_at"] == expiring.json()["expires_at"]
    assert (listed["team"]["expires_at"], listed["team"]["used_at"]) == (None, None)
    until(lambda: api.client.get("/v1/tokens", headers=admin).json()["tokens"][0]["used_at"])  # "admin", this one
    wrong: dict[str, list[Any]] = {
        "expires": ["soon", "2020-01-01T00:00:00Z", 5, "0s", True],
        "buckets": ["images", [1], [""], ["*"], ["b"] * 101],
        "targets": ["webhook:mine", ["nowhere"], ["webhook:mine"] * 101],
        "scopes": ["read", [], ["write"], ["x" * 4096]],
        "frontend": ["cep", 5],
        "name": ["a b", "x" * 4096, ["x"]],
    }
    for field, values in wrong.items():
        for value in values:
            response = api.client.post("/v1/tokens", json=wanted | {"name": "x", field: value}, headers=admin)
            assert problem(response, 400, "bad-value")["field"] == field, value
    unknown = api.client.post("/v1/tokens", json=wanted | {"x" * 500_000: 1}, headers=admin)
    assert problem(unknown, 400, "bad-value")["field"] == "x" * 1024
    assert len(unknown.content) < 10_000
