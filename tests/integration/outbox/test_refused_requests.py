"""What is stored of requests that were answered and refused, and which of it is a finding."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import sqlalchemy as sa

from app.config.settings import hash_token
from app.doctor import Finding
from app.doctor.dependencies import check_refused
from app.outbox import refusals, tables
from app.outbox import tokens as tokens_module
from app.outbox.engine.clock import database_now, elapsed
from app.outbox.engine.database import Database, now_ms
from app.outbox.policies import REFUSALS
from app.outbox.refusals import AnswerKind, RefusalKind, Refused, read_counts, read_recent, read_recorded_at
from app.outbox.tokens import Tokens
from app.resources.refusal import API, COUNTED_REASONS, INTAKE, INTAKE_ROUTE, REASONS, S3, SIGN_IN
from tests.services import until
from tests.support import databases
from tests.support.tuning import tune

pytestmark = databases.ONE

MINIO = RefusalKind(INTAKE, "token-revoked", "token:minio")
TAKEN, LOST = AnswerKind(INTAKE_ROUTE, 202), AnswerKind(INTAKE_ROUTE, 401, "token-revoked")


def refused(number: int, *, ago: float = 0.0, fact: str = "") -> Refused:
    at = elapsed() - ago
    return Refused(at, at, number, 401, "10.0.0.7", fact)


def recent(database: Database, later: int = 0) -> dict[RefusalKind, int]:
    with database.reading() as connection:
        return {one.kind: one.number for one in read_recent(connection, database_now(connection) + later)}


def found(database: Database) -> list[Finding]:
    return list(check_refused(database))


@databases.ALL
def test_what_is_counted_is_added_up_and_what_was_refused_is_known_for_some_minutes(database: Database) -> None:
    for number in (2, 3):
        refusals.record(database, {TAKEN: number, LOST: 1}, {MINIO: refused(number, fact=f"{number}")})
    with database.reading() as connection:
        assert read_counts(connection) == {TAKEN: 5, LOST: 2}
        [one] = read_recent(connection, database_now(connection))
        assert (one.kind, one.number, one.status, one.fact, one.address) == (MINIO, 5, 401, "3", "10.0.0.7")
        assert abs(one.last_at - database_now(connection)) < 60_000
        assert read_recorded_at(connection) >= one.last_at - 1_000
    assert recent(database, REFUSALS.window_ms - 60_000) == {MINIO: 5}
    assert recent(database, REFUSALS.window_ms + 60_000) == {}


@databases.THREE
def test_what_a_clock_that_was_ahead_refused_is_no_finding_and_is_forgotten(database: Database) -> None:
    refusals.record(database, {}, {MINIO: refused(1, ago=-86_400.0)})
    assert recent(database) == {}
    refusals.forget(database, now_ms())
    with database.reading() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(tables.refusals)).scalar_one() == 0


@databases.ALL
def test_processes_that_store_the_same_at_once_lose_nothing(database: Database) -> None:
    together = Barrier(4)

    def store(number: int) -> None:
        together.wait(30)
        kinds = {RefusalKind(INTAKE, reason, ""): refused(1) for reason in ("bad-events", "token-unknown")}
        refusals.record(database, {TAKEN: number, LOST: 1}, kinds)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(store, range(1, 5)))
    with database.reading() as connection:
        assert read_counts(connection) == {TAKEN: 10, LOST: 4}
    assert set(recent(database).values()) == {4}


@databases.THREE
def test_what_was_refused_is_forgotten_after_a_day_and_counts_never(database: Database) -> None:
    refusals.record(database, {LOST: 1}, {MINIO: refused(1, ago=REFUSALS.kept_ms / 1000 + 120)})
    refusals.record(database, {LOST: 1}, {MINIO: refused(1, ago=3600)})
    refusals.forget(database, now_ms())
    with database.reading() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(tables.refusals)).scalar_one() == 1
        assert read_counts(connection) == {LOST: 2}


@databases.THREE
def test_of_revoked_tokens_the_newest_are_known_by_their_names(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, tokens_module, "REFUSALS", max_revoked=2)
    made, tokens = {}, Tokens(database)
    for number, name in enumerate(("first", "second", "third")):
        made[name] = Tokens(database).create(name, ["ingest"])
        with monkeypatch.context() as clock:
            clock.setattr("app.outbox.tokens.now_ms", lambda number=number: 1_000 + number)
            Tokens(database).revoke(name)
    former = {name: tokens.find_former(hash_token(token)) for name, token in made.items()}
    assert former["first"] is None
    assert [(one.name, one.is_revoked, one.since) for one in (former["second"], former["third"]) if one] == [
        ("second", True, 1_001), ("third", True, 1_002),
    ]  # fmt: skip
    assert tokens.find_former(hash_token("guess")) is None


@databases.TWO
def test_a_token_that_was_restored_can_be_revoked_again(database: Database) -> None:
    token = Tokens(database).create("minio", ["ingest"])
    with database.reading() as connection:
        row = connection.execute(sa.select(tables.tokens).where(tables.tokens.c.name == "minio")).one()
    Tokens(database).revoke("minio")
    with database.writing() as connection:
        connection.execute(tables.tokens.insert().values(**row._mapping))
    Tokens(database).revoke("minio")
    assert Tokens(database).find(token) is None


@databases.TWO
def test_a_finding_says_how_many_why_and_what_to_do(database: Database) -> None:
    assert found(database) == []
    refusals.record(database, {}, {MINIO: refused(12, ago=60, fact=" at 2026-12-01 14:03 UTC")})
    [finding] = found(database)
    assert (finding.subject, finding.grade, finding.command) == ("posts", "problem", ("token", "ls"))
    assert finding.text.startswith("12 posts refused in 5 min, the last 1.")
    assert finding.text.endswith(
        "ago: token minio was revoked at 2026-12-01 14:03 UTC; give its user the token that replaces it"
    )


@databases.TWO
def test_it_is_over_as_soon_as_a_token_of_the_name_is_used(database: Database) -> None:
    refusals.record(database, {}, {MINIO: refused(12, ago=60)})
    token = Tokens(database).create("other", ["ingest"])
    assert Tokens(database).find(token)
    token = Tokens(database).create("minio", ["ingest"])
    assert len(found(database)) == 1, "it is not used"
    assert Tokens(database).find(token)
    until(lambda: not found(database))
    refusals.record(database, {}, {MINIO: refused(1)})
    assert len(found(database)) == 1, "another sender still has the old one"


@databases.TWO
def test_what_the_database_could_not_take_is_over_as_soon_as_events_are_recorded(database: Database) -> None:
    away = {RefusalKind(INTAKE, reason, ""): refused(9, ago=60) for reason in ("database-unavailable", "spool-full")}
    refusals.record(
        database, {}, {**away, RefusalKind(INTAKE, "queue-full", ""): refused(9, ago=60, fact=": webhook:a")}
    )
    assert {finding.grade for finding in found(database)} == {"problem"}
    assert len(found(database)) == 3
    refusals.record(database, {AnswerKind(INTAKE_ROUTE, 401, "token-unknown"): 1}, {})
    assert len(found(database)) == 3, "nothing is recorded"
    refusals.record(database, {TAKEN: 1}, {})
    assert [finding.text.partition(": ")[2] for finding in found(database)] == [
        "the queue of a target is full: webhook:a; speed up the target, or raise its queue_limit"
    ]


GRADES = [
    (INTAKE, "token-expired", 1, "problem"),
    (INTAKE, "scope", 1, "problem"),
    (INTAKE, "database-full", 1, "problem"),
    (INTAKE, "token-unknown", 1, "warning"),
    (INTAKE, "token-missing", 1, "warning"),
    (INTAKE, "bad-events", 1, "warning"),
    (INTAKE, "too-large", 1, "warning"),
    (INTAKE, "a reason of a later version", 1, "warning"),
    (SIGN_IN, "token-unknown", 4, "note"),
    (SIGN_IN, "token-unknown", 5, "warning"),
    (SIGN_IN, "bad-form", 9, "note"),
    (SIGN_IN, "openid-failed", 1, "warning"),
    (API, "token-missing", 9, "note"),
    (API, "token-revoked", 1, "warning"),
    (S3, "key-unknown", 9, "note"),
    (S3, "wrong-signature", 1, "warning"),
]


@pytest.mark.parametrize(("surface", "reason", "number", "grade"), GRADES)
def test_who_loses_events_is_a_problem_and_what_anybody_can_send_is_none(
    database: Database, surface: str, reason: str, number: int, grade: str
) -> None:
    refusals.record(database, {}, {RefusalKind(surface, reason, ""): refused(number)})
    [finding] = found(database)
    assert finding.grade == grade
    assert "from 10.0.0.7" in finding.text, "nobody is known by a name"
    assert (finding.command[:1] == ("audit",)) == (surface == SIGN_IN)


def test_many_kinds_are_a_few_findings(database: Database) -> None:
    kinds = {RefusalKind(INTAKE, "token-revoked", f"token:{number}"): refused(1) for number in range(50)}
    refusals.record(database, {}, {**kinds, RefusalKind(INTAKE, "bad-events", ""): refused(1)})
    findings = found(database)
    assert [finding.grade for finding in findings] == ["problem"] * 5 + ["note"]
    assert findings[-1].text.startswith("refused for 46 more reasons")


def test_every_reason_that_is_counted_is_described() -> None:
    for reasons in COUNTED_REASONS.values():
        assert set(reasons) <= REASONS.keys()
