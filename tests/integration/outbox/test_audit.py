"""The audit log: each change leaves an entry in its own transaction, without secrets, and nothing else does."""

from __future__ import annotations

import getpass
import socket
from typing import Any

import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.target_settings import BadSettings
from app.manifest.document import parse_manifest
from app.manifest.plan import apply
from app.outbox import audit, tables
from app.outbox.admin.replays import Replays, Selection
from app.outbox.admin.undelivered import DeadLetters
from app.outbox.audit import Actor, AuditFilter, Entry, acting, actions_of
from app.outbox.buckets import remove_bucket
from app.outbox.engine.database import Database, now_ms
from app.outbox.errors import TokenExists, UnknownToken
from app.outbox.log.append import Log
from app.outbox.registry import Registry, TargetInUse
from app.outbox.tokens import Tokens
from app.resources.undelivered import DeadLetterFilter
from app.rules.model import Rule
from tests.support import databases
from tests.support.builders import PUT, add_target, event, registry
from tests.support.scripted_target import Courier, ScriptedTarget
from workers.delivery.outcomes import Rejected

pytestmark = databases.ONE

SECRET, NEW_SECRET = "hunter2-hunter2", "swordfish-swordfish"
HOOK = TargetId("webhook", "audit")
ALICE = Actor("token:alice", "192.0.2.7", "PUT /v1/targets/<type>/<name>")


def entries(database: Database, **chosen: Any) -> list[Entry]:
    return audit.entries(database, AuditFilter(**chosen), limit=1000)


def actions(database: Database) -> list[str]:
    """The actions, oldest first."""
    return [entry.action for entry in reversed(entries(database))]


def forget(database: Database) -> None:
    with database.writing() as connection:
        connection.execute(tables.audit.delete())


def test_a_target_is_recorded_with_what_changed_and_never_with_a_secret(database: Database) -> None:
    targets = registry(database)
    with acting(ALICE):
        targets.put(HOOK, {"endpoint": "http://u:pass-word-1@127.0.0.1:9/", "auth_token": SECRET})
        targets.put(HOOK, {"endpoint": "http://127.0.0.1:9/", "auth_token": NEW_SECRET, "comment": "x" * 8000})
        targets.pause(HOOK, "a reason")
        targets.resume(HOOK)
        targets.remove(HOOK)
    found = list(reversed(entries(database)))
    assert [entry.action.partition(".")[2] for entry in found] == ["create", "change", "pause", "resume", "remove"]
    assert {entry.resource for entry in found} == {"target:webhook:audit"}
    assert {entry.actor for entry in found} == {ALICE}
    assert all(abs(entry.at - now_ms()) < 3_600_000 for entry in found)
    assert "+ auth_token=*redacted*" in found[0].details["settings"]
    assert {"- auth_token=*redacted*", "+ auth_token=*redacted*"} <= set(found[1].details["settings"])
    assert found[2].details == {"reason": "a reason"}
    with database.reading() as connection:
        rows = str(connection.execute(sa.select(tables.audit)).all())
    assert not [secret for secret in (SECRET, NEW_SECRET, "pass-word-1") if secret in rows]
    assert len(rows) < 10_000


def test_what_fails_is_not_recorded(database: Database) -> None:
    add_target(database, "audit")
    Tokens(database).create("one", ["read"])
    forget(database)
    with pytest.raises(TargetInUse):
        registry(database).remove(registry(database).targets()[0].target)
    with pytest.raises(BadSettings):
        registry(database).put(HOOK, {"endpoint": "ftp://x"})
    with pytest.raises(TokenExists):
        Tokens(database).create("one", ["admin"])
    with pytest.raises(UnknownToken):
        Tokens(database).revoke("two")
    with pytest.raises(TargetInUse):
        _pause_and_remove(registry(database))
    assert registry(database).remove_rules([2**30]) == []
    assert entries(database) == []


def _pause_and_remove(targets: Registry) -> None:
    with targets.at_once() as locked:
        locked.pause(locked.targets()[0].target, "undone with the rest")
        locked.remove(locked.targets()[0].target)


def test_rules_are_recorded_at_their_bucket(database: Database) -> None:
    target = add_target(database, "audit", bucket="other")
    forget(database)
    rule, other = (Rule(bucket="images", events=(PUT,), target=target, prefix=prefix) for prefix in ("a/", "b/"))
    number = registry(database).add_rule(rule)
    assert registry(database).add_rule(rule) == number
    registry(database).replace_rules("images", [rule, other])
    registry(database).replace_rules("images", [other, rule])
    registry(database).remove_rules([number])
    remove_bucket(database, "images")
    found = list(reversed(entries(database, resource="bucket:images")))
    assert [(entry.action, entry.details.get("prefix")) for entry in found][:2] == [
        ("rule.add", "a/"),
        ("rule.add", "b/"),
    ]
    assert found[-1].action == "bucket.remove"
    assert {entry.details["target"] for entry in found[:-1]} == {str(target)}
    assert entries(database, resource="bucket:other") == []


def test_a_declaration_records_each_change_of_it_as_one_operation(database: Database) -> None:
    document = {
        "targets": {"webhook:audit": {"endpoint": "http://127.0.0.1:9/"}},
        "rules": [{"bucket": f"b{number}", "events": [PUT], "target": "webhook:audit"} for number in range(1, 300)],
    }
    with acting(ALICE):
        apply(registry(database), parse_manifest(document))
        apply(registry(database), parse_manifest(document))
    found = entries(database)
    assert len(found) == 300
    assert {entry.actor.operation for entry in found} == {ALICE.operation}


@databases.THREE
def test_tokens_replays_and_dead_letters_are_recorded(database: Database) -> None:
    target = add_target(database, "audit")
    Log(database).append([[event(f"k{number}") for number in range(600)]])
    Courier(database, target, ScriptedTarget(lambda _: Rejected("no")), batch=200).run()
    forget(database)
    token = Tokens(database).create("console", ["admin"])
    Tokens(database).revoke("console")
    replay = Replays(database).begin(target, Selection(prefix="k1"))
    Replays(database).cancel(replay.replay_id)
    Replays(database).cancel(replay.replay_id)
    letters = DeadLetters(database)
    [first] = letters.list(DeadLetterFilter(), limit=1)
    assert letters.replay(DeadLetterFilter(ids=[first.id])) == 1
    assert letters.purge(DeadLetterFilter(target=target)) == 599
    assert letters.purge(DeadLetterFilter(target=target)) == 0
    found = list(reversed(entries(database)))
    assert [(entry.action, entry.resource) for entry in found] == [
        ("token.create", "token:console"),
        ("token.revoke", "token:console"),
        ("replay.begin", f"replay:{replay.replay_id}"),
        ("replay.cancel", f"replay:{replay.replay_id}"),
        ("dead_letter.replay", "dead_letters:"),
        ("dead_letter.purge", f"target:{target}"),
    ]
    assert token not in str(found)
    assert found[2].details == {"target": str(target), "prefix": "k1"}
    assert found[5].details == {"purged": 599, "target": str(target)}


def test_who_acts_on_the_database_itself_is_the_systems_user(database: Database) -> None:
    add_target(database, "audit")
    [actor] = {entry.actor.name for entry in entries(database)}
    assert actor == f"user:{getpass.getuser()}@{socket.gethostname()}"


@databases.THREE
def test_entries_are_filtered_paged_and_removed_when_they_are_old(database: Database) -> None:
    with acting(ALICE):
        target = add_target(database, "audit")
    with acting(Actor("token:bob")):
        for number in range(5):
            registry(database).pause(target, f"{number}")
    first = entries(database)[-1]
    assert len(entries(database, actor="token:bob")) == 5
    assert {entry.action for entry in entries(database, actions=actions_of("target"))} == {
        "target.create",
        "target.pause",
    }
    assert actions_of("target.pause") == ("target.pause",)
    assert actions_of("targ") == actions_of("") == ()
    page = audit.entries(database, AuditFilter(actor="token:bob"), limit=3)
    rest = audit.entries(database, AuditFilter(actor="token:bob"), limit=3, after=page[-1].entry_id)
    assert [entry.details["reason"] for entry in page + rest] == ["4", "3", "2", "1", "0"]
    with database.writing() as connection:
        connection.execute(tables.audit.update().where(tables.audit.c.id == first.entry_id).values(at=1000))
    assert [entry.entry_id for entry in entries(database, before=1001)] == [first.entry_id]
    assert first.entry_id not in [entry.entry_id for entry in entries(database, since=1001)]
    assert audit.purge(database, 1000) == 0
    assert audit.purge(database, 1001) == 1
    assert audit.purge(database, 1001) == 0
    assert len(entries(database)) == 6


@databases.ALL
def test_no_value_can_refuse_the_change_that_it_describes(database: Database) -> None:
    hostile = "\ud800\0\u202e\U0001f600'" * 900
    with acting(Actor(hostile, hostile, hostile)), database.writing() as connection:
        details = {"text": hostile, "list": [hostile] * 500, "deep": {"text": hostile}}
        audit.record(connection, "target.change", f"bucket:{hostile}", details)
    [entry] = entries(database, resource=f"bucket:{hostile}")
    assert len(entry.details["text"]) <= 1001
    assert len(entry.details["list"]) == 101
    assert "\0" not in entry.resource + entry.actor.name


def test_events_that_somebody_records_for_one_target_are_recorded_with_their_number(database: Database) -> None:
    """Repairs and test events: they change what a target holds, and no rule names it."""
    target = add_target(database, "audit", queue_limit=4)
    log, known = Log(database), event("known")
    log.append([[known]])
    log.append([[event("routed")]])
    forget(database)
    repair = [known, event("a"), event("b", bucket="backups")]
    with acting(ALICE):
        log.append([repair], only_target=target, action="target.repair")
        log.append([repair], only_target=target, action="target.repair")  # sent again: nothing is new
        log.append([[event("alone")]], only_target=target, action="target.test")  # the queue has no room
    [entry] = entries(database)
    assert (entry.action, entry.resource, entry.actor) == ("target.repair", f"target:{target}", ALICE)
    assert entry.details == {"events": 2, "buckets": ["backups", "images"]}
    Courier(database, target, ScriptedTarget()).run()
    log.append([[event("alone")]], only_target=target, action="target.test")
    assert actions(database) == ["target.repair", "target.test"]
