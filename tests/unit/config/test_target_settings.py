import os
from pathlib import Path

import pytest

from app.config.arn import TargetId
from app.config.declared_types import TYPES
from app.config.errors import REDACTED
from app.config.fields.addresses import HostPort, SchemedHost
from app.config.fields.fields import fields_of
from app.config.formats.reference_page import PAGE, reference_page
from app.config.target_settings import (
    BadSettings,
    invalid_settings,
    load,
    merged,
    parse_line,
    redacted,
    texts,
    warnings,
)
from app.config.targets.postgresql import PostgresSettings
from app.config.targets.redis import RedisSettings
from app.config.targets.webhook import WebhookSettings
from tests.support.refused_settings import problems

REDIS = {"address": "redis:6379", "key": "events"}
POSTGRES = {"connection_string": "host=db user=me", "table": "events"}
WEBHOOK = {"endpoint": "http://h/x"}
MINIMAL = {type_name: dict(cls.example) for type_name, cls in TYPES.items()}
MINIMAL["kafka"] |= {"sasl": "on", "sasl_username": "me", "sasl_password": "it"}
MINIMAL["mqtt"] |= {"username": "me"}
SIGNING = "whsec_" + "c2VjcmV0" * 4


def test_the_defaults_are_those_of_the_reference_and_ours() -> None:
    settings = load(RedisSettings, REDIS)
    assert settings == RedisSettings(address=SchemedHost(HostPort("redis", 6379), tls=False), key="events")
    assert settings.enable is True
    assert (settings.queue_limit, settings.effective_queue_limit, settings.queue_full) == (0, None, "discard")
    assert (settings.sync, settings.max_in_flight, settings.batch_size) == ("", 1000, 500)
    assert (settings.max_attempts, settings.retry_base, settings.retry_max_delay) == (20, 1.0, 300.0)
    assert (settings.max_age, settings.timeout) == (259200.0, 5.0)
    assert (settings.format, settings.policy, settings.access_shape) == ("namespace", "mirror", "minio")
    assert (settings.db, settings.tls, settings.tls_skip_verify, settings.password) == (0, False, False, "")
    assert load(PostgresSettings, POSTGRES).max_open_connections == 2
    assert (load(WebhookSettings, WEBHOOK).read_timeout, load(WebhookSettings, WEBHOOK).allow_private) == (10.0, False)


def test_json_values_mean_what_their_texts_mean() -> None:
    given = {"enable": False, "db": 3, "queue_limit": 5.0, "comment": None, "tls": True, "sync": True, "key": 7}
    settings = load(RedisSettings, REDIS | given)
    assert (settings.enable, settings.db, settings.queue_limit) == (False, 3, 5)
    assert (settings.comment, settings.tls, settings.sync, settings.key) == ("", True, "on", "7")


@pytest.mark.parametrize(
    ("key", "value"), [("key", True), ("db", 1.5), ("key", []), ("key", {}), ("timeout", 5), ("enable", 2)]
)
def test_json_values_that_cannot_be_are_refused(key: str, value: object) -> None:
    assert key in problems("redis", REDIS | {key: value})


def test_blanks_around_a_value_are_no_part_of_it_and_an_empty_one_is_none() -> None:
    settings = load(RedisSettings, {"address": "  redis ", "key": "\tevents\n", "db": " ", "format": ""})
    assert settings == RedisSettings(address=SchemedHost(HostPort("redis", 6379), tls=False), key="events")


def test_every_problem_is_named_at_once() -> None:
    found = problems("redis", {"adress": "x", "db": "minus", "format": "both", "tls": "perhaps"})
    assert set(found) == {"adress", "db", "format", "tls", "address", "key"}
    assert found["adress"] == "adress: is not a known setting; did you mean address?"
    assert found["db"] == "db: “minus” is not a whole number; write decimal digits"
    assert found["address"].startswith("address: is required; ")


def test_a_key_like_none_is_answered_with_all_of_them() -> None:
    assert "known are enable" in problems("redis", REDIS | {"zzzzzz": "x"})["zzzzzz"]


@pytest.mark.parametrize("type_name", TYPES)
def test_no_secret_stands_in_an_error_or_a_printed_form(type_name: str) -> None:
    cls = TYPES[type_name]
    secrets = [name for name, key in fields_of(cls).items() if key.secret]
    assert secrets or type_name == "nsq"
    wrong = dict.fromkeys(secrets, "hunter2\x01'")
    for found in problems(type_name, wrong).values():
        assert "hunter2" not in found
    values = MINIMAL[type_name] | dict.fromkeys(secrets, "host=hunter2") | {"passwrd": "hunter2"}
    if type_name == "webhook":
        values["signing_secret"] = SIGNING
    if type_name == "elasticsearch":
        del values["password"]  # two logins at once are refused
    if type_name == "mysql":
        values |= {"dsn_string": "me:hunter2@tcp(db)/events", "password": ""}  # which says all that there is
    if type_name == "nats":
        values |= {"username": "me", "token": ""}
    if type_name == "redis":
        values["sentinel"] = "events"  # the Sentinels' password needs it
    assert "hunter2" not in str(redacted(type_name, values))
    assert SIGNING not in str(redacted(type_name, values))
    del values["passwrd"]
    settings = load(type_name, values)
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings)


def test_the_address_of_redis_may_be_a_url_that_says_no_more_than_where() -> None:
    secure, plain = (load("redis", REDIS | {"address": f"{scheme}://[::1]"}) for scheme in ("rediss", "redis"))
    assert (str(secure.address), secure.uses_tls, plain.uses_tls) == ("[::1]:6379", True, False)
    for wrong in ("rediss://me:hunter2@h", "rediss://h/3", "http://h"):
        assert set(found := problems("redis", REDIS | {"address": wrong})) == {"address"}
        assert "hunter2" not in str(found)


def test_a_password_in_an_endpoint_is_not_shown_either() -> None:
    values = {"endpoint": "http://me:hunter2@h/x"}
    assert redacted("webhook", values) == {"endpoint": f"http://me:{REDACTED}@h/{REDACTED}"}
    assert "hunter2" not in repr(load("webhook", values))
    assert "hunter2" not in str(problems("webhook", {"endpoint": "http://me:hunter2@h:x/"}))


def test_what_is_shown_in_place_of_a_secret_is_not_taken_for_one() -> None:
    assert "placeholder of a secret" in problems("redis", REDIS | {"password": REDACTED})["password"]
    assert "endpoint" in problems("webhook", {"endpoint": f"http://me:{REDACTED}@h/x"})


def test_a_target_that_is_off_needs_nothing_but_right_values() -> None:
    assert load("redis", {"enable": "off"}).enable is False
    assert set(problems("redis", {"enable": "off", "db": "x"})) == {"db"}
    assert load("redis", {"enable": "off", "user": "x"}).enable is False


BETWEEN: list[tuple[str, dict[str, str], str]] = [
    ("redis", {"client_cert": "/c", "tls": "on"}, "client_key"),
    ("redis", {"client_key": "/k", "tls": "on"}, "client_cert"),
    ("redis", {"tls_ca": "/ca"}, "tls_ca"),
    ("redis", {"tls_skip_verify": "on"}, "tls_skip_verify"),
    ("redis", {"user": "me"}, "user"),
    ("redis", {"tls": "on", "address": "/run/redis.sock"}, "tls"),
    ("redis", {"tls_ca": "/ca.pem", "address": "redis://h"}, "tls_ca"),
    ("redis", {"retry_base": "10m"}, "retry_base"),
    ("webhook", {"client_cert": "/c"}, "client_key"),
    ("webhook", {"client_key": "/k"}, "client_cert"),
    ("webhook", {"payload": "cloudevents", "body_shape": "guide"}, "body_shape"),
    ("webhook", {"payload": "cloudevents-binary", "events_per_post": "2"}, "payload"),
    ("kafka", {"payload": "cloudevents-binary", "version": "0.10.2.0"}, "payload"),
    ("mqtt", {"payload": "cloudevents-binary"}, "payload"),
    ("nats", {"payload": "cloudevents-binary", "streaming": "on", "streaming_cluster_id": "c"}, "payload"),
    ("nsq", {"payload": "cloudevents-binary"}, "payload"),
    ("redis", {"payload": "cloudevents"}, "payload"),
    ("redis", {"payload": "cloudevents-binary", "format": "access"}, "payload"),
    ("redis", {"payload": "cloudevents", "format": "access", "access_shape": "guide"}, "access_shape"),
    ("redis", {"format": "stream", "access_shape": "guide"}, "access_shape"),
    ("webhook", {"path": "/{bucket}", "events_per_post": "2"}, "path"),
    ("webhook", {"headers": "X-A: {bucket}", "events_per_post": "2"}, "headers"),
    ("redis", {"key": "log:{bucket}"}, "key"),
    ("elasticsearch", {"index": "log-{bucket}"}, "index"),
    ("redis", {"key": "log:{bucket}", "format": "access", "cluster": "on"}, "key"),
    ("amqp", {"exchange": "", "exchange_type": "", "routing_key": "{bucket}"}, "mandatory"),
    ("redis", {"format": "stream", "reconcile": "0 3 * * *"}, "reconcile"),
    ("redis", {"max_entries": "9", "format": "access"}, "max_entries"),
    ("elasticsearch", {"payload": "cloudevents", "format": "access", "access_shape": "guide"}, "access_shape"),
    ("mysql", {"payload": "cloudevents", "format": "namespace"}, "payload"),
    ("postgresql", {"payload": "cloud-events", "format": "access"}, "payload"),
    ("postgresql", {"connection_string": ""}, "connection_string"),
    ("postgresql", {"connection_string": "postgresql://h/db", "host": "h2"}, "host"),
    ("postgresql", {"connection_string": "postgresql://h/db", "user": "u"}, "username"),
]


@pytest.mark.parametrize(("type_name", "values", "key"), BETWEEN)
def test_values_that_do_not_go_together_are_refused(type_name: str, values: dict[str, str], key: str) -> None:
    assert set(problems(type_name, MINIMAL[type_name] | values)) == {key}


def test_a_cloud_event_that_a_target_cannot_carry_is_refused_with_what_to_write() -> None:
    for type_name, values, end in (
        ("nsq", {}, "which this type of target does not have; write cloudevents"),
        ("redis", {"format": "access"}, "which this type of target does not have; write cloudevents"),
        ("mqtt", {}, "which only MQTT 5 has; set version=5, or payload=cloudevents"),
        ("webhook", {"events_per_post": "9"}, "set payload=cloudevents, or events_per_post=1"),
    ):
        found = problems(type_name, MINIMAL[type_name] | values | {"payload": "CloudEvents-Binary"})
        assert found["payload"].endswith(end)


@pytest.mark.parametrize("type_name", TYPES)
def test_every_type_of_target_gets_cloud_events_in_json(type_name: str) -> None:
    access = {"format": "access"} if "format" in fields_of(TYPES[type_name]) else {}
    for payload in ("", "minio", "cloudevents"):
        settings = load(type_name, MINIMAL[type_name] | access | {"payload": payload})
        assert getattr(settings, "payload") == (payload or "minio")  # noqa: B009 (no type declares it for all)


WITHOUT_EFFECT = {
    "nsq": ({"nsqd_address": "h", "topic": "t", "tls_skip_verify": "on"}, "tls_skip_verify: has no effect without TLS"),
    "nats": ({"address": "h", "subject": "s", "tls_skip_verify": "on"}, "tls_skip_verify: has no effect without TLS"),
    "redis": ({"address": "h", "key": "k", "tls_ca": "/ca"}, "tls_ca: has no effect without TLS; set tls=on"),
    "kafka": (
        {"brokers": "h", "topic": "t", "sasl_username": "me"}, "sasl_username: has no effect without SASL; set sasl=on"
    ),
    "mqtt": ({"broker": "tcp://h", "topic": "t", "tls_ca": "/ca"}, "tls_ca: has no effect without TLS; begin broker"),
    "amqp": (
        {"url": "amqp://h", "exchange": "e", "tls_skip_verify": "on"}, "tls_skip_verify: has no effect without TLS"
    ),
    "mysql": (
        {"dsn_string": "me:pw@tcp(h:1)/db", "table": "t", "client_cert": "/c", "client_key": "/k"},
        "client_cert: has no effect without TLS",
    ),
}  # fmt: skip


@pytest.mark.parametrize("type_name", WITHOUT_EFFECT)
def test_what_has_no_effect_is_refused_except_in_minios_own_forms_which_warn(type_name: str) -> None:
    values, sentence = WITHOUT_EFFECT[type_name]
    with pytest.raises(BadSettings) as refused:
        load(type_name, values)
    assert str(refused.value).startswith(sentence)
    assert invalid_settings({TargetId(type_name, "a"): values}) == {}
    [warning] = warnings(type_name, values)
    assert warning.startswith(sentence)
    assert warnings(type_name, values | {"enable": "off"}) == []
    assert warnings(type_name, values | {"unknown": "x"}) == []


def test_a_value_that_is_wrong_by_itself_is_not_also_blamed_for_what_it_would_have_meant() -> None:
    assert set(problems("redis", REDIS | {"user": "me", "password": "file:/nowhere/secret"})) == {"password"}


DSNS = [
    ({"connection_string": "host=db user=me"}, "host=db user=me"),
    ({"connection_string": "postgresql://u@h/db"}, "postgresql://u@h/db"),
    ({"host": "db"}, "host=db"),
    (
        {"connection_string": "sslmode=disable", "host": "127.0.0.1", "port": "5432", "user": "postgres",
         "password": "it's \\", "database": "minio_events"},
        "sslmode=disable host=127.0.0.1 port=5432 user=postgres password='it\\'s \\\\' dbname=minio_events",
    ),
    ({"connection_string": "host=a dbname=b", "host": "c"}, "dbname=b host=c"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "dsn"), DSNS)
def test_the_old_postgresql_keys_add_to_the_connection_string(values: dict[str, str], dsn: str) -> None:
    assert load(PostgresSettings, {"table": "t"} | values).dsn == dsn


GUIDE_OF_2020 = "host=hostname port=2832 username=psqluser password=psqlpass database=bucketevents"


@pytest.mark.parametrize(
    ("dsn", "why"),
    [
        (GUIDE_OF_2020, "has username, which libpq calls user; write user=…"),
        ("host=h database=d", "has database, which libpq calls dbname"),
        ("host=h usr=me", "has a keyword that libpq does not know; did you mean user?"),
        ("host=h password=two hushhush=words", "has a keyword that libpq does not know"),
        ("postgresql://me@h/d?sslmode=require&username=x", "has username, which libpq calls user"),
    ],
)
def test_keywords_that_libpq_does_not_know_are_refused_when_they_are_set(dsn: str, why: str) -> None:
    problem = problems("postgresql", {"connection_string": dsn, "table": "t"})["connection_string"]
    assert why in problem
    assert not [word for word in ("psqlpass", "hushhush", "usr") if word in problem]


@pytest.mark.parametrize("dsn", ["postgresql://me@h/d?ssl=true&sslmode=require", "host=h options='-c search_path=x'"])
def test_keywords_that_libpq_knows_are_taken(dsn: str) -> None:
    assert load(PostgresSettings, {"connection_string": dsn, "table": "t"}).dsn == dsn


def test_the_line_of_the_guide_of_2020_works_without_its_quotes_as_the_old_keys() -> None:
    """A shell removes the quotes, and what is left after `port` are keys of the target from before 2020."""
    _, values = parse_line(f"notify_postgres:1 connection_string={GUIDE_OF_2020} table=t")
    assert load(PostgresSettings, values).dsn == (
        "host=hostname port=2832 user=psqluser password=psqlpass dbname=bucketevents"
    )


def test_a_table_is_known_by_its_name_in_the_catalogue() -> None:
    assert load(PostgresSettings, POSTGRES | {"table": "BucketEvents"}).table_name == "bucketevents"


def test_an_older_name_of_a_key_is_taken_but_not_beside_the_new_one() -> None:
    assert texts("postgresql", {"user": "me"}) == {"username": "me"}
    assert "user" in problems("postgresql", POSTGRES | {"username": "a", "user": "b"})


def test_changes_are_made_to_what_is_stored() -> None:
    stored = {"address": "a", "key": "k", "password": "hunter2", "db": "3"}
    changes = {"address": "b", "password": REDACTED, "db": "", "enable": False}
    assert merged("redis", stored, changes) == {"address": "b", "key": "k", "password": "hunter2", "enable": "off"}
    assert merged("redis", stored, {"password": None}) == {"address": "a", "key": "k", "db": "3"}
    assert merged("redis", {}, {"password": REDACTED}) == {"password": REDACTED}  # and loading refuses it
    shown = f"http://me:{REDACTED}@h/{REDACTED}"
    assert merged("webhook", {"endpoint": "http://me:pw@h/x"}, {"endpoint": shown}) == {"endpoint": "http://me:pw@h/x"}


def test_changes_with_an_unknown_key_are_refused() -> None:
    with pytest.raises(BadSettings, match="did you mean address"):
        merged("redis", {}, {"adress": "a"})


def test_an_unknown_type_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadSettings, match="did you mean redis"):
        load("radis", {})


def test_broken_targets_are_told_one_by_one() -> None:
    good, bad = TargetId("redis", "good"), TargetId("redis", "bad")
    found = invalid_settings({good: REDIS, bad: {"key": "x"}})
    assert list(found) == [bad]
    assert str(found[bad]).startswith("redis:bad: address: is required")


def test_secrets_are_found_where_they_are_referred_to(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2\n")
    by_file = load(RedisSettings, REDIS | {"password": f"file:{file}"}, {"BUCKETWIRE_SECRETS_DIR": str(tmp_path)})
    by_variable = load(RedisSettings, REDIS | {"password": "env:REDIS_PW"}, {"REDIS_PW": "hunter2"})
    assert by_file.password == by_variable.password == "hunter2"
    assert redacted("redis", {"password": f"file:{file}"}) == {"password": f"file:{file}"}
    assert load(RedisSettings, REDIS | {"key": "env:REDIS_PW"}, {"REDIS_PW": "x"}).key == "env:REDIS_PW"


def test_secrets_that_are_not_there_are_a_problem_of_their_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKETWIRE_SECRETS_DIR", str(tmp_path))
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "large").write_text("x" * 70_000)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    cases: dict[str, str] = {
        "env:REDIS_PW": "variable REDIS_PW is empty or missing",
        "env:BUCKETWIRE_SECRET_KEYS": "a variable of the service itself",
        "file:password": "is not one",
        "env:a-b": "is not one",
        f"file:{tmp_path}/none": "No such file",
        f"file:{tmp_path}/folder": "Is a directory",
        f"file:{tmp_path}/a\0b": "is not one",
        f"file:{tmp_path}/empty": "empty or missing",
        f"file:{tmp_path}/large": "larger than",
        f"file:{tmp_path}/binary": "not UTF-8",
    }
    for reference, why in cases.items():
        assert why in refusal(reference)


def refusal(reference: str) -> str:
    """Why a target may not have this in place of its password."""
    return problems("redis", REDIS | {"password": reference}, os.environ)["password"]


@pytest.fixture
def secrets_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of secrets, beside the service's own folder and files that are nobody's business."""
    folder, var = tmp_path / "secrets", tmp_path / "var"
    for each in (folder, var, folder / "kubernetes.io", tmp_path / "secrets-2"):
        each.mkdir()
    inside = [folder / name for name in ("redis", "kubernetes.io/token", "seals", "tls.key", "outbox.db", "otel.key")]
    for path in (*inside, var / "secret.key", tmp_path / "passwd", tmp_path / "secrets-2" / "x"):
        path.write_text("hunter2")
    (folder / "link").symlink_to(tmp_path / "passwd")
    (folder / "to-var").symlink_to(var)
    (folder / "hard").hardlink_to(folder / "seals")
    (folder / "..data").symlink_to("..2026_11_22")  # as Kubernetes puts secrets into a folder
    (folder / "..2026_11_22").mkdir()
    (folder / "..2026_11_22" / "mounted").write_text("hunter2")
    (folder / "mounted").symlink_to("..data/mounted")
    (tmp_path / "alias").symlink_to(folder)
    for name, value in {
        "SECRETS_DIR": f"{folder}/", "DATA_DIR": str(var), "SECRET_KEYS": f"file:{folder}/seals",
        "TLS_KEY": f"{folder}/tls.key", "DATABASE_URL": f"sqlite:///{folder}/outbox.db",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"BUCKETWIRE_{name}", value)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_KEY", f"{folder}/otel.key")
    return folder


@pytest.mark.parametrize("path", ["redis", "mounted", "./redis", "kubernetes.io/../redis", "/redis"])
def test_targets_may_refer_to_files_of_the_folder_of_secrets(secrets_dir: Path, path: str) -> None:
    assert load(RedisSettings, REDIS | {"password": f"file:{secrets_dir}/{path}"}).password == "hunter2"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("../passwd", "outside the folder of secrets"), ("../nowhere", "outside the folder of secrets"),
        ("../secrets-2/x", "outside the folder of secrets"), ("../alias/redis", "outside the folder of secrets"),
        ("../var/secret.key", "outside the folder of secrets"),
        ("kubernetes.io/token", "outside the folder of secrets"),
        ("to-var/secret.key", "outside the folder of secrets"), ("", "outside the folder of secrets"),
        ("redis/../../passwd", "outside the folder of secrets"), ("link", "a link that leads out"),
        ("seals", "a file of the service itself"), ("hard", "a file of the service itself"),
        ("otel.key", "a file of the service itself"),
        ("tls.key", "a file of the service itself"), ("outbox.db", "a file of the service itself"),
    ],
)  # fmt: skip
def test_targets_may_not_refer_to_any_other_file(secrets_dir: Path, path: str, why: str) -> None:
    for type_name, values in (("redis", REDIS), ("webhook", {"endpoint": "http://h/"})):
        key = "password" if type_name == "redis" else "auth_token"
        reason = problems(type_name, values | {key: f"file:{secrets_dir}/{path}"}, os.environ)[key]
        assert why in reason
        assert "hunter2" not in reason
    for absolute in ("/etc/passwd", "/proc/self/environ", "/etc/nowhere"):
        reason = refusal(f"file:{absolute}")
        assert "outside the folder of secrets" in reason, "and not whether there is such a file"
        assert "BUCKETWIRE_SECRETS_DIR" in reason


def test_a_folder_of_secrets_that_is_the_services_own_gives_away_nothing(
    secrets_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    var = secrets_dir.parent / "var"
    monkeypatch.setenv("BUCKETWIRE_SECRETS_DIR", str(var))
    assert "of the service itself" in refusal(f"file:{var}/secret.key")


def test_without_a_folder_of_secrets_it_is_that_of_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BUCKETWIRE_SECRETS_DIR", raising=False)
    found = refusal("file:/run/secrets/there-is-none")
    assert "No such file" in found
    assert "outside" in refusal("file:/run/secrets/x/y")


@pytest.mark.parametrize(
    "name", ["BUCKETWIRE_TOKEN", "MINIO_NOTIFY_REDIS_PASSWORD", "MINIO_ROOT_PASSWORD", "AWS_SECRET_ACCESS_KEY",
             "FLOWER_BASIC_AUTH", "OTEL_EXPORTER_OTLP_HEADERS"]
)  # fmt: skip
def test_targets_may_not_refer_to_variables_of_the_service(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "hunter2")
    assert "variable of the service itself" in refusal(f"env:{name}")


def test_the_written_reference_page_is_that_of_the_declarations() -> None:
    assert PAGE.read_text() == reference_page(), "write it anew: python -m app.config.formats.reference_page"


def test_the_reference_page_names_every_key_and_variable() -> None:
    page = reference_page()
    for words in (
        "`MINIO_NOTIFY_POSTGRES_CONNECTION_STRING[_<NAME>]`",
        "`notify_postgres[:<name>] key=value …`",
        "| `address` | `MINIO_NOTIFY_REDIS_ADDRESS[_<NAME>]` | host[:port] | required |",
        "| `signing_secret` |",
        "`BUCKETWIRE_DATABASE_URL`",
        "`MINIO_API_SYNC_EVENTS`",
        "| `max_age` | `…_MAX_AGE[_<NAME>]` | duration | `72h` |",
    ):
        assert words in page


def test_of_many_unknown_settings_the_first_get_a_suggestion() -> None:
    with pytest.raises(BadSettings) as refused:
        load(RedisSettings, REDIS | {f"adress{number}": "x" for number in range(5_000)})
    hints = [problem.hint for problem in refused.value.problems if "known setting" in problem.problem]
    assert len(hints) == 5_000
    assert [hint for hint in hints if hint] == ["did you mean address?"] * 10


@pytest.mark.parametrize(
    ("type_name", "values"),
    [
        ("postgresql", {"connection_string": "host=db user=me password=env:PG_PASSWORD dbname=d"}),
        ("postgresql", {"connection_string": "host=db user=me password='env:pgpass'"}),
        ("postgresql", {"connection_string": "postgresql://me:env:pgpass@db/d"}),
        ("mysql", {"dsn_string": "me:file:/run/secrets/mysql@tcp(db)/d"}),
        ("amqp", {"url": "amqp://me:env:PASSWORD@mq"}),
        ("webhook", {"headers": "Authorization: Bearer env:TOKEN; X-Key: env:KEY"}),
        ("webhook", {"auth_token": "Splunk env:TOKEN"}),
    ],
)
def test_a_reference_within_a_longer_text_is_warned_of_as_it_is_none(type_name: str, values: dict[str, str]) -> None:
    [name] = values
    [sentence] = warnings(type_name, MINIMAL[type_name] | values, {"KEY": "x"})
    assert sentence.startswith(f"{name} has env: or file: within a longer text, which is used as it is")
    assert "TOKEN" not in sentence
    assert ("set password=env:NAME beside it" in sentence) == (type_name != "webhook")


@pytest.mark.parametrize(
    ("type_name", "values"),
    [
        ("postgresql", {"connection_string": "env:PG_DSN"}),
        ("postgresql", {"connection_string": "host=db user=me", "password": "env:PG_DSN"}),
        ("webhook", {"headers": "X-Key: env:KEY; X-Tags: env:prod,team:a"}),
        ("webhook", {"endpoint": "https://h/?ddtags=env:prod"}),
        ("redis", {"password": "myenv:HOME"}),
    ],
)
def test_a_reference_that_is_one_and_a_tag_are_not_warned_of(type_name: str, values: dict[str, str]) -> None:
    environ = {"PG_DSN": "host=db user=me", "KEY": "x"}
    assert warnings(type_name, MINIMAL[type_name] | values, environ) == []
