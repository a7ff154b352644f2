"""What is kept of the certificates that connections meet, on every database, and what the doctor says of them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import orjson

from app.config.arn import TargetId
from app.config.tls import Validity
from app.doctor.dependencies import check_certificates
from app.outbox import tables
from app.outbox.engine.database import Database, now_ms
from app.outbox.policies import CERTIFICATES
from app.outbox.processes import (
    API,
    MetCertificate,
    Process,
    end_process,
    read_certificates,
    read_processes,
    record_certificates_of_source,
    record_certificates_of_target,
    record_process,
)
from tests.support import databases
from tests.support.builders import add_target, registry
from tests.support.pulled_events import Sources

X, DAY = TargetId("webhook", "x"), 86_400_000
SOON = CERTIFICATES.notice_ms


def ends(database: Database) -> dict[str, int]:
    with database.reading() as connection:
        found = read_certificates(connection, read_processes(connection), now_ms())
    return {f"{one.of} {one.name}": one.valid.ends_at for one in found}


def findings(database: Database) -> list[tuple[str, str, str]]:
    service: Any = SimpleNamespace(database=database)
    return [(one.subject, one.grade, one.text) for one in check_certificates(service)]


def seen(database: Database, now: int, **of_names: int) -> None:
    stored = registry(database).target(X)
    record_certificates_of_target(database, stored.row_id, stored.revision, long_valid(of_names), now)


def long_valid(of_names: dict[str, int]) -> dict[str, Validity]:
    return {name: Validity(end - 365 * DAY, end) for name, end in of_names.items()}


@databases.ALL
def test_what_was_seen_is_known_by_its_name_until_the_target_is_resumed(database: Database) -> None:
    now = now_ms()
    add_target(database)
    seen(database, now, one=now + DAY, two=now + 2 * DAY)
    seen(database, now, two=now + 90 * DAY)
    assert ends(database) == {"target webhook:x one": now + DAY, "target webhook:x two": now + 90 * DAY}
    stored = registry(database).target(X)
    registry(database).resume(stored.target)
    assert ends(database) == {}
    record_certificates_of_target(database, stored.row_id, stored.revision, long_valid({"late": now}), now)
    assert ends(database) == {}, "seen with the settings of before"
    seen(database, now, three=now + DAY)
    assert ends(database) == {"target webhook:x three": now + DAY}


@databases.ONE
def test_of_many_names_those_that_end_first_are_kept(database: Database) -> None:
    now, most = now_ms(), CERTIFICATES.max_names
    add_target(database)
    seen(database, now, **{f"n{number:04}": now + number for number in range(most + 5)})
    assert list(ends(database)) == [f"target webhook:x n{number:04}" for number in range(most)]


@databases.ONE
def test_the_doctor_names_what_ends_within_three_weeks_and_what_has_ended(database: Database) -> None:
    now = now_ms()
    add_target(database)
    seen(database, now, late=now + SOON + DAY)
    assert findings(database) == []
    seen(database, now, soon=now + SOON - DAY, ended=now - DAY)
    (first, second) = sorted(findings(database), key=lambda one: one[1])
    assert (first[:2], second[:2]) == (("webhook:x", "problem"), ("webhook:x", "warning"))
    assert first[2].startswith("its certificate ended ended 1.0 d ago (")
    assert second[2].startswith("its certificate soon ends in 20.0 d (")
    add_target(database, enable="off")
    assert findings(database) == []


@databases.ONE
def test_those_of_sources_and_of_apis_that_run_are_named_too(database: Database) -> None:
    now, sources = now_ms(), Sources(database)
    stored = sources.stored(sources.put("kafka", {"brokers": "127.0.0.1:9", "topic": "t"}))
    record_certificates_of_source(database, stored.row_id, stored.revision, long_valid({"broker": now + DAY}), now)
    own = MetCertificate("", "https://here", Validity(0, now), now)
    api = Process("here:7:x", "api@here", "1", "gunicorn", (API,), address="https://here", certificates=[own])
    record_process(database, api)
    assert [(subject, grade) for subject, grade, _ in findings(database)] == [
        (f"source {stored.source}", "warning"), ("certificates", "problem"),
    ]  # fmt: skip
    end_process(database, api.id)
    assert [subject for subject, _, _ in findings(database)] == [f"source {stored.source}"]


@databases.ALL
def test_one_that_is_not_met_any_more_while_others_are_is_no_finding(database: Database) -> None:
    now = now_ms()
    add_target(database)
    seen(database, now - 4 * DAY, gone=now + DAY, distant=now + 90 * DAY, refused=now - 2 * DAY)
    assert [one[2].split()[2] for one in findings(database)] == ["gone", "refused"], "the target may be idle"
    seen(database, now - 2 * DAY, quiet=now + DAY)
    assert [one[2].split()[2] for one in findings(database)] == ["gone", "quiet", "refused"]
    seen(database, now, there=now + 90 * DAY)
    assert sorted(ends(database)) == [f"target webhook:x {name}" for name in ("distant", "quiet", "refused", "there")]


@databases.ONE
def test_the_end_of_a_short_life_is_near_in_its_last_quarter(database: Database) -> None:
    now, hour = now_ms(), 3_600_000
    add_target(database)
    stored = registry(database).target(X)
    renewed_by_itself = {"ten-days": Validity(now - 7 * DAY, now + 3 * DAY), "one-day": Validity(now, now + DAY)}
    record_certificates_of_target(database, stored.row_id, stored.revision, renewed_by_itself, now)
    assert findings(database) == []
    late = {"ten-days": Validity(now - 8 * DAY, now + 2 * DAY), "one-day": Validity(now - 20 * hour, now + 4 * hour)}
    record_certificates_of_target(database, stored.row_id, stored.revision, late, now)
    assert [text.split()[2] for _, _, text in findings(database)] == ["one-day", "ten-days"]


@databases.ONE
def test_what_was_recorded_without_a_beginning_counts_as_of_a_long_life(database: Database) -> None:
    now = now_ms()
    add_target(database)
    stored = registry(database).target(X)
    of_before = {"soon": [now + DAY, now], "later": [now + 22 * DAY, now]}
    kept = orjson.dumps({"revision": stored.revision, "ends": of_before})
    with database.writing() as connection:
        connection.execute(tables.targets.update().values(certificates=kept.decode()))
    assert [text.split()[2] for _, _, text in findings(database)] == ["soon"]


@databases.ALL
def test_what_apis_connect_to_is_named_as_the_last_of_them_has_met_it(database: Database) -> None:
    now = now_ms()
    for name, end, at in (("one", now + DAY, now - 1000), ("two", now + 90 * DAY, now)):
        met = [MetCertificate("broker", "mq:5671", Validity(end - 90 * DAY, end), at)]
        api = Process(f"{name}:7:x", f"api@{name}", "1", "gunicorn", (API,), address=f"http://{name}", certificates=met)
        record_process(database, api)
    assert ends(database) == {"broker mq:5671": now + 90 * DAY}
    record_process(database, replace(api, certificates=[met[0]._replace(valid=Validity(0, now - DAY), seen_at=now)]))
    [(subject, grade, text)] = findings(database)
    assert (subject, grade) == ("certificates", "problem")
    assert text.startswith("the certificate of the broker at mq:5671 ended 1.0 d ago (")
