"""An unusable certificate file is called by the name that its setting has in that type of target."""

from __future__ import annotations

import pytest

from app.config import target_settings
from workers.targets import create
from workers.targets.base import TargetUnavailable

KAFKA = {"brokers": "127.0.0.1:1", "topic": "t", "tls": "on"}
NATS = {"address": "127.0.0.1:1", "subject": "s"}
AMQP = {"routing_key": "q", "mandatory": "on"}
FROM_URL = "amqps://127.0.0.1:1?cacertfile=/absent.pem"
PAIR_IN_URL = "amqps://127.0.0.1:1?certfile=/absent.pem&keyfile=/absent.key"
MYSQL = {"dsn_string": "me:pw@tcp(127.0.0.1:1)/db?tls=true", "table": "t"}


@pytest.mark.parametrize(
    ("type_name", "values", "words"),
    [
        ("kafka", KAFKA | {"tls_ca": "/absent.pem"}, "tls_ca: /absent.pem"),
        (
            "kafka",
            KAFKA | {"client_tls_cert": "/absent.pem", "client_tls_key": "/absent.key"},
            "client_tls_cert /absent.pem and client_tls_key /absent.key",
        ),
        ("nats", NATS | {"cert_authority": "/absent.pem"}, "cert_authority: /absent.pem"),
        (
            "nats",
            NATS | {"client_cert": "/absent.pem", "client_key": "/absent.key"},
            "client_cert /absent.pem and client_key /absent.key",
        ),
        ("amqp", AMQP | {"url": FROM_URL}, "cacertfile in url: /absent.pem"),
        ("amqp", AMQP | {"url": PAIR_IN_URL}, "certfile in url /absent.pem and keyfile in url /absent.key"),
        ("amqp", AMQP | {"url": "amqps://127.0.0.1:1", "tls_ca": "/absent.pem"}, "tls_ca: /absent.pem"),
        (
            "mysql",
            MYSQL | {"client_cert": "/absent.pem", "client_key": "/absent.key"},
            "client_cert /absent.pem and client_key /absent.key",
        ),
    ],
)
def test_a_file_that_is_not_there_is_named_with_its_setting(type_name: str, values: dict[str, str], words: str) -> None:
    target = create(type_name, target_settings.load(type_name, values))
    with pytest.raises(TargetUnavailable) as caught:
        target.open()
    assert words in caught.value.reason
