"""Names of hosts: those of services in Compose and Swarm have a `_`, everywhere."""

from __future__ import annotations

import pytest
from cryptography.fernet import Fernet

from app.config.declared_types import TYPES, source_type
from app.config.errors import BadValue
from app.config.fields.addresses import Host, Hosts, HttpUrl, RedisHost, check_host
from app.config.settings import Settings
from app.config.target_settings import load
from app.config.targets.mysql import parse_dsn

NAMES = ["my_stack_kafka", "db_1", "_service", "tasks.my_db", "a_b.example.com", "x_", "_mongo._tcp.example"]


@pytest.mark.parametrize("name", NAMES)
def test_a_host_may_have_underscores(name: str) -> None:
    check_host(name)
    assert Host().parse(f"{name}:9092") == (name, 9092)
    assert Hosts(9092).parse(f"{name},b") == ((name, 9092), ("b", 9092))
    assert HttpUrl().parse(f"http://{name}:8080/x") == f"http://{name}:8080/x"
    assert RedisHost().parse(f"rediss://{name}").host == name
    assert parse_dsn(f"me:pw@tcp({name}:3306)/db").host == name


# Each way of a type to name a host; of sources those that no target has alike.
TARGETS: list[tuple[str, dict[str, str]]] = [
    ("amqp", {"url": "amqps://u:p@{}:5671/", "routing_key": "q"}),
    ("elasticsearch", {"url": "https://{}:9200,https://b:9200", "index": "i"}),
    ("kafka", {"brokers": "a:9092,{}:9092", "topic": "t"}),
    ("mqtt", {"broker": "ws://{}:80", "topic": "t"}),
    ("mysql", {"dsn_string": "u:p@tcp({})/d", "table": "t"}),
    ("mysql", {"host": "{}", "username": "u", "database": "d", "table": "t"}),
    ("nats", {"address": "a,{}:4222", "subject": "s"}),
    ("nsq", {"nsqd_address": "{}:4150", "topic": "t"}),
    ("postgresql", {"connection_string": "host={},b dbname=d", "table": "t"}),
    ("postgresql", {"connection_string": "postgresql://u@{}/d", "table": "t"}),
    ("redis", {"address": "{0}:26379", "nodes": "b,{0}", "sentinel": "m", "key": "k"}),
    ("redis", {"address": "rediss://{}", "cluster": "on", "key": "k"}),
    ("sqs", {"queue_url": "http://{}:9324/0/q", "access_key": "a", "secret_key": "b"}),
    ("sqs", {"queue_url": "http://a/0/q", "endpoint": "http://{}:9324", "access_key": "a", "secret_key": "b"}),
    ("webhook", {"endpoint": "https://{}/x"}),
]
SOURCES: list[tuple[str, dict[str, str]]] = [
    ("amqp", {"url": "amqp://u:p@{}:5672/", "queue": "q"}),
    ("jetstream", {"address": "{}:4222", "stream": "s"}),
]


@pytest.mark.parametrize("name", NAMES)
def test_so_may_the_host_of_every_target_and_source(name: str) -> None:
    assert {kind for kind, _ in TARGETS} == set(TYPES)
    for kind, values in TARGETS:
        load(kind, {key: text.format(name) for key, text in values.items()})
    for kind, values in SOURCES:
        load(source_type(kind), {key: text.format(name) for key, text in values.items()})


@pytest.mark.parametrize("name", NAMES)
def test_so_may_the_host_of_the_database_and_of_the_broker(name: str) -> None:
    environ = {
        "BUCKETWIRE_DATABASE_URL": f"postgresql://u:p@{name}:5432/db",
        "BUCKETWIRE_BROKER_URL": f"redis://{name}:6379/0",
    }
    found = Settings.from_environ(environ | {"BUCKETWIRE_SECRET_KEYS": Fernet.generate_key().decode()})
    assert name in found.database_url
    assert name in found.broker_url


@pytest.mark.parametrize("name", ["a b", "a+b", "-a", "a-", "a..b", "a" * 64, "é"])
def test_other_names_are_refused_still(name: str) -> None:
    with pytest.raises(BadValue):
        check_host(name)
