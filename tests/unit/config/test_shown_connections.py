"""Where a target writes to is shown, and the password with which it logs in there is not."""

from __future__ import annotations

import pytest

from app.config.arn import TargetId
from app.config.declared_types import source_type
from app.config.errors import REDACTED, BadSettings
from app.config.formats.notify_lines import parse_line, to_line
from app.config.target_settings import changed_lines, load, merged, redacted

# What is stored, and what is shown of it.
SHOWN: dict[tuple[str, str], dict[str, str]] = {
    ("postgresql", "connection_string"): {
        "host=db port=5433 user=me dbname=events sslmode=require": "=",
        "user=me password=hunter2 host=db dbname=events sslmode=require": (
            f"host=db dbname=events user=me sslmode=require password={REDACTED}"
        ),
        "host=db password='it\\'s @ / host=x' user=me": f"host=db user=me password={REDACTED}",
        "host=db sslpassword=hunter2 sslkey=/k sslcert=/c password=hunter2": (
            f"host=db sslcert=/c sslkey=/k sslpassword={REDACTED} password={REDACTED}"
        ),
        "host=db password=hunter2 options='-csearch_path=a'": f"host=db options=-csearch_path=a password={REDACTED}",
        "host=db user=me:hunter2": f"host=db user={REDACTED}",
        "host=db user=me options='-c my.password=hunter2'": f"host=db user=me options={REDACTED}",
        "postgresql://me:hunter2@a:1,b:2/events?sslmode=require": (
            f"postgresql://me:{REDACTED}@a:1,b:2/events?sslmode=require"
        ),
        "postgresql://me:hunter%402%2F@[::1]/events": f"postgresql://me:{REDACTED}@[::1]/events",
        "postgresql://db/events?user=me&password=hunter2": f"postgresql://db/events?user=me&password={REDACTED}",
        "postgresql://db/events?%70assword=hunter2": f"postgresql://db/events?%70assword={REDACTED}",
        "postgresql://me%3Ahunter2@db/events": REDACTED,
        "postgresql://me:hunter?2@db/events": REDACTED,  # which others than libpq read differently
        "postgresql://me:hunter#2@db/events": REDACTED,
        "postgresql://me:hunter@2@db/events": REDACTED,
        "host=db password=hunter 2": REDACTED,
        "host=db passwort=hunter2": REDACTED,
        "env:EVENTS_DSN": "=",
    },
    ("mysql", "dsn_string"): {
        "me@tcp(db:3306)/events?tls=true": "=",
        "me:hunter2@tcp(db:3306)/events?tls=true": f"me:{REDACTED}@tcp(db:3306)/events?tls=true",
        "me:@/:h@nter2@tcp(db)/events": f"me:{REDACTED}@tcp(db)/events",
        "me:hunter2@unix(/run/mysqld.sock)/events": f"me:{REDACTED}@unix(/run/mysqld.sock)/events",
        "me:x@tcp(db)/events?my_secret=hunter2&tls=true": f"me:{REDACTED}@tcp(db)/events?my_secret={REDACTED}&tls=true",
        "me:hunter2@tcp(db)/ev@nts": REDACTED,
        "me:hunter/2@tcp(db)": REDACTED,
        "me:hunter2@db/events": REDACTED,
        "file:/run/secrets/dsn": "=",
    },
    ("amqp", "url"): {"amqp://me:hunter2@mq:5671/v?heartbeat=9": f"amqp://me:{REDACTED}@mq:5671/v?heartbeat=9"},
    ("mqtt", "broker"): {"tcp://me:hunter2@mq:1883": f"tcp://me:{REDACTED}@mq:1883"},
    ("elasticsearch", "url"): {
        "http://me:hunter2@a:9200,http://b:9200": f"http://me:{REDACTED}@a:9200,http://b:9200",
        "http://me:hunt/er2@a:9200": REDACTED,
    },
    ("webhook", "endpoint"): {"https://me:hunter2@h/in?k=hunter2": f"https://me:{REDACTED}@h/{REDACTED}?k={REDACTED}"},
    ("kafka", "brokers"): {"a:9092,b:9092": "=", "me:hunter2@a:9092": f"{REDACTED}@a:9092"},
    ("redis", "address"): {"redis:6379": "=", "redis://me:hunter2@h": f"{REDACTED}@h"},
    ("nats", "address"): {"nats:4222": "=", "nats://hunter2@h": f"{REDACTED}@h"},
    ("nsq", "nsqd_address"): {"nsq:4150": "="},
    ("sqs", "queue_url"): {"https://sqs.eu-west-1.amazonaws.com/1/q": "="},
}  # fmt: skip
OF_SOURCES: dict[tuple[str, str], dict[str, str]] = {
    ("amqp", "url"): {"amqp://me:hunter2@mq/v": f"amqp://me:{REDACTED}@mq/v"},
    ("jetstream", "address"): {"nats:4222": "=", "nats://hunter2@h": f"{REDACTED}@h"},
    ("kafka", "brokers"): {"a:9092,b:9092": "="},
    ("redis", "address"): {"redis:6379": "=", "redis://me:hunter2@h": f"{REDACTED}@h"},
    ("sqs", "queue_url"): {"https://sqs.eu-west-1.amazonaws.com/1/q": "="},
}
CASES = [(place, text, shown) for place, texts in SHOWN.items() for text, shown in texts.items()]


@pytest.mark.parametrize(("place", "text", "shown"), CASES, ids=[f"{place[0]} {text}" for place, text, _ in CASES])
def test_host_user_and_database_are_shown_and_no_part_of_a_password(
    place: tuple[str, str], text: str, shown: str
) -> None:
    type_name, key = place
    wanted = text if shown == "=" else shown
    assert redacted(type_name, {key: text}) == {key: wanted}
    assert redacted(type_name, {key: wanted})[key] in (wanted, REDACTED), "a form shows again what it has got"
    assert changed_lines(type_name, {}, {key: text}) == [f"+ {key}={wanted}"]
    assert "hunter" not in wanted


@pytest.mark.parametrize("place", OF_SOURCES, ids=" ".join)
def test_of_a_source_the_same_is_shown(place: tuple[str, str]) -> None:
    type_name, key = place
    for text, shown in OF_SOURCES[place].items():
        assert redacted(source_type(type_name), {key: text}) == {key: text if shown == "=" else shown}


@pytest.mark.parametrize(("place", "text", "shown"), CASES, ids=[f"{place[0]} {text}" for place, text, _ in CASES])
def test_what_is_shown_keeps_the_stored_secret_when_it_is_set_again(
    place: tuple[str, str], text: str, shown: str
) -> None:
    type_name, key = place
    line = to_line(TargetId(type_name, "a"), {key: text})
    _, values = parse_line(line)
    assert merged(type_name, {key: text}, values)[key] == text


def test_a_password_is_not_taken_to_another_host() -> None:
    """Who may change where a target writes to would have the stored password sent there."""
    stored = {"connection_string": "host=db user=me password=hunter2"}
    changed = merged("postgresql", stored, {"connection_string": f"host=evil user=me password={REDACTED}"})
    with pytest.raises(BadSettings, match="contains the placeholder of a secret"):
        load("postgresql", changed | {"table": "t"})
