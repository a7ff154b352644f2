from pathlib import Path

import pytest
import sqlalchemy as sa
from cryptography.fernet import Fernet
from kombu import Connection
from kombu.utils.url import url_to_parts

from app.config.errors import BadSettings
from app.config.fields.addresses import HostPort
from app.config.settings import Settings, hash_token

B = "BUCKETWIRE_"
KEY = Fernet.generate_key().decode()
TOKEN = "0123456789abcdef"


def settings(**values: str) -> Settings:
    return Settings.from_environ({B + name: text for name, text in values.items()})


def problems(environ: dict[str, str]) -> dict[str, str]:
    with pytest.raises(BadSettings) as caught:
        Settings.from_environ(environ)
    return {problem.key: str(problem) for problem in caught.value.problems}


def test_no_setting_at_all_is_the_embedded_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = Settings.from_environ({"PATH": "/bin"})
    assert found.database_url == f"sqlite:///{tmp_path}/var/bucketwire.db"
    assert found.broker_url == f"redis+socket://{tmp_path}/var/redis.sock"
    assert (found.embedded_database, found.embedded_broker, found.allow_private) == (True, True, True)
    assert found.listen == HostPort("127.0.0.1", 8730)
    assert found.loopback
    assert (found.api_tokens, found.access_key, found.secret_key, found.secret_keys) == ((), "", "", ())
    assert (found.retention, found.drain_interval, found.lease_ttl, found.lease_max_work) == (604800.0, 2.0, 6.0, 5.0)
    assert (found.partitions, found.body_limit, found.record_limit) == (16, 64 * 2**20, 10_000)
    assert (found.region, found.spool_dir, found.sync_events) == ("", "", "")
    assert (found.folder, found.key_path) == (tmp_path / "var", tmp_path / "var" / "secret.key")


def test_a_folder_with_odd_characters_is_found_by_the_database_and_the_broker(tmp_path: Path) -> None:
    found = settings(DATA_DIR=f"{tmp_path}/a b%20?#")
    assert sa.make_url(found.database_url).database == f"{tmp_path}/a b%20?#/bucketwire.db"
    socket = url_to_parts(Connection(found.broker_url).hostname).path  # as kombu's Redis channel reads it
    assert "/" + socket == f"{tmp_path}/a b%20?#/redis.sock"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("postgresql://u:p%40@h:5432/db", "postgresql+psycopg2://u:p%40@h:5432/db"),
        ("postgres://h/db?sslmode=require", "postgresql+psycopg2://h/db?sslmode=require"),
        ("postgresql+psycopg2:///db?host=/run/postgresql", "postgresql+psycopg2:///db?host=/run/postgresql"),
        ("mysql://u:p@h/db", "mysql+pymysql://u:p@h/db?charset=utf8mb4"),
        ("mariadb://u:p@h/db?ssl_ca=/ca", "mysql+pymysql://u:p@h/db?charset=utf8mb4&ssl_ca=%2Fca"),
        ("mysql+pymysql://h/db?charset=utf8mb4", "mysql+pymysql://h/db?charset=utf8mb4"),
        ("sqlite:////tmp/x.db", "sqlite:////tmp/x.db"),
    ],
)
def test_a_database_gets_its_driver(given: str, url: str) -> None:
    found = settings(DATABASE_URL=given)
    assert found.database_url == url
    assert (found.embedded_database, found.embedded_broker, found.allow_private) == (False, True, False)
    sa.make_url(url)


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "sqlite:///x.db", "oracle://h/db", "postgresql+pg8000://h/db", "mysql:///db",
            "x", "postgresql://h:x/db", "mysql+mysqldb://h/db", "postgresql://h/d b"],
)  # fmt: skip
def test_a_database_that_cannot_be_is_refused(url: str) -> None:
    assert set(problems({f"{B}DATABASE_URL": url})) == {f"{B}DATABASE_URL"}


@pytest.mark.parametrize(
    "url",
    [
        "redis://:pw@h:6379/0",
        "rediss://h",
        "amqp://guest:guest@h//",
        "amqps://h",
        "redis+socket:///run/r.sock?virtual_host=1",
    ],
)
def test_a_broker_is_taken_as_given(url: str) -> None:
    found = settings(BROKER_URL=url)
    assert found.broker_url == url
    assert (found.embedded_database, found.embedded_broker, found.allow_private) == (True, False, False)


@pytest.mark.parametrize(
    "url", ["memory://", "filesystem://", "sqla+sqlite:///x", "redis://", "redis", "redis+socket://x"]
)
def test_a_broker_that_cannot_be_is_refused(url: str) -> None:
    assert set(problems({f"{B}BROKER_URL": url})) == {f"{B}BROKER_URL"}


def test_a_connect_server_is_refused_because_the_jobs_cannot_run_there() -> None:
    found = problems({f"{B}SPARK_MASTER": "sc://host:15002"})
    assert "is a Spark Connect server, on which the jobs cannot run" in found[f"{B}SPARK_MASTER"]
    assert settings(SPARK_MASTER="spark://host:7077").spark_master == "spark://host:7077"


def test_no_secret_stands_in_the_printed_form_or_in_an_error() -> None:
    environ = {
        f"{B}DATABASE_URL": "postgresql://u:hunter2@h/db",
        f"{B}BROKER_URL": "amqp://u:hunter2@h//",
        f"{B}ACCESS_KEY": "admin",
        f"{B}SECRET_KEY": "hunter2hunter2",
        f"{B}SECRET_KEYS": KEY,
        f"{B}API_TOKENS": f"a:read:{TOKEN}",
    }
    printed = repr(Settings.from_environ(environ))
    for secret in ("hunter2", KEY, TOKEN, hash_token(TOKEN)):
        assert secret not in printed
    wrong = {name: text.replace("hunter2", "hun ter2") + "\x01!" for name, text in environ.items()}
    found = problems(wrong)
    assert set(found) == set(wrong)
    for secret in ("ter2", KEY, TOKEN):
        assert secret not in str(found)


@pytest.mark.parametrize("name", ["env", "file"])
def test_a_token_may_be_named_as_references_begin_and_is_never_told(name: str) -> None:
    (token,) = settings(API_TOKENS=f"{name}:ingest:{TOKEN}").api_tokens
    assert (token.name, token.digest) == (name, hash_token(TOKEN))
    for wrong in (f"{name}:write:{TOKEN}", f"{name}:{TOKEN}!", f"{name}:{TOKEN}:ingest"):
        found = problems({f"{B}API_TOKENS": wrong, f"{B}SECRET_KEY": f"{name}:{TOKEN}!"})
        assert set(found) == {f"{B}API_TOKENS", f"{B}SECRET_KEY"}
        assert TOKEN not in str(found)


def test_tokens_are_kept_by_their_digest() -> None:
    found = settings(API_TOKENS=f"minio:ingest:{TOKEN}, ops:ingest+read+admin:{TOKEN}x,").api_tokens
    assert [(token.name, token.scopes, token.digest) for token in found] == [
        ("minio", {"ingest"}, hash_token(TOKEN)),
        ("ops", {"ingest", "read", "admin"}, hash_token(TOKEN + "x")),
    ]


@pytest.mark.parametrize(
    "tokens",
    [TOKEN, f"a:{TOKEN}", f"a:write:{TOKEN}", f"a::{TOKEN}", f":read:{TOKEN}", "a:read:short", f"a:read:{TOKEN} x",
     f"a:read:{TOKEN},a:read:{TOKEN}x", f"a:read:{TOKEN},b:read:{TOKEN}"],
)  # fmt: skip
def test_tokens_that_cannot_be_are_refused(tokens: str) -> None:
    assert set(problems({f"{B}API_TOKENS": tokens})) == {f"{B}API_TOKENS"}


def test_an_address_that_is_only_a_port_is_told_what_is_missing() -> None:
    found = problems({f"{B}LISTEN": "8730"})[f"{B}LISTEN"]
    assert "has only a number, and no host; write the host before the port, such as 127.0.0.1:8730" in found


@pytest.mark.parametrize(
    ("listen", "place", "loopback"),
    [
        ("0.0.0.0:80", HostPort("0.0.0.0", 80), False),
        ("127.0.0.2", HostPort("127.0.0.2", 8730), True),
        ("localhost:0", HostPort("localhost", 0), True),
        ("[::1]:8000", HostPort("::1", 8000), True),
        ("[::]:8000", HostPort("::", 8000), False),
        ("api.example.com:80", HostPort("api.example.com", 80), False),
    ],
)
def test_where_it_listens_and_who_can_reach_it(listen: str, place: HostPort, loopback: bool) -> None:
    found = settings(LISTEN=listen)
    assert (found.listen, found.loopback) == (place, loopback)


@pytest.mark.parametrize(
    ("listen", "place"),
    [
        ("0.0.0.0:80", "127.0.0.1:80"), ("[::]:8000", "[::1]:8000"), ("[0:0::0]:8000", "[::1]:8000"),
        ("127.0.0.2", "127.0.0.2:8730"), ("[::1]:8000", "[::1]:8000"), ("[2a00::1]:80", "[2a00::1]:80"),
        ("api.example.com:80", "api.example.com:80"),
    ],
)  # fmt: skip
def test_the_url_of_the_api_is_one_that_this_machine_reaches(listen: str, place: str) -> None:
    assert settings(LISTEN=listen).api_url == f"http://{place}"
    assert settings(LISTEN=listen, TLS_CERT="/a.crt", TLS_KEY="/a.key").api_url == f"https://{place}"


def test_an_unknown_variable_is_refused_with_the_nearest() -> None:
    found = problems({f"{B}DATABASE_ULR": "x", f"{B}PARTITIONS": "many", f"{B}CACHE": "/tests"})
    assert found == {
        f"{B}DATABASE_ULR": f"{B}DATABASE_ULR: is not a known setting; did you mean {B}DATABASE_URL?",
        f"{B}PARTITIONS": f"{B}PARTITIONS: “many” is not a whole number; write decimal digits",
    }


@pytest.mark.parametrize(
    ("values", "variable"),
    [
        ({"ACCESS_KEY": "admin"}, "SECRET_KEY"),
        ({"SECRET_KEY": "password"}, "ACCESS_KEY"),
        ({"ACCESS_KEY": "ab", "SECRET_KEY": "password"}, "ACCESS_KEY"),
        ({"ACCESS_KEY": "abc", "SECRET_KEY": "short"}, "SECRET_KEY"),
        ({"LEASE_MAX_WORK": "10s"}, "LEASE_MAX_WORK"),
        ({"REGION": "us east"}, "REGION"),
        ({"DATA_DIR": "/" + "x" * 120}, "DATA_DIR"),
        ({"SPOOL_DIR": "spool"}, "SPOOL_DIR"),
        ({"PARTITIONS": "2000"}, "PARTITIONS"),
        ({"SECRET_KEYS": f"{KEY},x"}, "SECRET_KEYS"),
        ({"BODY_LIMIT": "1"}, "BODY_LIMIT"),
        ({"TLS_CERT": "/api.crt"}, "TLS_KEY"),
        ({"TLS_KEY": "/api.key"}, "TLS_CERT"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_their_variable(values: dict[str, str], variable: str) -> None:
    assert set(problems({B + name: text for name, text in values.items()})) == {B + variable}


def test_a_long_folder_is_no_problem_with_a_broker_of_its_own() -> None:
    assert settings(DATA_DIR="/" + "x" * 120, BROKER_URL="redis://h").embedded_broker is False


def test_several_keys_are_kept_newest_first() -> None:
    other = Fernet.generate_key().decode()
    assert settings(SECRET_KEYS=f"{other}, {KEY}").secret_keys == (other, KEY)


def test_minios_own_variable_sets_the_mode() -> None:
    assert Settings.from_environ({"MINIO_API_SYNC_EVENTS": "true"}).sync_events == "on"


def test_private_addresses_can_be_allowed_or_not() -> None:
    assert settings(ALLOW_PRIVATE="off").allow_private is False
    assert settings(ALLOW_PRIVATE="on", DATABASE_URL="postgresql://h/db").allow_private is True


def test_secrets_may_stand_in_files(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgresql://u:hunter2@h/db\n")
    (tmp_path / "tokens").write_text(f"a:read:{TOKEN}\n")
    found = settings(DATABASE_URL=f"file:{tmp_path}/url", API_TOKENS=f"file:{tmp_path}/tokens")
    assert found.database_url == "postgresql+psycopg2://u:hunter2@h/db"
    assert found.api_tokens[0].digest == hash_token(TOKEN)
    assert f"{B}BROKER_URL" in problems({f"{B}BROKER_URL": "file:/nowhere"})


POSTGRESQL = "postgresql://outbox@127.0.0.1/outbox"


@pytest.mark.parametrize(
    ("warehouse", "catalog", "database", "problem"),
    [
        ("", "", "", ""),
        ("/srv/tables", "hadoop", "", ""),
        ("/srv/tables", "jdbc", POSTGRESQL, ""),
        ("s3a://lake/here", "jdbc", POSTGRESQL, ""),
        ("s3a://lake/here", "hadoop", POSTGRESQL, "set BUCKETWIRE_TABLES_CATALOG=jdbc"),
        ("hdfs://name/here", "jdbc", POSTGRESQL, "write a path, or s3a://bucket/prefix"),
        ("", "jdbc", "", "needs an outbox on PostgreSQL"),
        ("", "rest", "", "is not the URL of a REST catalog"),
    ],
)
def test_the_tables_are_where_a_catalog_can_be(warehouse: str, catalog: str, database: str, problem: str) -> None:
    texts = {"TABLES_WAREHOUSE": warehouse, "TABLES_CATALOG": catalog, "DATABASE_URL": database}
    environ = {f"BUCKETWIRE_{name}": text for name, text in texts.items()}
    if not problem:
        Settings.from_environ(environ)
        return
    with pytest.raises(BadSettings, match=problem):
        Settings.from_environ(environ)


def test_the_secrets_of_every_kind_of_setting_are_known() -> None:
    found = settings(
        DATABASE_URL="postgresql://u:sekret99@h/db", BROKER_URL="redis://:brok%2Fer@h/0", SECRET_KEYS=KEY,
        S3_KEYS="x:read:watcher:0f1e2d3c4b", B2_SIGNING_SECRETS="b" * 32, API_TOKENS=f"x:read:{TOKEN}",
    )  # fmt: skip
    assert {"sekret99", "brok/er", KEY, "0f1e2d3c4b", "b" * 32} <= {*found.secrets()}
