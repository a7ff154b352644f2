"""`bucketwire source …`, whose commands call the API's routes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.fernet import Fernet

from app.api.routes.metrics import listing_metrics, source_metrics
from app.config.arn import SourceId
from app.outbox import tables
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database, now_ms
from app.outbox.sources.intake import read_kept
from app.outbox.sources.rows import SourceLeases, read_sources
from app.outbox.sources.watched import read_watched
from app.supervisor.start import sync_environment
from tests.integration.cli.conftest import Cli
from tests.support.builders import registry
from tests.support.pulled_events import recorded, reject
from tests.support.watched_bucket import SETTINGS, SOURCE, Known

SECRET = "hush-hush-9f3"
SET = ("source", "set", "kafka:minio", "brokers=kafka", "topic=events", "sasl=on", "sasl_username=u")


def test_a_source_is_made_changed_and_shown_without_its_secret(cli: Cli) -> None:
    planned = cli(*SET, f"sasl_password={SECRET}", "--dry-run").out
    assert ("kafka:minio: new" in planned, "+ topic=events" in planned, SECRET in planned) == (True, True, False)
    assert cli("source", "ls", "--json").json == []
    assert "kafka:minio: new" in cli(*SET, f"sasl_password={SECRET}").out
    changed = cli("source", "set", "kafka:minio", "topic=others", "sasl_mechanism=sha512").out
    assert "- topic=events\n  + topic=others" in changed
    assert "sasl_username" not in changed
    shown = cli("source", "show", "kafka:minio", "--json").json
    assert shown["settings"] == {
        "enable": "on", "brokers": "kafka", "topic": "others", "sasl": "on", "sasl_username": "u",
        "sasl_password": "*redacted*", "sasl_mechanism": "sha512",
    }  # fmt: skip
    assert (shown["state"], shown["positions"]) == ("waiting", {})
    for words in (["source", "show", "kafka:minio"], ["source", "ls"]):
        out = cli(*words).out
        assert "only sources" in " ".join(out.split())
        assert SECRET not in out
    assert [entry["action"] for entry in cli("audit", "--json").json] == ["source.change", "source.create"]
    assert SECRET not in cli("audit", "--json").out


@pytest.mark.parametrize(
    ("which", "pairs", "said"),
    [
        ("kafka:x", ["brokers=b"], "topic: is required"),
        ("kafka:x", ["brokers=b", "topik=t"], "did you mean topic?"),
        ("kafka:x", ["brokers=b", "topic=t", "frontend=mino"], "did you mean minio?"),
        ("kafka:x", ["brokers=b", "topic=t", "tls_ca=/x"], "tls_ca: has no effect without TLS"),
        ("kafka:x", [*SET[3:], "sasl_password=file:/etc/passwd"], "outside the folder of secrets"),
        ("kafca:x", ["brokers=b"], "did you mean kafka?"),
        ("kafka", ["brokers=b"], "is not a source"),
    ],
)
def test_settings_that_cannot_be_are_refused(cli: Cli, which: str, pairs: list[str], said: str) -> None:
    refused = cli("source", "set", which, *pairs)
    assert refused.code in (1, 2)
    assert said in refused.err
    assert cli("source", "ls", "--json").json == []


def test_a_secret_that_was_sealed_with_a_lost_key_is_set_again_and_the_other_settings_stay(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUCKETWIRE_SECRET_KEYS", Fernet.generate_key().decode())
    cli(*SET, f"sasl_password={SECRET}")
    monkeypatch.setenv("BUCKETWIRE_SECRET_KEYS", Fernet.generate_key().decode())
    refused = cli("source", "set", "kafka:minio", "topic=others")
    assert (refused.code, "sasl_password" in refused.err) == (1, True)
    assert cli("source", "set", "kafka:minio", "sasl_password=new").code == 0
    shown = cli("source", "show", "kafka:minio", "--json").json
    assert (shown["settings"]["topic"], shown["settings"]["sasl_username"]) == ("events", "u")


def test_a_source_is_paused_resumed_and_removed(cli: Cli) -> None:
    cli(*SET, "sasl_password=x")
    cli("source", "pause", "kafka:minio", "--reason", "maintenance")
    [paused] = cli("source", "ls", "--json").json
    assert (paused["state"], paused["reason"]) == ("paused", "maintenance")
    [finding] = [one for one in cli("doctor", "--json").json["findings"] if one["subject"] == "source kafka:minio"]
    assert finding == {
        "subject": "source kafka:minio", "grade": "warning", "command": ["source", "resume", "kafka:minio"],
        "text": "paused: maintenance; its messages wait in the queue, as long as it keeps them",
    }  # fmt: skip
    assert "bucketwire source resume kafka:minio" in cli("status").err
    cli("source", "resume", "kafka:minio")
    assert cli("source", "show", "kafka:minio", "--json").json["state"] == "waiting"
    assert cli("source", "rm", "kafka:minio", "--json").json == {"rejected_messages": 0}
    gone = cli("source", "show", "kafka:minio")
    assert (gone.code, "there is no source kafka:minio" in gone.err) == (1, True)


def test_a_source_that_paused_itself_is_a_problem_and_one_that_an_operator_paused_a_warning(
    cli: Cli, database: Database
) -> None:
    cli(*SET, "sasl_password=x")

    def state() -> tuple[str, str, float]:
        [finding] = [one for one in cli("doctor", "--json").json["findings"] if one["subject"] == "source kafka:minio"]
        with database.reading() as connection:
            metrics = source_metrics(read_sources(connection), {}, now_ms())
        [sample] = [s for one in metrics for s in one.samples if s.name == "bucketwire_source_paused_itself"]
        return finding["grade"], finding["text"].partition(";")[0], sample.value

    leases = SourceLeases(database, 60_000)
    with database.reading() as connection:
        [stored] = read_sources(connection)
    lease = leases.claim(stored, now_ms())
    assert lease is not None
    leases.pause(lease, "100 messages were rejected")
    assert state() == ("problem", "has paused itself, until it is resumed: 100 messages were rejected", 1)
    assert cli("doctor").code == 1
    cli("source", "pause", "kafka:minio", "--reason", "I know")
    assert state() == ("warning", "paused: I know", 0)
    cli("source", "resume", "kafka:minio")
    assert state()[2] == 0


def test_the_doctor_and_the_metrics_report_a_source_that_nobody_pulls_and_its_rejected_messages(
    cli: Cli, database: Database
) -> None:
    cli(*SET, "sasl_password=x")
    reject(database, b"{")
    findings = {
        (one["grade"], one["text"].partition(";")[0])
        for one in cli("doctor", "--json").json["findings"]
        if one["subject"] == "source kafka:minio"
    }
    assert findings == {("problem", "waiting: no worker pulls it"), ("warning", "1 rejected message kept")}
    with database.reading() as connection:
        sources, kept, now = read_sources(connection), read_kept(connection), database_now(connection)
    samples = {
        (sample.name, sample.labels.get("state", "")): sample.value
        for metric in source_metrics(sources, kept, now)
        for sample in metric.samples
    }
    assert samples["bucketwire_source_messages_total", ""] == 1
    assert samples["bucketwire_source_rejected_messages_total", ""] == 1
    assert samples["bucketwire_source_kept_rejected_messages", ""] == 1
    assert samples["bucketwire_source_state", "waiting"] == 1
    assert samples["bucketwire_source_state", "running"] == 0
    assert 0 <= samples["bucketwire_source_answer_age_seconds", ""] < 3600
    cli("source", "pause", "kafka:minio")
    with database.reading() as connection:
        paused = {
            sample.name for metric in source_metrics(read_sources(connection), {}, now) for sample in metric.samples
        }
    assert "bucketwire_source_answer_age_seconds" not in paused


def test_the_doctor_and_the_lists_say_by_which_setting_a_queue_may_lose_messages_unnoticed(
    cli: Cli, database: Database
) -> None:
    cli(*SET, "sasl_password=x")
    with database.reading() as connection:
        [stored], now = read_sources(connection), database_now(connection)
    leases = SourceLeases(database, 600_000)
    lease = leases.claim(stored, now)
    assert lease is not None
    leases.begin(lease, now, {"0": "5"}, "5 messages were removed", "the topic is compacted")
    findings = {
        (one["grade"], one["text"].rpartition("ago: ")[2])
        for one in cli("doctor", "--json").json["findings"]
        if one["subject"] == "source kafka:minio"
    }
    assert findings == {("warning", "the topic is compacted"), ("problem", "5 messages were removed")}
    assert "the topic is compacted; 5 messages were removed" in " ".join(cli("source", "ls").out.split())
    assert cli("source", "show", "kafka:minio", "--json").json["reason"] == "the topic is compacted"
    cli("source", "resume", "kafka:minio")
    assert "compacted" not in cli("source", "show", "kafka:minio", "--json").out


def test_rejected_messages_are_listed_shown_retried_and_deleted(cli: Cli, database: Database) -> None:
    cli(*SET, "sasl_password=x")
    reject(database, b"\x00\xff", b"{", b"[")
    rows = cli("source", "rejected", "ls", "kafka:minio", "--json").json
    assert [row["size"] for row in rows] == [2, 1, 1]
    assert "not JSON" in rows[1]["reason"]
    first, second, third = (str(row["id"]) for row in rows)
    shown = cli("source", "rejected", "show", "kafka:minio", first, "--json").json
    assert (shown["body"], shown["base64"]) == (None, "AP8=")
    assert cli("source", "rejected", "show", "kafka:minio", second).out == "{"
    refused = cli("source", "rejected", "retry", "kafka:minio", first)
    assert (refused.code, recorded(database)) == (1, [])
    assert cli("source", "rm", "kafka:minio").code == 1
    assert cli("source", "rejected", "rm", "kafka:minio", third, "--json").json == {"deleted": 1}
    assert cli("source", "rejected", "rm", "kafka:minio").code == 2
    assert cli("source", "rejected", "rm", "kafka:minio", "--all", "--json").json == {"deleted": 2}
    assert cli("source", "rejected", "show", "kafka:minio", first).code == 1


def test_a_watched_bucket_shows_its_listings_and_what_its_frontend_does_not_send(cli: Cli, database: Database) -> None:
    known = Known(database)
    known.finish(known.clock(), objects=9, known=9, explained=2, created=36, removed=1, pending=4)
    [listed] = cli("source", "ls", "--json").json
    shown = cli("source", "show", "bucket:x", "--json").json
    assert shown["listing"] == listed["listing"]
    assert {name: shown["listing"][name] for name in ("objects", "pending", "explained", "created", "removed")} == {
        "objects": 9, "pending": 4, "explained": 2, "created": 36, "removed": 1,
    }  # fmt: skip
    assert "explained" in cli("source", "show", "bucket:x").out
    findings = [one for one in cli("doctor", "--json").json["findings"] if one["subject"] == "source bucket:x"]
    texts = {one["grade"]: one["text"] for one in findings}
    assert "found 37 changes since yesterday that no event explains" in texts["warning"]
    with database.reading() as connection:
        sources, watched, now = read_sources(connection), read_watched(connection), database_now(connection)
    samples = {
        (sample.name.removeprefix("bucketwire_source_"), sample.labels.get("kind", "")): sample.value
        for metric in listing_metrics(sources, watched, now)
        for sample in metric.samples
    }
    assert samples["unexplained_differences_total", "created"] == 36
    assert samples["explained_differences_total", ""] == 2
    assert (samples["objects", ""], samples["pending_differences", ""], samples["listings_total", ""]) == (9, 4, 1)
    assert samples["listing_duration_seconds", ""] == pytest.approx(0.005)
    assert 0 <= samples["listing_age_seconds", ""] < 3600
    assert samples["listing_overdue_seconds", ""] == 0
    late = dict(watched)
    late[known.lease.stored.row_id] = replace(watched[known.lease.stored.row_id], due_at=now - 5_000)
    for listings, seconds in ((late, 5), ({}, (now - sources[0].created_at) / 1000)):
        [overdue] = [one for one in listing_metrics(sources, listings, now) if one.name.endswith("_overdue_seconds")]
        assert [sample.value for sample in overdue.samples] == [max(0, seconds)]
    known.watched.ask(known.lease, 500, "the listing lacks 500 objects")
    assert cli("source", "show", "bucket:x", "--json").json["listing"]["to_approve"] == 500
    paused = [one for one in cli("doctor", "--json").json["findings"] if one["subject"] == "source bucket:x"]
    assert ["source", "resume", "bucket:x"] in [one["command"] for one in paused]


def test_a_bucket_that_begins_anew_or_was_paused_is_not_overdue_at_once(database: Database) -> None:
    known, day = Known(database), 86_400_000

    def overdue_seconds() -> float:
        with database.reading() as connection:
            sources, listings, now = read_sources(connection), read_watched(connection), database_now(connection)
        metrics = listing_metrics(sources, listings, now)
        [sample] = [one for metric in metrics for one in metric.samples if one.name.endswith("_overdue_seconds")]
        return float(sample.value)

    def set_old() -> None:
        with database.writing() as connection:
            connection.execute(tables.sources.update().values(created_at=known.clock() - day))
            connection.execute(tables.watched_buckets.update().values(due_at=known.clock() - day))

    set_old()
    assert overdue_seconds() > 80_000
    known.sources.registry.pause(SOURCE, "an operator")  # before it was ever listed
    set_old()
    known.sources.registry.resume(SOURCE)
    assert overdue_seconds() < 3_600
    known.lease = known.claim()
    known.finish(known.clock())
    set_old()
    known.sources.put("bucket", {**SETTINGS, "bucket": "others"})
    assert overdue_seconds() < 3_600
    known.lease = known.claim()
    assert not known.watched.state(known.lease).complete
    known.finish(known.clock())
    assert known.watched.state(known.lease).listings == 1


def test_the_doctor_says_that_a_bucket_is_listed_too_late_for_what_the_log_keeps(cli: Cli, database: Database) -> None:
    known = Known(database)

    def warns(began: int) -> bool:
        known.finish(began)  # due a minute later
        return "events have left the log since" in cli("doctor", "--json").out

    day = 86_400_000
    assert not warns(known.clock() - 6 * day)  # the log keeps a week
    assert warns(known.clock() - 8 * day)


def test_the_doctor_says_that_a_first_listing_takes_too_long_for_what_the_log_keeps(
    cli: Cli, database: Database
) -> None:
    known = Known(database)
    known.watched.begin(known.lease, "images")

    def warns(began: int) -> bool:
        with database.writing() as connection:
            connection.execute(tables.watched_buckets.update().values(due_at=0, began_at=began))
        return "its first listing, which has not ended, began " in cli("doctor", "--json").out

    day = 86_400_000
    assert not warns(known.clock() - 6 * day)
    assert warns(known.clock() - 8 * day)
    assert cli("source", "show", "bucket:x", "--json").json["listing"].get("listed_at") is None


def test_the_doctor_names_a_source_whose_variables_became_invalid(cli: Cli, database: Database) -> None:
    environ = {
        "BUCKETWIRE_SOURCE_KAFKA_ENABLE_env": "on", "BUCKETWIRE_SOURCE_KAFKA_BROKERS_env": "kafka",
        "BUCKETWIRE_SOURCE_KAFKA_TOPIC_env": "events",
    }  # fmt: skip
    assert sync_environment(registry(database), environ) == []
    stored = registry(database).sources.source(SourceId("kafka", "env"))
    with database.writing() as connection:
        position = {"source_id": stored.row_id, "share": "0", "position": "42"}
        connection.execute(tables.source_positions.insert().values(position))
    sync_environment(registry(database), environ | {"BUCKETWIRE_SOURCE_KAFKA_TOPIC_env": ""})
    findings = cli("doctor", "--json").json["findings"]
    [found] = [one for one in findings if one["subject"] == "source kafka:env"]
    assert (found["grade"], found["text"]) == ("problem", "disabled: its settings in the environment are invalid")


def test_a_source_of_the_environment_is_changed_only_there_and_disabled_when_it_is_gone(
    cli: Cli, database: Database
) -> None:
    environ = {
        "BUCKETWIRE_SOURCE_KAFKA_ENABLE_env": "on", "BUCKETWIRE_SOURCE_KAFKA_BROKERS_env": "kafka",
        "BUCKETWIRE_SOURCE_KAFKA_TOPIC_env": "events", "BUCKETWIRE_SOURCE_KAFKA_TLS_CA_env": "/x",
    }  # fmt: skip
    [ineffective] = sync_environment(registry(database), environ)
    assert ineffective.startswith("kafka:env: tls_ca: has no effect without TLS")
    stored = cli("source", "show", "kafka:env", "--json").json
    assert (stored["origin"], stored["settings"]["topic"]) == ("environment", "events")
    for words in (
        ["set", "kafka:env", "topic=other"], ["set", "kafka:env", "topic=other", "--dry-run"], ["rm", "kafka:env"],
    ):  # fmt: skip
        refused = cli("source", *words)
        assert (refused.code, "change the variables" in refused.err) == (1, True)
    sync_environment(registry(database), environ)
    assert [entry["action"] for entry in cli("audit", "--json").json] == ["source.create"]

    [problem] = sync_environment(registry(database), environ | {"BUCKETWIRE_SOURCE_KAFKA_BROKERS_env": ""})
    assert problem.startswith("kafka:env: brokers: is required")
    [stray] = sync_environment(registry(database), {"BUCKETWIRE_SOURCE_KAFFKA_ENABLE": "on"})
    assert "is of an unknown source type; did you mean KAFKA?" in stray
    gone = cli("source", "show", "kafka:env", "--json").json
    assert (gone["state"], gone["reason"]) == ("disabled", "the environment no longer names it")
    assert cli("audit", "--action", "source", "--json").json[0]["action"] == "source.disable"
    assert cli("source", "rm", "kafka:env").code == 0
