"""What the heartbeats of processes, and the answers of APIs, mean to the doctor and the metrics."""

from __future__ import annotations

from typing import Any

import pytest

from app.api.routes.metrics import process_metrics
from app.doctor.processes import api_findings, host_findings, is_reachable, spool_findings
from app.outbox.processes import API, Process, processes_of

NOW = 1_800_000_000_000
SECOND, DAY = 1_000, 86_400_000
HERE, THERE = "http://10.0.0.1:8730", "http://10.0.0.2:8730"


def api(host: str = "here", at: int = NOW - SECOND, address: str = HERE, **values: Any) -> Process:
    return Process(
        f"{host}:7:{at}{address}", f"api@{host}", "1", "gunicorn", [API], address=address,
        **{"at": at, "started_at": at - SECOND, "served_at": at} | values,
    )  # fmt: skip


def found(*apis: Process, **answers: str) -> list[tuple[str, str]]:
    """The grades and texts, if the APIs of the hosts answer so."""
    problems = {one.id: answers[one.host] for one in apis if one.host in answers}
    return [(one.grade, one.text) for one in api_findings(processes_of(API, apis, NOW), problems, NOW, "here")]


def test_an_api_that_answers_is_well_whatever_its_heartbeat_says() -> None:
    for one in (api(), api(at=NOW - 60 * SECOND), api(served_at=0, problem="does not answer: connection refused")):
        assert found(one, here="") == [("ok", f"{HERE} answers")]


def test_an_answer_is_that_of_one_api_where_another_host_has_the_same_address() -> None:
    local = "http://127.0.0.1:8730"
    both = (api(address=local, started_at=NOW - DAY), api("there", at=NOW - 60 * SECOND, address=local))
    assert sorted(grade for grade, _ in found(*both, here="")) == ["ok", "problem"]


@pytest.mark.parametrize("age", [1, 60])
def test_one_that_does_not_answer_is_a_problem_at_once_with_the_reason(age: int) -> None:
    [(grade, text)] = found(api(at=NOW - age * SECOND), here="does not answer: connection refused")
    assert grade == "problem"
    assert text.startswith(f"{HERE} on here does not answer: connection refused; last heartbeat ")
    assert "frontends cannot post" in text


def test_one_that_answers_503_is_a_problem_with_its_own_words() -> None:
    [(grade, text)] = found(api(), here="answers 503 Service Unavailable: database: it cannot be reached")
    assert (grade, text) == (
        "problem", f"{HERE} on here answers 503 Service Unavailable: database: it cannot be reached; its log has more",
    )  # fmt: skip


def test_one_that_only_another_host_can_ask_is_believed_and_one_that_is_out_of_reach_is_a_warning() -> None:
    remote = api("there", address=THERE)
    [(grade, text)] = found(remote, there="does not answer: no answer within 3 s")
    assert (grade, "answers there, but to this host it does not answer" in text) == ("warning", True)
    local = api("there", address="http://127.0.0.1:8730")
    assert not is_reachable(local, "here")
    assert is_reachable(local, "there")
    assert is_reachable(remote, "here")
    assert [grade for grade, _ in found(local)] == ["ok"]
    hangs = api("there", address=local.address, served_at=NOW - 60 * SECOND, problem="does not answer: timed out")
    assert [grade for grade, _ in found(hangs)] == ["problem"]
    [(grade, text)] = found(api("there", NOW - 60 * SECOND, local.address))
    assert (grade, "on there is silent; last heartbeat 1.0 m ago" in text) == ("problem", True)
    [(grade, _)] = found(api("there", NOW - 60 * SECOND, THERE), there="does not answer: no answer within 3 s")
    assert grade == "problem", "its own heartbeats have ended, too"


def test_one_that_was_replaced_or_is_gone_for_a_day_is_missed_no_more() -> None:
    killed, new = api(at=NOW - 60 * SECOND), api(started_at=NOW - 50 * SECOND)
    assert found(killed, new, here="") == [("ok", f"{HERE} answers")]
    other = api("there", address=THERE, started_at=NOW - 3 * DAY)
    assert [grade for grade, _ in found(killed, other, here="does not answer: x", there="")] == ["ok", "problem"]
    gone = api(at=NOW - 2 * DAY)
    assert [grade for grade, _ in found(gone, other, here="does not answer: x", there="")] == ["ok"]
    assert [grade for grade, _ in found(gone, here="does not answer: x")] == ["problem"], "but there is no other"


def test_none_that_runs_any_more_is_a_problem_and_none_that_has_ever_run_is_none() -> None:
    last, first = api(ended_at=NOW - 5 * SECOND), api("there", NOW - DAY, ended_at=NOW - DAY)
    [(grade, text)] = found(first, last)
    assert grade == "problem"
    assert text == "none runs: the last one, on here, ended 5.0 s ago; frontends cannot post: start one"
    assert found(first, api(), here="") == [("ok", f"{HERE} answers")]
    assert [grade for grade, _ in found()] == ["note"]


KILLED = NOW - 60 * SECOND


def test_the_spooled_files_of_another_api_are_a_warning_that_names_it() -> None:
    waits = "2 spooled files of events not recorded yet, the oldest for 3.0 m"
    apis = [api(jobs=(waits,)), api("there"), api("gone", at=NOW - 60 * SECOND, jobs=(waits,))]
    assert [(one.grade, one.text) for one in spool_findings(apis, NOW)] == [("warning", f"{HERE} on here: {waits}")]


def worker(name: str, at: int = NOW - SECOND, *serves: str, **values: Any) -> Process:
    """A worker `WHAT@HOST`; for all targets if it is not said what it serves."""
    return Process(
        f"{name}:7:x", name, "1", "prefork", serves or ["targets"],
        **{"at": at, "started_at": NOW - DAY, "served_at": at} | values,
    )  # fmt: skip


def of_hosts(*processes: Process) -> list[tuple[str, str, str]]:
    return [(one.subject, one.grade, one.text) for one in host_findings(processes, NOW)]


def test_the_silent_workers_of_a_host_are_one_finding_and_a_problem_if_nobody_else_serves_the_same() -> None:
    dead = [worker("a@one", KILLED), worker("b@one", KILLED - SECOND, "drain"), worker("c@two", KILLED, "webhook")]
    advice = "start what is missing, or forget the host if it was removed"
    gone = "recorded no heartbeat for 1.0 m"
    assert of_hosts(*dead) == [
        ("host one", "problem", f"is silent: 2 workers (a, b) {gone}; nobody else serves drain, targets; {advice}"),
        ("host two", "problem", f"is silent: 1 worker (c) {gone}; nobody else serves webhook; {advice}"),
    ]
    assert of_hosts(*dead, worker("d@three"), worker("e@three", NOW, "drain")) == [
        ("host one", "warning", f"is silent: 2 workers (a, b) {gone}; others serve the same; {advice}"),
        ("host two", "warning", f"is silent: 1 worker (c) {gone}; others serve the same; {advice}"),
    ]
    assert of_hosts(worker("d@three"), worker("e@three", KILLED, ended_at=KILLED)) == []


def test_workers_that_are_there_and_serve_nothing_are_a_finding_with_their_reason() -> None:
    away = worker("a@one", NOW, served_at=KILLED, problem="the broker cannot be used: timed out")
    [(subject, grade, text)] = of_hosts(away, worker("b@two"))
    assert (subject, grade) == ("host one", "warning")
    assert text.startswith("1 worker (a) served nothing for 1.0 m: the broker cannot be used: timed out; others serve ")
    [(_, grade, text)] = of_hosts(worker("a@one", NOW, "spark", served_at=0), worker("b@two"))
    assert (grade, "served nothing yet" in text, "nobody else serves spark" in text) == ("problem", True, True)


def test_many_workers_are_counted_and_the_first_are_named() -> None:
    [(_, _, text)] = of_hosts(*(worker(f"w{number}@one", KILLED, f"webhook:t{number}") for number in range(9)))
    assert "9 workers (w0, w1, w2, w3, w4 and 4 more)" in text
    assert "nobody else serves webhook:t0, webhook:t1, webhook:t2, webhook:t3, webhook:t4 and more;" in text


def test_the_metrics_say_the_same() -> None:
    processes = [
        worker("a@one", KILLED), worker("b@one", KILLED, "drain"), worker("c@two"), api("three", KILLED),
        api("four", started_at=NOW - DAY), worker("d@two", NOW, served_at=KILLED, problem="the broker cannot be used"),
    ]  # fmt: skip
    found = {
        (sample.name, tuple(sample.labels.values())): sample.value
        for metric in process_metrics(processes, NOW)
        for sample in metric.samples
    }
    assert found == {
        ("bucketwire_api_up", ("three", HERE)): 0, ("bucketwire_api_up", ("four", HERE)): 1,
        ("bucketwire_live_workers", ("targets",)): 1, ("bucketwire_live_workers", ("drain",)): 0,
        ("bucketwire_silent_workers", ("one",)): 2, ("bucketwire_hindered_workers", ("two",)): 1,
    }  # fmt: skip
