"""The command line over the API of a service elsewhere: no database, a token, the same answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.config.arn import TargetId
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.outbox.reconcile.findings import store_findings
from app.outbox.reconcile.runs import Reconciliations
from app.outbox.tokens import Tokens
from tests import services
from tests.integration.cli.conftest import Cli, Result, deliver
from tests.support.builders import event, migrated
from tests.support.scripted_target import Courier, ScriptedTarget
from tests.support.service_processes import Api
from workers.delivery.outcomes import Failed

ARN = "arn:minio:sqs:eu-1:cache:redis"
SECRET = "hush-hush-9f3"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Api, Database, str]]:
    folder = tmp_path_factory.mktemp("elsewhere")
    database = migrated(f"sqlite:///{folder}/bucketwire.db")
    token = Tokens(database).create("cli", ["admin"])
    settings = {"BUCKETWIRE_DATA_DIR": str(folder), "BUCKETWIRE_REGION": "eu-1"}
    with Api(["api", "--workers", "1"], settings).start() as api:
        yield api, database, token
    database.close()


@pytest.fixture
def there(bare: Cli, service: tuple[Api, Database, str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    api, _, token = service
    monkeypatch.setenv("BUCKETWIRE_TOKEN", token)
    monkeypatch.setenv("BUCKETWIRE_URL", api.url)
    for each in bare("target", "ls", "--json").json:
        assert bare("target", "rm", each["target"], "--force").code == 0
    return bare


def test_targets_and_rules_are_set_shown_and_removed_from_afar(there: Cli, folder: Path) -> None:
    said = there("target", "set", "redis:cache", "address=127.0.0.1:6379", "key=events", f"password={SECRET}").out
    assert "redis:cache: new" in said
    assert SECRET not in said
    changed = there("target", "set", "redis:cache", "db=4").out
    assert "+ db=4" in changed
    assert "password" not in changed, "a secret that is not given stays"
    assert there("target", "ls", "--json").json[0]["arn"] == ARN

    number = there("event", "add", "photos", ARN, "--event", "put", "--json").json["number"]
    assert there("event", "ls", "photos", "--json").json[0]["events"] == ["s3:ObjectCreated:*"]
    assert there("target", "show", "redis:cache", "--json").json["rules"][0]["number"] == number
    assert "paused redis:cache" in there("target", "pause", "redis:cache", "--reason", "moving").out
    assert there("status", "--json").json[0]["state"] == "paused"
    there("target", "resume", "redis:cache")

    refused = there("target", "rm", "redis:cache")
    assert refused.code == 1
    assert "1 rule(s) name it" in refused.err
    assert "removed 1 rule" in there("event", "rm", "photos", ARN).out
    assert there("config", "reset", "notify_redis:cache").code == 0
    assert there("target", "ls", "--json").json == []
    assert not (folder / "bucketwire.db").exists(), "nothing was made here"


def test_the_counters_are_those_of_the_service(there: Cli, service: tuple[Api, Database, str]) -> None:
    there("target", "set", "webhook:audit", "endpoint=http://127.0.0.1:9/")
    there("event", "add", "*", "arn:minio:sqs:eu-1:audit:webhook", "--event", "*")
    Log(service[1]).append([[event("a"), event("b")]])
    [counters] = there("status", "--json").json
    assert (counters["target"], counters["matched"], counters["pending"]) == ("webhook:audit", 2, 2)
    assert counters["oldest"].endswith("Z")


def test_a_file_is_applied_from_afar_and_refused_in_the_words_of_the_service(there: Cli, tmp_path: Path) -> None:
    path = tmp_path / "bucketwire.yaml"
    path.write_text(
        "targets: {redis:cache: {address: '127.0.0.1:6379', key: events}}\n"
        "rules: [{bucket: photos, events: put, target: redis:cache, id: one}]\n"
    )
    assert "+ rule: photos" in there("apply", "-f", str(path), "--dry-run").out
    assert there("target", "ls", "--json").json == []
    assert there("apply", "-f", str(path)).code == 0
    assert "everything is as declared" in there("apply", "-f", str(path)).out
    path.write_text("targets: {redis:cache: {address: '127.0.0.1:6379'}}")
    refused = there("apply", "-f", str(path))
    assert refused.code == 1
    assert "redis:cache: key: is required" in refused.err


def test_histories_dead_letters_and_replays_are_those_of_the_service(
    there: Cli, service: tuple[Api, Database, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, database, _ = service
    there("target", "set", "webhook:audit", "endpoint=http://127.0.0.1:9/")
    there("event", "add", "*", "arn:minio:sqs:eu-1:audit:webhook", "--event", "*")
    buckets = ("one", "two", "three")
    letters = [event("bad", bucket=bucket) for bucket in buckets]
    deliver(database, TargetId("webhook", "audit"), [event("good"), *letters], rejecting="bad")
    begun = there("replay", "--target", "webhook:audit", "--event", "put", "--since", "1h", "--json").json
    assert (begun["replayed"], begun["finished"]) == (0, False)
    deliver(database, TargetId("webhook", "audit"), [])
    done = there("replay", "--list", "--json").json[0]
    assert (done["replayed"], done["progress"], done["finished"]) == (4, 1, True)
    assert there("replay", "--target", "webhook:typo", "--all").code == 1
    assert "; since 20" in there("audit", "--action", "replay.begin", "--json").json[0]["summary"]
    backwards = there("replay", "--target", "webhook:audit", "--since", "1h", "--before", "2h")
    assert backwards.code == 2
    assert "--since" in backwards.err
    assert "not before --before" in backwards.err
    there("target", "pause", "webhook:audit")
    assert "would not end" in there("replay", "--target", "webhook:audit", "--all", "--wait").err
    assert len(there("replay", "--list", "--json").json) == 1
    waiting = there("replay", "--target", "webhook:audit", "--prefix", "none")
    assert waiting.out == "replay 2 waits, as webhook:audit is paused: `bucketwire target resume webhook:audit`\n"
    there("replay", "cancel", "2")
    there("target", "resume", "webhook:audit")
    assert "was already finished" in there("replay", "cancel", str(done["number"])).out
    assert "there is no replay 99" in there("replay", "cancel", "99").err

    monkeypatch.setenv("BUCKETWIRE_DATA_DIR", api.settings["BUCKETWIRE_DATA_DIR"])
    for words in (
        ("events", "one", "bad"),
        ("dead-letter", "ls"),
        ("dead-letter", "ls", "--limit", "2", "--after", "1"),
        ("dead-letter", "ls", "--target", "webhook:audit", "--bucket", "two", "--reason", "large", "--since", "1h"),
        ("dead-letter", "show", "2"),
        ("replay", "--list"),
        ("audit", "--action", "target", "--limit", "3"),
    ):
        from_afar = there(*words, "--json").json
        assert from_afar
        assert from_afar == there(*words, "--json", "--url", "").json

    assert there("dead-letter", "ls", "--before", "1h", "--json").json == []
    assert there("dead-letter", "show", "999").code == 1
    for place in ((), ("--url", "")):
        for verb in ("replay", "purge"):
            refused = there("dead-letter", verb, "2", "998", "999", *place)
            assert refused.code == 1
            assert "there is no dead letter 998, 999, so nothing was changed" in refused.err
        assert "there is no target webhook:typo" in there("dead-letter", "ls", "--target", "webhook:typo", *place).err
        assert "there is no target webhook:typo" in there("retry", "now", "--target", "webhook:typo", *place).err
    assert there("dead-letter", "replay", "2", "--json").json == {"replayed": 1}
    assert there("dead-letter", "purge", "--bucket", "one", "--json").json == {"purged": 1}
    assert there("dead-letter", "replay", "--all", "--json").json == {"replayed": 1}
    lost = there("target", "rm", "webhook:audit", "--force", "--json").json["lost"]
    assert len(lost) == 2
    assert lost[0] == "1 rule(s) name it"


def test_retried_events_are_tried_and_given_up_from_afar(
    there: Cli, service: tuple[Api, Database, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUCKETWIRE_DATA_DIR", service[0].settings["BUCKETWIRE_DATA_DIR"])
    there("target", "set", "webhook:audit", "endpoint=http://127.0.0.1:9/")
    there("event", "add", "*", "arn:minio:sqs:eu-1:audit:webhook", "--event", "*")
    Log(service[1]).append([[event("a"), event("b"), event("c")]])
    failing = ScriptedTarget(lambda _: Failed("500 broken", retry_after=60))
    Courier(service[1], TargetId("webhook", "audit"), failing).run()
    listed = there("retry", "ls", "--json").json
    assert listed == there("retry", "ls", "--json", "--url", "").json
    assert {(entry["reason"], entry["attempts"]) for entry in listed} == {("500 broken", 1)}
    assert len(there("retry", "ls", "--limit", "2", "--json").json) == 2
    chosen = listed[0]["id"]
    assert there("retry", "now", chosen, "--json").json == {"due": 1}
    assert [entry["id"] for entry in there("retry", "ls", "--json").json if entry["next_try"] == "now"] == [chosen]
    assert there("retry", "give-up", "--prefix", listed[0]["key"], "--json").json == {"given_up": 1}
    assert there("retry", "now", "--url", "", "--target", "webhook:audit", "--json").json == {"due": 2}
    assert there("retry", "give-up").code == 2
    for place in ((), ("--url", "")):
        for verb in ("now", "give-up"):
            refused = there("retry", verb, listed[-1]["id"], "0" * 32, *place)
            assert refused.code == 1
            assert f"there is no retried event {'0' * 32}, so nothing was changed" in refused.err
    assert there("retry", "give-up", "--all", "--json").json == {"given_up": 2}
    assert there("retry", "ls").out == "nothing is retried\n"


def test_reconciliations_are_started_cancelled_and_shown_from_afar(
    there: Cli, service: tuple[Api, Database, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, database, _ = service
    monkeypatch.setenv("BUCKETWIRE_DATA_DIR", api.settings["BUCKETWIRE_DATA_DIR"])
    there("target", "set", "redis:rows", "address=127.0.0.1:9", "key=rows")
    begun = there("reconciliation", "start", "redis:rows", "images", "--json").json
    assert (begun["state"], begun["repair"]) == ("waiting", False)
    assert "is waiting already" in there("reconciliation", "start", "redis:rows", "images").err
    assert "only a reconciliation that found drift" in there("reconciliation", "repair", begun["run"]).err
    runs = Reconciliations(database)
    runs.begin(TargetId("redis", "rows"), "images", lease=60_000, run=begun["run"])
    runs.end(begun["run"], "drift", {"missing": 2})
    store_findings(database, begun["run"], [{"kind": "missing", "key": "a"}, {"kind": "stale", "key": "b"}])
    for words in (("ls",), ("findings", begun["run"]), ("findings", begun["run"], "--kind", "stale")):
        from_afar = there("reconciliation", *words, "--json").json
        assert from_afar
        assert from_afar == there("reconciliation", *words, "--json", "--url", "").json
    approved = there("reconciliation", "repair", begun["run"], "--json").json
    assert approved["repair"] is True
    assert there("reconciliation", "cancel", approved["run"], "--json").json["state"] == "cancelled"
    for word in ("repair", "cancel", "findings"):
        assert "there is no reconciliation ../x" in there("reconciliation", word, "../x", "--url", "").err
        assert there("reconciliation", word, "none").code == 1


def test_what_cannot_be_asked_from_afar_says_so(there: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(*words: str) -> Result:
        refused = there(*words)
        assert refused.code in (1, 2)
        return refused

    assert "secrets cannot be read through the API" in said("config", "export", "--secrets").err
    assert "there is no target redis:none" in said("target", "show", "redis:none").err
    nowhere = f"http://{services.LOOPBACK}:9"
    assert f"{nowhere} does not answer" in said("target", "ls", "--url", nowhere).err
    wrong = said("target", "ls", "--token", "of-somebody-else-entirely").err
    assert "BUCKETWIRE_TOKEN" in wrong
    assert "somebody" not in wrong
    assert "the token is invalid" in said("target", "ls", "--token", "new\nline").err
