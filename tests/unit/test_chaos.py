"""What `make chaos` expects, and that a seed means one plan."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from random import Random
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
import redis
import sqlalchemy as sa

from app.events.parsing import parse
from tests.chaos import rounds, verification
from tests.chaos.__main__ import arguments, divided
from tests.chaos.faults import Effect, started_again, timeline
from tests.chaos.plan import (
    CONNECTIONS,
    DELAY,
    FAIL_OVER,
    HANG,
    KILL,
    OPERATIONS,
    PULLER,
    QUEUE,
    REFUSE,
    SNAPSHOT,
    STANDBY,
    STOP,
    WORKER,
    Fault,
    Round,
    draw,
    parts_of,
    single_faults,
)  # fmt: skip
from tests.chaos.rounds import Chaos, Row
from tests.chaos.verification import Figures, patiently, was_lost
from tests.services import until
from tests.support.fault_injection import Failover, Watch
from tests.support.ledger import UNKNOWN, Counts, Expected, Ledger, Stream, Window, expected
from tests.support.target_readers import Record
from tests.support.traffic import Poster, Traffic


def record(number: int, key: str = "a") -> Record:
    thing: dict[str, Any] = {"key": key, "sequencer": str(number)}
    return {"eventName": "s3:ObjectCreated:Put", "s3": {"bucket": {"name": "plain"}, "object": thing}}


def ledger(count: int, stream: Stream) -> Ledger:
    """A ledger of so many events of one object; the post of event n took from n to n + 0.5."""
    made = Ledger()
    made.record([record(number) for number in range(count)], [(number, number + 0.5) for number in range(count)])
    made.follow(stream)
    return made


def after(arrivals: Iterable[int], count: int = 4, stream: Stream | None = None) -> Ledger:
    made = ledger(count, stream or Stream("log"))
    made.arrive("log", map(record, arrivals))
    return made


def figures(made: Ledger) -> tuple[int, Counts, int]:
    return made.lost(), made.total(), len(made.went_back())


@pytest.mark.parametrize(
    ("arrivals", "lost", "counts", "went_back"),
    [
        ([0, 1, 2, 3], 0, Counts(), 0),
        ([0, 1, 2], 1, Counts(), 0),
        ([], 4, Counts(), 0),
        ([0, 1, 1, 2, 3], 0, Counts(repeated=1), 0),
        ([0, 1, 2, 3, 1, 2, 3], 0, Counts(repeated=3), 0),  # a replay, or a lost lease
        ([0, 1, 2, 3, 1, 2], 0, Counts(repeated=2), 1),  # 3 has to come once more
        ([0, 1, 2, 3, 0], 0, Counts(repeated=1), 1),
        ([0, 2, 1, 3], 0, Counts(out_of_order=1), 0),
        ([0, 1, 3, 2], 0, Counts(out_of_order=1), 1),
        ([0, 1, 3], 1, Counts(out_of_order=1), 0),
        ([0, 1, 7, 2, 3], 0, Counts(unexpected=1), 0),
    ],
)
def test_what_arrives_is_held_against_what_was_recorded(
    arrivals: list[int], lost: int, counts: Counts, went_back: int
) -> None:
    assert figures(after(arrivals)) == (lost, counts, went_back)


def test_an_event_of_an_object_that_never_was_is_unexpected() -> None:
    made = ledger(1, Stream("log"))
    made.arrive("log", [record(0, "b")])
    assert figures(made) == (1, Counts(unexpected=1), 0)


@pytest.mark.parametrize(
    ("span", "what"),
    [
        ((0, 1), Expected.FORBIDDEN),
        ((0, 2.5), Expected.ALLOWED),  # the rule was made meanwhile
        ((2.5, 2.6), Expected.ALLOWED),
        ((2.5, 3.5), Expected.ALLOWED),
        ((3.5, 4), Expected.REQUIRED),
        ((3.5, 5.5), Expected.ALLOWED),
        ((5.5, 7), Expected.ALLOWED),
        ((6.5, 7), Expected.FORBIDDEN),
        (UNKNOWN, Expected.ALLOWED),
    ],
)
def test_a_rule_applies_to_what_is_posted_between_its_making_and_its_removal(
    span: tuple[float, float], what: Expected
) -> None:
    assert expected([Window(2, 3, 5, 6)], span) is what


def test_of_two_windows_the_one_that_asks_for_more_counts() -> None:
    windows = [Window(closing=2, closed=3), Window(4, 5)]
    spans = [(1.0, 1.5), (1.0, 2.5), (3.1, 3.9), (4.5, 6.0), (5.5, 6.0)]
    assert [expected(windows, span).name for span in spans] == [
        "REQUIRED", "ALLOWED", "FORBIDDEN", "ALLOWED", "REQUIRED",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arrivals", "lost", "counts"),
    [
        ([0, 4, 5], 0, Counts()),  # 1 was posted while the rule went, 2 and 3 while there was none
        ([0, 1, 4, 5], 0, Counts()),
        ([0, 5, 4], 0, Counts(out_of_order=1)),
        ([0, 5], 1, Counts(out_of_order=1)),
        ([0, 2, 4, 5], 0, Counts(unexpected=1)),
        ([0, 4, 1, 5], 0, Counts(out_of_order=1)),  # 1 need not come, but not late either
    ],
)
def test_events_posted_without_a_rule_are_neither_lost_nor_welcome(
    arrivals: list[int], lost: int, counts: Counts
) -> None:
    stream = Stream("log", [Window(closing=1.2, closed=1.8), Window(3.6, 3.8)])
    assert figures(after(arrivals, 6, stream))[:2] == (lost, counts)


def test_a_removed_target_loses_nothing_but_gets_nothing_later() -> None:
    stream = Stream("log", [Window(closing=2.6, closed=2.8)], complete=False)
    assert figures(after([0], 4, stream)) == (0, Counts(), 0)
    assert figures(after([0, 1, 2, 3], 4, stream)) == (0, Counts(unexpected=1), 0)
    assert figures(after([0, 2], 4, stream)) == (0, Counts(out_of_order=1), 0)


def test_a_created_target_gets_nothing_from_before() -> None:
    stream = Stream("log", [Window(1.6, 1.8)])
    assert figures(after([2, 3], 4, stream)) == (0, Counts(), 0)
    assert figures(after([1, 2, 3], 4, stream)) == (0, Counts(unexpected=1), 0)


def test_dead_letters_may_come_late_but_have_to_come() -> None:
    stream = Stream("log", ordered=lambda _: False)
    assert figures(after([0, 2, 3, 1], 4, stream)) == (0, Counts(), 0)
    assert figures(after([0, 2, 3], 4, stream)) == (1, Counts(), 0)


@pytest.mark.parametrize(
    ("arrivals", "lost", "counts", "went_back"),
    [
        ([0, 3], 0, Counts(), 0),
        ([0, 1, 0, 3], 0, Counts(repeated=1), 0),  # 1 came before it was lost, and what the standby knows of 0 is older
        ([0, 1, 2, 0], 1, Counts(repeated=1), 0),
        ([0, 1], 1, Counts(), 0),
        ([0, 2, 3, 2], 0, Counts(repeated=1), 1),
        ([3], 1, Counts(out_of_order=1), 0),
    ],
)
def test_what_a_failover_lost_may_have_come_and_is_not_waited_for(
    arrivals: list[int], lost: int, counts: Counts, went_back: int
) -> None:
    made = ledger(4, Stream("log"))
    made.lose([record(1), record(2)])
    made.arrive("log", map(record, arrivals))
    assert figures(made) == (lost, counts, went_back)


def test_what_was_missed_already_may_be_lost_by_a_failover_afterwards() -> None:
    made = after([0, 2, 3])
    made.lose([record(1)])
    assert made.lost() == 0


def test_a_failover_loses_what_was_answered_before_and_is_not_on_the_standby() -> None:
    records = [record(number) for number in range(3)]
    parsed = parse(orjson.dumps({"Records": records}), {}, now_ms=0).events
    failover = Failover(frozenset({parsed[0].id}), began=10)
    assert [was_lost(one, (8, 9), [failover]) for one in records] == [False, True, True]
    assert not any(was_lost(one, span, [failover]) for one in records for span in ((8, 11), (11, 12), UNKNOWN))
    assert not was_lost(records[1], (8, 9), [])


def test_other_objects_are_not_for_a_stream_that_does_not_select_them() -> None:
    stream = Stream("log", selects=lambda path: path.endswith("b"))
    assert figures(after([], 4, stream))[0] == 0
    assert figures(after([0], 4, stream))[1] == Counts(unexpected=1)


def test_a_seed_means_one_plan_whatever_comes_of_it() -> None:
    assert draw("7", 40) == draw("7", 40)
    assert draw("7", 40)[:10] == draw("7", 10)
    assert draw("7", 40) != draw("8", 40)


def test_the_first_accepted_post_after_a_moment_is_known_until_it_is_drawn() -> None:
    posters = [Poster(number, Random(1)) for number in range(2)]
    posters[0].spans += [(1, 2), (3, 9)]
    posters[1].spans += [(1, 4), (4, 7)]
    flow = Traffic(SimpleNamespace(), posters)  # type: ignore[arg-type]  # nothing is posted
    assert [flow.accepted_after(moment) for moment in (0, 2, 4, 9)] == [2, 4, 7, None]
    posters[1].draw()
    assert flow.accepted_after(4) == 9


def test_a_plan_has_every_single_fault_and_every_operation() -> None:
    plan = draw("1", 60, parts_of("postgresql", "rabbitmq"))
    singles = {(fault.action, fault.part) for each in plan if len(each.faults) == 1 for fault in each.faults}
    assert singles == set(single_faults(parts_of("postgresql", "rabbitmq")))
    assert {(HANG, "webhook target"), (DELAY, "Redis target"), (REFUSE, QUEUE), (FAIL_OVER, STANDBY)} <= singles
    assert {each.operation for each in plan} == set(OPERATIONS)
    assert sum(len(each.faults) == 2 for each in plan) == 20


def test_a_plan_of_one_fault_has_no_other() -> None:
    plan = draw("1", 9, only=["stop worker's child"])
    assert {str(each) for each in plan} == {"stop worker's child"}
    assert len({each.operation for each in plan}) == len(OPERATIONS)


def test_two_faults_at_once_meet_while_the_first_lasts_and_never_in_one_process() -> None:
    doubles = [each.faults for number in range(20) for each in draw(str(number), 36) if len(each.faults) == 2]
    for one, two in doubles:
        assert one.part != two.part or one.part in WORKER  # of which there are two
        assert not {one.part, two.part} <= {"API", "API's child"}
        assert two.at <= max(one.lasts, 0.1)
    assert {actions for one, two in doubles for actions in [(one.action, two.action)]} == {
        (KILL, KILL), (STOP, KILL), (STOP, STOP),
    }  # fmt: skip


def test_a_snapshot_is_held_for_its_seconds_and_has_the_events_of_many_rounds() -> None:
    plan = draw("1", 60, parts_of("postgresql", "redis"), snapshot=600)
    [held] = [each for each in plan if each.faults[0].part == SNAPSHOT]
    [other, *_] = [each for each in plan if each.faults[0].part == CONNECTIONS]
    assert (held.faults[0].seconds, other.faults[0].seconds) == (600, 5)
    steps = timeline(held.faults, [Effect(lambda: None, lambda: None)], 18)
    assert [step.at for step in steps] == [0, 600]
    shares = divided(1000, [each.weight for each in plan])
    assert sum(shares) == 1000
    assert shares[plan.index(held)] > 4 * shares[plan.index(other)]


def test_interim_answers_come_while_answers_differ() -> None:
    plan = draw("1", 60, only=["interim answers of webhook target"])
    assert {each.operation for each in plan} == {"dead letters"}


def test_sqlite_has_no_server_to_hurt_and_redis_refuses_no_queue() -> None:
    assert "database" in parts_of("mariadb", "redis")
    assert STANDBY not in parts_of("mariadb", "redis")
    plan = draw("1", 99, parts_of("sqlite", "redis"))
    server = {"database", QUEUE, STANDBY, CONNECTIONS, SNAPSHOT}
    assert not any(fault.part in server for each in plan for fault in each.faults)


def test_an_operator_changes_nothing_that_a_failover_would_lose() -> None:
    plan = draw("1", 9, only=["fail over to a lagging standby"], parts=parts_of("postgresql", "redis"))
    assert {(str(each), each.operation) for each in plan} == {("fail over to a lagging standby", "replay")}


def test_a_source_adds_its_worker_and_its_queue_to_what_is_hurt(capsys: pytest.CaptureFixture[str]) -> None:
    plan = draw("1", 60, parts_of("postgresql", "redis", ["kafka", "redis"]))
    parts = {fault.part for each in plan for fault in each.faults}
    assert {PULLER, "Kafka", "Redis stream", STANDBY} <= parts
    assert "AMQP queue" not in parts
    only = ["--only", "kill Kafka"]
    assert arguments(["--source", "redis", "--source", "kafka", *only]).only == ["kill Kafka"]
    with pytest.raises(SystemExit):
        arguments(["--source", "redis", *only])
    assert "give the --source" in capsys.readouterr().err


def test_no_standby_takes_over_from_an_outbox_that_alone_has_what_was_in_a_queue() -> None:
    assert STANDBY in parts_of("postgresql", "redis", ["kafka"])
    assert STANDBY not in parts_of("postgresql", "redis", ["kafka", "amqp"])


def test_a_queue_that_forgets_when_it_is_killed_is_only_stopped() -> None:
    plan = draw("1", 200, parts_of("postgresql", "redis", ["sqs", "jetstream"]))
    done = {(fault.action, fault.part) for each in plan for fault in each.faults}
    assert {("kill", "JetStream"), ("stop", "JetStream"), ("stop", "SQS queue")} <= done
    assert ("kill", "SQS queue") not in done


@pytest.mark.parametrize("given", [["--posters", "0"], ["--source", "amqp", "--source", "amqp"]])
def test_a_run_without_senders_or_with_two_of_one_kind_is_refused(given: list[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(given)


def test_a_timeline_begins_each_fault_before_it_ends_and_marks_the_last() -> None:
    done: list[str] = []
    pair = [Effect(lambda n=n: done.append(f"begin {n}"), lambda n=n: done.append(f"end {n}")) for n in (1, 2)]
    faults = [Fault(STOP, "drain", lasts=1.0), Fault(KILL, "broker", at=0.5, lasts=0.25)]
    steps = timeline(faults, pair, 18)
    for step in steps:
        step.act()
    assert done == ["begin 1", "begin 2", "end 2", "end 1"]
    assert [step.at for step in steps] == [0, 9, 13.5, 18]
    assert [step.last for step in steps] == [False, False, False, True]
    at_once = [Fault(KILL, "beat"), Fault(KILL, "broker")]
    assert [step.at for step in timeline(at_once, pair, 18)] == [0, 0, 0, 0]


def test_a_post_that_is_not_answered_yet_can_be_drawn_and_is_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    posted, answered = threading.Event(), threading.Event()

    def post(*_: object) -> str:
        posted.set()
        answered.wait(30)
        return ""

    monkeypatch.setattr(Poster, "_refusal", staticmethod(post))
    poster = Poster(0, Random(1))
    flow = Traffic(SimpleNamespace(api=SimpleNamespace(url="")), [poster])  # type: ignore[arg-type]  # nothing is posted
    with flow.running():
        flow.allow_more(1)
        assert posted.wait(30)
        sent, spans = poster.draw()
        assert (len(sent), spans) == (1, [UNKNOWN])
        answered.set()
        until(lambda: flow.all_taken, 30)
        assert poster.draw() == ([], [])
        flow.allow_more(3)
        until(lambda: flow.all_taken, 30)
        sent, spans = poster.draw()
        assert len(sent) == len(spans) == 3
        assert UNKNOWN not in spans


def test_what_needs_something_that_is_stopped_is_started_meanwhile_and_is_waited_for() -> None:
    thawed, done = threading.Event(), []

    class Starting:
        def start(self) -> None:
            assert thawed.wait(30)
            done.append("started")

    effect = started_again(lambda: done.append("killed"), Starting())  # type: ignore[arg-type]  # all that is used
    effect.begin()
    effect.end()
    assert done == ["killed"]
    thawed.set()
    effect.wait()
    effect.end()
    effect.wait()
    assert done == ["killed", "started"]


def test_a_busy_server_is_asked_again_until_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([redis.TimeoutError("busy"), sa.exc.OperationalError("select", {}, Exception("away")), "read"])

    def read() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(verification, "READ_WITHIN", 30)
    monkeypatch.setattr(verification, "READ_EVERY", 0)
    assert patiently(read) == "read"
    monkeypatch.setattr(verification, "READ_WITHIN", -1)
    answers = iter([redis.TimeoutError("still busy")])
    with pytest.raises(redis.TimeoutError):
        patiently(read)


class Trouble:
    """A round of which something fails, and what is there to be read afterwards."""

    def __init__(self, *, settles: bool = True, reads: bool = True) -> None:
        self.settles, self.reads = settles, reads

    def look(self, *, delayed: bool) -> Figures:
        assert not delayed
        if not self.reads:
            raise redis.TimeoutError("no answer\nin time")
        return Figures(repeated=7)

    def carry_out(self, monkeypatch: pytest.MonkeyPatch) -> Row:
        def fail(*_: object) -> None:
            raise ConnectionError("refused")

        def settle(*_: object) -> None:
            assert self.settles

        monkeypatch.setattr(Chaos, "_hurt", fail)
        monkeypatch.setattr(Chaos, "_settle", settle)
        monkeypatch.setattr(rounds, "waiting", lambda _: "nothing waits")
        monkeypatch.setattr(rounds, "target_settings", lambda _: {})
        flow: Any = SimpleNamespace(taken=3, counters=lambda: ())
        nothing: Any = SimpleNamespace()
        chaos = Chaos(nothing, nothing, flow, nothing, self)  # type: ignore[arg-type]  # it reads nothing
        return chaos.carry_out(Round((Fault(KILL, "beat"),), "pause", 0.5, 0.5, 0.5), 10, 6.0)


def test_a_round_with_a_problem_is_compared_all_the_same_and_others_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Trouble().carry_out(monkeypatch)
    assert (row.sound, row.stuck, row.figures) == (False, False, Figures(repeated=7))
    assert str(row).endswith("WRONG: ConnectionError: refused; nothing waits")


@pytest.mark.parametrize(
    ("trouble", "said"),
    [(Trouble(settles=False), ""), (Trouble(reads=False), "; not compared: TimeoutError: no answer")],
)
def test_no_round_follows_one_that_does_not_settle_or_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, trouble: Trouble, said: str
) -> None:
    row = trouble.carry_out(monkeypatch)
    assert row.stuck
    assert row.problem == f"ConnectionError: refused; nothing waits{said}"


def test_a_target_without_progress_is_named() -> None:
    counts = {"redis:list": 4, "webhook:all": 2, "redis:idle": 0}

    def counters() -> list[Any]:
        return [
            SimpleNamespace(target=name, delivered=count, superseded=0, pending=1, parked=0, oldest=0)
            for name, count in counts.items()
        ]

    flow: Any = SimpleNamespace(taken=9, all_taken=False, refused=Counter({"503": 2}), counters=counters)
    watch = Watch(flow, targets=frozenset(["redis:list", "webhook:all"]))
    before = watch.look()
    counts["redis:list"] = 5
    watch.look()
    assert watch.still(8, before) == "webhook:all stays at 2"
    assert watch.still(9, before) == "webhook:all stays at 2, no event comes in after 9, posts refused: {'503': 2}"
