import json

from app.config.arn import TargetId
from app.config.target_settings import from_config_json, invalid_settings, load
from app.config.targets.postgresql import PostgresSettings

# As in the guides of 2016 and 2017.
OLD = json.loads("""
{"version": "19", "region": "us-east-1", "notify": {
  "redis": {"1": {"enable": true, "format": "namespace", "address": "127.0.0.1:6379", "password": "yoursecret",
                  "key": "bucketevents"}},
  "postgresql": {"1": {"enable": true, "format": "namespace", "connectionString": "sslmode=disable",
                       "table": "bucketevents", "host": "127.0.0.1", "port": "5432", "user": "postgres",
                       "password": "password", "database": "minio_events"}},
  "webhook": {"1": {"enable": true, "endpoint": "http://localhost:3000/", "queueDir": "", "queueLimit": 0},
              "2": {"enable": false, "endpoint": ""}, "3": {"endpoint": "http://h"}}
}}
""")


def test_the_old_file_gives_todays_targets() -> None:
    found = from_config_json(OLD)
    assert found.problems == []
    assert invalid_settings(found.targets) == {}
    assert list(map(str, found.targets)) == ["redis:1", "postgresql:1", "webhook:1", "webhook:2", "webhook:3"]
    webhook = found.targets[TargetId("webhook", "1")]
    assert webhook == {"enable": "on", "endpoint": "http://localhost:3000/", "queue_dir": "", "queue_limit": "0"}
    postgres = load(PostgresSettings, found.targets[TargetId("postgresql", "1")])
    assert postgres.dsn == (
        "sslmode=disable host=127.0.0.1 port=5432 user=postgres password=password dbname=minio_events"
    )


def test_a_target_that_does_not_say_enable_is_off() -> None:
    assert from_config_json(OLD).targets[TargetId("webhook", "3")]["enable"] == "off"


def test_the_member_notify_alone_will_do() -> None:
    assert from_config_json(OLD["notify"])[:2] == from_config_json(OLD)[:2]


def test_what_is_left_out_is_named() -> None:
    mqtt = {"enable": True, "broker": "tcp://h:1883", "topic": "minio", "clientId": "minio"}
    nats = {"enable": True, "address": "h:4222", "subject": "s", "streaming": {"enable": False, "clientID": "x"}}
    redis = {"enable": True, "address": "h:6379", "key": "k"}
    types = {
        "mqtt": {"1": mqtt, "2": mqtt | {"clientId": ""}, "3": mqtt | {"enable": False}},
        "nats": {"1": nats},
        "redis": {"1": redis, "2": redis | {"format": "access"}},
        "elasticsearch": {"1": {"enable": True, "url": "http://h:9200", "index": "i"}},
    }
    found = from_config_json({"region": "us-east-1", "notify": types})
    assert invalid_settings(found.targets) == {}
    assert [note.split(":", 2)[:2] for note in found.notes[1:]] == [
        ["mqtt", "1"], ["nats", "1"], ["redis", "1"], ["elasticsearch", "1"],
    ]  # fmt: skip
    said = " ".join(found.notes)
    for words in ("BUCKETWIRE_REGION=us-east-1", "mqtt:1: clientId is left out", "nats:1: streaming.clientID is left"):
        assert words in said
    assert "redis:1: no format is given: it is namespace" in said


def test_nested_and_camel_case_members_find_their_keys() -> None:
    members = {"tls": {"enable": True, "skipVerify": True, "CA": "/ca"}, "retryMaxDelay": "1m", "key": ["a", "b"]}
    found = from_config_json({"redis": {"x": members}})
    assert found.targets[TargetId("redis", "x")] == {
        "enable": "off",
        "tls": "on",
        "tls_skip_verify": "on",
        "tls_ca": "/ca",
        "retry_max_delay": "1m",
        "key": "a,b",
    }


def test_what_is_no_key_today_breaks_its_target_only() -> None:
    found = from_config_json({"webhook": {"a": {"enable": True, "endpoint": "http://h", "stream": {"clientID": "x"}}}})
    problem = str(invalid_settings(found.targets)[TargetId("webhook", "a")])
    assert problem.startswith("webhook:a: stream.clientID: is not a known setting")


def test_what_is_no_target_is_told_with_its_place() -> None:
    document = {"radis": {}, "redis": {"a:b": {}, "c": 1}, "webhook": [], "postgresql": {"1": {"enable": False}}}
    found = from_config_json({"notify": document})
    assert list(found.targets) == [TargetId("postgresql", "1")]
    assert [problem.key for problem in found.problems] == [
        "notify.radis", "notify.redis.a:b", "notify.redis.c", "notify.webhook",
    ]  # fmt: skip


def test_what_is_no_file_of_this_kind_is_told() -> None:
    for document in ([], "x", None, {"notify": []}):
        assert [problem.key for problem in from_config_json(document).problems] == ["notify"]
