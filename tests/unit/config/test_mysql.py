"""What MySQL can be told: Go's connection strings in full, the old separate keys, and what is refused."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.arn import TargetId
from app.config.errors import BadValue
from app.config.target_settings import from_config_json, from_environ, load, parse_line, redacted
from app.config.targets.mysql import Dsn, MysqlSettings, parse_dsn
from tests.support.refused_settings import problems

MYSQL = {"dsn_string": "me:hunter2@tcp(db:3306)/events", "table": "bucketevents"}


@pytest.mark.parametrize(
    ("text", "dsn"),
    [
        ("me:pw@tcp(db:3307)/events", Dsn("me", "pw", "db", 3307, "", "events")),
        ("me@tcp(db)/events", Dsn("me", "", "db", 3306, "", "events")),
        ("me@tcp/events", Dsn("me", database="events")),
        ("me@/events", Dsn("me", database="events")),
        ("me:pw@tcp()/events", Dsn("me", "pw", database="events")),
        ("me:pw@tcp(10.0.0.1)/e", Dsn("me", "pw", "10.0.0.1", database="e")),
        ("me:pw@tcp([de:ad:be:ef::ca:fe]:80)/e", Dsn("me", "pw", "de:ad:be:ef::ca:fe", 80, database="e")),
        ("me:pw@tcp([::1])/e", Dsn("me", "pw", "::1", database="e")),
        ("me:pw@tcp(::1)/e", Dsn("me", "pw", "::1", database="e")),
        ("me:pw@unix(/run/mysqld/mysqld.sock)/e", Dsn("me", "pw", socket="/run/mysqld/mysqld.sock", database="e")),
        ("me:pw@unix/e", Dsn("me", "pw", socket="/tmp/mysql.sock", database="e")),
        ("me:@tcp(db)/e", Dsn("me", "", "db", database="e")),
        # A password stands as it is, whatever is in it.
        ("me:p@ss:w/or(d)?x=%2F@tcp(db)/e", Dsn("me", "p@ss:w/or(d)?x=%2F", "db", database="e")),
        ("me:пароль@tcp(db)/e", Dsn("me", "пароль", "db", database="e")),
        # The database and the values of parameters are percent-encoded.
        ("me@tcp(db)/a%2Fb%3Fc%25+d", Dsn("me", "", "db", database="a/b?c%+d")),
        ("me@tcp(db)/e?loc=Europe%2FBerlin", Dsn("me", "", "db", database="e", zone="Europe/Berlin")),
        ("me@tcp(db)/e?loc=Local&loc=", Dsn("me", "", "db", database="e")),
        ("me@tcp(db)/e?", Dsn("me", "", "db", database="e")),
        ("me@tcp(db)/e?tls&&tls=true", Dsn("me", "", "db", database="e", tls="true")),
        ("me@tcp(db)/e?tls=1&tls=false", Dsn("me", "", "db", database="e")),
        ("me@tcp(db)/e?tls=Skip-Verify", Dsn("me", "", "db", database="e", tls="skip-verify")),
        ("me@tcp(db)/e?tls=preferred", Dsn("me", "", "db", database="e", tls="preferred")),
        (
            "me@tcp(db)/e?timeout=1m30s&readTimeout=500ms&writeTimeout=0",
            Dsn("me", "", "db", database="e", connect_timeout=90.0, read_timeout=0.5),
        ),
        ("me@tcp(db)/e?charset=utf8mb4,utf8&parseTime=true&compress=1", Dsn("me", "", "db", database="e")),
        ("me@tcp(db)/e?collation=utf8mb4_bin", Dsn("me", "", "db", database="e", collation="utf8mb4_bin")),
        ("me@tcp(db)/e?allowCleartextPasswords=true", Dsn("me", "", "db", database="e", cleartext=True)),
        ("me@tcp(db)/e?timeTruncate=1s&maxAllowedPacket=0", Dsn("me", "", "db", database="e", truncate=1.0)),
        (
            "me@tcp(db)/e?sql_mode=%27ANSI%27&lock_wait_timeout=3&time_zone=%27%2B00%3A00%27&lock_wait_timeout=4",
            Dsn(
                "me", "", "db", database="e",
                variables=(("sql_mode", "ANSI"), ("time_zone", "+00:00"), ("lock_wait_timeout", "4")),
            ),
        ),
    ],
)  # fmt: skip
def test_a_dsn_is_read_as_gos_driver_reads_it(text: str, dsn: Dsn) -> None:
    assert load(MysqlSettings, MYSQL | {"dsn_string": text}).dsn == dsn


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("me:pw@tcp(db:3306)", "no / before the database's name"),
        ("mysql", "no / before"),
        ("me:pw@tcp(db:3306)/", "has no database"),
        ("@tcp(db)/e", "has no user"),
        ("tcp(db)/e", "has no user"),
        ("me@tcp(db/e", "without a closing )"),
        ("me@tcp(db)/e?loc=Europe/Berlin", "write it as %2F"),
        ("me@pipe(db)/e", "neither tcp nor unix"),
        ("mysql://me:pw@db/e", "neither tcp nor unix"),
        ("me@unix(run.sock)/e", "path that is not absolute"),
        ("me@tcp(db:x)/e", "no valid port"),
        ("me@tcp(db:0)/e", "no valid port"),
        ("me@tcp(d+b)/e", "no valid host"),
        ("me@tcp([::1)/e", "no valid host"),
        ("me@tcp(db)/100%", "a % that does not begin an escape"),
        ("me@tcp(db)/%FF", "not UTF-8"),
        (f"me@tcp(db)/{'e' * 65}", "a database whose name is longer than the 64 characters"),
        ("me@tcp(db)/e%20", "a database whose name ends with a space"),
        ("me@tcp(db)/e%00", "a database whose name ends with a space or contains a control character"),
        ("me@tcp([fe80::1%?a=b&c])/e", "its zone is no interface's name"),
        ("me@tcp(db)/e?tls=custom", "only a Go program can register"),
        ("me@tcp(db)/e?serverPubKey=k", "only a Go program can register"),
        ("me@tcp(db)/e?tsl=true", "did you mean tls"),
        ("me@tcp(db)/e?ParseTime=true", "did you mean parseTime"),
        ("me@tcp(db)/e?strict=true", "known are tls, timeout"),
        ("me@tcp(db)/e?autocommit=0", "does not know"),
        ("me@tcp(db)/e?parseTime=yes", "the value of parameter 1 is neither true nor false"),
        ("me@tcp(db)/e?a&timeout=5", "the value of parameter 2 is not a duration"),
        ("me@tcp(db)/e?maxAllowedPacket=4M", "is not a whole number"),
        ("me@tcp(db)/e?charset=latin1", "cannot hold every key"),
        ("me@tcp(db)/e?collation=latin1_bin", "not a collation of utf8mb4"),
        ("me@tcp(db)/e?loc=Nowhere", "not a known time zone"),
        ("me@tcp(db)/e?loc=..%2F..%2Fetc", "not a known time zone"),
        ("me@tcp(db)/e?allowFallbackToPlaintext=true", "use tls=preferred"),
        ("me@tcp(db)/e?allowNativePasswords=false", "leave it out"),
        ("me@tcp(db)/e?allowOldPasswords=1", "before MySQL 4.1"),
        ("me@tcp(db)/e?SQL_mode=ANSI", "write it in lower case"),
        ("me@tcp(db)/e?character_set_client=latin1", "which is utf8mb4"),
        ("me@tcp(db)/e?sql_mode=1,%20GLOBAL%20x=1", "neither a word, a number nor a text"),
        ("me@tcp(db)/e?sql_mode=%27a%27%27%27", "neither a word"),
    ],
)
def test_a_dsn_that_cannot_be_is_refused_with_the_way_out(text: str, why: str) -> None:
    assert why in problems("mysql", MYSQL | {"dsn_string": text})["dsn_string"]


@given(st.text(max_size=40) | st.from_regex(r"[a-z:@/()?=&%\[\]]{0,30}", fullmatch=True))
def test_whatever_stands_there_is_read_or_refused_without_being_quoted(text: str) -> None:
    secret = f"hunter2{text}"
    said = ""
    try:
        parse_dsn(f"me:{secret}@tcp(db)/{text}")
    except BadValue as error:
        said = f"{error.problem}; {error.hint}"
    assert "hunter2" not in said
    assert not said.endswith("; ")


@given(st.text(max_size=20).filter(lambda text: ":" not in text and text), st.text(max_size=20))
def test_any_user_and_password_come_out_as_they_went_in(user: str, password: str) -> None:
    found = parse_dsn(f"{user}:{password}@unix(/s)/db")
    assert (found.user, found.password, found.socket) == (user, password, "/s")


def test_the_old_keys_stand_in_for_the_dsn() -> None:
    separate = {"host": "db", "port": "3307", "user": "me", "password": "p@/w", "database": "events", "table": "t"}
    assert load(MysqlSettings, separate).dsn == Dsn("me", "p@/w", "db", 3307, database="events")
    del separate["port"]
    assert load(MysqlSettings, separate).dsn.port == 3306


@pytest.mark.parametrize(
    ("values", "key", "why"),
    [
        ({"dsn_string": ""}, "dsn_string", "is required"),
        ({"host": "db2"}, "host", "conflicts with dsn_string"),
        ({"user": "you"}, "username", "conflicts with dsn_string"),
        ({"dsn_string": "", "host": "db", "database": "d"}, "username", "is required with host"),
        ({"dsn_string": "", "host": "db", "user": "me"}, "database", "is required with host"),
        ({"dsn_string": "", "host": "d b", "user": "me", "database": "d"}, "host", "no valid host"),
        ({"dsn_string": "", "host": "::1%/d?a=b", "user": "me", "database": "d"}, "host", "its zone is no interface's"),
        ({"dsn_string": "", "host": "db", "user": "me", "database": "e" * 65}, "database", "64 characters a name can"),
        ({"tls_ca": "/ca"}, "tls_ca", "add tls=true"),
        ({"dsn_string": "me@/e?tls=skip-verify", "tls_ca": "/ca"}, "tls_ca", "unless the certificate is verified"),
        ({"client_cert": "/c", "client_key": "/k"}, "client_cert", "without TLS"),
        ({"dsn_string": "me@/e?tls=true", "client_cert": "/c"}, "client_key", "is missing"),
        ({"max_open_connections": "-1"}, "max_open_connections", "out of range"),
        ({"table": ""}, "table", "is required"),
    ],
)
def test_what_does_not_go_together_is_refused(values: dict[str, str], key: str, why: str) -> None:
    found = problems("mysql", MYSQL | values)
    assert set(found) == {key}
    assert why in found[key]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("BucketEvents", ("", "BucketEvents")),
        ("other.events", ("other", "events")),
        ("`a-b`", ("", "a-b")),
        ("`a.b`.`we``ird; DROP`", ("a.b", "we`ird; DROP")),
        ("_ünïcode$1", ("", "_ünïcode$1")),
        ("`1`", ("", "1")),
        ("2024", None),
        ("a-b", None),
        ("a.b.c", None),
        ("`a", None),
        ("a b", None),
        ("t; DROP TABLE t", None),
        ("``", None),
        ("`a `", None),
        ("`\U0001f600`", None),
        ("a" * 65, None),
    ],
)
def test_a_table_is_called_what_mysql_would_call_it(text: str, names: tuple[str, str] | None) -> None:
    if names:
        assert load(MysqlSettings, MYSQL | {"table": text}).table_name == names
    else:
        assert set(problems("mysql", MYSQL | {"table": text})) == {"table"}


def test_no_password_is_printed() -> None:
    settings = load(MysqlSettings, MYSQL)
    assert "hunter2" not in f"{settings!r} {settings.dsn!r} {redacted('mysql', MYSQL)}"
    assert "hunter2" in settings.dsn.password
    assert {each.name for each in fields(Dsn) if not each.repr} == {"password"}


def test_every_form_in_which_settings_come_gives_the_same() -> None:
    id_, dsn = TargetId("mysql", "1"), MYSQL["dsn_string"]
    environ = {"ENABLE": "on", "DSN_STRING": dsn, "TABLE": "t", "FORMAT": "access", "MAX_OPEN_CONNECTIONS": "3"}
    by_environment = from_environ({f"MINIO_NOTIFY_MYSQL_{key}_1": value for key, value in environ.items()})
    text = f'notify_mysql:1 dsn_string="{dsn}" table=t format=access max_open_connections=3'
    member = {"enable": True, "dsnString": dsn, "table": "t", "format": "access", "maxOpenConnections": 3}
    by_file = from_config_json({"notify": {"mysql": {"1": member}}})
    found = [by_environment.targets[id_], parse_line(text)[1], by_file.targets[id_]]
    settings = [load(MysqlSettings, values) for values in found]
    assert settings[0] == settings[1] == settings[2]
    assert (settings[0].dsn.password, settings[0].format, settings[0].max_open_connections) == ("hunter2", "access", 3)


def test_the_parts_of_an_old_config_file_are_understood() -> None:
    member = {"enable": True, "format": "namespace", "dsnString": "", "table": "minio_images", "host": "172.17.0.1",
              "port": "3306", "user": "root", "password": "hunter2", "database": "miniodb"}  # fmt: skip
    found = from_config_json({"notify": {"mysql": {"1": member}}}).targets[TargetId("mysql", "1")]
    assert load(MysqlSettings, found).dsn == Dsn("root", "hunter2", "172.17.0.1", 3306, database="miniodb")
