"""A table that refuses every event for a reason of its own: no event is to blame, and none becomes a dead letter."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import psycopg2
import pytest

from app.outbox.admin.counters import read_counters
from app.outbox.admin.undelivered import DeadLetters
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.resources.undelivered import DeadLetterFilter
from tests import services
from tests.contract.probes import mysql, postgresql
from tests.contract.probes.base import Probe, attempt
from tests.support import sample_events
from tests.support.builders import add_target, event, migrated
from tests.support.delivery import delivery
from workers.delivery.outcomes import DELIVERED, NotAttempted, Rejected, Unavailable

TIMES = "event_time timestamptz NOT NULL"
ACCESS = f"CREATE TABLE bucketevents ({TIMES}, event_data jsonb)"
RAISING = """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no such month'; END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON bucketevents FOR EACH ROW EXECUTE FUNCTION refuse()"""
OF_POSTGRESQL = {
    "no partition of a range": ("access", f"{ACCESS} PARTITION BY RANGE (event_time)"),
    "no partition of a hash": (
        "namespace",
        (
            "CREATE TABLE bucketevents (key varchar PRIMARY KEY, value jsonb) PARTITION BY HASH (key); "
            "CREATE TABLE of_none PARTITION OF bucketevents FOR VALUES WITH (MODULUS 1000000, REMAINDER 0)"
        ),
    ),
    "check": ("access", f"CREATE TABLE bucketevents ({TIMES}, event_data jsonb, CHECK (event_time < '2001-01-01'))"),
    "short value": ("access", f"CREATE TABLE bucketevents ({TIMES}, event_data varchar(10))"),
    "number": ("access", f"CREATE TABLE bucketevents ({TIMES}, event_data int)"),
    "short key": ("namespace", "CREATE TABLE bucketevents (key varchar(3) PRIMARY KEY, value jsonb)"),
    "generated": (
        "namespace",
        (
            "CREATE TABLE bucketevents (key varchar PRIMARY KEY, value jsonb, "
            "number int GENERATED ALWAYS AS ((value #>> '{Records,0,eventName}')::int) STORED)"
        ),
    ),
    "generated and required": (
        "access",
        (
            f"CREATE TABLE bucketevents ({TIMES}, event_data jsonb, "
            "number int NOT NULL GENERATED ALWAYS AS ((event_data ->> 'number')::int) STORED)"
        ),
    ),
    "trigger": ("access", f"{ACCESS}; {RAISING}"),
    "trigger of a mirror": (
        "namespace",
        f"CREATE TABLE bucketevents (key varchar PRIMARY KEY, value jsonb); {RAISING}",
    ),
    "foreign key": (
        "access",
        (
            f"CREATE TABLE allowed (id int PRIMARY KEY); {ACCESS}; "
            "ALTER TABLE bucketevents ADD owner int DEFAULT 7 REFERENCES allowed"
        ),
    ),
    "a sequence that is behind": (
        "access",
        (
            f"CREATE TABLE bucketevents ({TIMES}, event_data jsonb, id serial PRIMARY KEY); "
            "INSERT INTO bucketevents SELECT now(), '{}', number FROM generate_series(1, 500) number"
        ),
    ),
    "a default that is taken": (
        "access",
        (
            f"CREATE TABLE bucketevents ({TIMES}, event_data jsonb, owner int DEFAULT 7 UNIQUE); "
            "INSERT INTO bucketevents VALUES (now(), '{}')"
        ),
    ),
    "a default that is taken in a mirror": (
        "namespace",
        (
            "CREATE TABLE bucketevents (key varchar PRIMARY KEY, value jsonb, owner int DEFAULT 7 UNIQUE); "
            "INSERT INTO bucketevents VALUES ('other', '{}')"
        ),
    ),
    "view": (
        "access",
        (
            f"CREATE TABLE stored ({TIMES}, event_data jsonb); CREATE VIEW bucketevents AS "
            "SELECT * FROM stored WHERE event_time < '2001-01-01' WITH CHECK OPTION"
        ),
    ),
}
KEYS = "key_name VARCHAR(1024) CHARACTER SET utf8mb4, key_hash CHAR(64) PRIMARY KEY"
SIGNALLING = "CREATE TRIGGER refuse BEFORE INSERT ON bucketevents FOR EACH ROW SIGNAL SQLSTATE '45000'"
OF_MYSQL = {
    "no partition of a range": (
        "access",
        (
            "CREATE TABLE bucketevents (event_time DATETIME NOT NULL, event_data JSON) "
            "PARTITION BY RANGE (YEAR(event_time)) (PARTITION old VALUES LESS THAN (2001))"
        ),
    ),
    "short value": ("access", "CREATE TABLE bucketevents (event_time DATETIME NOT NULL, event_data VARCHAR(10))"),
    "number": ("access", "CREATE TABLE bucketevents (event_time DATETIME NOT NULL, event_data INT)"),
    "short key": ("namespace", f"CREATE TABLE bucketevents ({KEYS.replace('1024', '3')}, value JSON)"),
    "generated": (
        "namespace",
        (
            f"CREATE TABLE bucketevents ({KEYS}, value JSON, "
            "number INT GENERATED ALWAYS AS (JSON_UNQUOTE(JSON_EXTRACT(value, '$.Records[0].eventName'))) STORED)"
        ),
    ),
    "trigger": ("access", "CREATE TABLE bucketevents (event_time DATETIME NOT NULL, event_data JSON)", SIGNALLING),
    "trigger of a mirror": ("namespace", f"CREATE TABLE bucketevents ({KEYS}, value JSON)", SIGNALLING),
    "a default that is taken": (
        "access",
        "CREATE TABLE bucketevents (event_time DATETIME NOT NULL, event_data JSON, owner INT DEFAULT 7 UNIQUE)",
        "INSERT INTO bucketevents (event_time, event_data) VALUES (NOW(), '{}')",
    ),
    "foreign key": (
        "access",
        "CREATE TABLE IF NOT EXISTS allowed (id INT PRIMARY KEY)",
        (
            "CREATE TABLE bucketevents (event_time DATETIME NOT NULL, event_data JSON, owner INT DEFAULT 7, "
            "FOREIGN KEY (owner) REFERENCES allowed (id))"
        ),
    ),
}
CHECKED = "CREATE TABLE bucketevents (event_time DATETIME NOT NULL, event_data JSON, CHECK (event_time < '2001-01-01'))"
OF_MARIADB = OF_MYSQL | {"check": ("access", CHECKED)}


def assert_the_table_is_to_blame(probe: Probe) -> None:
    """For many events, for one, and for several of which the table accepts a removal."""
    puts = [sample_events.put(f"object-{number}") for number in range(20)]
    batches = [puts, puts[:1]]
    if probe.is_namespace:
        batches.append([*puts[:3], sample_events.delete("object-9"), sample_events.head("object-8")])
    for batch in batches:
        with closing(probe.target()) as target:
            outcomes = attempt(target, batch, 1)
        refused = [outcome for event, outcome in zip(batch, outcomes, strict=True) if "Put" in event.name]
        assert isinstance(refused[0], Unavailable)
        assert all(isinstance(outcome, Unavailable | NotAttempted) for outcome in refused)


def in_postgresql(server: services.Postgres, format_: str) -> postgresql.Namespace | postgresql.Access:
    kind = postgresql.Namespace if format_ == "namespace" else postgresql.Access
    made = kind.__new__(kind)
    made.server, made.table = server, "bucketevents"
    made.renew()
    return made


@pytest.mark.parametrize("rule", OF_POSTGRESQL)
def test_a_rule_of_a_postgresql_table_that_no_event_keeps(postgres_server: services.Postgres, rule: str) -> None:
    format_, ddl = OF_POSTGRESQL[rule]
    probe = in_postgresql(postgres_server, format_)
    probe.ask(ddl)
    try:
        assert_the_table_is_to_blame(probe)
    finally:
        kind = "VIEW" if rule == "view" else "TABLE"
        probe.ask(f"DROP {kind} bucketevents; DROP TABLE IF EXISTS stored, allowed; DROP FUNCTION IF EXISTS refuse")


def refused_by_mysql(server: services.MySQL, format_: str, *statements: str) -> None:
    probe = (mysql.Namespace if format_ == "namespace" else mysql.Access)(server)
    probe.ask(*statements)
    try:
        assert_the_table_is_to_blame(probe)
    finally:
        probe.ask("DROP TABLE bucketevents", "DROP TABLE IF EXISTS allowed")


@pytest.mark.parametrize("rule", OF_MYSQL)
def test_a_rule_of_a_mysql_table_that_no_event_keeps(mysql_server: services.MySQL, rule: str) -> None:
    refused_by_mysql(mysql_server, *OF_MYSQL[rule])


@pytest.mark.parametrize("rule", OF_MARIADB)
def test_a_rule_of_a_mariadb_table_that_no_event_keeps(mariadb_server: services.MariaDB, rule: str) -> None:
    refused_by_mysql(mariadb_server, *OF_MARIADB[rule])


def test_events_of_a_month_without_a_partition_wait_and_those_before_them_arrive(
    postgres_server: services.Postgres,
) -> None:
    probe = in_postgresql(postgres_server, "access")
    probe.ask(f"{ACCESS} PARTITION BY RANGE (event_time)")
    probe.ask("CREATE TABLE of_may PARTITION OF bucketevents FOR VALUES FROM ('2026-05-01') TO ('2026-06-01')")
    may, june = 1_779_000_000_000, 1_781_000_000_000
    events = [sample_events.put(f"{number}")._replace(time=may if number < 5 else june) for number in range(10)]
    with closing(probe.target()) as target:
        assert not any(isinstance(outcome, Rejected) for outcome in attempt(target, events, 100))
        assert list(attempt(target, events[:5], 100)) == [DELIVERED] * 5
        assert not any(isinstance(outcome, Rejected) for outcome in attempt(target, events[5:], 100))
        probe.ask("CREATE TABLE of_june PARTITION OF bucketevents FOR VALUES FROM ('2026-06-01') TO ('2026-07-01')")
        assert list(attempt(target, events[5:], 100)) == [DELIVERED] * 5


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with contextlib.closing(migrated(f"sqlite:///{tmp_path}/outbox.db", partitions=4)) as opened:
        yield opened


@pytest.mark.parametrize("sync", ["on", "off"])
@pytest.mark.parametrize("rule", ["no partition of a range", "trigger"])
def test_no_event_dies_of_a_table_that_refuses_all_and_each_arrives_when_it_is_mended(
    database: Database, tmp_path: Path, postgres_server: services.Postgres, rule: str, sync: str
) -> None:
    name = f"refusing_{uuid4().hex[:12]}"
    postgres_server.create_database(name)
    dsn = postgres_server.dsn(name)
    values = {"connection_string": dsn, "table": "bucketevents", "format": "access"}
    add_target(database, "rows", type_name="postgresql", values=values, sync=sync, max_attempts=1)

    def delivered() -> int:
        with database.reading() as connection:
            [counters] = read_counters(connection)
        return counters.delivered

    with delivery(database.url.render_as_string(hide_password=False), tmp_path) as at_work:
        with closing(psycopg2.connect(dsn)) as other, other, other.cursor() as cursor:
            cursor.execute(OF_POSTGRESQL[rule][1])
        Log(database).append([[event(f"object-{number}") for number in range(60)]])
        for _ in range(10):
            at_work.turn()
        assert DeadLetters(database).list(DeadLetterFilter()) == []
        with closing(psycopg2.connect(dsn)) as other, other, other.cursor() as cursor:
            cursor.execute(f"DROP TABLE bucketevents; {ACCESS}")
        at_work.until(lambda: delivered() == 60, what="everything delivered")
    assert DeadLetters(database).list(DeadLetterFilter()) == []
