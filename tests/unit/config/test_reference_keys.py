"""Every key of reference §4 in every form that settings come in, and every kind of value that §3.3 refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from app.config import target_settings
from app.config.arn import TargetId
from app.config.declared_types import TYPES
from app.config.errors import REDACTED, BadSettings
from app.config.fields.fields import fields_of
from app.config.targets.base import TargetSettings
from tests.support.reference_keys import HIDDEN_IF_REFUSED, TABLES, Row, camel, refused, valid

Way = Callable[[str, Mapping[str, str]], Mapping[str, object]]
ROWS = [pytest.param(name, row, id=f"{name}-{row.key}") for name, table in TABLES.items() for row in table.rows]


def by_environment(type_name: str, values: Mapping[str, str]) -> Mapping[str, object]:
    table = TABLES[type_name]
    suffixes = {row.key: row.env for row in table.rows}
    given = {"enable": "on"} | dict(values)
    environ = {f"MINIO_NOTIFY_{table.env}_{suffixes[key]}_audit_LOG": text for key, text in given.items()}
    found = target_settings.from_environ(environ)
    assert not found.problems
    return found.targets[TargetId(type_name, "audit_LOG")]


def by_line(type_name: str, values: Mapping[str, str]) -> Mapping[str, object]:
    pairs = " ".join(f'{key}="{text}"' for key, text in values.items())
    target, texts = target_settings.parse_line(f"{TABLES[type_name].section}:audit {pairs}")
    assert target == TargetId(type_name, "audit")
    return texts


def by_old_json(type_name: str, values: Mapping[str, str]) -> Mapping[str, object]:
    members = {camel(key): text for key, text in ({"enable": "on"} | dict(values)).items()}
    found = target_settings.from_config_json({"version": "33", "notify": {type_name: {"1": members}}})
    assert not found.problems
    return found.targets[TargetId(type_name, "1")]


WAYS = pytest.mark.parametrize("way", [by_environment, by_line, by_old_json])


def test_the_reference_tables_every_type_of_minio() -> None:
    assert TABLES.keys() == TYPES.keys() - {"sqs"}


@WAYS
@pytest.mark.parametrize(("type_name", "row"), ROWS)
def test_every_key_is_accepted_and_means_the_same_in_every_form(type_name: str, row: Row, way: Way) -> None:
    values = valid(type_name, row)
    settings: TargetSettings = target_settings.load(type_name, way(type_name, values))
    assert settings == target_settings.load(type_name, values)
    if row.key not in ("enable", *TABLES[type_name].required):
        assert getattr(settings, row.key) != getattr(TYPES[type_name], row.key), "it says nothing"


@WAYS
@pytest.mark.parametrize(("type_name", "row"), ROWS)
def test_every_value_that_is_none_is_refused_with_its_key_and_the_reason(type_name: str, row: Row, way: Way) -> None:
    for values in refused(type_name, row):
        text = values[row.key]
        with pytest.raises(BadSettings) as caught:
            target_settings.load(type_name, way(type_name, values))
        (problem,) = caught.value.problems
        assert problem.key == row.key
        assert problem.problem
        assert problem.hint
        if row.secret or row.kind in HIDDEN_IF_REFUSED:
            assert problem.value == REDACTED
            assert text not in str(caught.value)
        elif (field := fields_of(TYPES[type_name])[row.key]).kind.is_sealed:
            assert problem.value == field.shown(text)
        else:
            assert text in problem.value


@WAYS
@pytest.mark.parametrize("type_name", TABLES)
def test_what_is_required_is_asked_for(type_name: str, way: Way) -> None:
    least = TABLES[type_name].least
    for key in least:
        with pytest.raises(BadSettings) as caught:
            target_settings.load(type_name, way(type_name, {name: text for name, text in least.items() if name != key}))
        assert {problem.key for problem in caught.value.problems} == {key}


@pytest.mark.parametrize("type_name", TABLES)
def test_a_stranger_is_refused_and_its_value_not_told(type_name: str) -> None:
    table = TABLES[type_name]
    environ = {f"MINIO_NOTIFY_{table.env}_ENABLE": "on", f"MINIO_NOTIFY_{table.env}_PASWORT": "hush"}
    (texts,) = target_settings.from_environ(environ).targets.values()
    old = target_settings.from_config_json({"notify": {type_name: {"1": {"pasWort": "hush"}}}})
    for refuse in (
        lambda: target_settings.load(type_name, texts),
        lambda: target_settings.parse_line(f"{table.section} pasWort=hush"),
        lambda: target_settings.load(type_name, old.targets[TargetId(type_name, "1")]),
    ):
        with pytest.raises(BadSettings, match=r"(?i)paswort.*is not a known setting") as caught:
            refuse()
        assert "hush" not in str(caught.value)


def test_the_member_names_of_old_files_are_known() -> None:
    """The members that §3.5 spells out, one by one, also those that mean nothing today."""
    notify: dict[str, dict[str, dict[str, object]]] = {
        "amqp": {"1": {
            "enable": True, "url": "amqp://h/", "exchange": "x", "exchangeType": "direct", "routingKey": "r",
            "deliveryMode": 2, "noWait": True, "autoDeleted": True, "immediate": True, "queueDir": "", "queueLimit": 0,
        }},
        "kafka": {"1": {"enable": True, "brokers": ["a:1", "b:2"], "topic": "t"}},
        "mqtt": {"1": {"enable": True, "broker": "tcp://h:1", "topic": "t", "clientId": "me"}},
        "nats": {"1": {
            "enable": True, "address": "h:1", "subject": "s", "secure": True,
            "streaming": {
                "enable": True, "clusterID": "c", "clientID": "me", "async": True, "maxPubAcksInflight": 7,
            },
        }},
        "postgresql": {"1": {
            "enable": True, "connectionString": "", "table": "t", "host": "h", "port": "5432", "user": "u",
            "password": "p", "database": "d",
        }},
        "mysql": {"1": {
            "enable": True, "dsnString": "", "table": "t", "host": "h", "port": "3306", "user": "u", "password": "p",
            "database": "d",
        }},
    }  # fmt: skip
    found = target_settings.from_config_json({"notify": notify})
    assert not found.problems
    loaded = {target.type: target_settings.load(target.type, texts) for target, texts in found.targets.items()}
    assert loaded.keys() == notify.keys()
    for settings, key, value in (
        (loaded["amqp"], "exchange_type", "direct"), (loaded["amqp"], "delivery_mode", 2),
        (loaded["amqp"], "immediate", True), (loaded["kafka"], "brokers", "a:1,b:2"),
        (loaded["nats"], "streaming", True), (loaded["nats"], "streaming_cluster_id", "c"),
        (loaded["nats"], "streaming_async", True), (loaded["nats"], "streaming_max_pub_acks_in_flight", 7),
        (loaded["nats"], "uses_tls", True), (loaded["postgresql"], "username", "u"),
        (loaded["mysql"], "database", "d"),
    ):  # fmt: skip
        assert getattr(settings, key) == value, key


@pytest.mark.parametrize("text", ["1", "t", "T", "true", "TRUE", "True", "on", "ON", "On", "enabled", "Enabled"])
def test_every_spelling_of_on_makes_a_target(text: str) -> None:
    assert target_settings.load("redis", TABLES["redis"].least | {"enable": text}).enable


@pytest.mark.parametrize("way", [by_environment, by_old_json])
def test_a_broken_target_is_told_of_and_no_other_suffers(way: Way) -> None:
    good = TargetId("webhook", "good")
    found = {TargetId(name, "bad"): way(name, {}) for name in TABLES} | {good: way("webhook", {"endpoint": "http://h"})}
    problems = target_settings.invalid_settings(found)
    assert problems.keys() == found.keys() - {good}
    for target, error in problems.items():
        assert str(target) in str(error)
