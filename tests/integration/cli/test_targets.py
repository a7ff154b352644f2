"""`bucketwire target …` and `bucketwire config …`."""

from __future__ import annotations

import getpass
import io
import socket
from pathlib import Path

import orjson
import pytest

from app.api.routes import targets
from app.config.arn import TargetId
from app.outbox.delivery.availability import record_opening
from app.outbox.engine.database import Database, now_ms
from app.supervisor.start import sync_environment
from tests import services
from tests.integration.cli.conftest import Cli, deliver
from tests.support.builders import event, registry

SECRET = "hush-hush-9f3"
SET = ("target", "set", "redis:cache", "address=127.0.0.1:6379", "key=events", f"password={SECRET}")


def test_a_target_is_made_changed_and_shown_without_its_secret(cli: Cli) -> None:
    assert "redis:cache: new" in cli(*SET).out
    changed = cli("target", "set", "redis:cache", "db=4")
    assert "+ db=4" in changed.out

    shown = cli("target", "show", "redis:cache", "--json").json
    assert shown["settings"] == {
        "enable": "on", "address": "127.0.0.1:6379", "key": "events", "password": "*redacted*", "db": "4",
    }  # fmt: skip
    assert shown["arn"] == "arn:minio:sqs::cache:redis"
    assert "no rule names it" in cli("target", "show", "arn:minio:sqs::cache:redis").out
    for words in (["target", "show", "redis:cache"], ["target", "ls"], ["config", "get"], ["config", "export"]):
        assert SECRET not in cli(*words).out


@pytest.mark.slow
def test_a_target_is_tested_before_it_is_changed(
    cli: Cli, receiver: services.Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "MAX_TEST_SECONDS", 60)  # a busy machine starts a process slowly
    words = ("target", "set", "webhook:hook", f"endpoint={receiver.url}", "allow_private=on", f"auth_token={SECRET}")
    receiver.set(status=401)
    refused = cli(*words, "--test")
    assert (refused.code, cli("target", "ls", "--json").json) == (1, [])
    assert " deliver  failed" in refused.out
    assert "webhook:hook did not accept the test event; nothing was changed" in refused.err
    receiver.set(status=200)
    assert "webhook:hook: new" in cli(*words, "--test").out
    receiver.forget()
    plan = cli("target", "set", "webhook:hook", "timeout=3s", "--test", "--dry-run", "--json").json
    assert "+ timeout=3s" in plan["targets"][0]["changes"]
    assert receiver.requests()[0].headers["authorization"] == f"Bearer {SECRET}"
    assert "timeout" not in cli("target", "show", "webhook:hook", "--json").json["settings"]


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        (["adress=127.0.0.1:6379", "key=events"], "did you mean address?"),
        (["address=127.0.0.1:6379"], "key: is required"),
        (["address=127.0.0.1:6379", "key=events", "db=four"], "db: “four” is not a whole number"),
        (["address=127.0.0.1:6379", "key=events", "tls_ca=/x"], "tls_ca: has no effect without TLS"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_the_key_and_the_way_out(
    cli: Cli, pairs: list[str], said: str
) -> None:
    refused = cli("target", "set", "redis:cache", *pairs)
    assert refused.code == 1
    assert said in refused.err
    assert cli("target", "ls", "--json").json == []


def test_a_setting_of_minios_that_does_nothing_is_a_warning(cli: Cli) -> None:
    line = 'notify_postgres:log connection_string="host=127.0.0.1" table=t format=access max_open_connections='
    for usual in ("", "2"):
        assert cli("config", "set", line + usual).err == ""
    told = cli("config", "set", f"{line}7 queue_full=reject")
    assert told.code == 0
    assert "max_open_connections=7 has no effect: each worker process has one connection" in told.err
    assert "queue_full=reject has no effect without queue_limit or queue_dir" in told.err
    notes = {each["text"] for each in cli("doctor", "--json").json["findings"] if each["subject"] == "postgresql:log"}
    assert {text.split(" has ")[0] for text in notes} >= {"max_open_connections=7", "queue_full=reject"}
    assert cli("target", "set", "postgresql:log", "queue_limit=5", "max_open_connections=").err == ""


def test_what_has_no_effect_is_a_warning_in_minios_forms_and_refused_in_our_own(cli: Cli, database: Database) -> None:
    line = (
        'notify_nsq:1 nsqd_address="127.0.0.1:4150" queue_dir="" queue_limit="0" tls_enable="off" '
        'tls_skip_verify="on" topic="minio"'  # as in the guide of 2020
    )
    sentence = "nsq:1: tls_skip_verify: has no effect without TLS; set tls=on"
    told = cli("config", "set", "myminio", line)
    assert (told.code, told.err.strip()) == (0, sentence)
    assert cli("config", "set", line, "--json").err.strip() == sentence
    notes = [each["text"] for each in cli("doctor", "--json").json["findings"] if each["subject"] == "nsq:1"]
    assert "tls_skip_verify: has no effect without TLS; set tls=on" in notes
    assert sentence in cli("target", "set", "nsq:1", "topic=other").err
    assert cli("target", "set", "nsq:1", "topic=other", "tls_skip_verify=").code == 0
    keys = {"ENABLE": "on", "NSQD_ADDRESS": "h", "TOPIC": "t", "TLS_SKIP_VERIFY": "on"}
    environ = {f"MINIO_NOTIFY_NSQ_{key}_e": text for key, text in keys.items()}
    told_of = sync_environment(registry(database), environ)
    assert told_of == ["nsq:e: tls_skip_verify: has no effect without TLS; set tls=on"]
    assert registry(database).target(TargetId("nsq", "e")).state == "running"


def test_a_mistyped_name_is_answered_with_the_nearest(cli: Cli) -> None:
    """By every command that shows, changes or removes one by its name."""
    cli("target", "set", "webhook:audit", "endpoint=https://example.com/")
    cli("source", "set", "kafka:minio", "brokers=h:9092", "topic=t")
    cli("bucket", "set", "photos", "region=eu-central-1")
    cli("token", "create", "reader", "--scope", "read")
    cli("rule", "add", "photos", "webhook:audit")
    for words in (
        *(["target", verb, "webhook:audti"] for verb in ("show", "rm", "pause", "resume", "test")),
        ["dead-letter", "ls", "--target", "webhook:audti"], ["retry", "ls", "--target", "webhook:audti"],
        ["config", "get", "notify_webhook:audti"], ["config", "reset", "notify_webhook:audti"],
        ["target", "set", "webhook:audti", "comment="],
        ["target", "set", "webhook:audti", "rate_limit=5"],  # which creates none, as it has no endpoint
    ):  # fmt: skip
        refused = cli(*words)
        assert (refused.code, "did you mean webhook:audit?" in refused.err) == (1, True), (words, refused.err)
    for words, meant in (
        *((["source", verb, "kafka:mino"], "kafka:minio") for verb in ("show", "rm", "pause", "resume")),
        *((["bucket", verb, "photo"], "photos") for verb in ("show", "rm")),
        (["token", "revoke", "raeder"], "reader"),
        (["rule", "rm", "photo", "webhook:audit"], "those of photos"),
    ):
        refused = cli(*words)
        assert (refused.code, f"did you mean {meant}?" in refused.err) == (1, True), (words, refused.err)
    assert "`bucketwire target ls` shows those there are" in cli("target", "show", "redis:cache").err


def test_a_name_in_another_case_is_pointed_out(cli: Cli) -> None:
    assert cli("config", "set", "notify_kafka:PRIMARY", "brokers=h:9092", "topic=t").code == 0
    for words in (
        ["target", "show", "kafka:primary"],
        ["rule", "add", "images", "arn:minio:sqs::primary:kafka"],
        ["rule", "ls", "images", "kafka:primary"],
        ["replay", "--target", "kafka:primary", "--all"],
    ):
        refused = cli(*words)
        assert refused.code == 1
        assert "there is no target kafka:primary; did you mean kafka:PRIMARY?" in refused.err, words


def test_the_sync_mode_of_all_targets_is_set_and_shown(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("config", "set", "notify_webhook:audit", "endpoint=http://127.0.0.1:9/")
    cli("config", "set", "notify_webhook:own", "endpoint=http://127.0.0.1:9/", "sync=off")

    def modes() -> list[str]:
        return [row["mode"] for row in cli("status", "--json").json]

    assert (cli("config", "get", "api").out, modes()) == ("api sync_events=off  # the default\n", ["async", "async"])
    assert "+ sync_events=on" in cli("config", "set", "myminio/", "api", "sync_events=on", "--dry-run").out
    assert modes() == ["async", "async"]
    assert "+ sync_events=on" in cli("config", "set", "myminio/", "api", "sync_events=on").out
    assert (cli("config", "get", "myminio", "api").out, modes()) == ("api sync_events=on\n", ["sync", "async"])
    assert cli("config", "export").out.splitlines()[0] == "api sync_events=on"
    assert "sync" in cli("status").out
    assert "api: unchanged" in cli("config", "set", "api sync_events=true").out
    lines = tmp_path / "lines"
    lines.write_text("# all\napi sync_events=off\nnotify_webhook:audit comment=x\n")
    assert cli("config", "set", "--file", str(lines)).code == 0
    assert modes() == ["async", "async"]
    declared = tmp_path / "bucketwire.yaml"
    declared.write_text("api:\n  sync_events: on\n")
    assert "- sync_events=off\n  + sync_events=on" in cli("apply", "-f", str(declared)).out
    assert "no changes" in cli("apply", "-f", str(declared)).out
    assert modes() == ["sync", "async"]
    cli("config", "reset", "api", "sync_events")
    assert modes() == ["async", "async"]
    monkeypatch.setenv("MINIO_API_SYNC_EVENTS", "on")
    assert "takes precedence" in cli("config", "set", "api", "sync_events=off").err
    assert "by MINIO_API_SYNC_EVENTS" in cli("config", "get", "api").out
    assert modes() == ["sync", "async"]
    assert "sync_events" in cli("config", "help", "api").out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("api sync_event=on", "api: sync_event: is not a known setting; did you mean sync_events?"),
        ("api sync_events=maybe", "sync_events: “maybe” is neither on nor off"),
        ("api requests_max=5", "requests_max: is not a known setting; known are sync_events"),
        ("api sync_events", "not key=value"),
    ],
)
def test_what_the_section_api_does_not_have_is_refused(cli: Cli, line: str, words: str) -> None:
    refused = cli("config", "set", line)
    assert refused.code == 1
    assert words in refused.err


def test_a_dry_run_shows_the_difference_and_changes_nothing(cli: Cli) -> None:
    cli(*SET)
    shown = cli("target", "set", "redis:cache", "db=7", "password=another", "--dry-run")
    assert "+ db=7" in shown.out
    assert "+ password=*redacted*" in shown.out
    assert "another" not in shown.out
    assert "db" not in cli("target", "show", "redis:cache", "--json").json["settings"]
    assert SECRET in cli("config", "export", "--secrets").out


def test_a_target_pauses_and_resumes(cli: Cli) -> None:
    cli(*SET)
    assert cli("target", "pause", "redis:cache", "--reason", "a new disk").code == 0
    [paused] = cli("target", "ls", "--json").json
    assert (paused["state"], paused["reason"]) == ("paused", "a new disk")
    assert cli("target", "resume", "redis:cache").code == 0
    assert cli("target", "ls", "--json").json[0]["state"] == "running"


def test_a_target_that_rules_name_or_that_has_events_is_removed_by_force_only(cli: Cli, database: Database) -> None:
    cli(*SET)
    cli("rule", "add", "*", "redis:cache", "--event", "*")
    refused = cli("target", "rm", "redis:cache")
    assert (refused.code, "is in use: 1 rule" in refused.err) == (1, True)
    assert cli("target", "rm", "redis:cache", "--force").code == 0
    assert cli("target", "ls", "--json").json == []
    assert cli("rule", "ls", "--json").json == []


def test_a_target_of_the_environment_is_changed_there_and_nowhere_else(cli: Cli, database: Database) -> None:
    environ = {
        "MINIO_NOTIFY_REDIS_ENABLE_env": "on",
        "MINIO_NOTIFY_REDIS_ADDRESS_env": "127.0.0.1:6379",
        "MINIO_NOTIFY_REDIS_KEY_env": "events",
        "MINIO_NOTIFY_REDIS_ENABLE_bad": "on",
    }
    [problem] = sync_environment(registry(database), environ)
    assert "redis:bad" in problem

    assert cli("target", "set", "redis:env", "db=3").code == 1
    assert "change the variables" in cli("config", "set", "notify_redis:env db=3").err
    assert cli("target", "rm", "redis:env", "--force").code == 1
    states = {f"{row['type']}:{row['name']}": row["state"] for row in cli("target", "ls", "--json").json}
    assert states == {"redis:env": "running", "redis:bad": "broken"}


def test_a_line_sets_a_target_as_mc_does_whole_or_cut_by_the_shell(cli: Cli) -> None:
    whole = 'notify_postgres:a connection_string="host=db user=me password=pw dbname=d" table=events format=access'
    assert cli("config", "set", whole).code == 0
    cut = ["notify_postgres:b", "connection_string=host=db user=me password=pw dbname=d", "table=events"]
    assert cli("config", "set", *cut).code == 0

    shown = cli("config", "get", "notify_postgres").out.splitlines()
    assert [line.split()[0] for line in shown] == ["notify_postgres:a", "notify_postgres:b"]
    assert "format=access" in shown[0]
    assert all("table=events" in line and "pw" not in line for line in shown)
    assert len(cli("config", "get", "notify_postgres:a", "--json").json) == 1
    assert cli("config", "get", "notify_redis").code == 1


def test_lines_of_a_file_are_all_checked_before_any_is_taken(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "# ours\nnotify_redis:a address=127.0.0.1:6379 key=a\nnotify_redis:b address=127.0.0.1:6379 db=x key=b\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    refused = cli("config", "set", "--file", "-")
    assert refused.code == 1
    assert "redis:b: db:" in refused.err
    assert cli("target", "ls", "--json").json == []

    monkeypatch.setattr("sys.stdin", io.StringIO(text.replace("db=x", "db=1")))
    assert cli("config", "set", "--file", "-").code == 0
    assert len(cli("target", "ls", "--json").json) == 2


def test_what_is_exported_with_its_secrets_can_be_set_again(cli: Cli, tmp_path: Path) -> None:
    cli(*SET)
    cli("config", "set", "notify_webhook", "endpoint=http://127.0.0.1:9/", "auth_token=Bearer two words")
    exported = tmp_path / "targets"
    exported.write_text(cli("config", "export", "--secrets").out)
    for target in ("redis:cache", "webhook:_"):
        assert cli("target", "rm", target).code == 0

    assert cli("config", "set", "--file", str(exported)).code == 0
    assert cli("config", "export", "--secrets").out == exported.read_text()


def test_a_redacted_line_keeps_the_secret_that_is_stored(cli: Cli) -> None:
    cli(*SET)
    [line] = cli("config", "get").out.splitlines()
    assert "redis:cache: unchanged" in cli("config", "set", line).out
    assert SECRET in cli("config", "export", "--secrets").out


def test_a_target_is_reset_and_an_old_configuration_file_taken_over(cli: Cli, tmp_path: Path) -> None:
    old = {"version": "33", "notify": {"redis": {"1": {"enable": True, "format": "namespace", "address": "r:6379",
           "password": "", "key": "events"}}}}  # fmt: skip
    path = tmp_path / "config.json"
    path.write_bytes(orjson.dumps(old))
    assert "redis:1: new" in cli("config", "import", str(path)).out
    assert cli("config", "reset", "notify_redis:1").code == 0
    assert cli("config", "get").out == ""
    path.write_text("{")
    assert "is not JSON" in cli("config", "import", str(path)).err


def test_an_unknown_target_or_type_is_named(cli: Cli) -> None:
    assert "there is no target redis:nope" in cli("target", "show", "redis:nope").err
    assert "did you mean redis?" in cli("target", "set", "reddis:a", "key=x").err
    assert cli("target", "pause", "nothing").code == 2
    assert cli("config", "set").code == 2


def test_removing_a_target_with_waiting_events_says_how_many(cli: Cli, database: Database) -> None:
    cli(*SET)
    number = cli("rule", "add", "*", "redis:cache", "--event", "*", "--json").json["number"]
    [target] = [stored.target for stored in registry(database).targets()]
    deliver(database, target, [event("bad"), event("good")], rejecting="bad")
    cli("rule", "rm", "--id", str(number))
    assert "1 dead letter;" in cli("target", "rm", "redis:cache").err


def test_the_alias_of_mc_is_ignored(cli: Cli) -> None:
    assert "redis:a: new" in cli("config", "set", "myminio/", "notify_redis:a", "address=h:1", "key=k", "db=3").out
    assert "redis:b: new" in cli("config", "set", "myminio", "notify_redis:b address=h:1 key=k").out
    shown = cli("config", "get", "myminio", "notify_redis:a").out
    assert shown == cli("config", "get", "notify_redis:a").out == "notify_redis:a enable=on address=h:1 key=k db=3\n"
    assert len(cli("config", "get", "myminio/").out.splitlines()) == 2
    assert cli("config", "get", "notify_redis:a", "notify_redis:b").code == 2
    assert "- db=3" in cli("config", "reset", "myminio/", "notify_redis:a", "db").out
    assert "there is no target redis:c" in cli("config", "reset", "notify_redis:c", "db").err
    assert "key: is required" in cli("config", "reset", "notify_redis:a", "key").err
    assert cli("config", "reset", "myminio", "notify_redis:a").out == "removed redis:a\n"
    assert cli("config", "get").out == "notify_redis:b enable=on address=h:1 key=k\n"


def test_the_keys_of_a_section_are_explained(bare: Cli) -> None:
    assert [row["section"] for row in bare("config", "help", "--json").json][:3] == [
        "api",
        "notify_amqp",
        "notify_elasticsearch",
    ]
    keys = {row["key"]: row["type"] for row in bare("config", "help", "notify_kafka:x", "--json").json}
    assert {key for key in keys if key.endswith("*")} == {"brokers*", "topic*"}
    assert keys["sasl_mechanism"] == "plain|sha256|sha512"
    [variable] = bare("config", "help", "notify_kafka", "topic", "--env", "--json").json
    assert variable == {
        "key": "MINIO_NOTIFY_KAFKA_TOPIC*", "type": "topic name, or a template",
        "about": "the topic of every message, such as bucketevents or events.{bucket}",
    }  # fmt: skip
    assert "did you mean topic?" in bare("config", "help", "notify_kafka", "tpic").err
    assert "did you mean notify_kafka?" in bare("config", "help", "notify_kaffka").err


def test_a_command_on_the_database_is_in_the_audit_log_by_user_and_name(cli: Cli) -> None:
    secret = "hunter2-hunter2"
    assert cli("audit").out == "no changes\n"
    assert cli("target", "set", "webhook:a", "endpoint=http://127.0.0.1:9/", f"auth_token={secret}").code == 0
    assert cli("target", "pause", "webhook:a", "--reason", "mine").code == 0
    paused, created = cli("audit", "--json").json
    assert (created["action"], created["via"]) == ("target.create", "bucketwire target set")
    assert (paused["action"], paused["details"]) == ("target.pause", {"reason": "mine"})
    assert paused["actor"] == f"user:{getpass.getuser()}@{socket.gethostname()}"
    assert [entry["action"] for entry in cli("audit", "--json", "--action", "target.pause").json] == ["target.pause"]
    shown = cli("audit")
    assert "target:webhook:a" in shown.out
    assert secret not in shown.out
    assert cli("audit", "--action", "target.pauze").code == 2


def test_what_came_of_opening_a_target_is_listed(cli: Cli, database: Database) -> None:
    cli(*SET)
    cli("rule", "add", "*", "redis:cache")
    [row] = cli("target", "ls", "--json").json
    assert (row["state"], row["opening"]["state"], row["opening"]["reason"]) == ("running", "due", "")
    stored = registry(database).target(TargetId("redis", "cache"))
    assert record_opening(database, stored.row_id, stored.revision, now_ms(), "Redis at 127.0.0.1:6379: refused")
    [row] = cli("target", "ls", "--json").json
    assert (row["state"], row["reason"], row["opening"]["state"]) == ("running", "", "failed")
    assert row["opening"]["reason"] == "Redis at 127.0.0.1:6379: refused"
    assert "Redis at 127.0.0.1:6379: refused" in cli("target", "ls").out
    [note] = [each for each in cli("doctor", "--json").json["findings"] if each["subject"] == "redis:cache"]
    assert (note["grade"], note["text"]) == ("warning", "a worker could not open it: Redis at 127.0.0.1:6379: refused")
    cli("target", "pause", "redis:cache", "--reason", "a new disk")
    assert "a new disk" in cli("target", "ls").out, "what keeps its events from being delivered comes first"
