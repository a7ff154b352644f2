"""What is MySQL's and MariaDB's own: tables as they are found, error codes, and what a transaction promises."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.events.model import Effect, Event
from tests import services
from tests.contract.probes.base import LIMIT, attempt
from tests.contract.probes.mysql import DATABASE, Access, Namespace
from tests.support import sample_events, sql_cases
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Outcome, Rejected, Unavailable
from workers.targets import payloads
from workers.targets.base import Target, TargetUnavailable

LAYOUT = (
    "SELECT column_name, column_type, is_nullable, collation_name, extra, generation_expression <> '' "
    "FROM information_schema.columns WHERE table_name = 'bucketevents' ORDER BY ordinal_position"
)
MINIOS = (
    "CREATE TABLE bucketevents (key_name VARCHAR(3072) NOT NULL, key_hash CHAR(64) GENERATED ALWAYS AS "
    "(SHA2(key_name, 256)) STORED NOT NULL PRIMARY KEY, value JSON) "
    "CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin ROW_FORMAT = Dynamic"
)
PLAIN = "CREATE TABLE bucketevents (key_name varchar(3072) CHARACTER SET utf8mb4, key_hash char(64), value json"


@pytest.fixture(scope="module")
def genuine(mysql_server: services.MySQL) -> Namespace:
    return Namespace(mysql_server)


@pytest.fixture
def mysql(genuine: Namespace) -> Namespace:
    """MySQL 8 with an empty database."""
    genuine.table = "bucketevents"
    genuine.renew()
    return genuine


@pytest.fixture(params=["mysql", "mariadb"])
def either(request: pytest.FixtureRequest) -> Namespace:
    """Each of the two in turn, where they are not of one mind."""
    return Namespace(request.getfixturevalue(f"{request.param}_server"))


def journal_of(probe: Namespace) -> Access:
    """The same server, with a table of all events."""
    return Access(probe.server)


def create_table(probe: Namespace | Access, **changes: str) -> None:
    target = probe.target(**changes)
    target.open()
    target.close()


@pytest.fixture
def target(mysql: Namespace) -> Iterator[Target]:
    """An open target of MySQL 8."""
    with mysql.opened() as made:
        yield made


# --- tables


def test_the_tables_of_mysql_are_created_as_minio_creates_them(mysql: Namespace) -> None:
    create_table(mysql)
    ours = mysql.ask(LAYOUT), mysql.ask("SHOW CREATE TABLE bucketevents")
    mysql.renew()
    mysql.ask(MINIOS)
    assert ours == (mysql.ask(LAYOUT), mysql.ask("SHOW CREATE TABLE bucketevents"))


def test_an_access_table_is_created_as_minio_creates_it(either: Namespace) -> None:
    journal = journal_of(either)
    create_table(journal)
    ours = journal.ask("SHOW CREATE TABLE bucketevents")
    journal.renew()
    journal.ask("CREATE TABLE bucketevents (event_time DATETIME NOT NULL, event_data JSON) ROW_FORMAT = Dynamic")
    assert ours == journal.ask("SHOW CREATE TABLE bucketevents")


def test_the_hash_is_the_same_in_mariadb_and_minios_statements_work_there(mariadb_server: services.MariaDB) -> None:
    probe = Namespace(mariadb_server)
    batch = [sample_events.put(key) for key in sample_events.ODD_KEYS]
    assert set(probe.delivered(batch)) == {DELIVERED}
    rows = probe.ask("SELECT key_name, key_hash FROM bucketevents")
    assert dict(rows) == {event.path: hashlib.sha256(event.path.encode()).hexdigest() for event in batch}
    probe.ask("INSERT INTO bucketevents (key_name, value) VALUES ('images/é', '{}') "
              "ON DUPLICATE KEY UPDATE value=VALUES(value)")  # fmt: skip
    assert probe.ask("SELECT key_hash FROM bucketevents WHERE key_hash = SHA2('images/é', 256)")
    assert probe.delivered([sample_events.delete("é")]) == [DELIVERED]
    assert not probe.ask("SELECT key_hash FROM bucketevents WHERE key_name = 'images/é'")


def test_a_table_that_minio_left_is_taken_over_with_its_rows(mysql: Namespace) -> None:
    mysql.ask(MINIOS, """INSERT INTO bucketevents (key_name, value) VALUES ('images/old', '{"Records":[]}'),
              ('images/new', '{"Records":[]}'), ('images/gone', NULL)""")  # fmt: skip
    event = sample_events.put("new")
    assert set(mysql.delivered([event, sample_events.delete("gone"), sample_events.delete("absent")])) == {DELIVERED}
    held = dict(mysql.held())
    assert held.keys() == {"images/old", "images/new"}
    assert mysql.same(held["images/new"], payloads.records(event))


def test_a_generated_unique_hash_in_mariadb_does_too(mariadb_server: services.MariaDB) -> None:
    probe = Namespace(mariadb_server)
    probe.ask(MINIOS.replace("STORED NOT NULL PRIMARY KEY", "STORED UNIQUE KEY"))
    batch = [sample_events.put("a"), sample_events.put("a"), sample_events.put("b"), sample_events.delete("b")]
    assert set(probe.delivered(batch)) == {DELIVERED}
    assert [path for path, _ in probe.held()] == ["images/a"]


@pytest.mark.parametrize(
    ("setting", "stored"),
    [("Events", "Events"), ("`we ``ird; DROP`", "we `ird; DROP"), ("_ünïcode$1", "_ünïcode$1"), ("`100%s`", "100%s")],
)
def test_a_table_is_called_what_mysql_would_call_it(either: Namespace, setting: str, stored: str) -> None:
    for _ in range(2):
        assert either.delivered([sample_events.put("a"), sample_events.delete("b")], table=setting) == [DELIVERED] * 2
    quoted = "`" + stored.replace("`", "``") + "`"
    assert either.ask(f"SELECT key_name FROM {quoted}") == [("images/a",)]
    either.ask(f"DROP TABLE {quoted}")


def test_a_table_may_stand_in_another_database(mysql: Namespace) -> None:
    mysql.ask("CREATE DATABASE `else-where`")
    try:
        for _ in range(2):
            assert mysql.delivered([sample_events.put("a")], table="`else-where`.events") == [DELIVERED]
        assert mysql.ask("SELECT key_name FROM `else-where`.events") == [("images/a",)]
        assert mysql.held() == []
    finally:
        mysql.ask("DROP DATABASE `else-where`")


@pytest.mark.parametrize("kind", ["longtext", "json NOT NULL"])
def test_a_value_column_of_another_type_is_written_too(either: Namespace, kind: str) -> None:
    either.ask(
        "CREATE TABLE bucketevents (id int AUTO_INCREMENT PRIMARY KEY, key_name varchar(500) CHARACTER SET utf8mb4, "
        f"key_hash char(64) NOT NULL UNIQUE, value {kind}, at timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP)"
    )
    batch = [sample_events.put("a", version="v1"), sample_events.put("b"), sample_events.delete("b")]
    assert either.delivered(batch) == [DELIVERED] * 3
    assert either.delivered([sample_events.delete_version("a", "v1")]) == [DELIVERED]
    assert either.held() == []


def test_a_table_of_the_other_format_is_refused(mysql: Namespace) -> None:
    create_table(journal_of(mysql))
    with pytest.raises(TargetUnavailable, match="no column key_name, which format namespace needs; it has event_time"):
        mysql.target().open()


@pytest.mark.parametrize(
    "ddl",
    [
        "CREATE TABLE bucketevents (key_name varchar(700) CHARACTER SET utf8mb4 PRIMARY KEY, value json)",
        "CREATE TABLE bucketevents (key_name varchar(700) CHARACTER SET utf8mb4, value json)",
        f"{PLAIN}, UNIQUE (key_hash(10)))",
        f"{PLAIN}, KEY (key_hash))",
        f"{PLAIN}, UNIQUE (key_hash, key_name(100)))",
    ],
    ids=["before 2022", "no key", "prefix", "not unique", "two columns"],
)
def test_a_mirror_without_a_unique_hash_is_refused_with_the_remedy(either: Namespace, ddl: str) -> None:
    either.ask(ddl)
    with pytest.raises(TargetUnavailable, match="no unique index on key_hash alone") as caught:
        either.target().open()
    remedy = caught.value.reason.partition("ALTER TABLE … ")[2]
    columns = "key_name, value, key_hash" if "char(64)" in ddl else "key_name, value"
    hashed = ", SHA2('images/old', 256)" if "char(64)" in ddl else ""
    either.ask(f"INSERT INTO bucketevents ({columns}) VALUES ('images/old', '{{}}'{hashed})")
    either.ask(f"ALTER TABLE bucketevents {remedy}")
    assert either.delivered([sample_events.put("a"), sample_events.delete("old")]) == [DELIVERED] * 2
    assert [path for path, _ in either.held()] == ["images/a"]


@pytest.mark.parametrize(
    ("ddl", "why"),
    [
        (f"{PLAIN} , PRIMARY KEY (key_hash), UNIQUE (key_name(100)))", "a second unique index, key_name"),
        (f"{PLAIN}, PRIMARY KEY (key_hash)) ENGINE = MyISAM", "MyISAM, which has no transactions"),
        (f"{PLAIN}, PRIMARY KEY (key_hash), owner int NOT NULL)", "requires a value for owner"),
        (MINIOS.replace("utf8mb4_bin", "latin1_bin").replace("utf8mb4", "latin1"), "in latin1, which cannot hold"),
    ],
)
def test_a_table_in_which_rows_would_be_lost_is_refused(mysql: Namespace, ddl: str, why: str) -> None:
    mysql.ask(ddl)
    with pytest.raises(TargetUnavailable, match=why):
        mysql.target().open()


@pytest.mark.parametrize("expression", ["SHA2(LOWER(key_name), 256)", "MD5(key_name)", "SHA2(RTRIM(key_name), 256)"])
def test_a_hash_by_which_rows_are_not_found_or_are_anothers_is_refused_with_the_remedy(
    mysql: Namespace, expression: str
) -> None:
    mysql.ask(MINIOS.replace("SHA2(key_name, 256)", expression))
    with pytest.raises(TargetUnavailable, match="computes key_hash by") as caught:
        mysql.target().open()
    mysql.ask(f"ALTER TABLE bucketevents {caught.value.reason.partition('ALTER TABLE … ')[2]}")
    assert mysql.delivered([sample_events.put("a"), sample_events.put("A")]) == [DELIVERED] * 2
    assert mysql.delivered([sample_events.delete("a")]) == [DELIVERED]
    assert [path for path, _ in mysql.held()] == ["images/A"]


def test_many_workers_may_create_the_table_at_once(either: Namespace) -> None:
    sql_cases.many_workers_may_create_the_table_at_once(either)


def test_a_table_that_vanished_is_unavailable_once_and_then_created_again(mysql: Namespace, target: Target) -> None:
    mysql.renew()
    (outcome,) = attempt(target, [sample_events.put("a")], 1)
    assert isinstance(outcome, Unavailable)
    assert "(error 1146)" in outcome.reason
    assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]


def test_a_user_may_write_without_the_right_to_create(mysql: Namespace) -> None:
    mysql.ask(
        "CREATE USER writer IDENTIFIED BY 'pass'", f"GRANT SELECT, INSERT, UPDATE, DELETE ON {DATABASE}.* TO writer"
    )
    try:
        dsn = mysql.dsn(user="writer:pass")
        with pytest.raises(TargetUnavailable, match="CREATE command denied"):
            mysql.target(dsn_string=dsn).open()
        mysql.ask(MINIOS)
        batch = [sample_events.put("a"), sample_events.delete("b"), sample_events.delete_version("c", "v")]
        assert mysql.delivered(batch, dsn_string=dsn) == [DELIVERED] * 3
    finally:
        mysql.ask("DROP USER writer")


# --- what is refused


@pytest.mark.parametrize("format_", ["namespace", "access"])
def test_a_poison_event_is_rejected_with_the_servers_words(mysql: Namespace, format_: str) -> None:
    (outcome,) = mysql.delivered([mysql.poison("a")], format=format_)
    assert outcome == Rejected("The JSON document exceeds the maximum depth. (error 3157)")


def test_a_name_too_long_for_the_column_is_rejected_alone_and_never_cut(either: Namespace) -> None:
    outcomes = either.delivered(
        [sample_events.put("a"), sample_events.put("k" * 3066), sample_events.put("b")],
        dsn_string=either.dsn("sql_mode=%27%27"),
    )
    assert [type(outcome) for outcome in outcomes] == [type(DELIVERED), Rejected, type(DELIVERED)]
    assert "(error 1406)" in str(outcomes[1])
    assert {path for path, _ in either.held()} == {"images/a", "images/b"}


def test_keys_of_1024_bytes_that_differ_at_their_end_are_different_objects(either: Namespace) -> None:
    keys = ["\U0001f600" * 255 + end for end in ("aaaa", "aaab", "aaa ", "aaa\0")] + ["A", "a", "ä", "a ", "a\0"]
    batch = [sample_events.put(key) for key in keys]
    assert set(either.delivered(batch)) == {DELIVERED}
    assert {path for path, _ in either.held()} == {event.path for event in batch}
    assert set(either.delivered([sample_events.delete(key) for key in keys[1:]])) == {DELIVERED}
    assert [path for path, _ in either.held()] == [batch[0].path]


def test_a_batch_of_nothing_but_poison_ends(mysql: Namespace) -> None:
    journal = journal_of(mysql)
    outcomes = journal.delivered([mysql.poison(f"object-{number}") for number in range(100)])
    assert {type(outcome) for outcome in outcomes} == {Rejected}


def test_the_tables_own_rules_reject_one_event_alone(either: Namespace) -> None:
    create_table(either)
    either.ask(
        "CREATE TRIGGER refuse BEFORE INSERT ON bucketevents FOR EACH ROW BEGIN IF JSON_EXTRACT(NEW.value, "
        "'$.Records[0].s3.object.size') = 666 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no beasts'; END IF; END"
    )
    made = [sample_events.put(f"object-{number}", number=number + 1) for number in range(20)]
    outcomes = either.delivered([*made[:7], sample_events.put("object-beast", number=666), *made[7:]])
    assert outcomes.pop(7) == Rejected("no beasts (error 1644)")
    assert set(outcomes) == {DELIVERED}
    assert len(either.held()) == 20


def test_an_event_larger_than_a_packet_is_rejected_and_a_batch_larger_than_one_is_not(mysql: Namespace) -> None:
    mysql.ask("SET GLOBAL max_allowed_packet = 65536")
    try:
        with mysql.opened() as target:
            large = [
                sample_events.put("large", metadata="'" * 40_000),
                sample_events.put("larger", metadata="é" * 40_000),
            ]
            small = [sample_events.put(f"object-{number}", metadata="x" * 10_000) for number in range(30)]
            outcomes = list(target.deliver([*small[:15], *large, *small[15:]], 1))
    finally:
        mysql.ask("SET GLOBAL max_allowed_packet = DEFAULT")
    rejected = outcomes[15:17]
    assert set(rejected) == {Rejected("the event is larger than the server's max_allowed_packet of 65536 bytes")}
    assert set(outcomes[:15] + outcomes[17:]) == {DELIVERED}
    assert {path for path, _ in mysql.held()} == {event.path for event in small}


def test_any_mix_with_poison_leaves_what_its_events_leave_one_by_one(mysql: Namespace) -> None:
    sql_cases.a_mix_leaves_what_its_events_leave_one_by_one(mysql, rounds=3)


def test_a_version_is_removed_only_while_the_row_describes_it(either: Namespace) -> None:
    sql_cases.a_version_is_removed_only_while_the_row_describes_it(either)


# --- transactions, times and connections


def test_workers_that_write_into_one_table_never_lock_each_other_up(either: Namespace) -> None:
    """Keys of their own, as partitions have them, put and removed while there and while not."""
    create_table(either)

    def work(worker: int) -> set[Outcome]:
        rng, target = random.Random(worker), either.target()
        found: set[Outcome] = set()
        for _ in range(12):
            made = [
                rng.choice([sample_events.put, sample_events.delete])(f"{worker}-{rng.randrange(60)}")
                for _ in range(100)
            ]
            made += [sample_events.delete_version(f"{worker}-{rng.randrange(60)}", "v") for _ in range(20)]
            found |= set(target.deliver(made, 1))
        target.close()
        return found

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(work, range(6))) == [{DELIVERED}] * 6


def test_a_deadlock_is_unavailable_and_over_with_the_next_try(mysql: Namespace, target: Target) -> None:
    batch = [sample_events.put("a"), sample_events.put("b")]
    assert list(target.deliver(batch, 1)) == [DELIVERED] * 2
    first, second = sorted(batch, key=lambda event: hashlib.sha256(event.path.encode()).hexdigest())
    with mysql.server.connection(DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        # The one that has changed more is not the one that the server ends.
        cursor.execute("CREATE TEMPORARY TABLE many (n int PRIMARY KEY) ENGINE = InnoDB")
        cursor.execute(f"INSERT INTO many VALUES {','.join(f'({n})' for n in range(500))}")
        lock = "SELECT 1 FROM bucketevents WHERE key_hash = SHA2(%s, 256) FOR UPDATE"
        cursor.execute(lock, (second.path,))
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(target.deliver, batch, 1)
            services.until(lambda: is_waiting_for_a_lock(mysql), what="our statement waiting for the row")
            cursor.execute(lock, (first.path,))
            outcomes = list(waiting.result())
        connection.rollback()
    assert {type(outcome) for outcome in outcomes} == {Unavailable}
    assert "(error 1213)" in str(outcomes[0])
    assert list(target.deliver(batch, 1)) == [DELIVERED] * 2


def is_waiting_for_a_lock(mysql: Namespace) -> bool:
    time.sleep(0.15)  # the view is made anew only if nobody has looked at it for 0.1 s
    return bool(mysql.ask("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"))


def test_a_locked_row_is_unavailable_within_the_time_limit(mysql: Namespace) -> None:
    with mysql.opened(timeout="3s") as target:
        batch = [sample_events.put("a"), sample_events.put("a")]
        assert list(target.deliver(batch, 1)) == [DELIVERED] * 2
        with mysql.server.connection(DATABASE) as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT 1 FROM bucketevents FOR UPDATE")
            began = time.monotonic()
            outcomes = list(target.deliver(batch, 1))
            assert 1 <= time.monotonic() - began < LIMIT
        assert isinstance(outcomes[0], Unavailable)
        assert "(error 1205)" in outcomes[0].reason
        assert outcomes[1] == NOT_ATTEMPTED
        assert list(target.deliver(batch, 1)) == [DELIVERED] * 2


def test_a_server_that_takes_no_more_connections_is_unavailable(mysql: Namespace) -> None:
    mysql.ask("CREATE USER few IDENTIFIED BY 'pass'", f"GRANT ALL ON {DATABASE}.* TO few")
    with mysql.server.connection(DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL max_connections = 1")
        try:
            (outcome,) = attempt(mysql.target(dsn_string=mysql.dsn(user="few:pass")), [sample_events.put("a")], 1)
        finally:
            cursor.execute("SET GLOBAL max_connections = DEFAULT")
            cursor.execute("DROP USER few")
    assert isinstance(outcome, Unavailable)
    assert "Too many connections (error 1040)" in outcome.reason


def test_a_server_that_takes_no_writes_is_unavailable(mysql: Namespace) -> None:
    create_table(mysql)
    (outcome,) = attempt(mysql.target(dsn_string=mysql.dsn("transaction_read_only=1")), [sample_events.put("a")], 1)
    assert isinstance(outcome, Unavailable)
    assert "(error 1792)" in outcome.reason


def test_a_connection_that_the_server_closed_meanwhile_costs_nothing(mysql: Namespace, target: Target) -> None:
    ours = f"SELECT id FROM information_schema.processlist WHERE db = '{DATABASE}' AND command = 'Sleep'"
    ((number,),) = mysql.ask(ours)
    mysql.ask(f"KILL {number}")
    services.until(lambda: not mysql.ask(ours))
    assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]


def test_a_connection_that_is_killed_while_it_writes_is_unavailable(mysql: Namespace, target: Target) -> None:
    event = sample_events.put("a")
    assert list(target.deliver([event], 1)) == [DELIVERED]
    with mysql.server.connection(DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT 1 FROM bucketevents FOR UPDATE")
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(target.deliver, [event], 1)
            writing = "SELECT id FROM information_schema.processlist WHERE info LIKE 'INSERT INTO `bucketevents`%'"
            services.until(lambda: mysql.ask(writing), what="our statement")
            mysql.ask(f"KILL {mysql.ask(writing)[0][0]}")
            (outcome,) = waiting.result()
    assert isinstance(outcome, Unavailable)
    assert list(target.deliver([event], 1)) == [DELIVERED]


def test_a_batch_is_one_transaction(mysql: Namespace) -> None:
    written = "SHOW GLOBAL STATUS WHERE variable_name IN ('Com_begin', 'Com_commit', 'Com_insert', 'Com_delete_multi')"
    with mysql.opened() as target:
        before = dict(mysql.ask(written))
        batch = [
            sample_events.put("a"),
            sample_events.delete("b"),
            *[sample_events.put(f"object-{number}") for number in range(100)],
        ]
        assert set(target.deliver(batch, 100)) == {DELIVERED}
    after = dict(mysql.ask(written))
    assert {name: int(after[name]) - int(count) for name, count in before.items()} == {
        "Com_begin": 1, "Com_commit": 1, "Com_insert": 1, "Com_delete_multi": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("server", "parameter", "text"),
    [
        ("mysql", "parseTime=true", "2026-11-21 00:33:57"),  # MySQL rounds,
        ("mariadb", "parseTime=true", "2026-11-21 00:33:56"),  # MariaDB cuts (§4.11)
        ("mysql", "timeTruncate=1s", "2026-11-21 00:33:56"),
        ("mysql", "loc=Asia%2FTokyo", "2026-11-21 09:33:57"),
        ("mysql", "time_zone=%27%2B05%3A00%27", "2026-11-21 00:33:57"),
    ],
)
def test_the_time_column_holds_what_minio_would_write(
    request: pytest.FixtureRequest, server: str, parameter: str, text: str
) -> None:
    journal = Access(request.getfixturevalue(f"{server}_server"))
    event = sample_events.put("a")
    moved = Event(event.id, event.name, "b", "k", "", "", 1_795_221_236_582, event.record, Effect.NONE)
    assert journal.delivered([moved], dsn_string=journal.dsn(parameter)) == [DELIVERED]
    assert journal.ask("SELECT CAST(event_time AS CHAR) FROM bucketevents") == [(text,)]


@pytest.mark.parametrize(
    ("server", "mode"),
    [
        ("mysql", ""),
        ("mysql", "ANSI"),
        ("mysql", "NO_BACKSLASH_ESCAPES"),
        ("mysql", "TRADITIONAL,PAD_CHAR_TO_FULL_LENGTH"),
        ("mariadb", "ORACLE,EMPTY_STRING_IS_NULL"),
    ],
)
def test_the_servers_sql_mode_changes_nothing(request: pytest.FixtureRequest, server: str, mode: str) -> None:
    mysql = Namespace(request.getfixturevalue(f"{server}_server"))
    mysql.renew()
    batch = [sample_events.put(key) for key in sample_events.ODD_KEYS]
    dsn = mysql.dsn(f"sql_mode=%27{mode}%27")
    assert set(mysql.delivered(batch, dsn_string=dsn)) == {DELIVERED}
    assert {path for path, _ in mysql.held()} == {event.path for event in batch}
    assert set(mysql.delivered([sample_events.delete(key) for key in sample_events.ODD_KEYS], dsn_string=dsn)) == {
        DELIVERED
    }
    assert mysql.held() == []


@pytest.mark.parametrize("setting", ["autocommit = 0", "completion_type = 'RELEASE'", "sql_safe_updates = 1"])
def test_what_the_server_sets_for_new_sessions_changes_nothing(mysql: Namespace, setting: str) -> None:
    name = setting.partition(" ")[0]
    ((before,),) = mysql.ask(f"SELECT @@GLOBAL.{name}")
    mysql.ask(f"SET GLOBAL {setting}")
    try:
        assert mysql.delivered([sample_events.put("a"), sample_events.put("b")]) == [DELIVERED] * 2
        assert mysql.delivered([sample_events.delete("a")]) == [DELIVERED]
    finally:
        mysql.ask(f"SET GLOBAL {name} = '{before}'" if isinstance(before, str) else f"SET GLOBAL {name} = {before}")
    assert [path for path, _ in mysql.held()] == [sample_events.put("b").path]


def test_a_proxy_that_hides_the_servers_sql_mode_is_found_out_before_a_text_is_written(mysql: Namespace) -> None:
    def hides(answer: bytes) -> bytes:  # the flag NO_BACKSLASH_ESCAPES beside that of autocommit
        return answer.replace(b"\0\0\0\2\2", b"\0\0\0\2\0")

    with services.proxy(mysql.server.port, hides) as proxy:
        (outcome,) = attempt(mysql.target(dsn_string=mysql.dsn(port=proxy.port)), [sample_events.put("a")], 1)
    assert isinstance(outcome, Unavailable)
    assert "sql_mode" in outcome.reason or "SQL syntax" in outcome.reason


def test_a_unix_socket_and_the_old_separate_keys_connect_as_well(mysql: Namespace) -> None:
    server = mysql.server
    socket = f"{services.USER}:{services.PASSWORD}@unix({server.folder}/s.sock)/{DATABASE}"
    separate = {
        "dsn_string": "",
        "host": services.LOOPBACK,
        "port": str(server.port),
        "user": services.USER,
        "password": services.PASSWORD,
        "database": DATABASE,
    }
    assert mysql.delivered([sample_events.put("a")], dsn_string=socket) == [DELIVERED]
    assert mysql.delivered([sample_events.put("b")], **separate) == [DELIVERED]
    assert len(mysql.held()) == 2


def test_a_password_of_any_letters_is_understood(either: Namespace) -> None:
    either.ask("CREATE USER odd IDENTIFIED BY 'pä@ss:w/ö(ř)d?'", "GRANT ALL ON *.* TO odd")
    try:
        dsn = either.dsn(user="odd:pä@ss:w/ö(ř)d?")
        assert either.delivered([sample_events.put("a")], dsn_string=dsn) == [DELIVERED]
    finally:
        either.ask("DROP USER odd")


def test_a_client_certificate_is_shown(either: Namespace, certificates: services.Certificates) -> None:
    trusted = {"dsn_string": either.dsn("tls=true", user="client"), "tls_ca": str(certificates.ca)}
    (refused,) = attempt(either.target(**trusted), [sample_events.put("a")], 1)
    assert isinstance(refused, Unavailable)
    assert "Access denied" in refused.reason
    shown = {"client_cert": str(certificates.client_cert), "client_key": str(certificates.client_key)}
    assert either.delivered([sample_events.put("a")], **trusted, **shown) == [DELIVERED]


@pytest.mark.parametrize(
    ("tls", "is_encrypted"), [("false", False), ("skip-verify", True), ("preferred", True), ("true", True)]
)
def test_tls_is_spoken_as_it_is_asked_for(
    mysql: Namespace, certificates: services.Certificates, tls: str, is_encrypted: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    files = {"tls_ca": str(certificates.ca)} if tls == "true" else {}
    create_table(mysql, dsn_string=mysql.dsn(f"tls={tls}"), **files)
    mysql.ask(
        "CREATE TABLE seen (cipher text)",
        "CREATE TRIGGER look BEFORE INSERT ON bucketevents FOR EACH ROW INSERT INTO seen SELECT VARIABLE_VALUE "
        "FROM performance_schema.session_status WHERE VARIABLE_NAME = 'Ssl_cipher'",
    )
    try:
        assert mysql.delivered([sample_events.put("a")], dsn_string=mysql.dsn(f"tls={tls}"), **files) == [DELIVERED]
        ((cipher,),) = mysql.ask("SELECT cipher FROM seen")
    finally:
        mysql.ask("DROP TABLE seen")
    assert bool(cipher) is is_encrypted
    lines = (tmp_path / "keys").read_text().splitlines() if is_encrypted else []
    assert [line for line in lines if line and line[0] != "#"] == [], "secrets of TLS sessions"


def test_a_variable_that_the_server_does_not_know_is_named(mysql: Namespace) -> None:
    with pytest.raises(TargetUnavailable, match=r"Unknown system variable 'no_such_thing' \(error 1193\)"):
        mysql.target(dsn_string=mysql.dsn("no_such_thing=1")).open()


def test_a_server_that_asks_for_the_password_as_it_is_does_not_get_it(mysql: Namespace) -> None:
    """A greeting as any listener could send it, that ends in a change to mysql_clear_password."""
    received: list[bytes] = []
    greeting = b"\x0a5.7.0\0" + bytes([1, 0, 0, 0]) + b"saltsalt\0" + b"\xff\xf7\x21\x02\0\xff\x81\x15" + bytes(10)
    greeting += b"saltsaltsalt\0mysql_native_password\0"
    change = b"\xfemysql_clear_password\0"

    def serve() -> None:
        wire, _ = listener.accept()
        with wire:
            wire.sendall(len(greeting).to_bytes(3, "little") + b"\0" + greeting)
            received.append(wire.recv(4096))
            wire.sendall(len(change).to_bytes(3, "little") + b"\2" + change)
            received.append(wire.recv(4096))

    import socket

    with socket.create_server((services.LOOPBACK, 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        dsn = mysql.dsn(port=listener.getsockname()[1])
        with pytest.raises(TargetUnavailable, match="allowCleartextPasswords=true"):
            mysql.target(dsn_string=dsn).open()
        thread.join(5)
    assert len(received) == 2
    assert services.PASSWORD.encode() not in b"".join(received)
