"""Passwords in addresses, URLs and connection strings that a reader divides elsewhere than their writer meant."""

from __future__ import annotations

from itertools import chain, product

import pytest

from app.config.declared_types import TYPES
from app.config.errors import BadSettings
from app.config.secret_texts import Redaction
from app.config.settings import Settings
from app.config.target_settings import changed_lines, load, redacted
from app.config.targets.mqtt import MqttSettings, mqtt_address
from app.config.targets.mysql import MysqlSettings
from app.config.targets.postgresql import PostgresSettings
from workers.systems.postgresql.connection import parameters
from workers.targets import create

FIRST, SECOND = "hunter2", "sword4sh"
PASSWORDS = [
    *(f"{FIRST}{between}{SECOND}" for between in "@/?#:;,&%=[]()| \\'\"{}$!~^*<>+`"),
    f"@{FIRST}{SECOND}", f"{FIRST}{SECOND}@", f"{FIRST}@@{SECOND}", f"{FIRST}@h2/{SECOND}", f"{FIRST}/@{SECOND}",
    f"{FIRST}?@{SECOND}", f"{FIRST}#@{SECOND}",
    *(f"80{between}{FIRST}{SECOND}" for between in "/?#,;"),  # a port, up to there
]  # fmt: skip
# Where people write a login, in the form that the setting has and in those that other programs have.
FORMS: dict[tuple[str, str], list[str]] = {
    ("postgresql", "connection_string"): [
        "postgresql://me:%s@h/d", "postgres://me:%s@h:5432/d?sslmode=disable", "postgresql://h/d?user=me&password=%s",
        "host=h user=me password=%s dbname=d", "host=h;user=me;password=%s", "host=h,password=%s",
        "host=h, password=%s", "user=me;password=%s host=h", "host=h user=me,password=%s", "host=h;pwd=%s;user=me",
        "host=h user=me dbname=d;password=%s", "Server=h;User Id=me;Password=%s", "me:%s@h/d", "host=h user=me:%s",
        "jdbc:postgresql://h/d?user=me&password=%s", "host=me:%s@h dbname=d", "hostaddr=me:%s@h dbname=d",
        "host=h port=5432;password=%s", "host=h application_name=x;password=%s", "host=postgresql://me:%s@h/d",
        "host=h dbname=postgresql://me:%s@h/d", "host=h options='-c x';password=%s",
    ],
    ("postgresql", "host"): ["me:%s@h", "h;password=%s", "postgresql://me:%s@h"],
    ("postgresql", "username"): ["me;password=%s", "me password=%s"],
    ("mysql", "dsn_string"): [
        "me:%s@tcp(h)/d", "me:%s@h/d", "mysql://me:%s@h/d", "me:%s@tcp(h)/d?tls=true", "me@tcp(h)/d?password=%s",
        "me;password=%s@tcp(h)/d", "host=h;password=%s;user=me/d", "me@tcp(h)/d;password=%s",
        "me@tcp(h;password=%s)/d", "jdbc:mysql://h/d?user=me&password=%s",
    ],
    ("mysql", "host"): ["me:%s@h", "h;password=%s"],
    ("amqp", "url"): ["amqp://me:%s@h/v", "amqps://me:%s@h:5671/", "amqp://h/?password=%s", "me:%s@h"],
    ("amqp", "nodes"): ["me:%s@h", "h2,amqp://me:%s@h"],
    ("redis", "address"): [
        "redis://me:%s@h", "redis://:%s@h:6379", "me:%s@h:6379", ":%s@h", "rediss://h?password=%s",
        "h:6379,password=%s", "h,password=%s",
    ],
    ("nats", "address"): ["nats://me:%s@h:4222", "me:%s@h:4222", "nats://%s@h:4222", "%s@h", "h,nats://me:%s@h"],
    ("kafka", "brokers"): ["me:%s@h:9092", "sasl_ssl://me:%s@h:9092", "h:9092;password=%s"],
    ("mqtt", "broker"): ["tcp://me:%s@h:1883", "ws://me:%s@h/x", "me:%s@h", "mqtt://me:%s@h"],
    ("nsq", "nsqd_address"): ["me:%s@h:4150", "tcp://me:%s@h:4150"],
    ("elasticsearch", "url"): [
        "http://me:%s@h:9200", "http://me:%s@h,http://h2", "http://h2,http://me:%s@h", "me:%s@h", "http://h/?api_key=%s",
    ],
    ("webhook", "endpoint"): ["http://me:%s@h/x", "http://h/x?token=%s", "http://h/services/%s", "me:%s@h"],
    ("sqs", "queue_url"): ["https://me:%s@h/1/q", "https://h/1/q?key=%s"],
}  # fmt: skip
CASES = list(chain.from_iterable(product([place], forms) for place, forms in FORMS.items()))


def said_by_servers(type_name: str, settings: object) -> list[str]:
    """What an error of a driver or a server may repeat of these settings."""
    if isinstance(settings, PostgresSettings):
        values = parameters(settings)
        return [values.get(name, "") for name in ("user", "dbname", "host", "hostaddr", "application_name")]
    if isinstance(settings, MysqlSettings):
        return [settings.dsn.user, settings.dsn.database, settings.dsn.place]
    if isinstance(settings, MqttSettings):
        address = mqtt_address(settings.broker)
        return [address.user, address.path]
    if type_name == "amqp":
        return [settings.place.user, settings.place.vhost]  # type: ignore[attr-defined]  # it is of the type's class
    return []


def names_a_part(text: str) -> bool:
    return FIRST in text or SECOND in text


@pytest.mark.parametrize(("place", "form"), CASES, ids=[f"{kind}.{key} {form}" for (kind, key), form in CASES])
def test_a_password_is_shown_nowhere_however_it_was_typed(place: tuple[str, str], form: str) -> None:
    type_name, key = place
    others = {name: text for name, text in TYPES[type_name].example.items() if name not in (key, "connection_string")}
    if key == "host":
        others.pop("dsn_string", None)
        others |= {"username": "me", "database": "d"}
    refusals = []
    for password in PASSWORDS:
        values = others | {key: form % password}
        assert not names_a_part(str(redacted(type_name, values))), password
        assert not names_a_part("\n".join(changed_lines(type_name, {}, values))), password
        try:
            settings = load(type_name, values)
        except BadSettings as refused:
            refusals.append(str(refused))
            continue
        assert not names_a_part(repr(settings)), password
        redaction = Redaction(settings)
        places = [str(endpoint.address) for endpoint in create(type_name, settings).endpoints()]
        for text in (*places, *said_by_servers(type_name, settings)):
            assert not names_a_part(redaction.hide(f"cannot use “{text}”")), password
    assert [refusal for refusal in refusals if names_a_part(refusal)] == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("postgresql://me:pa@ss@h/d", "has an @ behind the login; write @ / : in a password as %40"),
        ("postgresql://me:5432/ss@h/d", "has an @ behind the login"),
        ("host=h;user=me;password=x", "has further parameters within its host"),
        ("host=h,password=x", "has further parameters within its host"),
        ("host=me:x@h user=me", "has a host that is none; separate parameters by spaces"),
        ("host=h,a=b user=me", "has a host that is none"),
        ("host=h user=me dbname=postgresql://me:x@h/d", "has further parameters within its dbname"),
    ],
)
def test_a_connection_string_that_libpq_reads_differently_is_refused_with_what_to_write(
    text: str, problem: str
) -> None:
    with pytest.raises(BadSettings) as refused:
        load("postgresql", {"connection_string": text, "table": "t"})
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "host=h1,h2 hostaddr=10.0.0.1,fe80::1%eth0 port=1,2 user=me password='a;b=c @d' dbname=d",
        "postgresql://me:p%40ss@h1:1,h2:2/d?sslmode=disable", "postgresql://me:pa?ss@h/d",
        "host=my_db.internal user=me",
        "host=/run/postgresql user=me dbname=d", "host=@abstract user=me", "postgresql://me@[::1]:5432/d",
        "host=h user=me options='-c search_path=a,b'", "postgresql://me:a[b@h/d", "host=bücher.example user=me",
    ],
)  # fmt: skip
def test_what_libpq_reads_as_it_is_meant_is_accepted(text: str) -> None:
    settings = load("postgresql", {"connection_string": text, "table": "t"})
    assert Redaction(settings).hide("nothing") == "nothing"


SERVICE = {
    "database_url": [
        "postgresql://me:%s@h/d", "mysql://me:%s@h/d", "postgresql://h/d;password=%s", "mariadb://h/d?password=%s",
        "me:%s@h/d", "host=h password=%s",
    ],
    "broker_url": [
        "redis://:%s@h/0", "amqp://me:%s@h/v", "redis://h?password=%s", "amqp://h/v?userid=me&password=%s", "me:%s@h",
    ],
    "tables_catalog_uri": ["http://me:%s@h/x"],
}  # fmt: skip


@pytest.mark.parametrize(("key", "form"), [(key, form) for key, forms in SERVICE.items() for form in forms])
def test_a_password_of_the_services_own_urls_is_in_no_error(key: str, form: str) -> None:
    import sqlalchemy as sa

    refusals = []
    for password in PASSWORDS:
        variable = f"BUCKETWIRE_{key.upper()}"
        try:
            settings = Settings.from_environ({variable: form % password})
        except BadSettings as refused:
            refusals.append(str(refused))
            continue
        assert not names_a_part(repr(settings)), password
        if key == "database_url":
            url = sa.make_url(settings.database_url)
            assert not names_a_part(f"{url.username} {url.host} {url.database}"), password
    assert [refusal for refusal in refusals if names_a_part(refusal)] == []
