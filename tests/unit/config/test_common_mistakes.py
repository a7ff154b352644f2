"""Mistakes that are common: the message says what was meant."""

from __future__ import annotations

import pytest

from app.config import target_settings
from app.config.errors import BadSettings, Problem

MINIMAL = {
    "kafka": {"topic": "t"},
    "nats": {"subject": "s"},
    "elasticsearch": {"index": "i"},
    "nsq": {"topic": "t"},
    "redis": {"key": "k"},
    "postgresql": {"connection_string": "host=h"},
    "webhook": {"endpoint": "http://h/"},
}


def problem(type_name: str, **values: str) -> Problem:
    with pytest.raises(BadSettings) as caught:
        target_settings.load(type_name, MINIMAL[type_name] | values)
    (found,) = caught.value.problems
    return found


@pytest.mark.parametrize(
    ("type_name", "key", "text"),
    [
        ("kafka", "brokers", "a:9092;b:9092"),
        ("kafka", "brokers", "a:9092; b:9092"),
        ("kafka", "brokers", "a;b"),
        ("kafka", "brokers", "a:9092 b:9092"),
        ("kafka", "brokers", "a:9092|b:9092"),
        ("kafka", "brokers", "a:9092,b:9092;c:9092"),
        ("kafka", "brokers", "a b:9092"),
        ("nats", "address", "a:4222;b:4222"),
        ("nats", "address", "a b"),
        ("elasticsearch", "url", "http://a:9200;http://b:9200"),
        ("elasticsearch", "url", "http://a:9200 http://b:9200"),
        ("elasticsearch", "url", "http://a;b:9200"),
        ("elasticsearch", "url", "http://a:9200 b:9200"),
    ],
)
def test_hosts_that_no_comma_separates_are_told_so(type_name: str, key: str, text: str) -> None:
    found = problem(type_name, **{key: text})
    assert (found.key, "comma" in found.problem) == (key, True)
    assert "," in found.hint


@pytest.mark.parametrize(
    ("type_name", "key", "text"),
    [("nsq", "nsqd_address", "a:1,b:2"), ("nsq", "nsqd_address", "a:1;b:2"), ("redis", "address", "a:1;b:2")],
)
def test_several_hosts_where_one_is_wanted_are_told_so(type_name: str, key: str, text: str) -> None:
    assert problem(type_name, **{key: text}).problem == "is more than one host"


@pytest.mark.parametrize(
    ("text", "schema", "table"),
    [("app.events", "app", "events"), ('"App".events', '"App"', "events"), ('app."Odd table"', "app", '"Odd table"')],
)
def test_a_schema_belongs_into_the_search_path(text: str, schema: str, table: str) -> None:
    found = problem("postgresql", table=text)
    assert (found.key, "has a schema" in found.problem) == ("table", True)
    assert f"write {table}, " in found.hint
    assert f"options=-csearch_path={schema}" in found.hint
    assert f"as PgBouncer refuses options, ALTER ROLE … SET search_path = {schema}" in found.hint
    target_settings.load("postgresql", MINIMAL["postgresql"] | {"table": '"app.events"'})


def test_an_auth_token_of_three_words_is_warned_of() -> None:
    settings = MINIMAL["webhook"] | {"auth_token": "Token s3cret def"}
    (sentence,) = target_settings.warnings("webhook", settings)
    assert sentence.startswith("auth_token has 3 words and is not sent: write the token alone")
    assert "s3cret" not in sentence


@pytest.mark.parametrize("token", ["abc", "Splunk abc", "  abc ", ""])
def test_an_auth_token_that_is_sent_is_not_warned_of(token: str) -> None:
    assert target_settings.warnings("webhook", MINIMAL["webhook"] | {"auth_token": token}) == []
