"""The settings of Redis with Sentinel and Cluster."""

from __future__ import annotations

import pytest

from app.config.fields.addresses import HostPort
from app.config.target_settings import BadSettings, load, parse_line, redacted
from app.config.targets.redis import RedisSettings

GIVEN = {"address": "one:7000", "key": "k"}


def settings(**changes: str) -> RedisSettings:
    found = load("redis", GIVEN | changes)
    assert isinstance(found, RedisSettings)
    return found


def test_the_places_are_the_address_and_the_other_nodes_each_once() -> None:
    assert settings().places == (HostPort("one", 7000),)
    places = settings(cluster="on", nodes="two:7001, one:7000,three").places
    assert places == (HostPort("one", 7000), HostPort("two", 7001), HostPort("three", 6379))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cluster": "on", "sentinel": "m"}, "cluster: “on” contradicts sentinel; set one of the two"),
        ({"cluster": "on", "db": "2"}, "db: “2” does not exist in a Redis Cluster"),
        ({"cluster": "on", "address": "/run/redis.sock"}, "is a unix socket, which Cluster cannot use"),
        ({"sentinel": "m", "address": "/run/redis.sock"}, "is a unix socket, which Sentinel cannot use"),
        ({"sentinel": "m", "sentinel_user": "u"}, "sentinel_user: “u” is used only with a password"),
        ({"nodes": "two:7001"}, "nodes: has no effect without cluster or sentinel"),
        ({"sentinel_password": "p"}, "sentinel_password: has no effect without sentinel"),
        ({"key": "bucketwire-broker:x"}, "is among the keys of the task broker; choose one that does not begin with"),
        ({"wait_replicas": "-1"}, "wait_replicas: “-1” is out of range"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, str], said: str) -> None:
    with pytest.raises(BadSettings) as refused:
        settings(**changes)
    assert said in str(refused.value)


def test_the_password_of_the_sentinels_is_a_secret() -> None:
    _, values = parse_line("notify_redis:1 address=one:26379 key=k sentinel=m sentinel_password=hush-hush")
    assert redacted("redis", values)["sentinel_password"] == "*redacted*"
