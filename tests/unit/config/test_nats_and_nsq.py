from collections.abc import Mapping
from typing import Any

import pytest

from app.config.arn import TargetId
from app.config.errors import BadValue
from app.config.fields.addresses import HostPort
from app.config.fields.field_types import FieldType
from app.config.target_settings import (
    BadSettings,
    from_config_json,
    from_environ,
    invalid_settings,
    load,
    parse_line,
    warnings,
)
from app.config.targets.nats import ClusterId, Interval, NatsSettings, Subject
from app.config.targets.nsq import NsqSettings, Topic

NATS = {"address": "nats:4222", "subject": "minio.events"}
NSQ = {"nsqd_address": "nsq", "topic": "events"}
SUBJECT, TOPIC, CLUSTER, INTERVAL = Subject(), Topic(), ClusterId(), Interval(0, 86400)

VALUES: list[tuple[FieldType[Any], str, object]] = [
    (SUBJECT, "minio", "minio"),
    (SUBJECT, "minio.events.bucket-1_x", "minio.events.bucket-1_x"),
    (SUBJECT, "küche.события", "küche.события"),
    (SUBJECT, "a$b", "a$b"),
    (SUBJECT, "x" * 1024, "x" * 1024),
    (TOPIC, "bucket_events-1.x", "bucket_events-1.x"),
    (TOPIC, "x" * 64, "x" * 64),
    (TOPIC, "events#ephemeral", "events#ephemeral"),
    (CLUSTER, "test-cluster_1", "test-cluster_1"),
    (INTERVAL, "0", 0.0),
    (INTERVAL, "30", 30.0),
    (INTERVAL, "30s", 30.0),
    (INTERVAL, "1m30s", 90.0),
    (INTERVAL, "500ms", 0.5),
]


@pytest.mark.parametrize(("kind", "text", "value"), VALUES)
def test_a_value_is_read(kind: FieldType[Any], text: str, value: object) -> None:
    assert kind.parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (SUBJECT, "two words", "space"),
        (SUBJECT, "tab\tbed", "space or control"),
        (SUBJECT, "line\r\nPUB x 0", "space or control"),
        (SUBJECT, "nul\0", "control"),
        (SUBJECT, "minio.*", "wildcard"),
        (SUBJECT, "minio.>", "wildcard"),
        (SUBJECT, "a*b", "wildcard"),
        (SUBJECT, ".minio", "empty word"),
        (SUBJECT, "minio.", "empty word"),
        (SUBJECT, "minio..events", "empty word"),
        (SUBJECT, "$JS.API.STREAM.DELETE.EVENTS", "begins with [$]"),
        (SUBJECT, "é" * 513, "longer than 1024 bytes"),
        (TOPIC, "bad topic!", "not a topic name"),
        (TOPIC, "bad topic", "not a topic name"),
        (TOPIC, "events\n", "not a topic name"),
        (TOPIC, "küche", "not a topic name"),
        (TOPIC, "x" * 65, "not a topic name"),
        (TOPIC, "x" * 55 + "#ephemeral", "not a topic name"),  # nsqd counts the whole name
        (TOPIC, "events#durable", "not a topic name"),
        (TOPIC, "#ephemeral", "not a topic name"),
        (CLUSTER, "test.cluster", "not a cluster id"),
        (CLUSTER, "a b", "not a cluster id"),
        (INTERVAL, "soon", "not a duration"),
        (INTERVAL, "-1", "not a duration"),
        (INTERVAL, "10.5", "not a duration"),
        (INTERVAL, "86401", "out of range"),
        (INTERVAL, "25h", "out of range"),
    ],
)
def test_what_is_no_value_is_refused_without_being_quoted(kind: FieldType[Any], text: str, why: str) -> None:
    with pytest.raises(BadValue, match=why) as caught:
        kind.parse(text)
    assert text not in str(caught.value)
    assert caught.value.hint


def test_the_defaults_are_those_of_the_reference() -> None:
    nats = load(NatsSettings, {"address": "nats", "subject": "minio.events"})
    assert nats == NatsSettings(address=(HostPort("nats", 4222),), subject="minio.events")
    assert [nats.tls, nats.uses_tls, nats.jetstream, nats.streaming, nats.streaming_async] == [False] * 5
    assert (nats.ping_interval, nats.streaming_max_pub_acks_in_flight) == (0.0, 0)
    several = load(NatsSettings, {"address": "a:1, b ,[::1]:4223,a:1", "subject": "minio.events"})
    assert several.address == (HostPort("a", 1), HostPort("b", 4222), HostPort("::1", 4223))
    assert load(NsqSettings, NSQ) == NsqSettings(nsqd_address=HostPort("nsq", 4150), topic="events")


@pytest.mark.parametrize("key", ["tls", "secure", "tls_handshake_first", "cert_authority", "client_cert"])
def test_what_is_for_tls_insists_on_tls_as_it_does_in_nats_go(key: str) -> None:
    text = "/file" if "cert" in key else "on"
    more = {"client_key": "/key"} if key == "client_cert" else {}
    assert load(NatsSettings, NATS | {key: text} | more).uses_tls


BETWEEN: list[tuple[str, dict[str, str], str]] = [
    ("nats", {"username": "me"}, "password"),
    ("nats", {"password": "it"}, "username"),
    ("nats", {"token": "t", "username": "me", "password": "it"}, "token"),
    ("nats", {"token": "t", "nkey_seed": "/seed"}, "nkey_seed"),
    ("nats", {"user_credentials": "/creds", "nkey_seed": "/seed"}, "nkey_seed"),
    ("nats", {"client_cert": "/c"}, "client_key"),
    ("nats", {"client_key": "/k"}, "client_cert"),
    ("nats", {"tls_skip_verify": "on"}, "tls_skip_verify"),
    ("nats", {"streaming": "on"}, "streaming_cluster_id"),
    ("nats", {"streaming": "on", "streaming_cluster_id": "c", "jetstream": "on"}, "jetstream"),
    ("nsq", {"tls_ca": "/ca"}, "tls_ca"),
    ("nsq", {"tls_skip_verify": "on"}, "tls_skip_verify"),
    ("nsq", {"client_cert": "/c", "tls": "on"}, "client_key"),
    ("nsq", {"client_key": "/k", "tls": "on"}, "client_cert"),
]


@pytest.mark.parametrize(("type_name", "values", "key"), BETWEEN)
def test_values_that_do_not_go_together_are_refused(type_name: str, values: dict[str, str], key: str) -> None:
    minimal: Mapping[str, str] = NATS if type_name == "nats" else NSQ
    with pytest.raises(BadSettings) as caught:
        load(type_name, {**minimal, **values})
    assert [problem.key for problem in caught.value.problems] == [key]
    assert caught.value.problems[0].hint


def test_every_key_of_the_reference_can_come_from_the_environment() -> None:
    given = {
        "ENABLE": "on", "ADDRESS": "n:1", "SUBJECT": "s", "USER_CREDENTIALS": "/creds", "TLS": "on",
        "TLS_SKIP_VERIFY": "off", "TLS_HANDSHAKE_FIRST": "on", "CERT_AUTHORITY": "/ca", "CLIENT_CERT": "/c",
        "CLIENT_KEY": "/k", "PING_INTERVAL": "10", "JETSTREAM": "off", "STREAMING": "on",
        "STREAMING_CLUSTER_ID": "c", "STREAMING_ASYNC": "on", "STREAMING_MAX_PUB_ACKS_IN_FLIGHT": "7",
        "QUEUE_DIR": "/q", "QUEUE_LIMIT": "9",
    }  # fmt: skip
    found = from_environ({f"MINIO_NOTIFY_NATS_{key}_one": text for key, text in given.items()})
    assert found.problems == []
    nats = load(NatsSettings, found.targets[TargetId("nats", "one")])
    assert (nats.address, nats.ping_interval, nats.streaming_max_pub_acks_in_flight) == ((HostPort("n", 1),), 10.0, 7)
    others = {"USERNAME": "u", "PASSWORD": "p", "TOKEN": "t", "NKEY_SEED": "/s", "SECURE": "on"}
    found = from_environ({"MINIO_NOTIFY_NATS_ENABLE": "on"} | {f"MINIO_NOTIFY_NATS_{k}": v for k, v in others.items()})
    assert found.targets[TargetId("nats", "_")] == {"enable": "on"} | {k.lower(): v for k, v in others.items()}
    nsq = {"ENABLE": "on", "NSQD_ADDRESS": "n", "TOPIC": "t", "TLS": "on", "TLS_SKIP_VERIFY": "on"}
    found = from_environ({f"MINIO_NOTIFY_NSQ_{key}": text for key, text in nsq.items()})
    assert found.problems == []
    assert load(NsqSettings, found.targets[TargetId("nsq", "_")]).tls_skip_verify


def test_a_line_sets_them_too() -> None:
    target, values = parse_line('notify_nats:1 address="n:1" subject="a.b" ping_interval=0 jetstream=on password=a=b')
    assert target == TargetId("nats", "1")
    assert values == {
        "enable": "on", "address": "n:1", "subject": "a.b", "ping_interval": "0", "jetstream": "on", "password": "a=b",
    }  # fmt: skip
    target, values = parse_line("notify_nsq nsqd_address=n topic=t tls=on tls_skip_verify=on")
    assert (target, load(NsqSettings, values).topic) == (TargetId("nsq", "_"), "t")


def test_the_old_file_gives_todays_targets() -> None:
    """As MinIO wrote it until 2019, with TLS asked for by its new name and not by its old one."""
    nats = {
        "enable": True, "address": "n:4222", "subject": "bucketevents", "username": "", "password": "", "token": "",
        "tls": True, "tlsSkipVerify": False, "secure": False, "certAuthority": "", "clientCert": "", "clientKey": "",
        "pingInterval": 0, "queueDir": "", "queueLimit": 0, "jetStream": {"enable": False},
        "streaming": {"enable": True, "clusterID": "test-cluster", "clientID": "minio", "async": True,
                      "maxPubAcksInflight": 10},
    }  # fmt: skip
    nsq = {
        "enable": True, "nsqdAddress": "127.0.0.1:4150", "topic": "minio", "tls": {"enable": False, "skipVerify": True},
        "queueDir": "", "queueLimit": 0,
    }  # fmt: skip
    found = from_config_json({"nats": {"1": nats}, "nsq": {"1": nsq | {"tls": {"enable": True, "skipVerify": True}}}})
    assert found.problems == []
    assert invalid_settings(found.targets) == {}
    made = load(NatsSettings, found.targets[TargetId("nats", "1")])
    assert (made.streaming, made.streaming_cluster_id, made.streaming_async) == (True, "test-cluster", True)
    assert (made.streaming_max_pub_acks_in_flight, made.tls, made.uses_tls) == (10, True, True)
    settings = load(NsqSettings, found.targets[TargetId("nsq", "1")])
    assert (settings.nsqd_address, settings.tls, settings.tls_skip_verify) == (HostPort("127.0.0.1", 4150), True, True)
    off = from_config_json({"nsq": {"1": nsq}}).targets[TargetId("nsq", "1")]
    assert warnings("nsq", off) == ["tls_skip_verify: has no effect without TLS; set tls=on"]
