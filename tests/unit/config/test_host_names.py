"""Names of hosts: those of services in Compose and Swarm have a `_`, everywhere."""

from __future__ import annotations

import pytest
from cryptography.fernet import Fernet

from app.config.errors import BadValue
from app.config.fields.addresses import Host, Hosts, HttpUrl, RedisHost, check_host
from app.config.settings import Settings
from app.config.targets.mysql_dsn import parse_dsn

NAMES = ["my_stack_kafka", "db_1", "_service", "tasks.my_db", "a_b.example.com", "x_", "_mongo._tcp.example"]


@pytest.mark.parametrize("name", NAMES)
def test_a_host_may_have_underscores(name: str) -> None:
    check_host(name)
    assert Host().parse(f"{name}:9092") == (name, 9092)
    assert Hosts(9092).parse(f"{name},b") == ((name, 9092), ("b", 9092))
    assert HttpUrl().parse(f"http://{name}:8080/x") == f"http://{name}:8080/x"
    assert RedisHost().parse(f"rediss://{name}").host == name
    assert parse_dsn(f"me:pw@tcp({name}:3306)/db").host == name


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
