"""Targets, rules, dead letters and replays over HTTP: what an operator sees and does."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.admin.counters import read_counters
from app.outbox.delivery.availability import open_breaker
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.outbox.series import take_sample
from tests.integration.api.conftest import Api, Start, problem, token, url_of
from tests.support.api_requests import body
from tests.support.builders import add_target, event, registry
from tests.support.outbox_rows import bury

SECRET = "hunter2-hunter2"


def put(api: Api, name: str, **settings: Any) -> httpx.Response:
    return api.client.put(f"/v1/targets/webhook/{name}", json={"endpoint": "http://127.0.0.1:9/"} | settings)


def counters(database: Database) -> dict[str, int]:
    with database.reading() as connection:
        [found] = read_counters(connection)
    return {name: getattr(found, name) for name in ("recorded", "pending", "parked", "dead", "purged")}


# --- targets


def test_a_target_is_made_changed_shown_and_removed(api: Api) -> None:
    made = put(api, "audit", auth_token=SECRET, queue_limit=7)
    assert made.status_code == 201, made.text
    assert made.json()["settings"] == {
        "endpoint": "http://127.0.0.1:9/", "auth_token": "*redacted*", "queue_limit": "7",
    }  # fmt: skip
    assert made.json()["arn"] == "arn:minio:sqs::audit:webhook"
    assert made.json()["state"] == "running"
    assert made.json()["origin"] == "stored"
    assert put(api, "audit", comment="changed").json()["settings"] == {
        "endpoint": "http://127.0.0.1:9/", "comment": "changed",
    }  # fmt: skip
    assert [one["name"] for one in api.client.get("/v1/targets").json()["targets"]] == ["audit"]
    assert api.client.delete("/v1/targets/webhook/audit").json() == {"lost": []}
    problem(api.client.get("/v1/targets/webhook/audit"), 404, "unknown-target")
    problem(api.client.delete("/v1/targets/webhook/audit"), 404, "unknown-target")


def test_a_secret_given_back_as_it_was_shown_stays(plain: Api, plain_log: Database) -> None:
    put(plain, "audit", auth_token=SECRET, client_cert="/a", client_key="/b")
    shown = plain.client.get("/v1/targets/webhook/audit").json()["settings"]
    del shown["client_cert"], shown["client_key"]
    answer = plain.client.put("/v1/targets/webhook/audit", json=shown | {"comment": "x"})
    assert answer.status_code == 200, answer.text
    stored = registry(plain_log).target(TargetId("webhook", "audit"))
    assert SECRET not in str(stored)
    assert plain.client.get("/v1/targets/webhook/audit").json()["settings"] == shown | {"comment": "x"}
    assert SECRET not in plain.client.get("/v1/targets").text + answer.text + plain.log.read_text()


def test_settings_that_cannot_be_used_are_refused_with_every_problem_and_change_nothing(plain: Api) -> None:
    found = problem(put(plain, "audit", endpoint="ftp://x", queue_limt=1, auth_token=[1]), 400, "bad-settings")
    assert {error["field"] for error in found["errors"]} == {"endpoint", "queue_limt", "auth_token"}
    assert any("queue_limit" in error["hint"] for error in found["errors"])
    assert plain.client.get("/v1/targets").json() == {"targets": []}
    problem(plain.client.put("/v1/targets/webhok/audit", json={}), 400, "bad-settings")
    problem(plain.client.put("/v1/targets/webhook/a%20b", json={}), 400, "bad-value")
    problem(
        plain.client.put("/v1/targets/webhook/a", content=b"[1]", headers={"content-type": "application/json"}),
        400,
        "bad-request",
    )
    problem(
        plain.client.put("/v1/targets/webhook/a", content=b"{", headers={"content-type": "application/json"}),
        400,
        "bad-request",
    )
    problem(plain.client.put("/v1/targets/webhook/a", content=b"{}"), 415, "not-json")


def test_a_target_of_the_environment_is_changed_there(plain: Api, plain_log: Database) -> None:
    target = TargetId("webhook", "env")
    registry(plain_log).sync_environment({target: {"enable": "on", "endpoint": "http://127.0.0.1:9/"}}, {})
    assert plain.client.get("/v1/targets/webhook/env").json()["origin"] == "environment"
    problem(put(plain, "env"), 409, "read-only-target")
    problem(plain.client.delete("/v1/targets/webhook/env?force=true"), 409, "read-only-target")


def test_every_state_of_a_target_is_told_with_its_reason(plain: Api, plain_log: Database) -> None:
    def state(name: str) -> tuple[str, str]:
        found = plain.client.get(f"/v1/targets/webhook/{name}").json()
        return found["state"], found["reason"]

    target = add_target(plain_log, "one")
    assert state("one") == ("running", "")
    answer = plain.client.post("/v1/targets/webhook/one/pause", json={"reason": "moving"})
    assert answer.json()["state"] == "paused"
    assert state("one") == ("paused", "moving")
    assert plain.client.post("/v1/targets/webhook/one/resume", json={}).json()["state"] == "running"
    row = registry(plain_log).target(target).row_id
    open_breaker(plain_log, row, "refused", 1_895_000_000_000, probing=False)
    assert state("one") == ("unavailable", "refused")
    assert plain.client.get("/v1/targets/webhook/one").json()["resume_at"] == "2030-01-18T20:53:20.000Z"
    assert plain.client.post("/v1/targets/webhook/one/resume", json={}).json()["state"] == "running"
    put(plain, "one", enable=False)
    assert state("one")[0] == "disabled"
    registry(plain_log).put(
        TargetId("webhook", "two"), {"endpoint": "x"}, origin="environment", problem="endpoint: is no URL"
    )
    assert state("two") == ("broken", "endpoint: is no URL")
    problem(plain.client.post("/v1/targets/webhook/none/pause", json={}), 404, "unknown-target")
    problem(plain.client.post("/v1/targets/webhook/one/pause", json={"raeson": "x"}), 400, "bad-value")


def test_a_target_shows_its_counters_and_the_age_of_its_oldest_event(api: Api, database: Database) -> None:
    add_target(database, queue_limit=2)
    api.post(body("a", "b", "c"))
    [found] = api.client.get("/v1/targets").json()["targets"]
    assert found["events"] == {
        "matched": 3, "recorded": 2, "delivered": 0, "superseded": 0, "pending": 2, "parked": 0, "dead": 0,
        "purged": 0, "discarded": 1,
    }  # fmt: skip
    assert 0 <= found["oldest_age"] < 60


def test_a_target_with_events_is_removed_only_by_force(plain: Api, plain_log: Database) -> None:
    add_target(plain_log, "audit")
    plain.post(body("a"))
    detail = problem(plain.client.delete("/v1/targets/webhook/audit"), 409, "target-in-use")["detail"]
    assert "1 rule," in detail
    assert "1 undelivered event" in detail
    problem(plain.client.delete("/v1/targets/webhook/audit?force=perhaps"), 400, "bad-value")
    assert plain.client.delete("/v1/targets/webhook/audit?force=true").status_code == 200


# --- rules


def test_a_rule_is_made_listed_and_removed(api: Api, database: Database) -> None:
    target = add_target(database, "audit", bucket="other")
    given = {
        "bucket": "images",
        "events": ["s3:ObjectCreated:*"],
        "prefix": "a/",
        "suffix": ".jpg",
        "target": target.arn(),
    }
    made = api.client.post("/v1/rules", json=given)
    assert made.status_code == 201, made.text
    assert made.json() == given | {"number": made.json()["number"], "rule_id": ""}
    again = api.client.post("/v1/rules", json=given | {"target": "webhook:audit"})
    assert again.json()["number"] == made.json()["number"]
    assert api.client.get("/v1/rules?bucket=images").json()["rules"] == [made.json()]
    assert len(api.client.get("/v1/rules").json()["rules"]) == 2
    assert api.client.delete(f"/v1/rules/{made.json()['number']}").status_code == 204
    problem(api.client.delete(f"/v1/rules/{made.json()['number']}"), 404, "not-found")


def test_a_rule_has_the_filters_that_it_was_given_and_no_others(plain: Api, plain_log: Database) -> None:
    add_target(plain_log, "audit")
    given = {"bucket": "images", "events": ["*"], "target": "webhook:audit"}
    filters = {"regex": "a+", "metadata": {"b": "1", "a": "2"}, "tags": {"team": "x"}, "min_size": 5, "max_size": 6}
    made = plain.client.post("/v1/rules", json=given | filters | {"min_size": "5"}).json()
    assert {name: made[name] for name in filters} == filters
    unset = dict.fromkeys(filters) | {"regex": ""}
    bare = plain.client.post("/v1/rules", json=given | unset).json()
    assert bare["number"] != made["number"]
    assert not bare.keys() & filters.keys()
    assert plain.client.get("/v1/rules?bucket=images").json()["rules"] == [made, bare]


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"regex": "("}, "bad-rule"),
        ({"metadata": {"a": 1}}, "bad-rule"),
        ({"tags": "a=b"}, "bad-rule"),
        ({"min_size": "huge"}, "bad-rule"),
        ({"min_size": 2, "max_size": 1}, "bad-rule"),
        ({"events": ["s3:ObjectCreted:*"]}, "bad-rule"),
        ({"events": []}, "bad-rule"),
        ({"events": "s3:ObjectCreated:*"}, "bad-value"),
        ({"bucket": ""}, "bad-rule"),
        ({"prefix": 1}, "bad-value"),
        ({"target": "webhook:none"}, "bad-value"),
        ({"target": "audit"}, "bad-value"),
        ({"buckets": "x"}, "bad-value"),
    ],
)
def test_a_rule_that_cannot_be_taken_says_why(
    plain: Api, plain_log: Database, wrong: dict[str, Any], kind: str
) -> None:
    add_target(plain_log, "audit")
    given = {"bucket": "images", "events": ["*"], "target": "webhook:audit"}
    problem(plain.client.post("/v1/rules", json=given | wrong), 400, kind)
    assert len(registry(plain_log).rules()) == 1


# --- dead letters and replays


def test_dead_letters_are_listed_in_pages_and_by_filter(api: Api, database: Database) -> None:
    target = add_target(database)
    api.post(body(*(f"k{number}" for number in range(5))))
    bury(database, target)
    first = api.client.get("/v1/dead-letters?limit=3").json()
    rest = api.client.get(f"/v1/dead-letters?limit=3&after={first['next']}").json()
    assert [one["key"] for one in first["dead_letters"] + rest["dead_letters"]] == [f"k{number}" for number in range(5)]
    assert rest["next"] is None
    one = first["dead_letters"][0]
    assert (one["target"], one["reason"], one["attempts"]) == (target.arn(), "422 no", 3)
    assert one["history"] == [{"at": "2026-11-18T11:06:40.000Z", "reason": "422 no"}]
    assert one["record"]["s3"]["object"]["key"] == "k0"

    def found(**query: Any) -> list[str]:
        answer = api.client.get("/v1/dead-letters", params=query)
        assert answer.status_code == 200, answer.text
        return [letter["key"] for letter in answer.json()["dead_letters"]]

    assert found(prefix="k3") == ["k3"]
    assert found(ids=f"{one['id']}, 999") == ["k0"]
    assert found(target="webhook:x", bucket="images", reason="422") == [f"k{number}" for number in range(5)]
    assert found(reason="5%") == found(bucket="other") == []
    assert found(since="2026-11-18T11:06:41.003Z", before="1795000001004") == ["k2"]
    far = f"since={'9' * 30}", f"before={'9' * 5000}"
    for wrong in ("limit=0", "limit=x", "ids=x", "since=yesterday", "target=x", "buckt=x", *far):
        problem(api.client.get(f"/v1/dead-letters?{wrong}"), 400, "bad-value")


def test_replay_and_purge_need_to_be_told_which(api: Api, database: Database) -> None:
    target = add_target(database)
    api.post(body("a", "b", "c"))
    bury(database, target)
    for path in ("/v1/dead-letters/replay", "/v1/dead-letters/purge"):
        for unclear in (
            {},
            {"all": False},
            {"bucket": ""},
            {"ids": []},
            {"all": True, "bucket": "images"},
            {"al": True},
        ):
            problem(api.client.post(path, json=unclear), 400, "bad-value")
    assert counters(database) == {"recorded": 3, "pending": 0, "parked": 0, "dead": 3, "purged": 0}
    assert api.client.post("/v1/dead-letters/replay", json={"prefix": "a"}).json() == {"replayed": 1}
    assert counters(database) == {"recorded": 3, "pending": 0, "parked": 1, "dead": 2, "purged": 0}
    assert api.client.post("/v1/dead-letters/purge", json={"all": True}).json() == {"purged": 2}
    assert counters(database) == {"recorded": 3, "pending": 0, "parked": 1, "dead": 0, "purged": 2}


def test_a_replay_of_delivered_events_begins_and_is_listed(api: Api, database: Database) -> None:
    target = add_target(database)
    api.post(body("a", "b", "c"))
    with database.writing() as connection:  # as if they had been delivered
        head = connection.execute(sa.select(tables.log_head.c.last_seq)).scalar_one()
        partitions = connection.execute(
            sa.select(tables.events.c.partition, sa.func.count()).group_by(tables.events.c.partition)
        ).all()
        connection.execute(tables.cursors.update().values(position=head))
        for partition, count in partitions:
            connection.execute(
                tables.cursors.update().where(tables.cursors.c.partition == partition).values(delivered=count)
            )
    problem(api.client.post("/v1/replays", json={"target": "webhook:x"}), 400, "bad-value")
    problem(api.client.post("/v1/replays", json={"target": "webhook:none", "all": True}), 404, "unknown-target")
    problem(api.client.post("/v1/replays", json={"target": "webhook:x", "all": True, "evnts": []}), 400, "bad-value")
    made = api.client.post("/v1/replays", json={"target": target.arn(), "bucket": "images", "prefix": "b"})
    assert made.status_code == 201, made.text
    assert (made.json()["replayed"], made.json()["progress"], made.json()["finished"]) == (0, 0, False)
    assert api.client.get("/v1/replays").json() == {"replays": [made.json()]}
    assert counters(database)["pending"] == 0, "it counts its events when it reaches them"

    number = made.json()["id"]
    for _ in range(2):  # the second changes nothing
        cancelled = api.client.delete(f"/v1/replays/{number}")
        assert cancelled.status_code == 200, cancelled.text
        assert (cancelled.json()["replayed"], cancelled.json()["finished"]) == (0, True)
        assert cancelled.json()["cancelled_at"].endswith("Z")
    assert api.client.get("/v1/replays").json() == {"replays": [cancelled.json()]}
    for unknown in (number + 1, 10**30):
        problem(api.client.delete(f"/v1/replays/{unknown}"), 404, "not-found")


# --- the description, and what is not there


def test_the_series_of_a_target_are_read_by_time_and_step(plain: Api, plain_log: Database) -> None:
    target = add_target(plain_log, "audit")
    add_target(plain_log, "other")
    Log(plain_log).append([[event()]])
    assert take_sample(plain_log)
    for step in (10, 300):
        found = plain.client.get("/v1/series", params={"target": str(target), "step": step}).json()
        assert found["step"] == step
        [series] = found["series"]
        assert series["target"] == target.arn("")
        [sample] = series["samples"]
        assert (sample["recorded"], sample["backlog"]) == (1, 1)
        assert sample["oldest_age"] > 0
    assert len(plain.client.get("/v1/series").json()["series"]) == 2
    later = plain.client.get("/v1/series", params={"since": "2100-01-01"}).json()["series"]
    assert [series["samples"] for series in later] == [[], []]
    problem(plain.client.get("/v1/series", params={"step": 20}), 400, "bad-value")
    problem(plain.client.get("/v1/series", params={"width": 60}), 400, "bad-value")
    [whole] = plain.client.get("/v1/series", params={"target": str(target), "width": 86_400}).json()["series"]
    assert 1 <= len(whole["samples"]) <= 2
    problem(plain.client.get("/v1/series", params={"target": "webhook:none"}), 404, "unknown-target")


def test_what_comes_in_is_counted_by_requests_and_by_each_source(plain: Api, plain_log: Database) -> None:
    def rows() -> list[dict[str, Any]]:
        return list(plain.client.get("/v1/intake").json()["intake"])

    [before] = rows()
    assert (before["kind"], before["rate"]) == ("request", None)
    values = {"brokers": "kafka", "topic": "events"}
    assert plain.client.put("/v1/sources/kafka/q", json=values).status_code == 201
    assert plain.post(body("a", "b")).status_code == 202
    assert rows() == [
        {"kind": "request", "recorded": before["recorded"] + 2, "rate": None},
        {"kind": "source", "source": "kafka:q", "recorded": 0, "rate": None},
    ]


def test_what_is_not_there_is_a_problem(plain: Api) -> None:
    problem(plain.client.get("/v1/nothing"), 404, "not-found")
    problem(plain.client.post("/v2/events", content=b"x"), 404, "not-found")
    answer = plain.client.delete("/v1/targets")
    problem(answer, 405, "wrong-method")
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"


def test_an_unexpected_error_is_told_by_its_id_only(log: Database, start: Start) -> None:
    api = start(url_of(log))
    add_target(log)
    with log.writing() as connection:
        connection.execute(tables.targets.update().values(settings="{broken"))
    found = problem(api.client.get("/v1/targets"), 500, "internal")
    assert found["id"] in api.log.read_text()
    assert "broken" not in str(found)


def test_the_description_covers_every_route_and_is_whole(plain: Api) -> None:
    found = plain.client.get("/openapi.json").json()
    assert found["openapi"].startswith("3.1")
    described = {(path, method) for path, methods in found["paths"].items() for method in methods}
    assert {
        ("/v1/events", "get"), ("/v1/events", "post"), ("/v1/targets", "get"), ("/v1/rules", "get"),
        ("/v1/rules", "post"), ("/v1/rules/{number}", "delete"), ("/v1/dead-letters", "get"),
        ("/v1/dead-letters/replay", "post"), ("/v1/dead-letters/purge", "post"), ("/v1/replays", "get"),
        ("/v1/replays", "post"), ("/v1/targets/{type_name}/{name}", "get"), ("/v1/targets/{type_name}/{name}", "put"),
        ("/v1/targets/{type_name}/{name}", "delete"), ("/v1/targets/{type_name}/{name}/pause", "post"),
        ("/v1/targets/{type_name}/{name}/resume", "post"), ("/v1/targets/{type_name}/{name}/test", "post"),
        ("/v1/declaration", "post"), ("/healthz", "get"), ("/readyz", "get"),
        ("/metrics", "get"), ("/openapi.json", "get"), ("/asyncapi.json", "get"), ("/", "get"),
    } <= described  # fmt: skip
    # That nothing is left out, test_openapi.py sees to.
    for place in references(found):
        section, name = place.removeprefix("#/components/").split("/")
        assert name in found["components"][section], place
    assert found["components"]["schemas"]["Settings"]["x-settings"]["webhook"]["endpoint"]["required"] is True


def references(node: Any) -> list[str]:
    if isinstance(node, dict):
        inner = [place for value in node.values() for place in references(value)]
        return [node["$ref"], *inner] if "$ref" in node else inner
    return [place for value in node for place in references(value)] if isinstance(node, list) else []


def test_no_answer_and_no_log_holds_a_secret(log: Database, start: Start) -> None:
    secret = "t" * 32
    api = start(url_of(log), api_tokens=f"ops:admin:{secret}")
    headers = {"Authorization": f"Bearer {secret}"}
    other = token(log, "read")["Authorization"].removeprefix("Bearer ")
    api.client.put(
        "/v1/targets/webhook/a",
        json={"endpoint": "http://u:pw123456@127.0.0.1:9/", "auth_token": SECRET},
        headers=headers,
    )
    texts = [
        api.client.get(path, headers=headers).text for path in ("/v1/targets", "/metrics", "/readyz", "/openapi.json")
    ]
    texts += [api.client.get("/v1/targets", headers={"Authorization": f"Bearer {secret}x"}).text]
    texts += [api.client.put("/v1/targets/webhook/a", json={"auth_token": SECRET, "x": SECRET}, headers=headers).text]
    texts += [api.log.read_text()]
    for text in texts:
        for hidden in (secret, other, SECRET, "pw123456"):
            assert hidden not in text
