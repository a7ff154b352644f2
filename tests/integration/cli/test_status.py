"""`bucketwire status`, `doctor`, `events`, `dead …`, `replay` and `token …` over real deliveries."""

from __future__ import annotations

import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from app.api.routes import service
from app.api.routes.metrics import target_metrics
from app.api.services import Services
from app.config.arn import TargetId
from app.config.settings import Settings
from app.doctor.checks import SHORT_CHECKS, check_carried, run_checks
from app.outbox import migration, tables, upkeep
from app.outbox.admin.counters import read_status
from app.outbox.admin.replays import Replays, Selection
from app.outbox.column_values import NEVER
from app.outbox.delivery.availability import open_breaker
from app.outbox.delivery.leases import Leases
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.policies import HEARTBEATS
from app.outbox.processes import API, Process, record_process
from app.outbox.reconcile.runs import Reconciliations
from app.outbox.reconcile.schedule import Schedule
from app.outbox.schema_version import SchemaState
from app.outbox.tokens import Tokens
from app.outbox.upkeep import Pause, record_pause
from app.release import VERSION
from tests import services
from tests.integration.cli.conftest import Cli, deliver
from tests.services import until
from tests.support import outbox_rows
from tests.support.builders import DELETE, add_target, event, registry
from tests.support.scripted_target import Courier, ScriptedTarget
from workers.delivery.outcomes import DELIVERED


@pytest.fixture
def target(database: Database) -> TargetId:
    return add_target(database, "audit")


def counters(cli: Cli) -> dict[str, int]:
    [target] = cli("status", "--json").json
    events: dict[str, int] = target["events"]
    return events


def test_status_says_where_every_event_is(cli: Cli, database: Database, target: TargetId) -> None:
    deliver(database, target, [event("good"), event("bad"), event("also good")], rejecting="bad")
    Log(database).append([[event("waits")]])

    found = counters(cli)
    assert {name: found[name] for name in ("recorded", "delivered", "pending", "parked", "dead", "matched")} == {
        "recorded": 4, "delivered": 2, "pending": 1, "parked": 0, "dead": 1, "matched": 4,
    }  # fmt: skip
    assert cli("status", "--json").json[0]["oldest_age"] is not None
    assert "webhook:audit" in cli("status").out


def test_the_history_of_an_object_says_where_each_event_stands(cli: Cli, database: Database, target: TargetId) -> None:
    deliver(database, target, [event("bad\x1b[2J"), event("other")], rejecting="bad\x1b[2J")
    Log(database).append([[event("other", name=DELETE)]])

    first, second = cli("event", "history", "images", "other", "--json").json
    assert [event["delivery_states"][0]["state"] for event in (first, second)] == ["settled", "pending"]
    assert second["record"]["eventName"] == DELETE
    shown = cli("event", "history", "images", "bad\x1b[2J").out
    assert "webhook:audit dead (it is too large)" in shown
    assert "\x1b[2J" not in cli("dead-letter", "ls").out
    assert "no events of images/none" in cli("event", "history", "images", "none").out


def test_an_event_says_by_what_it_came_and_where_it_stands(cli: Cli, database: Database, target: TargetId) -> None:
    pulled = event("k")._replace(origin="source kafka:minio minio 1235 3")
    deliver(database, target, [pulled, other := event("other")])
    shown = cli("event", "show", pulled.id).out
    assert "source kafka:minio, position 1235 of share 3, sender minio" in shown
    assert "webhook:audit settled" in shown
    assert cli("event", "show", pulled.id, "--json").json["origin"]["source"] == "kafka:minio"
    assert "unknown" in cli("event", "show", other.id).out
    for no_id in ("../x", "stream", "0" * 32):
        missing = cli("event", "show", no_id)
        assert (missing.code, "no event" in missing.err) == (1, True)


@pytest.mark.parametrize("command", ["replay", "purge"])
def test_all_dead_letters_are_touched_only_when_that_is_said(
    cli: Cli, database: Database, target: TargetId, command: str
) -> None:
    deliver(database, target, [event("bad")], rejecting="bad")
    assert cli("dead-letter", command).code == 2
    assert cli("dead-letter", command, "--all", "--bucket", "images").code == 2
    assert cli("dead-letter", command, "--since", "yesterday").code == 2
    assert counters(cli)["dead"] == 1


def test_the_doctor_finds_counters_that_do_not_balance(cli: Cli, database: Database, target: TargetId) -> None:
    deliver(database, target, [event()])
    with database.writing() as connection:
        connection.execute(tables.targets.update().values(recorded=tables.targets.c.recorded + 1))
    found = {finding["subject"]: finding for finding in cli("doctor", "--json").json["findings"]}
    assert found["counters"]["grade"] == "problem"
    assert "do not balance" in found["counters"]["text"]


def test_the_doctor_says_what_does_not_run_and_is_content_when_all_does(
    cli: Cli, database: Database, target: TargetId, redis_server: services.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    grades = {one["subject"]: one["grade"] for one in cli("doctor", "--json").json["findings"]}
    assert grades == {
        "settings": "ok", "database": "ok", "api": "note", "broker": "problem", "counters": "ok",
    }  # fmt: skip
    assert cli("doctor").code == 1, "and the drain, which follows from the broker, is not said also"
    [away] = [text for grade, text in grades_of(cli, "broker")]
    assert away.startswith("events are accepted, but not delivered; nothing is lost. "), "before its cause"
    assert "cannot be used" in away

    monkeypatch.setenv("BUCKETWIRE_BROKER_URL", f"redis://{services.LOOPBACK}:{redis_server.port}/7")
    grades = {one["subject"]: one["grade"] for one in cli("doctor", "--json").json["findings"]}
    assert (grades["drain"], "webhook:audit" in grades) == ("problem", False)
    outbox_rows.heartbeats(database, 0)
    for age, code in ((0, 0), (HEARTBEATS.drain_silence_ms - 10_000, 0), (HEARTBEATS.drain_silence_ms + 1, 1)):
        with database.writing() as connection:
            connection.execute(tables.heartbeats.update().values(at=now_ms() - age))
        well = cli("doctor")
        assert (well.code, well.out.splitlines()[-1]) == (code, "1 problem" if code else "all is well"), age
        with database.reading() as connection:
            look = {"schema": SchemaState("r"), "drained": upkeep.last_drain(connection), "beat": None}
        ready = service.make_checks(look, None, "r", now_ms())["drain"].ok
        assert ready is not bool(code), "the doctor and /readyz agree"
    with database.writing() as connection:
        connection.execute(tables.heartbeats.update().values(at=now_ms() - 60_000))
    assert "last ran 1.0 m ago" in cli("doctor").out
    upkeep.begin_all(database, now_ms() - 60_000)
    upkeep.record_failure(database, upkeep.DRAIN, now_ms() - 2_000, "unexpected KeyError; the worker's log says more")
    text = cli("doctor").out
    assert "last succeeded 1.0 m ago, and failed " in text
    assert "unexpected KeyError; the worker's log says more: retries, backlogs" in text


@pytest.mark.usefixtures("working")
def test_a_beat_that_does_not_run_is_a_problem_and_what_it_missed_is_said_for_a_day(
    cli: Cli, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUCKETWIRE_TABLES_SCHEDULE", "* * * * *")
    [(grade, text)] = grades_of(cli, "beat")
    assert (grade, text.startswith("last worked ")) == ("ok", True)
    began = now_ms() - 600_000
    with database.writing() as connection:
        connection.execute(tables.workers.update().values(at=began, served_at=began))
        connection.execute(tables.upkeep.insert().values(name="samples", succeeded_at=1))
    [(grade, text)] = grades_of(cli, "beat")
    assert (grade, cli("status").code) == ("problem", 1)
    assert text == (
        "last worked 10.0 m ago, on here: nothing is scheduled, purged or sampled; is `bucketwire beat` running?; "
        "missed so far: 60 samples of the curves, 1 scheduled run (1 not made up for)"
    )
    assert grades_of(cli, "upkeep") == [], "what follows is not said again"
    with database.writing() as connection:
        connection.execute(tables.workers.update().values(at=now_ms(), problem="the broker cannot be used"))
    assert "; it runs, but the broker cannot be used; missed so far: " in grades_of(cli, "beat")[0][1]
    outbox_rows.heartbeats(database, 0)
    record_pause(database, Pause(began, now_ms() - 1_000))
    [ok, (grade, text)] = sorted(grades_of(cli, "beat"), reverse=True)
    assert (ok[0], grade, text.startswith("did nothing for 10.0 m until ")) == ("ok", "note", True)
    assert re.search(r"; missed: (59|60) samples of the curves, 1 scheduled run ", text)
    record_pause(database, Pause(began, now_ms() - 2 * 86_400_000))
    assert [grade for grade, _ in grades_of(cli, "beat")] == ["ok"]
    with database.writing() as connection:
        connection.execute(tables.workers.delete())
    assert "has never recorded a heartbeat" in grades_of(cli, "beat")[0][1]


@pytest.mark.usefixtures("working")
def test_a_service_that_has_just_begun_has_no_problem_with_what_begins_last(cli: Cli, database: Database) -> None:
    """Its first user asks for the state a second after it was ready."""
    with database.writing() as connection:
        connection.execute(tables.workers.delete())
        connection.execute(tables.heartbeats.delete())
    record_process(database, Process("here:1:api", "api@here", VERSION, API, [API]))
    for subject in ("beat", "drain"):
        [(grade, text)] = grades_of(cli, subject)
        assert (grade, text.endswith("yet: the service has just begun")) == ("note", True)
    with database.writing() as connection:
        connection.execute(tables.workers.update().values(started_at=now_ms() - HEARTBEATS.silence_ms - 1_000))
    assert [grades_of(cli, subject)[0][0] for subject in ("beat", "drain")] == ["problem", "problem"]


@pytest.fixture
def working(database: Database, redis_server: services.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that answers, and a beat and a drain that have just run."""
    monkeypatch.setenv("BUCKETWIRE_BROKER_URL", f"redis://{services.LOOPBACK}:{redis_server.port}/7")
    outbox_rows.heartbeats(database, 0)


def grades_of(cli: Cli, subject: object) -> list[tuple[str, str]]:
    findings = cli("doctor", "--json").json["findings"]
    return [(one["grade"], one["text"]) for one in findings if one["subject"] == str(subject)]


@pytest.mark.usefixtures("working")
def test_dead_letters_and_discarded_events_are_said_and_nothing_is_well_with_them(
    cli: Cli, database: Database, target: TargetId
) -> None:
    assert cli("doctor").out.splitlines()[-1] == "all is well"
    deliver(database, target, [event("good"), event("bad")], rejecting="bad")
    with database.writing() as connection:
        connection.execute(tables.targets.update().values(discarded=2, discarded_at=now_ms() - 600_000))
    assert grades_of(cli, target) == [
        ("warning", "1 dead letter, not retried any more; mend the cause, then replay them"),
        (
            "warning",
            (
                "2 events discarded, the last 10.0 m ago, because its queue was full; no replay brings them back: "
                "a backfill sends events of the objects that exist, then bucketwire target acknowledge webhook:audit"
            ),
        ),
    ]
    doctor = cli("doctor")
    assert (doctor.code, doctor.out.splitlines()[-1]) == (0, "2 warnings")
    shown = cli("status")
    assert f"warning: {target}: 1 dead letter" in shown.err
    for listed in (doctor.out, shown.err):
        assert f"$ bucketwire dead-letter ls --target {target}" in map(str.strip, listed.splitlines())


@pytest.mark.usefixtures("working", "target")
def test_an_api_that_would_not_start_without_a_token_is_a_problem(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKETWIRE_LISTEN", "0.0.0.0:8730")
    [(grade, text)] = grades_of(cli, "tokens")
    assert (grade, "the API does not start" in text, "token create" in text) == ("problem", True, True)
    assert cli("token", "create", "minio", "--scope", "ingest").code == 0
    assert grades_of(cli, "tokens") == []


@pytest.mark.usefixtures("working")
def test_status_and_doctor_put_problems_first(cli: Cli, database: Database) -> None:
    for name in ("a", "b", "z"):
        add_target(database, name)
    registry(database).pause(TargetId("webhook", "b"), "for lunch")
    with database.writing() as connection:
        of_z = tables.targets.update().where(tables.targets.c.name == "z")
        connection.execute(of_z.values(breaker="open", reason="it hangs", resume_at=NEVER))
    grades = [one["grade"] for one in cli("doctor", "--json").json["findings"]]
    assert grades == sorted(grades, key=["problem", "warning", "note", "ok"].index)
    assert cli("doctor").out.splitlines()[0].split()[:2] == ["problem", "webhook:z"]
    shown = cli("status")
    assert [line.split(": ")[:2] for line in shown.err.splitlines() if line and not line.startswith(" ")] == [
        ["problem", "webhook:z"], ["warning", "webhook:b"],
    ]  # fmt: skip
    assert [line.split()[0] for line in shown.out.splitlines() if "webhook:" in line] == [
        "webhook:z", "webhook:b", "webhook:a",
    ]  # fmt: skip


@pytest.mark.usefixtures("working")
def test_discarded_events_of_a_mirror_are_brought_back_by_its_reconciliation(cli: Cli, database: Database) -> None:
    mirror = add_target(database, "rows", type_name="redis", values={"address": "127.0.0.1:9", "key": "rows"})
    with database.writing() as connection:
        connection.execute(tables.targets.update().values(discarded=1))
    assert ": reconcile it with its buckets, then" in grades_of(cli, mirror)[-1][1]


@pytest.mark.usefixtures("working")
def test_discarded_events_are_listed_and_their_warning_ends_when_somebody_knows_of_them(
    cli: Cli, database: Database
) -> None:
    full, other = add_target(database, "full", queue_limit=2), add_target(database, "other")
    Log(database).append([[event(key)] for key in "abcd"])

    def commands() -> list[list[str]]:
        findings = cli("doctor", "--json").json["findings"]
        return [one["command"] for one in findings if "because its queue was full" in one["text"]]

    [command] = commands()
    assert command == ["event", "search", "--target", "webhook:full", "--state", "discarded"]
    assert [found["key"] for found in cli(*command, "--json").json] == ["d", "c"]
    assert cli(*command, "--before", "1h", "--json").json == []
    assert cli("event", "search", "--target", str(other), "--state", "discarded", "--json").json == []
    assert len(cli("event", "search", "--since", "1h", "--event", "put", "--json").json) == 4
    assert "images/d" in cli(*command).out
    assert cli("target", "acknowledge", str(full)).out == "webhook:full: 2 discarded events acknowledged\n"
    assert commands() == []
    Log(database).append([[event("e")]])
    assert "1 event discarded, the last " in " ".join(cli("doctor").out.split())
    with database.writing() as connection:
        connection.execute(tables.targets.update().values(discarded_at=1))
    assert commands() == [["target", "acknowledge", "webhook:full"]], "the log has them no more"
    [entry] = [one for one in cli("audit", "--json").json if one["action"] == "target.acknowledge"]
    assert entry["details"] == {"discarded": 2}


@pytest.mark.usefixtures("working")
@pytest.mark.parametrize(
    ("full", "consequence"),
    [("discard", "further ones are discarded"), ("reject", "requests with further ones are refused")],
)
def test_a_queue_that_fills_is_said_before_it_discards(
    cli: Cli, database: Database, full: str, consequence: str
) -> None:
    target = add_target(database, "slow", queue_limit=5, queue_full=full)

    def said() -> list[tuple[str, str]]:
        return [(grade, text) for grade, text in grades_of(cli, target) if "queue" in text]

    Log(database).append([[event(key)] for key in "abc"])
    assert said() == []
    Log(database).append([[event("d")]])
    nearly = f"its queue is nearly full, 4 events of at most 5 (queue_limit); at the limit {consequence}"
    assert said() == [("warning", f"{nearly}: raise it, or speed up the target")]
    Log(database).append([[event("e")]])
    [(grade, text)] = said()
    assert (grade, text.split("; ")[0]) == ("problem", "its queue is full, 5 events of at most 5 (queue_limit)")
    Courier(database, target, ScriptedTarget(lambda _: DELIVERED)).run()
    Replays(database).begin(target, Selection())
    assert said() == [], "what a replay delivers again has no place in the queue"


@pytest.mark.usefixtures("working")
def test_the_full_queue_of_a_disabled_target_is_no_problem(cli: Cli, database: Database) -> None:
    target = add_target(database, "slow", queue_limit=1)
    Log(database).append([[event()]])
    assert [grade for grade, _ in grades_of(cli, target)] == ["problem"]
    with database.writing() as connection:
        connection.execute(tables.targets.update().values(enabled=False))
    assert [grade for grade, _ in grades_of(cli, target)] == ["note"]


@pytest.mark.usefixtures("working")
def test_a_failing_target_is_a_problem_and_shown_as_failing(cli: Cli, database: Database, target: TargetId) -> None:
    for _ in range(5):
        deliver(database, target, [event("bad")], rejecting="bad")
    [(grade, text), (second, _)] = grades_of(cli, target)
    assert (grade, second) == ("problem", "warning")
    assert text.startswith("failing: all 5 attempts since its last success failed; ")
    assert [one["state"] for one in cli("status", "--json").json] == ["failing"]
    assert [one["state"] for one in cli("rule", "match", "images", "a", "--json").json["targets"]] == ["failing"]


@pytest.mark.usefixtures("working")
def test_a_delay_is_said_unless_something_that_causes_it_is(cli: Cli, database: Database, target: TargetId) -> None:
    Log(database).append([[event()]])
    with database.writing() as connection:
        connection.execute(tables.events.update().values(received_at=now_ms() - 7_200_000))
    [(grade, text)] = grades_of(cli, target)
    assert (grade, text.partition(";")[0]) == ("warning", "its oldest undelivered event is 2.0 h old")
    with database.writing() as connection:
        connection.execute(tables.targets.update().values(created_at=now_ms() - 7_200_000))
    [(grade, text)] = grades_of(cli, target)
    assert (grade, text[:36]) == ("problem", "no worker has served its queue for 2")


@pytest.mark.usefixtures("working")
def test_many_queues_without_any_worker_are_one_problem(cli: Cli, database: Database, target: TargetId) -> None:
    add_target(database, "other")
    with database.writing() as connection:
        connection.execute(tables.targets.update().values(created_at=now_ms() - 7_200_000))
    assert [grade for grade, _ in grades_of(cli, "workers")] == ["problem"]
    assert grades_of(cli, target) == []


def test_a_database_that_is_away_is_one_problem(
    bare: Cli, monkeypatch: pytest.MonkeyPatch, redis_server: services.Redis
) -> None:
    monkeypatch.setenv("BUCKETWIRE_BROKER_URL", f"redis://{services.LOOPBACK}:{redis_server.port}/7")
    monkeypatch.setenv("BUCKETWIRE_DATABASE_URL", "postgresql://x:hush-hush@127.0.0.1:9/x")
    findings = bare("doctor", "--json").json["findings"]
    assert [one["subject"] for one in findings if one["grade"] == "problem"] == ["database"]
    assert bare("doctor").out.splitlines()[-1] == "1 problem"


def test_a_setting_that_is_unusable_is_one_problem(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKETWIRE_RETENTION", "soon")
    findings = cli("doctor", "--json").json["findings"]
    assert [(one["grade"], one["subject"]) for one in findings] == [("problem", "settings")]


@pytest.mark.usefixtures("working")
def test_the_doctor_finds_a_queue_that_no_worker_serves(cli: Cli, database: Database, target: TargetId) -> None:
    with database.writing() as connection:
        connection.execute(tables.targets.update().values(created_at=now_ms() - 7_200_000))

    def found() -> list[str]:
        findings = cli("doctor", "--json").json["findings"]
        return [one["text"] for one in findings if one["subject"] == str(target) and one["grade"] == "problem"]

    text = "no worker has served its queue for 2.0 h; start a worker that serves it (--targets)"
    assert found() == [text]
    record_process(database, Process("here:7:x", "w@here", VERSION, "prefork", ["redis"]))
    assert found() == [text], "another one does not"
    record_process(database, Process("here:8:x", "w@here", VERSION, "prefork", ["webhook"]))
    assert found() == []


@pytest.mark.usefixtures("working")
def test_how_long_nothing_is_served_does_not_begin_anew_with_a_new_target(cli: Cli, database: Database) -> None:
    for name in ("one", "two"):
        add_target(database, name)
    with database.writing() as connection:
        t = tables.targets
        connection.execute(t.update().where(t.c.name == "one").values(created_at=now_ms() - 7_200_000))
        connection.execute(t.update().where(t.c.name == "two").values(created_at=now_ms() - 60_000))

    def found() -> list[str]:
        return [one["text"] for one in cli("doctor", "--json").json["findings"] if one["subject"] == "workers"]

    assert found() == ["none has served any target's queue for 2.0 h; is `bucketwire worker` running?"]
    record_process(database, Process("here:7:x", "w@here", VERSION, "prefork", ["targets"]), age=300_000)
    [text] = found()
    assert text.startswith("none has served any target's queue for 5.0 m"), text


@pytest.mark.usefixtures("working")
def test_an_upgrade_that_is_not_finished_is_found_and_the_workers_are_listed(
    cli: Cli, database: Database, target: TargetId
) -> None:
    def found() -> list[tuple[str, str, list[str]]]:
        findings = cli("doctor", "--json").json["findings"]
        return [(one["grade"], one["text"], one["command"]) for one in findings if one["subject"] == "versions"]

    assert len(cli("process", "ls", "--json").json) == 1, "beat"
    new = Process("here:7:x", "targets@here", VERSION, "prefork", ["targets"], processes=[8, 9])
    record_process(database, new)
    record_process(database, replace(new, id="here:6:x", version="0.0.1"))
    with database.writing() as connection:
        connection.execute(tables.workers.update().where(tables.workers.c.version == "0.0.1").values(at=1))
    assert found() == [], "it has ended"
    record_process(
        database, replace(new, id="there:1:x", name="targets@there", version="0.0.2", pool="solo", processes=())
    )
    text = f"1 of 3 processes runs another version than {VERSION}: 0.0.2 as there:1; restart them with it"
    assert found() == [("warning", text, ["process", "ls"])]
    Leases(database, 600_000).claim(registry(database).target(target).row_id, [0], "here:9:x", now_ms())
    lines = " ".join(cli("process", "ls").out.split())
    assert f"targets@here here 7 prefork 2 {VERSION} targets {target} " in lines, lines
    assert "targets@there there 1 solo 1 0.0.2 targets waits " in lines, lines
    assert [one["pid"] for one in cli("process", "ls", "--json").json] == [1, 7, 1]


@pytest.mark.usefixtures("working")
def test_an_api_that_does_not_answer_is_a_problem_until_it_is_forgotten(cli: Cli, database: Database) -> None:
    here, port = socket.gethostname(), services.free_port()
    api = Process("here:7:x", f"api@{here}", VERSION, "gunicorn", ["api"], address=f"http://127.0.0.1:{port}")
    record_process(database, api)
    for command in (("doctor",), ("status",), ("status", "--json")):
        shown = cli(*command)
        assert shown.code == 1, command
        assert f"http://127.0.0.1:{port} on {here} does not answer: connection refused" in shown.out + shown.err
    assert f"api@{here} {here} 7 gunicorn 1 {VERSION} api http://127.0.0.1:{port} " in " ".join(
        cli("process", "ls").out.split()
    )
    assert "no process of 'x/y' is silent" in cli("process", "forget", "x/y").err
    assert f"no process of {here} is silent" in cli("process", "forget", here).err, "its heartbeat is new"
    with database.writing() as connection:
        connection.execute(tables.workers.update().values(ended_at=now_ms()))
    assert [text.partition(":")[0] for _, text in grades_of(cli, "api")] == ["none runs"]
    assert cli("status").code == 1
    assert cli("process", "forget", here).out == f"forgot the silent processes of {here}\n"
    assert [grade for grade, _ in grades_of(cli, "api")] == ["note"]
    assert cli("status").code == cli("doctor").code == 0


@pytest.mark.usefixtures("working")
def test_the_doctor_finds_a_queue_that_the_broker_refuses(cli: Cli, database: Database, target: TargetId) -> None:
    worker = Process("here:7:x", "w@here", VERSION, "prefork", ["targets"])
    for reason, mend in (
        ("(406) PRECONDITION_FAILED - inequivalent arg", "delete the queue, and it is created again"),
        ("(403) ACCESS_REFUSED - no access", "let the broker's user use it"),
    ):
        worker = record_process(database, worker, {str(target): reason})
        text = f"no worker can serve its queue, which the broker refuses: {reason}; {mend}"
        assert grades_of(cli, target) == [("problem", text)]
    record_process(database, worker)
    assert [grade for grade, _ in grades_of(cli, target)] == ["ok"]


def test_of_a_command_that_goes_on_the_outbox_that_is_away_is_said_once_and_so_is_the_broker() -> None:
    """As `bucketwire mcp` does, which had both when it began."""
    nobody = [services.free_port() for _ in range(2)]
    url = f"postgresql://{services.USER}@{services.LOOPBACK}:{nobody[0]}/outbox"
    environ = {"BUCKETWIRE_DATABASE_URL": url, "BUCKETWIRE_BROKER_URL": f"redis://{services.LOOPBACK}:{nobody[1]}/0"}
    settings = Settings.from_environ(environ)
    with closing(Database(settings.database_url, patience=1)) as database:
        findings = run_checks(Services(settings, database), str, {**SHORT_CHECKS, "broker": check_carried})
    assert [(one.subject, one.grade) for one in findings] == [("database", "problem"), ("broker", "problem")]


@pytest.mark.usefixtures("working")
def test_the_doctor_finds_a_reconciliation_that_nobody_begins(cli: Cli, database: Database) -> None:
    schedule = {"reconcile": "* * * * *", "address": "127.0.0.1:9", "key": "rows"}
    mirror = add_target(database, "rows", type_name="redis", values=schedule, bucket="images")

    def found() -> list[str]:
        return [one["text"] for one in cli("doctor", "--json").json["findings"] if "reconciliation" in one["text"]]

    Schedule(database).register(now_ms() - 1_200_000)
    assert found() == [
        "has waited for its reconciliation with images for 20.0 m; is a `bucketwire worker --only spark` running?"
    ]
    Reconciliations(database).begin(mirror, "other", lease=60_000)
    assert found() == []


@pytest.mark.usefixtures("working")
def test_the_doctor_tells_of_names_that_are_not_known(cli: Cli, database: Database) -> None:
    def found() -> list[str]:
        return [one["text"] for one in cli("doctor", "--json").json["findings"] if one["subject"] == "names"]

    Log(database).append([[event("a"), event("b", name="s3:ObjectRemoved:Delete")]])
    assert found() == []
    Log(database).append([[event(key, name="s3:ObjectRemoved:Deleted") for key in "ab"] + [event("c", name="x\n")]])
    [text] = found()
    assert text.startswith(
        "3 events of the newest 10,000 have a name that is not known: s3:ObjectRemoved:Deleted (2), "
    )
    assert "'x\\n' (1)" in text


@pytest.mark.usefixtures("working")
def test_the_doctor_tells_of_keys_that_an_unknown_sender_may_have_meant_otherwise(cli: Cli, database: Database) -> None:
    def found() -> list[Any]:
        return [one for one in cli("doctor", "--json").json["findings"] if one["subject"] == "keys"]

    certain, guess = event("a")._replace(origin="request t unknown"), event("a b")
    Log(database).append([[certain]])
    assert found() == []
    Log(database).append([[guess._replace(origin="source kafka:x unknown-encoding 17 3")]])
    [one] = found()
    assert one["grade"] == "warning"
    assert one["text"].startswith(
        "1 event of the newest 10,000 came from a sender that is not known, and the key could"
    )
    assert one["command"][-3:] == ["event", "show", guess.id]


def test_the_doctor_warns_before_a_token_in_use_expires(cli: Cli, database: Database) -> None:
    tokens, now, day = Tokens(database), now_ms(), 86_400_000
    used = tables.tokens.update().values(used_at=now - day)

    def found() -> list[tuple[str, str]]:
        findings = cli("doctor", "--json").json["findings"]
        return [(one["grade"], one["text"]) for one in findings if one["subject"] == "tokens"]

    tokens.create("endless", ["read"])
    tokens.create("later", ["read"], expires_at=now + 22 * day)
    tokens.create("short", ["read"], expires_at=now + 3 * day)
    tokens.create("expired", ["read"], expires_at=now - 1)
    assert found() == [("note", "1 token expired: revoke what is not needed any more")]
    with database.writing() as connection:
        connection.execute(used)
    tokens.create("unused", ["read"], expires_at=now + day)
    with database.writing() as connection:
        old = tables.tokens.update().values(created_at=now - 30 * day)
        connection.execute(old.where(tables.tokens.c.name == "unused"))
    assert [grade for grade, _ in found()] == ["note"]
    with database.writing() as connection:
        connection.execute(used.where(tables.tokens.c.name == "unused"))
    [warning] = [text for grade, text in found() if grade == "warning"]
    assert re.fullmatch(
        r"1 token in use will expire, the first in (1\.0 d|2\d\.\d h): give its users another one", warning
    )
    assert "unused" not in warning, "who may read this need not know the names"
    tokens.revoke("unused")
    tokens.revoke("expired")
    assert found() == []


def test_the_doctor_tells_a_target_that_waits_from_one_that_is_broken(cli: Cli, database: Database) -> None:
    add_target(database, "waits")
    cli("target", "pause", "webhook:waits", "--reason", "a new disk")
    add_target(database, "broken")
    with database.writing() as connection:
        broken = sa.and_(tables.targets.c.name == "broken")
        connection.execute(tables.targets.update().where(broken).values(settings='{"endpoint": "nowhere"}'))
    add_target(database, "away")
    with database.writing() as connection:
        away = tables.targets.update().where(tables.targets.c.name == "away")
        connection.execute(away.values(breaker="open", reason="connection refused"))
    found = {one["subject"]: one for one in cli("doctor", "--json").json["findings"]}
    assert found["webhook:away"]["grade"] == "problem"
    assert found["webhook:away"]["text"].startswith("unavailable: connection refused; its events wait")
    assert (found["webhook:waits"]["grade"], found["webhook:waits"]["text"]) == ("warning", "paused: a new disk")
    assert found["webhook:broken"]["grade"] == "problem"
    assert "endpoint" in found["webhook:broken"]["text"]
    Log(database).append([[event("one"), event("two")]])
    found = {one["subject"]: one for one in cli("doctor", "--json").json["findings"]}
    waiting = r"unavailable: connection refused; 2 events waiting, the oldest [0-9.]+ [sm] old, and a worker"
    assert re.match(waiting, found["webhook:away"]["text"])


def test_a_target_that_paused_itself_is_a_problem_until_an_operator_pauses_or_resumes_it(
    cli: Cli, database: Database
) -> None:
    add_target(database, "gone")

    def open_it(reason: str, *, pause: bool = False) -> bool:
        return open_breaker(database, 1, reason, now_ms() + 60_000, probing=False, pause=pause)

    def state() -> tuple[str, str, float]:
        finding = next(one for one in cli("doctor", "--json").json["findings"] if one["subject"] == "webhook:gone")
        with database.reading() as connection:
            metrics = target_metrics(read_status(connection), now_ms())
        [sample] = [s for one in metrics for s in one.samples if s.name == "bucketwire_target_breaker_open"]
        return finding["grade"], finding["text"], sample.value

    assert open_it("HTTP 410", pause=True)
    assert state() == ("problem", "has paused itself, until it is resumed: HTTP 410", 1)
    cli("target", "pause", "webhook:gone", "--reason", "I know")
    assert state() == ("warning", "paused: I know", 0)
    assert not open_it("connection refused"), "a batch that was under way says nothing new of one that is paused"
    assert state() == ("warning", "paused: I know", 0)
    cli("target", "resume", "webhook:gone")
    assert all(one["subject"] != "webhook:gone" for one in cli("doctor", "--json").json["findings"]), "nothing to say"


def test_a_token_is_seen_once_and_revoked(cli: Cli, database: Database) -> None:
    made = cli("token", "create", "minio").out.strip()
    assert made.startswith("bw_")
    assert cli("token", "create", "ops", "--scope", "read,admin", "--json").json["scopes"] == ["admin", "read"]
    assert cli("token", "create", "minio").code == 1
    assert "is not a time in the future" in cli("token", "create", "late", "--expires", "2020-01-01").err
    assert "did you mean admin?" in cli("token", "create", "x", "--scope", "admn").err
    listed = cli("token", "ls")
    assert made not in listed.out
    assert {one["name"]: one["scopes"] for one in cli("token", "ls", "--json").json} == {
        "minio": ["ingest"], "ops": ["admin", "read"],
    }  # fmt: skip
    assert cli("token", "revoke", "minio").out == "revoked minio\n"
    assert cli("token", "revoke", "minio").code == 1
    assert cli("token", "create", "soon", "--expires", "90d", "--json").json["expires_at"].startswith("20")


def test_who_revokes_the_last_token_learns_that_nobody_may_call_and_can_make_another(
    cli: Cli, database: Database
) -> None:
    assert "every program on this machine can use" in cli("token", "ls").out
    cli("token", "create", "minio")
    for said in (cli("token", "revoke", "minio"), cli("token", "ls")):
        assert said.code == 0
        assert "no token is left: no client can use the API; create one: `bucketwire token create`" in said.out
    assert cli("token", "ls", "--json").json == []
    assert cli("token", "create", "minio").out.startswith("bw_")
    assert [one["name"] for one in cli("token", "ls", "--json").json] == ["minio"]


def test_a_replay_can_be_waited_for(cli: Cli, database: Database, target: TargetId) -> None:
    deliver(database, target, [event(f"a/{number}") for number in range(30)])
    again = ScriptedTarget()

    def work() -> None:
        until(lambda: any(not each.finished for each in Replays(database).list()), 30, what="a replay")
        Courier(database, target, again).run()

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        done = cli("replay", "--target", "webhook:audit", "--all", "--wait", "--json").json
        assert len(again.got) == 30, "it came back when all of it was delivered"
        working.result(30)
    assert done["finished"]
    assert done["replayed"] == 30


def test_a_database_in_another_encoding_is_refused_by_migrate_and_found_by_the_doctor(
    bare: Cli, postgres_server: services.Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUCKETWIRE_DATABASE_URL", postgres_server.create_database("in_ascii", encoding="SQL_ASCII"))
    refused = bare("migrate")
    assert refused.code == 1
    assert "“in_ascii” is a database in SQL_ASCII, which cannot hold every key; create one with" in refused.err
    with monkeypatch.context() as before:
        before.setattr(migration, "check_encoding", lambda _connection: None)
        assert bare("migrate").code == 0
    found = [one for one in bare("doctor", "--json").json["findings"] if one["subject"] == "database"]
    assert [one["grade"] for one in found] == ["problem"]
    assert "SQL_ASCII" in found[0]["text"]
