import json

import pytest

from app.config.arn import TargetId
from app.config.errors import BadValue
from app.config.fields.addresses import HostPort
from app.config.target_settings import from_config_json, from_environ, load, parse_line, redacted
from app.config.targets.amqp import AmqpAddress, AmqpSettings, amqp_address
from app.config.targets.mqtt import MqttAddress, MqttSettings, mqtt_address
from tests.support.refused_settings import problems

AMQP = {"url": "amqp://h", "exchange": "minio", "exchange_type": "fanout"}
MQTT = {"broker": "tcp://h", "topic": "minio/events"}


def place(address: HostPort, **changes: object) -> AmqpAddress:
    usual = {"tls": False, "user": "guest", "password": "guest", "vhost": "/", "heartbeat": 60, "external": False}
    return AmqpAddress(address, **(usual | {"server_name": ""} | changes))


AMQP_URLS = [
    ("amqp://", place(HostPort("localhost", 5672))),
    ("amqp://h", place(HostPort("h", 5672))),
    ("amqp://h/", place(HostPort("h", 5672))),
    ("amqp://h//", place(HostPort("h", 5672))),
    ("amqp://h/%2F", place(HostPort("h", 5672))),
    ("AMQPS://h", place(HostPort("h", 5671), tls=True)),
    ("amqp://me@h:1/events", place(HostPort("h", 1), user="me", vhost="events")),
    ("amqp://me:@h", place(HostPort("h", 5672), user="me", password="")),
    ("amqp://us%2Fer:p%3A%40%2Fss%25@[fe80::1]:1/a%2Fb%20c",
     place(HostPort("fe80::1", 1), user="us/er", password="p:@/ss%", vhost="a/b c")),
    ("amqp://h/a/b", place(HostPort("h", 5672), vhost="a/b")),
    ("amqps://h?heartbeat=5&auth_mechanism=external&server_name_indication=b.test&cacertfile=/ca&certfile=/c&keyfile=/k",
     place(HostPort("h", 5671), tls=True, heartbeat=5, external=True, server_name="b.test")),
    ("amqp://h?channel_max=1&connection_timeout=3000", place(HostPort("h", 5672))),
    ("amqp://h?heartbeat=0", place(HostPort("h", 5672), heartbeat=0)),
]  # fmt: skip


@pytest.mark.parametrize(("url", "expected"), AMQP_URLS)
def test_an_amqp_url_leads_where_the_server_has_it_lead(url: str, expected: AmqpAddress) -> None:
    assert amqp_address(url) == expected
    assert load(AmqpSettings, AMQP | {"url": url}).place == expected


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://h", "schemes amqp, amqps"),
        ("amqp:h", "schemes amqp, amqps"),
        ("h:5672", "schemes amqp, amqps"),
        ("amqp://h:0", "no valid port"),
        ("amqp://h:x", "not a URL"),
        ("amqp://h/a b", "space"),
        ("amqp://h/a#b", "#fragment"),
        ("amqp://h#", "#fragment"),
        ("amqp://me:100%@h", "% without two hexadecimal digits"),
        ("amqp://h/%00", "escaped control character"),
        ("amqp://h+h", "no valid host"),
        ("amqp://h/" + "v" * 256, "longer than the 255 bytes"),
        ("amqp://h?heartbeat=x", "heartbeat that is not a number"),
        ("amqp://h?heartbeat=70000", "longer than AMQP allows"),
        ("amqp://h?hartbeat=1", "unknown parameter"),
        ("amqp://h?heartbeat", "not name=value"),
        ("amqp://h?auth_mechanism=gssapi", "write plain or external"),
        ("amqps://h?cacertfile=ca.pem", "cacertfile that is not an absolute path"),
    ],
)
def test_an_amqp_url_that_cannot_be_is_refused(url: str, words: str) -> None:
    with pytest.raises(BadValue) as caught:
        amqp_address(url)
    assert words in f"{caught.value.problem}; {caught.value.hint}"
    assert set(problems(AmqpSettings, AMQP | {"url": url})) == {"url"}


MQTT_URLS = [
    ("tcp://h", MqttAddress(HostPort("h", 1883), tls=False, path="", user="", password="")),
    ("tcp://h:1/", MqttAddress(HostPort("h", 1), tls=False, path="", user="", password="")),
    ("tcps://h", MqttAddress(HostPort("h", 8883), tls=True, path="", user="", password="")),
    ("ssl://h", MqttAddress(HostPort("h", 8883), tls=True, path="", user="", password="")),
    ("TLS://h", MqttAddress(HostPort("h", 8883), tls=True, path="", user="", password="")),
    ("ws://h", MqttAddress(HostPort("h", 80), tls=False, path="/", user="", password="")),
    ("wss://me:p%3Aw@[::1]/mqtt?x=1",
     MqttAddress(HostPort("::1", 443), tls=True, path="/mqtt?x=1", user="me", password="p:w")),
]  # fmt: skip


@pytest.mark.parametrize(("url", "expected"), MQTT_URLS)
def test_an_mqtt_url_leads_where_the_server_has_it_lead(url: str, expected: MqttAddress) -> None:
    assert mqtt_address(url) == expected
    assert load(MqttSettings, MQTT | {"broker": url}).place == expected


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mqtt://h", "write tcp://host:1883"),
        ("h:1883", "not a URL with a scheme"),
        ("tcp:h", "not a URL with a scheme"),
        ("tcp://", "not a URL with a scheme"),
        ("tcp://h/topic", "set the topic in topic"),
        ("tcp://h?x=1", "set the topic in topic"),
        ("ws://h/ü", "outside ASCII"),
        ("ws://h/a%0d%0aX: y", "space or control"),
        ("ws://h/a%0d%0aX:y", "escaped control character"),
        ("tcp://h#x", "#fragment"),
    ],
)
def test_an_mqtt_url_that_cannot_be_is_refused(url: str, words: str) -> None:
    with pytest.raises(BadValue) as caught:
        mqtt_address(url)
    assert words in f"{caught.value.problem}; {caught.value.hint}"
    assert set(problems(MqttSettings, MQTT | {"broker": url})) == {"broker"}


def test_the_defaults_are_minios_and_ours() -> None:
    amqp = load(AmqpSettings, AMQP)
    flags = ("mandatory", "immediate", "durable", "internal", "no_wait", "auto_deleted", "publisher_confirms")
    assert not any(getattr(amqp, flag) for flag in flags)
    assert (amqp.delivery_mode, amqp.routing_key, amqp.tls_skip_verify) == (0, "", False)
    mqtt = load(MqttSettings, MQTT)
    assert (mqtt.qos, mqtt.version, mqtt.retain, mqtt.keep_alive) == (0, "3.1.1", False, 10)
    assert load(MqttSettings, MQTT | {"keep_alive_interval": "300ms"}).keep_alive == 1
    assert load(MqttSettings, MQTT | {"keep_alive_interval": "1m30s", "reconnect_interval": "1h"}).keep_alive == 90


AMQP_BETWEEN: list[tuple[dict[str, str], str]] = [
    ({"exchange": ""}, "exchange"),
    ({"exchange": "", "exchange_type": ""}, "exchange"),
    ({"url": "amqp://me:pw@h", "password": "pw"}, "password"),
    ({"tls_ca": "/ca"}, "tls_ca"),
    ({"tls_skip_verify": "on"}, "tls_skip_verify"),
    ({"client_cert": "/c", "client_key": "/k"}, "client_cert"),
    ({"url": "amqps://h", "client_cert": "/c"}, "client_key"),
    ({"url": "amqps://h?keyfile=/k"}, "client_cert"),
    ({"delivery_mode": "3"}, "delivery_mode"),
    ({"exchange": "x" * 256}, "exchange"),
    ({"routing_key": "ü" * 128}, "routing_key"),
]


@pytest.mark.parametrize(("changes", "key"), AMQP_BETWEEN)
def test_amqp_values_that_do_not_go_together_are_refused(changes: dict[str, str], key: str) -> None:
    values = AMQP | {"routing_key": "" if changes.get("exchange") == "" else "key"} | changes
    assert key in problems(AmqpSettings, values)


def test_a_queue_needs_no_exchange_and_an_exchange_no_type() -> None:
    assert load(AmqpSettings, {"url": "amqp://h", "routing_key": "queue"}).exchange == ""
    assert load(AmqpSettings, {"url": "amqp://h", "exchange": "there"}).exchange_type == ""


def test_files_may_stand_in_the_amqp_url_and_keys_go_before_them() -> None:
    settings = load(AmqpSettings, AMQP | {"url": "amqps://h?cacertfile=/ca&certfile=/c&keyfile=/k", "tls_ca": "/other"})
    assert [settings.tls_file(key) for key in ("tls_ca", "client_cert", "client_key")] == ["/other", "/c", "/k"]


MQTT_BETWEEN: list[tuple[dict[str, str], str]] = [
    ({"qos": "3"}, "qos"),
    ({"qos": "-1"}, "qos"),
    ({"qos": "0", "queue_dir": "/var/events"}, "qos"),
    ({"version": "4"}, "version"),
    ({"topic": "minio/#"}, "topic"),
    ({"topic": "+/events"}, "topic"),
    ({"topic": "a\0b"}, "topic"),
    ({"keep_alive_interval": "10"}, "keep_alive_interval"),
    ({"keep_alive_interval": "19h"}, "keep_alive_interval"),
    ({"password": "pw"}, "password"),
    ({"broker": "tcp://:pw@h"}, "password"),
    ({"broker": "tcp://me:pw@h", "username": "me"}, "username"),
    ({"broker": "tcp://me:pw@h", "password": "pw"}, "password"),
    ({"tls_ca": "/ca"}, "tls_ca"),
    ({"broker": "ws://h", "tls_skip_verify": "on"}, "tls_skip_verify"),
    ({"broker": "tls://h", "client_cert": "/c"}, "client_key"),
]


@pytest.mark.parametrize(("changes", "key"), MQTT_BETWEEN)
def test_mqtt_values_that_do_not_go_together_are_refused(changes: dict[str, str], key: str) -> None:
    assert set(problems(MqttSettings, MQTT | changes)) == {key}


def test_no_password_of_a_url_is_shown() -> None:
    for type_name, key, url in (("amqp", "url", "amqp://me:hunter2@h/v"), ("mqtt", "broker", "tcp://me:hunter2@h")):
        cls = AmqpSettings if type_name == "amqp" else MqttSettings
        values = (AMQP if type_name == "amqp" else MQTT) | {key: url}
        assert redacted(type_name, values)[key] == url.replace("hunter2", "*redacted*")
        settings = load(cls, values)
        assert "hunter2" not in f"{settings!r} {settings.place!r}"
        for wrong in (url.replace("hunter2@h", "hunter2@h:x"), url.replace("hunter2", "hunter/2"), url + "#"):
            assert "hunter" not in problems(cls, values | {key: wrong})[key]


def test_a_url_may_stand_in_a_file_or_variable() -> None:
    settings = load(AmqpSettings, AMQP | {"url": "env:BROKER"}, {"BROKER": "amqp://me:pw@h"})
    assert settings.place.password == "pw"


def test_minios_variables_are_understood() -> None:
    given = {
        "ENABLE": "on", "URL": "amqp://me:pw@h:5672", "EXCHANGE": "minio", "EXCHANGE_TYPE": "direct",
        "ROUTING_KEY": "k", "MANDATORY": "on", "IMMEDIATE": "on", "DURABLE": "on", "INTERNAL": "on", "NO_WAIT": "on",
        "AUTO_DELETED": "on", "DELIVERY_MODE": "2", "PUBLISHING_CONFIRMS": "on", "QUEUE_DIR": "/d", "QUEUE_LIMIT": "5",
    }  # fmt: skip
    found = from_environ({f"MINIO_NOTIFY_AMQP_{name}_ONE": value for name, value in given.items()})
    assert found.problems == []
    settings = load(AmqpSettings, found.targets[TargetId("amqp", "ONE")])
    assert settings.publisher_confirms
    assert settings.immediate
    given = {
        "ENABLE": "on", "BROKER": "tcp://h:1883", "TOPIC": "t", "USERNAME": "me", "PASSWORD": "pw", "QOS": "1",
        "KEEP_ALIVE_INTERVAL": "10s", "RECONNECT_INTERVAL": "1m", "QUEUE_DIR": "/d", "QUEUE_LIMIT": "5",
    }  # fmt: skip
    found = from_environ({f"MINIO_NOTIFY_MQTT_{name}": value for name, value in given.items()})
    assert found.problems == []
    assert load(MqttSettings, found.targets[TargetId("mqtt", "_")]).place.password == "pw"


def test_minios_lines_are_understood() -> None:
    target, values = parse_line(
        'notify_amqp:1 url="amqp://me:pw@h:5672" exchange=minio exchange_type=direct mandatory=off durable=on'
    )
    assert target == TargetId("amqp", "1")
    assert load(AmqpSettings, values).durable
    target, values = parse_line('notify_mqtt topic=minio broker="tcp://h:1883" qos=2 keep_alive_interval=10s')
    assert load(MqttSettings, values).qos == 2


def test_the_old_file_is_understood() -> None:
    # As in the guides of 2016 and 2017.
    old = json.loads("""
    {"amqp": {"1": {"enable": true, "url": "amqp://u:p@h:5672", "exchange": "bucketevents", "routingKey": "bucketlogs",
                    "exchangeType": "fanout", "deliveryMode": 0, "mandatory": false, "immediate": false,
                    "durable": false, "internal": false, "noWait": false, "autoDeleted": false}},
     "mqtt": {"1": {"enable": true, "broker": "tcp://h:1883", "topic": "minio", "qos": 1, "clientId": "minio",
                    "username": "", "password": "", "reconnectInterval": 0, "keepAliveInterval": 0}}}
    """)
    found = from_config_json(old)
    assert found.problems == []
    amqp = load(AmqpSettings, found.targets[TargetId("amqp", "1")])
    assert (amqp.exchange_type, amqp.routing_key) == ("fanout", "bucketlogs")
    mqtt = load(MqttSettings, found.targets[TargetId("mqtt", "1")])
    assert (mqtt.topic, mqtt.qos, mqtt.keep_alive) == ("minio", 1, 10)
