"""Every key of reference §4 by the API, every value that §3.3 refuses, and what a broken target does to others."""

from __future__ import annotations

import pytest

from app.config.arn import TargetId
from app.config.errors import REDACTED
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.rules.model import Rule
from app.supervisor.start import sync_environment
from tests.integration.api.conftest import Api, problem
from tests.support.builders import event, registry
from tests.support.reference_keys import HIDDEN_IF_REFUSED, TABLES, refused, valid
from tests.support.scripted_target import Courier, ScriptedTarget


@pytest.mark.nightly(
    "three types: each key and each wrong value of each type is a unit",
    when=lambda type_name: type_name not in {"kafka", "postgresql", "webhook"},
)
@pytest.mark.parametrize("type_name", TABLES)
def test_every_key_is_taken_and_shown_and_every_value_that_is_none_is_refused(plain: Api, type_name: str) -> None:
    place = f"/v1/targets/{type_name}/audit"
    for row in TABLES[type_name].rows:
        given = valid(type_name, row)
        answer = plain.client.put(place, json=given)
        assert answer.status_code in (200, 201), answer.text
        shown = answer.json()["settings"]
        assert shown.keys() == given.keys()
        assert shown[row.key] == (REDACTED if row.secret else shown[row.key])
        if not row.secret and row.kind not in ("amqp", "url", "dsn"):
            assert shown[row.key] == given[row.key]
        for wrong in refused(type_name, row):
            answer = plain.client.put(place, json=wrong)
            problem(answer, 400, "bad-settings")
            (error,) = answer.json()["errors"]
            assert error["field"] == row.key
            assert error["problem"]
            assert error["hint"]
            if row.kind == "url":  # its path may be a secret
                assert wrong[row.key].startswith(error["value"].removesuffix(REDACTED))
            else:
                hidden = row.secret or row.kind in HIDDEN_IF_REFUSED
                assert (wrong[row.key] in error["value"]) != hidden
                assert not hidden or wrong[row.key] not in answer.text
        assert plain.client.get(place).json()["settings"] == shown, "a refused change left something"


def test_targets_of_every_type_broken_in_the_environment_leave_a_good_one_at_work(
    plain: Api, plain_log: Database
) -> None:
    environ = {f"MINIO_NOTIFY_{table.env}_ENABLE_bad": "on" for table in TABLES.values()}
    environ |= {"MINIO_NOTIFY_REDIS_KEEY_bad": "x", "MINIO_NOTIFY_KAFKA_BROKERS_bad": "a:b:c"}
    environ |= {"MINIO_NOTIFY_WEBHOOK_ENABLE_good": "on", "MINIO_NOTIFY_WEBHOOK_ENDPOINT_good": "http://127.0.0.1:9/"}
    told = sync_environment(registry(plain_log), environ)
    assert len(told) >= len(TABLES)
    states = {(each["type"], each["name"]): each["state"] for each in plain.client.get("/v1/targets").json()["targets"]}
    assert states == {(name, "bad"): "broken" for name in TABLES} | {("webhook", "good"): "running"}

    good = TargetId("webhook", "good")
    for type_name, name in states:
        target = TargetId(type_name, name)
        registry(plain_log).add_rule(Rule(bucket="*", events=("*",), prefix="", suffix="", target=target, rule_id=""))
    Log(plain_log).append([[event("a"), event("b")]])
    arrived = ScriptedTarget()
    Courier(plain_log, good, arrived).run()
    assert sorted(arrived.keys()) == ["a", "b"]
    waiting = {each["state"]: each["events"]["pending"] for each in plain.client.get("/v1/targets").json()["targets"]}
    assert waiting == {"broken": 2, "running": 0}
