"""What a console needs to know and to do besides: status, workers, tokens, retries, matching, one replay."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from app.cached_probe import NoAnswer, ProbeResult
from app.doctor import Finding
from app.outbox import processes, tables, upkeep
from app.outbox.delivery.leases import Leases
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.policies import HEARTBEATS
from app.outbox.processes import Process, record_process
from app.outbox.reconcile.runs import Reconciliations, store_findings
from app.outbox.tokens import Tokens
from app.server.application import create_app
from tests.integration.api.conftest import Api, Start, problem, settings, token, url_of
from tests.services import until
from tests.support.builders import add_target, event, registry
from tests.support.scripted_target import Courier, ScriptedTarget
from workers.delivery.outcomes import DELIVERED, Failed, Rejected


def test_status_sums_up_checks_targets_and_counters(api: Api, database: Database) -> None:
    for name in ("one", "two"):
        target = add_target(database, name)
    registry(database).pause(target, "for a test")
    Log(database).append([[event("a"), event("b")]])
    upkeep.record_heartbeat(database, upkeep.DRAIN, now_ms())
    until(lambda: api.client.get("/v1/status").json()["ready"])
    found = api.client.get("/v1/status").json()
    assert found["targets"] == {"running": 1, "paused": 1}
    assert (found["events"]["recorded"], found["events"]["pending"], found["events"]["dead"]) == (4, 4, 0)
    assert found["oldest_age"] > 0
    assert found["checks"]["drain"]["ok"]


def test_a_brief_list_of_targets_has_everything_but_counters(plain: Api, plain_log: Database) -> None:
    for name in ("b", "a"):
        registry(plain_log).pause(add_target(plain_log, name), "for a test")
    whole = plain.client.get("/v1/targets").json()["targets"]
    brief = plain.client.get("/v1/targets", params={"brief": "true"}).json()["targets"]
    counted = ("events", "oldest_age")
    assert brief == [{name: value for name, value in one.items() if name not in counted} for one in whole]
    assert [(one["name"], one["state"]) for one in brief] == [("a", "paused"), ("b", "paused")]
    problem(plain.client.get("/v1/targets", params={"brief": "maybe"}), 400, "bad-value")


def test_no_list_takes_a_second_connection_while_it_holds_one(log: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many requests at once would hold its first one and wait for another, until the pool gives up."""
    add_target(log)
    holders, twice, reading = list[int](), set[str](), Database.reading

    @contextmanager
    def counted(database: Database) -> Iterator[sa.Connection]:
        if (thread := threading.get_ident()) in holders:
            twice.add(path)
        holders.append(thread)
        try:
            with reading(database) as connection:
                yield connection
        finally:
            holders.remove(thread)

    app = create_app(settings(url_of(log)))
    client = app.test_client()
    monkeypatch.setattr(Database, "reading", counted)
    for path in ("targets", "targets?brief=true", "rules", "processes", "reconciliations", "replays", "sources"):
        assert client.get(f"/v1/{path}").status_code == 200
    app.extensions["bucketwire"].database.close()
    assert not twice


def test_a_list_of_runs_asks_once_whether_a_spark_worker_is_there(
    log: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = add_target(log, "rows", type_name="redis", values={"address": "127.0.0.1:9", "key": "rows"})
    asked, has_worker = list[int](), processes.has_spark_worker

    def counted(connection: sa.Connection, now: int) -> bool:
        asked.append(now)
        return has_worker(connection, now)

    app = create_app(settings(url_of(log)))
    client = app.test_client()
    for bucket in ("images", "films"):
        body = {"target": str(target), "bucket": bucket, "unknown_bucket": True}
        assert client.post("/v1/reconciliations", json=body).status_code == 201
    monkeypatch.setattr(processes, "has_spark_worker", counted)
    listed = client.get("/v1/reconciliations").get_json()["reconciliations"]
    app.extensions["bucketwire"].database.close()
    assert [bool(run["note"]) for run in listed] == [True, True]
    assert len(asked) == 1


def test_workers_are_known_by_their_heartbeats(plain: Api, plain_log: Database) -> None:
    served, other = add_target(plain_log, "served"), add_target(plain_log, "other")
    found = plain.client.get("/v1/processes").json()
    assert found["drain"] == {"running": False, "age": None}
    record_process(plain_log, Process("h:1:x", "w@h", "1", "prefork", ["webhook:served"]))
    upkeep.record_heartbeat(plain_log, upkeep.DRAIN, now_ms())
    found = plain.client.get("/v1/processes").json()
    assert found["drain"]["running"]
    assert {queue["target"]: queue["served_at"] is not None for queue in found["queues"]} == {
        served.arn(""): True, other.arn(""): False,
    }  # fmt: skip
    assert {queue["served"] for queue in found["queues"]} == {True}, "they have just been made"


def test_a_worker_is_listed_with_what_it_does(plain: Api, plain_log: Database) -> None:
    target = add_target(plain_log, "busy")
    Leases(plain_log, 600_000).claim(registry(plain_log).target(target).row_id, [0, 1], "here:8:x", now_ms())
    worker = Process("here:7:y", "targets@here", "1.2", "prefork", ["targets"], processes=[8, 9])
    begun = record_process(plain_log, worker)
    record_process(plain_log, replace(begun, jobs=["tables"]))
    found = plain.client.get("/v1/processes").json()
    [listed], others = found["processes"], found["other_processes"]
    assert others == [], "its processes are its own"
    assert 0 <= listed.pop("age") < 60
    assert listed.pop("heartbeat_at") >= listed.pop("started_at")
    assert listed == {
        "id": "here:7:y", "name": "targets@here", "host": "here", "pid": 7, "pool": "prefork", "processes": [8, 9],
        "version": "1.2", "serves": ["targets"], "targets": [target.arn("")], "leased_partitions": 2, "sources": [],
        "jobs": ["tables"], "alive": True, "state": "running", "problem": "", "refused": {}, "address": "",
    }  # fmt: skip


def test_a_token_is_created_used_listed_and_revoked(log: Database, start: Start) -> None:
    admin = token(log, "admin")
    api = start(url_of(log), api_tokens="fixed:read:0123456789abcdef")
    made = api.client.post("/v1/tokens", json={"name": "console", "scopes": ["read"]}, headers=admin)
    assert made.status_code == 201, made.text
    headers = {"Authorization": f"Bearer {made.json()['token']}"}
    until(lambda: api.client.get("/v1/targets", headers=headers).status_code == 200)
    problem(api.client.get("/v1/tokens", headers=headers), 403, "forbidden")
    listed = api.client.get("/v1/tokens", headers=admin)
    assert made.json()["token"] not in listed.text
    assert [(one["name"], one["scopes"], one["origin"]) for one in listed.json()["tokens"]] == [
        ("fixed", ["read"], "environment"),
        ("admin", ["admin"], "stored"),
        ("console", ["read"], "stored"),
    ]
    again = api.client.post("/v1/tokens", json={"name": "console", "scopes": ["read"]}, headers=admin)
    problem(again, 409, "token-exists")
    for body in ({"name": "a b", "scopes": ["read"]}, {"name": "x", "scopes": []}, {"name": "x", "scopes": ["all"]},
                 {"name": "x", "scopes": "read"}, {"name": "x", "scopes": ["read"], "more": 1}):  # fmt: skip
        problem(api.client.post("/v1/tokens", json=body, headers=admin), 400, "bad-value")
    assert api.client.delete("/v1/tokens/console", headers=admin).status_code == 204
    problem(api.client.delete("/v1/tokens/console", headers=admin), 404, "not-found")
    problem(api.client.delete("/v1/tokens/fixed", headers=admin), 404, "not-found")
    problem(api.client.delete("/v1/tokens/*", headers=admin), 404, "not-found")
    assert Tokens(log).required()
    until(lambda: api.client.get("/v1/targets", headers=headers).status_code == 401)


def test_an_event_is_matched_as_it_would_be_recorded(plain: Api, plain_log: Database) -> None:
    target, disabled = add_target(plain_log, "audit", bucket="images"), add_target(plain_log, "off", bucket="images")
    registry(plain_log).put(disabled, {"endpoint": "http://127.0.0.1:9/", "enable": "off"})
    rule = {"bucket": "*", "events": ["s3:ObjectRemoved:*"], "prefix": "a/", "target": str(target)}
    plain.client.post("/v1/rules", json=rule)

    def matched(**body: str) -> tuple[int, list[str]]:
        found = plain.client.post("/v1/rules/match", json=body).json()
        return len(found["rules"]), [one["target"] for one in found["targets"]]

    put, delete = "s3:ObjectCreated:Put", "s3:ObjectRemoved:Delete"
    assert matched(bucket="images", key="x", event=put) == (2, [target.arn("")])
    assert matched(bucket="other", key="a/x", event=delete) == (1, [target.arn("")])
    assert matched(bucket="other", key="b/x", event=delete) == (0, [])
    problem(plain.client.post("/v1/rules/match", json={"key": "x"}), 400, "bad-value")
    with plain_log.reading() as connection:
        assert upkeep.last_drain(connection) is None


def test_filters_are_tried_with_what_the_event_is_said_to_carry(plain: Api, plain_log: Database) -> None:
    target = add_target(plain_log, "audit", bucket="elsewhere")
    rule = {"bucket": "images", "events": ["*"], "target": str(target)}
    for filters in ({"tags": {"team": "x"}}, {"min_size": "1KiB"}, {"metadata": {"Color": "red"}}, {"regex": "[a-c]"}):
        plain.client.post("/v1/rules", json=rule | filters).raise_for_status()

    def matched(**carried: Any) -> list[str]:
        body = {"bucket": "images", "key": "k", "event": "s3:ObjectCreated:Put"} | carried
        names = ("tags", "min_size", "metadata", "regex")
        found = plain.client.post("/v1/rules/match", json=body).json()["rules"]
        return [name for name in names for rule in found if name in rule]

    assert matched() == []
    assert matched(tags={"team": "x", "b": ""}, size=1024) == ["tags", "min_size"]
    assert matched(size=1024.0) == ["min_size"]
    assert matched(metadata={"x-amz-meta-color": "red"}, key="b", size=None) == ["metadata", "regex"]
    for wrong in (
        *({"size": size} for size in ("1KiB", -1, True, 1.5, 1e300)), {"tags": ["team"]}, {"metadata": {"a": 1}},
    ):  # fmt: skip
        body = {"bucket": "images", "event": "s3:ObjectCreated:Put"} | wrong
        assert plain.client.post("/v1/rules/match", json=body).status_code == 400


@pytest.mark.parametrize("act", ["now", "give-up"])
def test_retries_are_listed_tried_and_given_up(plain: Api, plain_log: Database, act: str) -> None:
    target = add_target(plain_log, "audit")
    Log(plain_log).append([[event(f"k{number}") for number in range(5)]])
    Courier(plain_log, target, ScriptedTarget(lambda _: Failed("500 broken", retry_after=60))).run()
    first = plain.client.get("/v1/retries", params={"limit": 3, "target": str(target)}).json()
    rest = plain.client.get("/v1/retries", params={"after": first["next"]}).json()
    assert rest["next"] is None
    listed = first["retries"] + rest["retries"]
    assert sorted(one["key"] for one in listed) == [f"k{number}" for number in range(5)]
    assert {(one["attempts"], one["history"][0]["reason"]) for one in listed} == {(1, "500 broken")}
    done = plain.client.post(f"/v1/retries/{act}", json={"ids": [listed[0]["event_id"]]}).json()
    assert list(done.values()) == [1]
    left = plain.client.get("/v1/retries", params={"ids": listed[0]["event_id"]}).json()["retries"]
    assert [one["next_try"] for one in left] == ([None] if act == "now" else [])
    assert list(plain.client.post(f"/v1/retries/{act}", json={"all": True}).json().values()) == [5 - (act != "now")]
    for body in ({}, {"all": True, "bucket": "x"}, {"idz": []}, {"ids": "x"}, {"target": "x"}):
        problem(plain.client.post(f"/v1/retries/{act}", json=body), 400, "bad-value")
    for after in ("x", "1.2.3", "1.2.3.-4", "9" * 99, "1.2.3.²"):
        problem(plain.client.get("/v1/retries", params={"after": after}), 400, "bad-value")


def test_dead_letters_are_counted_by_target_and_reason(api: Api, database: Database) -> None:
    for name, reason in (("one", "400 bad"), ("two", "400 bad"), ("two", "403 " + "x" * 400)):
        target = add_target(database, name, bucket=f"{name}-{reason[:3]}")
        Log(database).append([[event(f"k{number}", bucket=f"{name}-{reason[:3]}") for number in range(3)]])
        Courier(database, target, ScriptedTarget(lambda _, reason=reason: Rejected(reason))).run()
    found = api.client.get("/v1/dead-letters/reasons").json()
    assert (found["looked_at"], found["complete"]) == (9, True)
    counted = sorted((one["target"], one["reason"][:3], one["dead_letters"]) for one in found["reasons"])
    one, two = (f"arn:minio:sqs::{name}:webhook" for name in ("one", "two"))
    assert counted == [(one, "400", 3), (two, "400", 3), (two, "403", 3)]
    of_one = api.client.get("/v1/dead-letters/reasons", params={"target": "webhook:one"}).json()
    assert [each["dead_letters"] for each in of_one["reasons"]] == [3]
    listed = api.client.get("/v1/dead-letters", params={"target": "webhook:one"}).json()["dead_letters"]
    assert of_one["reasons"][0]["last_tried"] == max(letter["last_tried"] for letter in listed)
    last = max(one["last_tried"] for one in found["reasons"])
    newest = api.client.get("/v1/dead-letters/reasons", params={"since": last}).json()
    assert ({one["last_tried"] for one in newest["reasons"]}, newest["looked_at"]) == ({last}, 9)
    older = api.client.get("/v1/dead-letters/reasons", params={"before": last}).json()
    assert sum(one["dead_letters"] for one in (*newest["reasons"], *older["reasons"])) == 9
    assert api.client.get("/v1/dead-letters/reasons", params={"target": "webhook:none"}).json()["reasons"] == []
    for query in ({"target": "x"}, {"reason": "x"}):
        problem(api.client.get("/v1/dead-letters/reasons", params=query), 400, "bad-value")


def test_one_replay_is_read_by_its_number(plain: Api, plain_log: Database) -> None:
    add_target(plain_log, "audit")
    begun = plain.client.post("/v1/replays", json={"target": "webhook:audit", "all": True}).json()
    assert plain.client.get(f"/v1/replays/{begun['id']}").json() == begun
    for number in (begun["id"] + 1, 2**70):
        problem(plain.client.get(f"/v1/replays/{number}"), 404, "not-found")


def test_the_log_is_searched_and_one_event_shown_with_its_attempts(api: Api, database: Database) -> None:
    target = add_target(database, "audit")
    Log(database).append([[event(f"a/k{number}") for number in range(5)], [event("b/x", bucket="docs")]])
    failing = ScriptedTarget(lambda given: Failed("500 broken", retry_after=60) if given.key == "a/k3" else DELIVERED)
    Courier(database, target, failing).run()
    first = api.client.get("/v1/events", params={"prefix": "a/", "limit": 3, "events": "s3:ObjectCreated:*"}).json()
    assert [one["key"] for one in first["events"]] == ["a/k4", "a/k3", "a/k2"]
    assert "record" not in first["events"][0]
    rest = api.client.get("/v1/events", params={"prefix": "a/", "after": first["next"]}).json()
    assert [one["key"] for one in rest["events"]] == ["a/k1", "a/k0"]
    assert rest["next"] is None
    assert rest["searched_to"] == rest["events"][-1]["received_at"]
    [docs] = api.client.get("/v1/events", params={"bucket": "docs"}).json()["events"]
    assert (docs["bucket"], docs["key"]) == ("docs", "b/x")
    parked = api.client.get("/v1/events", params={"state": "parked", "target": str(target)}).json()["events"]
    assert [one["key"] for one in parked] == ["a/k3"]
    shown = api.client.get(f"/v1/events/{parked[0]['id']}").json()
    [state] = shown["delivery_states"]
    assert (state["target"], state["state"], state["reason"]) == (target.arn(""), "parked", "500 broken")
    assert (state["attempts"], state["waits"], len(state["history"])) == (1, False, 1)
    assert state["next_try"] > state["history"][0]["at"]
    assert shown["record"]["s3"]["bucket"]["name"] == "images"
    problem(api.client.get("/v1/events/none"), 404, "not-found")
    for params in (
        {"state": "gone"}, {"events": "s3:Nothing"}, {"target": "x"}, {"limit": 1001}, {"after": "x"},
        {"since": "x"}, {"key": "a", "state": "dead"}, {"prefix": "a\0"},
    ):  # fmt: skip
        problem(api.client.get("/v1/events", params=params), 400, "bad-value")
    problem(api.client.get("/v1/events", params={"target": "webhook:none"}), 404, "unknown-target")
    assert api.client.get("/v1/events").json() == {"status": "ok"}


def test_a_reconciliation_is_started_approved_cancelled_and_its_findings_are_read_in_pages(
    api: Api, database: Database
) -> None:
    values = {"address": "127.0.0.1:9", "key": "rows"}
    target = add_target(database, "rows", type_name="redis", values=values)
    add_target(database, "log")
    body = {"target": "redis:rows", "bucket": "images"}
    unseen = problem(api.client.post("/v1/reconciliations", json=body), 404, "unknown-bucket")
    assert (unseen["field"], "no event, rule, setting or run" in unseen["detail"]) == ("bucket", True)
    begun = api.client.post("/v1/reconciliations", json=body | {"unknown_bucket": True})
    assert begun.status_code == 201, begun.text
    run = begun.json()["id"]
    assert (begun.json()["state"], begun.json()["repair"]) == ("waiting", False)
    assert begun.json()["note"].startswith("no Spark worker is there")
    assert api.client.get(f"/v1/reconciliations/{run}").json() == begun.json()
    problem(api.client.post("/v1/reconciliations", json=body), 409, "already-running")
    problem(api.client.post(f"/v1/reconciliations/{run}/repair", json={}), 409, "nothing-to-repair")
    for wrong in ({"target": "webhook:log"}, {"bucket": "a/b"}, {"repair": "yes"}, {"more": 1}):
        problem(api.client.post("/v1/reconciliations", json=body | wrong), 400, "bad-value")
    problem(api.client.post("/v1/reconciliations", json=body | {"target": "redis:none"}), 404, "unknown-target")
    record_process(database, Process("h:1:x", "spark@h", "1", "thread", ["spark"]))
    assert api.client.get(f"/v1/reconciliations/{run}").json()["note"] == "", "a Spark worker is there"
    with database.writing() as connection:
        connection.execute(tables.workers.update().values(at=now_ms() - 2 * HEARTBEATS.silence_ms))
    assert api.client.get(f"/v1/reconciliations/{run}").json()["note"]

    runs = Reconciliations(database)
    runs.begin(target, "images", lease=60_000, run=run)
    runs.end(run, "drift", {"missing": 5})
    facts = [{"kind": "missing" if number % 2 else "stale", "key": f"k{number}"} for number in range(5)]
    store_findings(database, run, facts)
    at = f"/v1/reconciliations/{run}/findings"
    page = api.client.get(at, params={"limit": 2}).json()
    assert ([one["key"] for one in page["findings"]], page["next"]) == (["k0", "k1"], 2)
    page = api.client.get(at, params={"after": page["next"]}).json()
    assert ([one["key"] for one in page["findings"]], page["next"]) == (["k2", "k3", "k4"], None)
    assert len(api.client.get(at, params={"kind": "missing"}).json()["findings"]) == 2
    problem(api.client.get(at, params={"kind": "odd"}), 400, "bad-value")

    approved = api.client.post(f"/v1/reconciliations/{run}/repair", json={})
    assert approved.status_code == 201, approved.text
    assert approved.json()["repair"] is True
    cancelled = api.client.post(f"/v1/reconciliations/{approved.json()['id']}/cancel", json={})
    assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
    for path in ("none", "none/findings"):
        problem(api.client.get(f"/v1/reconciliations/{path}"), 404, "not-found")
    for word in ("repair", "cancel"):
        problem(api.client.post(f"/v1/reconciliations/none/{word}", json={}), 404, "not-found")


def test_checks_that_do_not_end_blame_not_the_database_alone_and_say_how_old_the_others_are(log: Database) -> None:
    app = create_app(settings(url_of(log)))
    late = ProbeResult((now_ms() - 90_000, [Finding("beat", "problem", "late")]), NoAnswer("within 10 s"))
    app.extensions["bucketwire_doctor"] = SimpleNamespace(get=lambda: late)
    slow, known = app.test_client().get("/v1/doctor").get_json()["findings"]
    app.extensions["bucketwire"].database.close()
    assert slow["text"].startswith("the checks do not end: the database, the broker or an API does not answer, or ")
    assert slow["text"].endswith("what else is said is of 1.5 m ago")
    assert known["text"] == "late"


def test_the_doctors_findings_are_told_and_no_password(log: Database, start: Start) -> None:
    paused = add_target(log, "paused")
    registry(log).pause(paused, "for a test")
    Log(log).append([[event("a")]])
    api = start(url_of(log), broker_url="redis://:hush-hush@127.0.0.1:9/0")

    def grades() -> dict[str, str]:
        return {one["subject"]: one["grade"] for one in api.client.get("/v1/doctor").json()["findings"]}

    until(lambda: grades()["api"] == "ok", what="the API's own heartbeat")
    answer = api.client.get("/v1/doctor")
    found = answer.json()
    assert grades() == {
        "database": "ok", "api": "ok", "broker": "problem", "webhook:paused": "warning", "counters": "ok",
    }  # fmt: skip
    texts = {one["subject"]: one["text"] for one in found["findings"]}
    assert texts["webhook:paused"] == "paused: for a test; 1 event waiting"
    commands = {one["subject"]: one["command"] for one in found["findings"]}
    assert commands["webhook:paused"] == ["target", "resume", "webhook:paused"]
    assert "webhook:paused balance: matched 1" in texts["counters"]
    assert "127.0.0.1:9" in texts["broker"]
    assert "hush-hush" not in answer.text
    assert (found["problems"], found["warnings"]) == (1, 1)
    problem(api.client.get("/v1/doctor", params={"deep": "1"}), 400, "bad-value")
