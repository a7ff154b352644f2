"""A trial by the API: to this target alone, by the ordinary way, and nothing stays in a namespace."""

from __future__ import annotations

import threading

import pytest

from app.api.errors import ApiProblem
from app.api.routes import targets
from app.config.arn import TargetId
from app.config.secrets import Sealer
from app.events.own_events import DELETE, PUT, TEST_BUCKET, TEST_EVENT
from app.outbox.engine.database import Database
from app.outbox.registry import Registry
from tests import services
from tests.integration.api.conftest import KEY, Api, problem
from tests.support.builders import add_target, registry
from tests.support.scripted_target import Courier, ScriptedTarget
from workers.delivery.namespace_policy import Policy

REDIS = {"address": "127.0.0.1:9", "key": "k"}


@pytest.mark.parametrize(
    ("policy", "sent"), [(Policy.LOG, [TEST_EVENT]), (Policy.COMPATIBLE, [PUT, DELETE]), (Policy.MIRROR, [DELETE])]
)
def test_a_test_event_goes_to_one_target_alone_and_its_history_tells(
    plain: Api, plain_log: Database, policy: Policy, sent: list[str]
) -> None:
    tried = add_target(
        plain_log,
        "tried",
        type_name="redis",
        values=REDIS | {"format": "access" if policy is Policy.LOG else "namespace"},
    )
    other = add_target(plain_log, "other")  # whose rule names every event
    answer = plain.client.post("/v1/targets/redis/tried/test", json={})
    assert answer.status_code == 202
    trial = answer.json()
    assert (trial["target"], trial["bucket"]) == (tried.arn(), TEST_BUCKET)

    def delivery_states() -> set[tuple[str, str]]:
        events = plain.client.get(trial["history"]).json()["events"]
        assert [event["id"] for event in events] == trial["ids"]
        return {(each["target"], each["state"]) for event in events for each in event["delivery_states"]}

    assert delivery_states() == {(tried.arn(), "pending")}
    arrived = ScriptedTarget()
    Courier(plain_log, tried, arrived, policy=policy).run()
    assert [event.name for event in arrived.got] == sent
    assert {event.key for event in arrived.got} == {trial["key"]}
    assert delivery_states() == {(tried.arn(), "settled")}
    untouched = ScriptedTarget()
    Courier(plain_log, other, untouched).run()
    assert untouched.got == []
    [entry] = plain.client.get("/v1/audit", params={"action": "target.test"}).json()["entries"]
    assert (entry["resource"], entry["details"]) == (
        f"target:{tried}",
        {"events": len(trial["ids"]), "buckets": [TEST_BUCKET]},
    )
    plain.client.post("/v1/targets/redis/tried/test", json={})
    assert len(plain.client.get(trial["history"]).json()["events"]) == len(trial["ids"])


def test_settings_are_tested_without_being_stored(
    plain: Api, receiver: services.Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "MAX_TEST_SECONDS", 60)  # a busy machine starts a process slowly
    path = "/v1/targets/webhook/hook"
    good = {"endpoint": receiver.url, "allow_private": "on", "auth_token": "hunter2x"}
    tried = plain.client.post(f"{path}/test-settings", json=good)
    assert tried.status_code == 200, tried.text
    found = tried.json()
    assert (found["ok"], found["target"]) == (True, TargetId("webhook", "hook").arn())
    assert [step["step"] for step in found["steps"]] == ["resolve", "connect", "login", "deliver"]
    [request] = receiver.requests()
    assert request.headers["authorization"] == "Bearer hunter2x"
    problem(plain.client.get(path), 404, "unknown-target")
    [entry] = plain.client.get("/v1/audit", params={"action": "target.test"}).json()["entries"]
    assert entry["details"]["events"] == "sent directly"
    assert "+ auth_token=*redacted*" in entry["details"]["not_stored"]

    assert plain.client.put(path, json=good).status_code == 201
    receiver.forget()
    receiver.set(status=401, body="not with hunter2x")
    changed = plain.client.post(f"{path}/test-settings", json=good | {"auth_token": "*redacted*", "timeout": "3s"})
    assert "hunter2x" not in changed.text
    step = changed.json()["steps"][-1]
    assert (changed.json()["ok"], step["step"], step["ok"]) == (False, "deliver", False)
    assert "answered 401" in step["message"]
    [request] = receiver.requests()
    assert request.headers["authorization"] == "Bearer hunter2x", "what is masked is the stored secret"
    assert "timeout" not in plain.client.get(path).json()["settings"]
    entry, *_ = plain.client.get("/v1/audit", params={"action": "target.test"}).json()["entries"]
    assert entry["details"]["not_stored"] == ["+ timeout=3s"], "where a stored secret went"
    problem(plain.client.post(f"{path}/test-settings", json={"endpoint": "x"}), 400, "bad-settings")


def test_a_secret_of_the_environment_is_sent_to_no_other_endpoint(
    plain: Api, plain_log: Database, receiver: services.Receiver
) -> None:
    fixed = {"enable": "on", "endpoint": "http://127.0.0.1:9/", "allow_private": "on", "auth_token": "hunter2x"}
    Registry(plain_log, Sealer([KEY])).sync_environment({TargetId("webhook", "fixed"): fixed}, {})
    other = {"endpoint": receiver.url, "allow_private": "on", "auth_token": "*redacted*"}
    path = "/v1/targets/webhook/fixed"
    problem(plain.client.put(path, json=other), 409, "read-only-target")
    problem(plain.client.post(f"{path}/test-settings", json=other), 409, "read-only-target")
    assert receiver.requests() == []


def test_few_tests_of_settings_run_at_once_and_one_without_a_result_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    target, closed = TargetId("webhook", "hook"), {"endpoint": "http://127.0.0.1:9/", "allow_private": "on"}
    monkeypatch.setattr(targets, "MAX_TEST_SECONDS", 0.001)
    [step] = targets.run_settings_test(target, closed, allow_private=True)
    assert (step["ok"], step["message"]) == (False, "no result within 0.001 s")
    monkeypatch.setattr(targets, "_running_tests", threading.BoundedSemaphore(1))
    with targets._running_tests, pytest.raises(ApiProblem) as caught:
        targets.run_settings_test(target, closed, allow_private=True)
    assert caught.value.kind == "too-many-tests"


def test_a_test_event_of_a_target_that_cannot_get_it_is_refused(plain: Api, plain_log: Database) -> None:
    target = add_target(plain_log, "full", queue_limit=1)
    assert plain.client.post("/v1/targets/webhook/full/test", json={}).status_code == 202
    problem(plain.client.post("/v1/targets/webhook/full/test", json={}), 503, "queue-full")
    registry(plain_log).put(target, {"endpoint": "http://127.0.0.1:9/", "enable": "off"})
    problem(plain.client.post("/v1/targets/webhook/full/test", json={}), 400, "bad-value")
    problem(plain.client.post("/v1/targets/webhook/none/test", json={}), 404, "unknown-target")
    problem(plain.client.post("/v1/targets/webhook/full/test", json={"all": True}), 400, "bad-value")
