"""What the outbox knows of tokens, on each kind of database."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Thread

import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.settings import ApiToken, hash_token
from app.outbox import tables
from app.outbox import tokens as outbox_tokens
from app.outbox.engine.database import Database, now_ms
from app.outbox.errors import UnknownToken
from app.outbox.policies import TOKENS
from app.outbox.tokens import FormerToken, Tokens
from app.resources.declaration import BadMember
from tests.services import until
from tests.support import databases
from tests.support.builders import add_target, registry
from tests.support.tuning import tune
from workers.idle_processes import PoolShares

pytestmark = databases.ONE

GIVEN = ApiToken("environment", frozenset({"admin"}), hash_token("e" * 40))


@databases.TWO
def test_once_there_was_a_token_one_is_required_for_good(database: Database) -> None:
    assert not Tokens(database).required()
    made = Tokens(database).create("minio", ["ingest"])
    assert Tokens(database).required()
    found = Tokens(database).find(made)
    assert found is not None
    assert (found.name, found.scopes) == ("minio", {"ingest"})
    Tokens(database).revoke("minio")
    after = Tokens(database)
    assert (after.required(), after.any(), after.find(made), list(after.list())) == (True, False, None, [])
    with pytest.raises(UnknownToken):
        after.revoke("*")
    assert Tokens(database).required()
    again = Tokens(database).create("minio", ["admin"])
    assert Tokens(database).find(again) is not None
    assert [token.name for token in Tokens(database).list()] == ["minio"]


@databases.TWO
def test_a_new_token_is_valid_at_once_in_a_process_that_has_just_read_them_all(database: Database) -> None:
    api = Tokens(database)
    for number in range(5):
        assert api.find("a guess") is None
        made = Tokens(database).create(f"new-{number}", ["read"])
        assert api.find(made) is not None


def test_guesses_without_end_have_the_tokens_read_now_and_then(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = list[int]()

    class Counted(Tokens):
        def _read(self) -> Sequence[ApiToken]:
            reads.append(1)
            return super()._read()

    tune(monkeypatch, outbox_tokens, "TOKENS", new_pause_seconds=0.2)
    api, began = Counted(database), time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(api.find, [f"guess {number}" for number in range(200)])) == {None}
    assert len(reads) <= 2 + (time.monotonic() - began) / 0.2


def test_what_records_that_is_no_token(database: Database) -> None:
    Tokens(database).create("minio", ["ingest"])
    with database.reading() as connection:
        digests = connection.execute(sa.select(tables.tokens.c.digest)).scalars().all()
    assert len(digests) == 2
    assert [Tokens(database).find(guess) for guess in (*digests, "", "*", "-" * 64)] == [None] * 5


@databases.TWO
def test_tokens_of_the_version_before_are_recorded_when_they_are_seen_or_revoked(database: Database) -> None:
    row = {"name": "old", "digest": hash_token("o" * 40), "scopes": "ingest", "created_at": 1}
    for seen in (True, False):
        with database.writing() as connection:
            connection.execute(tables.tokens.delete())
            connection.execute(tables.tokens.insert().values(**row))
        if seen:
            assert Tokens(database).required()
            until(lambda: _rows(database) == 2)
            with database.writing() as connection:  # the version before revokes it, too
                connection.execute(tables.tokens.delete().where(tables.tokens.c.name == "old"))
        else:
            Tokens(database).revoke("old")
        assert Tokens(database).required()
        assert not Tokens(database).any()


def test_a_token_of_the_environment_is_recorded(database: Database) -> None:
    tokens = Tokens(database, [GIVEN])
    assert tokens.find("e" * 40) == GIVEN
    until(lambda: _rows(database) == 1)
    assert Tokens(database).required()
    assert not Tokens(database).any()


def test_a_token_expires_also_where_the_database_is_away(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = now_ms() + 900_000
    made = Tokens(database).create("soon", ["read"], expires_at=ends)
    memory = tmp_path / "tokens.json"
    known = Tokens(database, memory=memory)
    assert known.find(made) is not None
    away = Database("sqlite:////nowhere/outbox.db")
    for tokens in (known, Tokens(away, memory=memory)):
        assert (tokens.find(made) is None, tokens.find_former(hash_token(made))) == (False, None)
        with monkeypatch.context() as later:
            later.setattr("app.outbox.tokens.now_ms", lambda: ends)
            assert (tokens.find(made), tokens.required()) == (None, True)
            assert tokens.find_former(hash_token(made)) == FormerToken("soon", is_revoked=False, since=ends)
            assert tokens.find_former(hash_token("another")) is None
    [listed] = known.list()
    assert listed.expires_at == ends
    away.close()


@databases.TWO
def test_the_last_use_of_a_token_is_recorded_once_a_minute(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, began = Tokens(database), now_ms()
    made, idle = tokens.create("used", ["read"]), tokens.create("idle", ["read"])
    assert tokens.find(made) is not None
    until(lambda: _used(database, "used") >= began)
    assert _used(database, "idle") == 0
    first = _used(database, "used")
    for number, (later, expected) in enumerate(
        ((59_000, 0), (60_000, 60_000), (1, 60_000), (0, 0))
    ):  # a clock set back
        other, after = Tokens(database), tokens.create(f"after-{number}", ["read"])  # another process
        with monkeypatch.context() as clock:
            clock.setattr("app.outbox.tokens.now_ms", lambda later=later: first + later)
            for token in (made, made, after):
                assert other.find(token) is not None
            until(lambda number=number: _used(database, f"after-{number}"))  # it is recorded after the others
        assert _used(database, "used") == first + expected, later
    assert tokens.find(idle) is not None
    until(lambda: _used(database, "idle"))


@databases.ALL
def test_every_token_that_is_used_at_once_is_recorded(database: Database) -> None:
    made = {name: Tokens(database).create(name, ["read"]) for name in ("a", "b", "c", "d")}
    tokens = Tokens(database)
    for token in made.values():
        assert tokens.find(token) is not None
    until(lambda: all(_used(database, name) for name in made))


def test_a_token_that_is_created_again_is_not_yet_used(database: Database) -> None:
    tokens = Tokens(database)
    made = tokens.create("again", ["read"])
    assert tokens.find(made) is not None
    until(lambda: _used(database, "again"))
    tokens.revoke("again")
    second = tokens.create("again", ["read"])
    assert _used(database, "again") == 0
    until(lambda: tokens.find(second) is not None)
    until(lambda: _used(database, "again"))


def test_a_use_that_cannot_be_recorded_refuses_no_token(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, memory = Tokens(database).create("used", ["read"]), tmp_path / "tokens.json"
    assert Tokens(database, memory=memory).find(made) is not None
    away = Database("sqlite:////nowhere/outbox.db")
    monkeypatch.setattr("app.outbox.tokens.TOKENS", TOKENS._replace(use_interval_ms=0))
    caplog.set_level("INFO", "bucketwire.tokens")
    tokens = Tokens(away, memory=memory)
    for times in (1, 2):  # and the next one that is due is tried again
        assert tokens.find(made) is not None
        until(lambda times=times: caplog.text.count("the last use of a token is not recorded") == times)
    away.close()


def _used(database: Database, name: str) -> int:
    return next(token.used_at for token in Tokens(database).list() if token.name == name)


@databases.ALL
def test_several_may_make_the_first_token_at_once(database: Database) -> None:
    ready, made = Barrier(4), list[str]()

    def create(name: str) -> None:
        ready.wait(60)
        made.append(Tokens(database).create(name, ["read"]))

    threads = [Thread(target=create, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 4
    assert _rows(database) == 5


def _rows(database: Database) -> int:
    with database.reading() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(tables.tokens)).scalar_one()


@databases.TWO
def test_a_token_keeps_its_limits_also_where_the_database_is_away(database: Database, tmp_path: Path) -> None:
    made = Tokens(database).create("team", ["read"], buckets=["b", "a\u00e9", "b"], targets=[TargetId("webhook", "x")])
    other = Tokens(database).create("other", ["read"])
    memory = tmp_path / "tokens.json"
    assert Tokens(database, memory=memory).find(made) is not None
    away = Database("sqlite:////nowhere/outbox.db")
    for tokens in (Tokens(database), Tokens(away, memory=memory)):
        found, free = tokens.find(made), tokens.find(other)
        assert found is not None
        assert free is not None
        assert (set(found.buckets), found.targets, found.is_limited) == ({"a\u00e9", "b"}, ("webhook:x",), True)
        assert not free.is_limited
    away.close()


def test_a_tenant_limits_a_token_to_its_buckets_also_where_the_database_is_away(
    database: Database, tmp_path: Path
) -> None:
    tokens = Tokens(database, memory=tmp_path / "tokens.json")
    made = {
        name: tokens.create(name, ["ingest"], tenant=tenant, buckets=buckets)
        for name, tenant, buckets in (("all", "acme", []), ("one", "acme", ["acme:b"]), ("arn", "arn", []))
    }
    assert tokens.find(made["all"]) is not None
    away = Database("sqlite:////nowhere/outbox.db")
    for known in (tokens, Tokens(away, memory=tmp_path / "tokens.json")):
        found = {name: known.find(token) for name, token in made.items()}
        names = ("acme:a", "acme:b", "b", "Acme:b", "acme", "acmeb")
        includes = {name: [bucket for bucket in names if one and one.includes(bucket)] for name, one in found.items()}
        assert includes == {"all": ["acme:a", "acme:b"], "one": ["acme:b"], "arn": []}
        assert {name: token and token.is_limited for name, token in found.items()} == {
            "all": True, "one": True, "arn": False,
        }  # fmt: skip
    away.close()
    with pytest.raises(BadMember, match="is 'a b', which cannot be a tenant"):
        tokens.create("x", ["ingest"], tenant="a b")
    for bucket, hint in (("b", "write acme:b"), ("other:b", "name buckets of acme only")):
        with pytest.raises(BadMember, match=f"names '{bucket}', which is not of the tenant acme") as refused:
            tokens.create("x", ["ingest"], tenant="acme", buckets=[bucket])
        assert refused.value.hint == hint
    tokens.create("x", ["ingest"], tenant="arn", buckets=["b", "acme:b"])


def test_the_targets_of_limited_tokens_share_a_part_of_a_pool(database: Database) -> None:
    names = ("a", "b", "c", "read", "free", "patient")
    for name in names:
        add_target(database, name, read_timeout="61s" if name == "patient" else "60s")
    tokens, admin = Tokens(database), ["admin"]
    tokens.create("tenant", admin, targets=[TargetId("webhook", "a"), TargetId("webhook", "b")])
    tokens.create("other", admin, targets=[TargetId("webhook", "c")], buckets=["images"])
    tokens.create("reader", ["read"], targets=[TargetId("webhook", "read")])
    tokens.create("unlimited", admin)
    targets = registry(database)
    shares = PoolShares(database, targets)
    stored = {name: targets.target(TargetId("webhook", name)) for name in names}
    found = {name: shares.of(one) for name, one in stored.items()}
    assert found["a"] == found["b"] != found["c"]
    assert [found[name].bounded for name in names] == [True, True, True, False, False, True]
    assert {name: found[name].group for name in names[3:]} == {name: stored[name].row_id for name in names[3:]}
    assert found["a"].group < 0
    targets.put(TargetId("webhook", "patient"), {"endpoint": "http://127.0.0.1:9/"})
    assert not shares.of(targets.target(TargetId("webhook", "patient"))).bounded
