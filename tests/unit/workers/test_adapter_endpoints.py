"""Where the test of a target looks, by its settings."""

from __future__ import annotations

import pytest

from app.config.declared_types import TYPES
from app.config.target_settings import load
from workers.targets import create
from workers.targets.base import TargetUnavailable

SETTINGS: dict[str, dict[str, str]] = {
    "amqp": {"url": "amqps://h/", "nodes": "h2:1", "routing_key": "q"},
    "elasticsearch": {"url": "https://h:1,https://h2:1", "index": "i"},
    "kafka": {"brokers": "h:1,h2:1", "topic": "t", "tls": "on"},
    "mqtt": {"broker": "wss://h:1/path", "topic": "t"},
    "mysql": {"dsn_string": "me@unix(/run/h.sock)/d", "table": "t"},
    "nats": {"address": "h:1,h2:1", "subject": "s", "tls_handshake_first": "on"},
    "nsq": {"nsqd_address": "h:1", "topic": "t", "tls": "on"},
    "postgresql": {"connection_string": "host=h,/run/pg port=1", "table": "t"},
    "redis": {"address": "rediss://h:1", "key": "k"},
    "sqs": {"queue_url": "https://h:1/0/q", "access_key": "a", "secret_key": "b"},
    "webhook": {"endpoint": "https://h:1/path", "allow_private": "on"},
}
EXPECTED = {
    "amqp": ["h:5671", "h2:1"],
    "mysql": ["/run/h.sock"],
    "postgresql": ["h:1", "/run/pg/.s.PGSQL.1"],
}
TLS_WITHIN_PROTOCOL = {"mysql", "nsq", "postgresql"}


@pytest.mark.parametrize("type_name", TYPES)
def test_every_adapter_names_the_addresses_in_its_settings_and_opens_nothing(type_name: str) -> None:
    values = SETTINGS.get(type_name, TYPES[type_name].example)
    endpoints = create(type_name, load(type_name, values)).endpoints()
    several = any("h2:1" in text for text in values.values())
    assert [str(one.address) for one in endpoints] == EXPECTED.get(type_name, ["h:1", "h2:1"] if several else ["h:1"])
    for endpoint in endpoints:
        assert (endpoint.context is None) == (type_name in TLS_WITHIN_PROTOCOL)
        assert endpoint.context is None or endpoint.context().check_hostname


@pytest.mark.parametrize("type_name", ["elasticsearch", "webhook"])
def test_http_is_checked_at_the_proxy_that_it_goes_through(type_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = create(type_name, load(type_name, SETTINGS[type_name]))
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert {str(one.address) for one in adapter.endpoints()} == {"proxy:3128"}
    monkeypatch.setenv("HTTPS_PROXY", "socks5://proxy:1080")
    with pytest.raises(TargetUnavailable, match="HTTPS_PROXY: only http and https"):
        adapter.endpoints()
