"""The record of attempts: what happened to an event at each target, in a bounded table, beside the deliveries."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import series, tables
from app.outbox.admin import event_states
from app.outbox.admin.event_states import Attempt, find_event
from app.outbox.admin.replays import Replays, Selection
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.policies import AttemptRecordPolicy
from tests.support import databases
from tests.support.builders import add_target, event, registry
from tests.support.query_cost import query_cost
from tests.support.scripted_target import Courier
from workers.delivery import retry
from workers.delivery.outcomes import DELIVERED, Exchange, Failed, HttpMessage, Rejected, Unavailable
from workers.telemetry.attempt_recorder import AttemptRecorder

pytestmark = databases.ONE


@pytest.fixture
def recorder(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[AttemptRecorder]:
    """A recorder that writes when the test says so."""
    monkeypatch.setattr(retry, "RECORD_INTERVAL_SECONDS", 3600.0)
    made = AttemptRecorder(database)
    yield made
    made.close()


def timeline(database: Database, event_id: str, target: TargetId) -> list[tuple[str, int, str]]:
    found = find_event(database, event_id)
    assert found is not None
    [state] = [state for state in found.delivery_states if state.target == target]
    return [(attempt.outcome, attempt.attempt, attempt.reason) for attempt in state.timeline]


def rows(database: Database, table: sa.Table = tables.attempts) -> int:
    with database.reading() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def test_an_event_has_its_failures_and_its_delivery_in_order(database: Database, recorder: AttemptRecorder) -> None:
    target, other = add_target(database, "audit"), add_target(database, "other")
    courier = Courier(database, target, recorder=recorder)
    odd, good = event("odd"), event("good")
    Log(database).append([[odd, good]])
    failures = [Failed("503 come back"), Failed("503 come back")]
    courier.scripted.script = lambda one: failures.pop() if one.key == "odd" and failures else DELIVERED
    courier.run()
    recorder.flush()
    assert timeline(database, odd.id, target) == [
        ("failed", 1, "503 come back"), ("failed", 2, "503 come back"), ("delivered", 0, ""),
    ]  # fmt: skip
    assert timeline(database, good.id, target) == [("delivered", 0, "")]
    assert timeline(database, good.id, other) == []


@databases.TWO
def test_the_last_failure_of_an_event_has_its_request_and_answer(database: Database, recorder: AttemptRecorder) -> None:
    target = add_target(database, "audit")
    courier = Courier(database, target, recorder=recorder)
    odd, good = event("odd"), event("good")
    Log(database).append([[odd, good]])

    def exchange(status: int) -> Exchange:
        request = HttpMessage("POST https://h:443", {"Content-Type": "application/json"}, "{}", 2)
        return Exchange(request, HttpMessage(f"HTTP {status}", {}, "é\n", 3))

    failures = [Unavailable("x", exchange=exchange(503)), Failed("x", exchange=exchange(500)), Failed("x")]
    courier.scripted.script = lambda one: failures.pop() if one.key == "odd" and failures else DELIVERED
    for _ in range(4):
        courier.run()
    recorder.flush()

    def kept(event_id: str) -> str:
        found = find_event(database, event_id)
        assert found is not None
        [state] = found.delivery_states
        return state.exchange

    assert not failures
    assert orjson.loads(kept(odd.id)) == {
        "request": {
            "line": "POST https://h:443", "headers": {"Content-Type": "application/json"}, "body": "{}", "size": 2,
        },
        "response": {"line": "HTTP 503", "headers": {}, "body": "é\n", "size": 3},
    }  # fmt: skip
    assert kept(good.id) == ""


@databases.THREE
def test_an_event_in_a_range_that_was_delivered_is_found_and_no_other(
    database: Database, recorder: AttemptRecorder
) -> None:
    target = add_target(database, "audit", bucket="images")
    courier = Courier(database, target, recorder=recorder, batch=4)
    events = [event(f"k{number}", bucket="images" if number % 3 else "films") for number in range(60)]
    Log(database).append([events])
    courier.scripted.script = lambda one: Rejected("no") if one.key == "k7" else DELIVERED
    courier.run()
    recorder.flush()
    for one in events:
        found = find_event(database, one.id)
        assert found is not None
        made = [attempt.outcome for state in found.delivery_states for attempt in state.timeline]
        expected = [] if one.bucket == "films" else ["rejected"] if one.key == "k7" else ["delivered"]
        assert made == expected, one.key


@databases.THREE
def test_a_replays_range_counts_for_the_events_that_it_selects(database: Database, recorder: AttemptRecorder) -> None:
    target = add_target(database, "audit")
    courier = Courier(database, target, recorder=recorder)
    events = [event(f"{'a' if number % 2 else 'b'}/{number}") for number in range(24)]
    Log(database).append([events])
    courier.run()
    replay = Replays(database).begin(target, Selection(prefix="a/"))
    courier.run()
    recorder.flush()
    for one in events:
        found = find_event(database, one.id)
        assert found is not None
        [state] = found.delivery_states
        again = [replay.replay_id] if one.key.startswith("a/") else []
        assert [attempt.replay_id for attempt in state.timeline] == [0, *again], one.key


@databases.THREE
def test_the_rows_of_a_target_are_bounded_and_failures_outlast_deliveries_and_outages(
    database: Database, recorder: AttemptRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_states, "ATTEMPTS", AttemptRecordPolicy(max_rows=30))
    monkeypatch.setattr(retry, "TRIM_ROWS", 20)
    now = now_ms()
    for number in range(200):
        outcome = "failed" if number < 5 else "delivered" if number % 2 else "unavailable"
        made = [Attempt(target_id, 0, 9 * number, 9 * number, now, outcome, reason="no") for target_id in (1, 2)]
        for one in made:
            recorder.add(one.target_id, [one], series.histogram([], now))
        recorder.flush()
        assert rows(database) <= 2 * (3 * 30 + 20)
    with database.reading() as connection:
        counted = connection.execute(
            sa.select(sa.func.count()).select_from(tables.attempts).where(tables.attempts.c.outcome == "failed")
        ).scalar_one()
    assert counted == 10


@databases.THREE
def test_the_requests_and_answers_of_a_target_are_bounded_and_the_newest_stay(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_states, "ATTEMPTS", AttemptRecordPolicy(max_exchange_characters=1_000))
    at_one = [Attempt(1, 0, number, number, 1, "failed", exchange=f"{number:0100}") for number in range(30)]
    refused = [Attempt(1, 0, number, number, 1, "unavailable", exchange=f"{number:0300}") for number in range(30)]
    others = [Attempt(2, 0, number, number, 1, "failed", exchange="x" * 100) for number in range(10)]
    a = tables.attempts.c
    with database.writing() as connection:
        event_states.record_attempts(connection, [*at_one, *refused, *others])
        for target_id in (1, 2):
            event_states.trim_attempts(connection, target_id)
        left = sa.select(a.target_id, a.outcome, a.first_seq).where(a.exchange.is_not(None)).order_by(a.id)
        kept = connection.execute(left).all()
    assert [row.first_seq for row in kept if (row.target_id, row.outcome) == (1, "failed")] == list(range(20, 30))
    assert [row.first_seq for row in kept if row.outcome == "unavailable"] == [27, 28, 29]
    assert [row.first_seq for row in kept if row.target_id == 2] == list(range(10))
    assert rows(database) == 70


def test_a_buffer_is_bounded_and_contiguous_batches_are_merged(database: Database, recorder: AttemptRecorder) -> None:
    now, times = now_ms(), series.histogram([], now_ms())
    for number in range(2_000):
        recorder.add(1, [Attempt(1, 3, 5 * number + 1, 5 * number + 5, now + number, "delivered", 5, 10)], times)
        recorder.add(1, [Attempt(1, 3, number, number, now, "failed", reason="x" * 500)], times)
    recorder.flush()
    with database.reading() as connection:
        a = tables.attempts.c
        settled = connection.execute(sa.select(tables.attempts).where(a.ring == 0).order_by(a.first_seq)).all()
        failed = connection.execute(sa.select(sa.func.count()).select_from(tables.attempts).where(a.ring == 1)).scalar()
    assert len(settled) <= 11
    assert sum(row.events for row in settled) == 10_000
    assert (settled[-1].last_seq, settled[-1].at) == (10_000, now + 1_999)
    assert failed == 250


@databases.THREE
def test_a_removed_target_leaves_the_record(database: Database, recorder: AttemptRecorder) -> None:
    kept, gone = add_target(database, "kept"), add_target(database, "gone")
    ids = [registry(database).target(target).row_id for target in (kept, gone)]
    for target_id in ids:
        recorder.add(target_id, [Attempt(target_id, 0, 1, 1, now_ms(), "delivered")], series.histogram([], 0))
    registry(database).remove(gone, force=True)
    recorder.flush()
    with database.writing() as connection:
        event_states.forget_attempts(connection)
    with database.reading() as connection:
        assert connection.execute(sa.select(tables.attempts.c.target_id)).scalars().all() == ids[:1]


@databases.TWO
def test_what_the_database_cannot_take_now_is_written_later(database: Database, recorder: AttemptRecorder) -> None:
    hindrance = sa.exc.OperationalError("", None, Exception("away"))
    written = recorder._insert

    def fails(*_: object) -> None:
        raise hindrance

    recorder._insert = fails  # type: ignore[method-assign]
    times = series.histogram([now_ms()], now_ms())
    recorder.add(1, [Attempt(1, 0, 1, 1, now_ms(), "delivered")], times)
    recorder.flush()
    recorder.add(1, [Attempt(1, 0, 2, 2, now_ms(), "delivered")], times)
    recorder.flush()
    assert rows(database) == 0
    recorder._insert = written  # type: ignore[method-assign]
    recorder.flush()
    assert rows(database) == 2
    assert rows(database, tables.delivery_times) == 2


@databases.TWO
def test_a_delivered_batch_costs_no_statement_more(
    database: Database, recorder: AttemptRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = add_target(database, "audit")
    counted: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        counted.append(statement)

    costs = []
    for used in (None, recorder):
        courier = Courier(database, target, recorder=used)
        Log(database).append([[event(f"k{number}") for number in range(8)]])
        courier.run()  # statements that only the first run of a connection needs
        Log(database).append([[event(f"k{number}") for number in range(8)]])
        for engine in (database.engine, database._reader):
            sa.event.listen(engine, "before_cursor_execute", note)
        counted.clear()
        courier.run()
        costs.append(len(counted))
        for engine in (database.engine, database._reader):
            sa.event.remove(engine, "before_cursor_execute", note)
    assert costs[0] == costs[1]


@databases.TWO
def test_a_timeline_costs_what_is_kept_of_its_target_and_not_what_is_in_the_log(database: Database) -> None:
    target = add_target(database, "audit")
    row_id = registry(database).target(target).row_id
    one = event("one")
    Log(database).append([[one]])
    costs = []
    for count in (50, 1_500):
        with database.writing() as connection:
            partition, seq = connection.execute(
                sa.select(tables.events.c.partition, tables.events.c.seq).where(tables.events.c.id == one.id)
            ).one()
            other = (partition + 1) % 4
            made = [Attempt(row_id, other, seq + number, seq + number, number, "delivered") for number in range(count)]
            event_states.record_attempts(connection, made)
            if database.dialect == "postgresql":
                connection.exec_driver_sql("ANALYZE attempts")
        with query_cost(database) as cost:
            find_event(database, one.id)
        costs.append(cost.rows)
    assert costs[1] <= 2 * costs[0] + 100
