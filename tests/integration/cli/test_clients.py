"""Commands at a service elsewhere, and on this machine's without its API: the same answers, the same refusals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.admin import event_states
from app.outbox.admin.event_states import Attempt
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.reconcile.runs import Reconciliations, store_findings
from app.outbox.tokens import Tokens
from app.resources.declaration import format_time
from tests import services
from tests.integration.cli.conftest import Cli, Result, deliver
from tests.support.builders import DELETE, event, migrated
from tests.support.scripted_target import Courier, ScriptedTarget
from tests.support.service_processes import Api
from workers.delivery.outcomes import Failed

ARN = "arn:minio:sqs:eu-1:cache:redis"
AUDIT = "arn:minio:sqs:eu-1:audit:webhook"
SECRET = "hush-hush-9f3"
HERE = ("--url", "")


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
def outbox(service: tuple[Api, Database, str]) -> Database:
    """The outbox of the service."""
    return service[1]


@pytest.fixture
def there(bare: Cli, service: tuple[Api, Database, str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`bucketwire …` with the URL and a token of a service that has no target."""
    api, _, token = service
    monkeypatch.setenv("BUCKETWIRE_TOKEN", token)
    monkeypatch.setenv("BUCKETWIRE_URL", api.url)
    for target in bare("target", "ls", "--json").json:
        assert bare("target", "rm", target["arn"], "--force").code == 0
    return bare


ON_THIS_MACHINE = pytest.param(
    "on this machine", marks=pytest.mark.nightly("all other modules: a command has one way to the API's routes")
)


@pytest.fixture(params=["elsewhere", ON_THIS_MACHINE])
def client(
    there: Cli, service: tuple[Api, Database, str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Cli:
    """`bucketwire …` at the service, by its URL or with its settings."""
    if request.param == "on this machine":
        monkeypatch.delenv("BUCKETWIRE_URL")
        for name in ("BUCKETWIRE_DATA_DIR", "BUCKETWIRE_REGION"):
            monkeypatch.setenv(name, service[0].settings[name])
    return there


def with_audit(client: Cli) -> TargetId:
    """Set a webhook that gets every event."""
    client("target", "set", "webhook:audit", "endpoint=http://127.0.0.1:9/")
    client("rule", "add", "*", AUDIT, "--event", "*")
    return TargetId("webhook", "audit")


def without_ages(answer: Any) -> Any:
    """Return an answer without the ages in it, which differ from one moment to the next."""
    if isinstance(answer, list):
        return [without_ages(row) for row in answer]
    return {**answer, "oldest_age": None} if isinstance(answer, dict) else answer


def counters(client: Cli) -> dict[str, int]:
    [target] = client("status", "--json").json
    events: dict[str, int] = target["events"]
    return events


def test_targets_and_rules_are_set_shown_and_removed(client: Cli, folder: Path) -> None:
    said = client("target", "set", "redis:cache", "address=127.0.0.1:6379", "key=events", f"password={SECRET}").out
    assert "redis:cache: new" in said
    assert SECRET not in said
    changed = client("target", "set", "redis:cache", "db=4").out
    assert "+ db=4" in changed
    assert "password" not in changed, "a secret that is not given stays"
    assert client("target", "ls", "--json").json[0]["arn"] == ARN

    number = client("rule", "add", "photos", ARN, "--event", "put", "--json").json["number"]
    assert client("rule", "ls", "photos", "--json").json[0]["events"] == ["s3:ObjectCreated:*"]
    assert client("target", "show", "redis:cache", "--json").json["rules"][0]["number"] == number
    assert "paused redis:cache" in client("target", "pause", "redis:cache", "--reason", "moving").out
    assert client("status", "--json").json[0]["state"] == "paused"
    client("target", "resume", "redis:cache")

    refused = client("target", "rm", "redis:cache")
    assert refused.code == 1
    assert "is in use: 1 rule;" in refused.err
    assert "removed 1 rule" in client("rule", "rm", "photos", ARN).out
    assert client("config", "reset", "notify_redis:cache").code == 0
    assert client("target", "ls", "--json").json == []
    assert not (folder / "bucketwire.db").exists(), "nothing was made here"


def test_the_counters_are_those_of_the_service(client: Cli, outbox: Database) -> None:
    with_audit(client)
    Log(outbox).append([[event("a"), event("b")]])
    [target] = client("status", "--json").json
    assert (target["arn"], target["events"]["matched"], target["events"]["pending"]) == (AUDIT, 2, 2)
    assert target["oldest_age"] >= 0


def test_a_file_is_applied_and_refused_in_the_words_of_the_service(client: Cli, tmp_path: Path) -> None:
    path = tmp_path / "bucketwire.yaml"
    path.write_text(
        "targets: {redis:cache: {address: '127.0.0.1:6379', key: events}}\n"
        "rules: [{bucket: photos, events: put, target: redis:cache, id: one}]\n"
    )
    assert "+ rule: photos" in client("apply", "-f", str(path), "--dry-run").out
    assert client("target", "ls", "--json").json == []
    assert client("apply", "-f", str(path)).code == 0
    assert "everything is as declared" in client("apply", "-f", str(path)).out
    path.write_text("targets: {redis:cache: {address: '127.0.0.1:6379'}}")
    refused = client("apply", "-f", str(path))
    assert refused.code == 1
    assert "redis:cache: key: is required" in refused.err


def test_rules_are_removed_in_one_operation_and_keys_set_by_one(client: Cli) -> None:
    with_audit(client)
    for word in ("put", "delete", "get"):
        client("rule", "add", "photos", AUDIT, "--event", word)
    removed = client("rule", "rm", "photos", AUDIT, "--json").json["removed"]
    assert len(removed) == 3
    assert [rule["bucket"] for rule in client("rule", "ls", "--json").json] == ["*"]
    entries = client("audit", "--action", "rule.remove", "--limit", "3", "--json").json
    assert len({entry["operation"] for entry in entries}) == 1

    assert client("config", "set", "notify_webhook:audit comment=x queue_limit=5").code == 0
    assert "there is no target webhook:none" in client("config", "reset", "notify_webhook:none", "comment").err
    assert "- comment=x" in client("config", "reset", "notify_webhook:audit", "comment").out
    settings = client("target", "show", "webhook:audit", "--json").json["settings"]
    assert (settings.get("comment"), settings["queue_limit"]) == (None, "5")


def record_exchange(outbox: Database, event_id: str) -> str | None:
    """Record what was sent and answered for an event of `webhook:audit`, and a later attempt without a request."""
    request = {"line": "POST https://h:443", "headers": {"A": "b"}, "body": "{}", "size": 2}
    response = {"line": "HTTP 422", "headers": {}, "body": "too\nlarge", "size": 2000}
    exchange = orjson.dumps({"request": request, "response": response}).decode()
    e, t = tables.events.c, tables.targets.c
    with outbox.writing() as connection:
        row = connection.execute(sa.select(e.partition, e.seq).where(e.id == event_id)).one()
        target_id = connection.execute(sa.select(t.id).where(t.type == "webhook", t.name == "audit")).scalar_one()
        made = Attempt(target_id, row.partition, row.seq, row.seq, now_ms() - 60_000, "failed", exchange=exchange)
        event_states.record_attempts(
            connection, [made, replace(made, at=now_ms(), outcome="unavailable", exchange=None)]
        )
    return format_time(made.at)


def test_dead_letters_are_listed_shown_replayed_and_deleted(client: Cli, outbox: Database) -> None:
    target = with_audit(client)
    deliver(outbox, target, [event("bad", bucket=bucket) for bucket in ("one", "two", "three")], rejecting="bad")

    letters = client("dead-letter", "ls", "--target", "webhook:audit", "--json").json
    ids = {letter["bucket"]: letter["id"] for letter in letters}
    assert ids.keys() == {"one", "two", "three"}
    first, *others = sorted(ids.values())
    rest = client("dead-letter", "ls", "--limit", "2", "--after", str(first), "--json").json
    assert [letter["id"] for letter in rest] == others
    chosen = ("--target", "webhook:audit", "--bucket", "two", "--reason", "too large", "--since", "1h")
    assert [letter["id"] for letter in client("dead-letter", "ls", *chosen, "--json").json] == [ids["two"]]
    assert len(client("dead-letter", "ls", "--since", "1h", "--reason", "too large", "--json").json) == 3
    assert client("dead-letter", "ls", "--before", "1h", "--json").json == []

    number = str(ids["one"])
    shown = client("dead-letter", "show", number, "--json").json
    assert shown["history"][-1]["reason"] == "it is too large"
    assert shown["record"]["s3"]["bucket"]["name"] == "one"
    assert "it is too large" in client("dead-letter", "show", number).out
    at = record_exchange(outbox, shown["event_id"])
    for command in (("dead-letter", "show", number), ("event", "show", shown["event_id"])):
        printed = client(*command).out
        assert f"request of the failed attempt at {at}\n  POST https://h:443\n  A: b\n\n  {{}}\n" in printed
        assert f"answer of the failed attempt at {at}\n  HTTP 422\n\n  too\n  large\n  (9 of 2,000 bytes)\n" in printed
    [state] = client("event", "show", shown["event_id"], "--json").json["delivery_states"]
    assert state["exchange"]["at"] == at
    assert state["exchange"]["response"]["size"] == 2000
    assert client("dead-letter", "show", "999").code == 1
    for verb in ("replay", "purge"):
        refused = client("dead-letter", verb, number, "998", "999")
        assert refused.code == 1
        assert "there is no dead letter 998, 999, so nothing was changed" in refused.err
    assert "there is no target webhook:typo" in client("dead-letter", "ls", "--target", "webhook:typo").err

    assert client("dead-letter", "replay", number, "--json").json == {"replayed": 1}
    assert (counters(client)["parked"], counters(client)["dead"]) == (1, 2)
    assert client("dead-letter", "purge", "--bucket", "two", "--json").json == {"purged": 1}
    assert client("dead-letter", "replay", "--all", "--json").json == {"replayed": 1}
    assert (counters(client)["parked"], counters(client)["dead"], counters(client)["purged"]) == (2, 0, 1)
    lost = client("target", "rm", "webhook:audit", "--force", "--json").json["lost"]
    assert len(lost) == 2
    assert lost[0] == "1 rule"


def test_retained_events_are_delivered_again_by_name_time_and_prefix(client: Cli, outbox: Database) -> None:
    target = with_audit(client)
    deliver(outbox, target, [event("a/1"), event("b/1"), event("a/1", name=DELETE)])

    begun = client("replay", "--target", "webhook:audit", "--event", "put", "--prefix", "a/", "--since", "1h", "--json")
    assert (begun.json["replayed"], begun.json["progress"], begun.json["finished"]) == (0, 0, False)
    again = deliver(outbox, target, [])
    assert [one.name for one in again.got] == ["s3:ObjectCreated:Put"]
    for words, count in (("--before", "1h"), 0), (("--all",), 3):
        client("replay", "--target", "webhook:audit", *words)
        deliver(outbox, target, [])
        newest = client("replay", "--list", "--json").json[0]
        assert (newest["replayed"], newest["progress"], newest["finished"]) == (count, 1, True)
    assert len(client("replay", "--list", "--json").json) == 3
    assert "; since 20" in client("audit", "--action", "replay.begin").out
    assert client("replay").code == 2
    assert client("replay", "--target", "webhook:audit").code == 2
    assert client("replay", "--target", "webhook:audit", "--all", "--since", "1h").code == 2
    assert client("replay", "--target", "webhook:typo", "--all").code == 1
    backwards = client("replay", "--target", "webhook:audit", "--since", "1h", "--before", "2h")
    assert backwards.code == 2
    assert "--since" in backwards.err
    assert "not before --before" in backwards.err
    unknown = client("replay", "--target", "webhook:audit", "--event", "s3:Putt")
    assert (unknown.code, "--event" in unknown.err) == (2, True), unknown.err


def test_a_replay_waits_while_its_target_is_paused_and_is_cancelled_once(client: Cli, outbox: Database) -> None:
    target = with_audit(client)
    deliver(outbox, target, [event("a")])
    client("target", "pause", "webhook:audit")
    assert "would not end" in client("replay", "--target", "webhook:audit", "--all", "--wait").err
    assert client("replay", "--list", "--json").json == []
    waiting = client("replay", "--target", "webhook:audit", "--prefix", "none")
    number = client("replay", "--list", "--json").json[0]["id"]
    paused = "waits, as webhook:audit is paused: `bucketwire target resume webhook:audit`"
    assert waiting.out == f"replay {number} {paused}\n"
    client("replay", "cancel", str(number))
    client("target", "resume", "webhook:audit")

    number = client("replay", "--target", "webhook:audit", "--all", "--json").json["id"]
    assert client("replay", "cancel", str(number)).out.startswith(f"replay {number} is cancelled: 0 events")
    assert deliver(outbox, target, []).got == []
    ended = client("replay", "cancel", str(number), "--json").json
    assert (ended["replayed"], ended["finished"]) == (0, True)
    assert ended["cancelled_at"]
    done = client("replay", "--target", "webhook:audit", "--all", "--json").json["id"]
    deliver(outbox, target, [])
    assert "was already finished" in client("replay", "cancel", str(done)).out
    assert "there is no replay 999" in client("replay", "cancel", "999").err
    assert client("replay", "cancel", "all").code == 2


def test_retried_events_are_tried_and_given_up(client: Cli, outbox: Database) -> None:
    target = with_audit(client)
    Log(outbox).append([[event("a"), event("b"), event("c")]])
    Courier(outbox, target, ScriptedTarget(lambda _: Failed("500 broken", retry_after=60))).run()
    listed = client("retry", "ls", "--json").json
    assert {(retry["history"][-1]["reason"], retry["attempts"]) for retry in listed} == {("500 broken", 1)}
    assert len(client("retry", "ls", "--limit", "2", "--json").json) == 2
    assert "500 broken" in client("retry", "ls").out
    chosen = listed[0]["event_id"]
    assert client("retry", "now", chosen, "--json").json == {"due": 1}
    due = [retry["event_id"] for retry in client("retry", "ls", "--json").json if retry["next_try"] is None]
    assert due == [chosen]
    assert client("retry", "give-up", "--prefix", listed[0]["key"], "--json").json == {"given_up": 1}
    assert client("retry", "now", "--target", "webhook:audit", "--json").json == {"due": 2}
    assert client("retry", "give-up").code == 2
    for verb in ("now", "give-up"):
        refused = client("retry", verb, listed[-1]["event_id"], "0" * 32)
        assert refused.code == 1
        assert f"there is no retried event {'0' * 32}, so nothing was changed" in refused.err
    assert "there is no target webhook:typo" in client("retry", "now", "--target", "webhook:typo").err
    assert client("retry", "give-up", "--all", "--json").json == {"given_up": 2}
    assert client("retry", "ls").out == "nothing is retried\n"


def test_reconciliations_are_started_cancelled_and_shown(client: Cli, outbox: Database) -> None:
    client("target", "set", "redis:rows", "address=127.0.0.1:9", "key=rows")
    bucket = f"images-{len(client('reconcile', 'ls', '--json').json)}"
    unseen = client("reconcile", "start", "redis:rows", bucket)
    assert (unseen.code, "has named the bucket" in unseen.err, "--unknown-bucket" in unseen.err) == (1, True, True)
    begun = client("reconcile", "start", "redis:rows", bucket, "--unknown-bucket", "--json").json
    assert (begun["state"], begun["repair"]) == ("waiting", False)
    refusal = " ".join(client("reconcile", "start", "redis:rows", bucket).err.split())
    assert "is waiting already; start a Spark worker, as none is there, or cancel it" in refusal
    assert "only a reconciliation that found drift" in client("reconcile", "repair", begun["id"]).err
    runs = Reconciliations(outbox)
    runs.begin(TargetId("redis", "rows"), bucket, lease=60_000, run=begun["id"])
    runs.end(begun["id"], "drift", {"missing": 2})
    store_findings(outbox, begun["id"], [{"kind": "missing", "key": "a"}, {"kind": "stale", "key": "b"}])
    assert [one["key"] for one in client("reconcile", "findings", begun["id"], "--json").json] == ["a", "b"]
    stale = client("reconcile", "findings", begun["id"], "--kind", "stale", "--json").json
    assert [one["key"] for one in stale] == ["b"]
    assert "waits: no Spark worker is there" in client("reconcile", "repair", begun["id"]).out
    [waiting, *_] = client("reconcile", "ls", "--json").json
    assert client("reconcile", "cancel", waiting["id"]).code == 0
    approved = client("reconcile", "repair", begun["id"], "--json").json
    assert approved["repair"] is True
    assert client("reconcile", "cancel", approved["id"], "--json").json["state"] == "cancelled"
    for word in ("repair", "cancel", "findings"):
        assert "there is no reconciliation ../x" in client("reconcile", word, "../x").err
        assert client("reconcile", word, "none").code == 1


def test_tokens_are_created_listed_and_revoked(client: Cli) -> None:
    made = client("token", "create", "probe", "--scope", "read", "--bucket", "images", "--json").json
    assert (made["name"], made["scopes"], made["buckets"]) == ("probe", ["read"], ["images"])
    assert made["token"].startswith("bw_")
    [listed] = [token for token in client("token", "ls", "--json").json if token["name"] == "probe"]
    assert (listed["scopes"], listed["buckets"]) == (["read"], ["images"])
    assert client("token", "create", "probe").code == 1
    assert client("token", "revoke", "probe").out == "revoked probe\n"
    assert client("token", "revoke", "probe").code == 1


def test_the_name_of_a_token_or_run_leads_nowhere_else(client: Cli) -> None:
    with_audit(client)
    for name in ("../targets/webhook/audit?force=true", "../targets/webhook/audit", "..", ".", "", "a/b"):
        assert "there is no token" in client("token", "revoke", name).err
        for word in ("repair", "cancel", "findings"):
            assert "there is no reconciliation" in client("reconcile", word, name).err
    rule = client("rule", "ls", "--json").json[0]["number"]
    assert client("token", "revoke", f"../rules/{rule}").code == 1
    assert [len(client(*words, "--json").json) for words in (("target", "ls"), ("rule", "ls"))] == [1, 1]


def test_a_command_prints_what_the_api_answers_whichever_way_it_asks(
    there: Cli, service: tuple[Api, Database, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BUCKETWIRE_DATA_DIR", "BUCKETWIRE_REGION"):
        monkeypatch.setenv(name, service[0].settings[name])
    target = with_audit(there)
    there("target", "set", "redis:rows", "address=127.0.0.1:9", "key=rows")
    deliver(service[1], target, [event("good"), event("bad", bucket="one")], rejecting="bad")
    Log(service[1]).append([[event("retried")]])
    Courier(service[1], target, ScriptedTarget(lambda _: Failed("500 broken", retry_after=60))).run()
    there("replay", "--target", "webhook:audit", "--all")
    run = there("reconcile", "start", "redis:rows", "same", "--unknown-bucket", "--json").json["id"]
    letter = there("dead-letter", "ls", "--json").json[0]["id"]
    for words in (
        ("target", "ls"),
        ("target", "show", "webhook:audit"),
        ("rule", "ls"),
        ("event", "history", "one", "bad"),
        ("event", "history", "one", "bad", "--attempts"),
        ("dead-letter", "ls"),
        ("dead-letter", "ls", "--limit", "1", "--bucket", "one", "--reason", "large", "--since", "1h"),
        ("dead-letter", "show", str(letter)),
        ("retry", "ls"),
        ("replay", "--list"),
        ("reconcile", "ls"),
        ("audit", "--action", "target", "--limit", "3"),
        ("config", "get"),
        ("config", "get", "api"),
        ("config", "export"),
        ("token", "ls"),
    ):
        elsewhere = without_ages(there(*words, "--json").json)
        assert elsewhere, words
        assert elsewhere == without_ages(there(*words, "--json", *HERE).json), words
        assert there(*words).out == there(*words, *HERE).out, words
    there("reconcile", "cancel", run)
    told, told_here = (there("status", "--json", *place).json for place in ((), HERE))
    assert without_ages(told) == without_ages(told_here)


def test_what_cannot_be_asked_of_a_service_elsewhere_says_so(there: Cli, tmp_path: Path) -> None:
    def said(*words: str) -> Result:
        refused = there(*words)
        assert refused.code in (1, 2)
        return refused

    assert "secrets cannot be read through the API" in said("config", "export", "--secrets").err
    assert "leave out --url" in said("import", "minio", "--queue-dir", str(tmp_path)).err
    assert "there is no target redis:none" in said("target", "show", "redis:none").err
    nowhere = f"http://{services.LOOPBACK}:9"
    assert f"{nowhere} does not answer" in said("target", "ls", "--url", nowhere).err
    wrong = said("target", "ls", "--token", "of-somebody-else-entirely").err
    assert "BUCKETWIRE_TOKEN" in wrong
    assert "somebody" not in wrong
    assert "the token is invalid" in said("target", "ls", "--token", "new\nline").err
    with services.receiver() as other:
        assert (
            "is not a Bucketwire API" in said("target", "ls", "--url", f"http://{services.LOOPBACK}:{other.port}").err
        )
