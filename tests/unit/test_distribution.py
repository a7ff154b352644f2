"""Which tests run one after the other in one process."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import distribution

ROOT = Path(__file__).parents[2]
SESSION = re.compile(r"\b(spark: SparkSession|session: SparkSession|tables: Tables|job: Job)\b")


def test_one_process_starts_a_spark_session() -> None:
    modules = sorted((ROOT / "tests/spark").rglob("test_*.py"))
    groups = {path.name: distribution.group(f"{path.relative_to(ROOT)}::test_it") for path in modules}
    with_a_session = {path.name for path in modules if SESSION.search(path.read_text())}
    assert {groups[name] for name in with_a_session} == {"tests/spark"}
    assert {name for name, group in groups.items() if group.endswith(".py")} == groups.keys() - with_a_session


class Worker:
    """A process of pytest-xdist that is given tests and never runs one."""

    shutting_down = False

    def __init__(self, number: int, collection: Sequence[str]) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.collection = collection
        self.groups: list[str] = []

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        self.groups += [distribution.group(self.collection[index]) for index in indices]

    def shutdown(self) -> None:
        self.shutting_down = True


def test_a_process_that_waits_and_one_that_computes_run_beside_each_other_to_the_end(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = [f"tests/{room}/test_{letter}.py::test_it" for room in ("contract", "unit") for letter in "abcd"]
    monkeypatch.setattr(pytestconfig.option, "tx", ["2*popen"])
    scheduler = distribution.Distribution(pytestconfig, None)
    workers: list[Any] = [Worker(number, collection) for number in range(2)]
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, collection)
    scheduler.schedule()
    while scheduler.workqueue:
        for worker in workers:
            scheduler.mark_test_complete(worker, collection.index(f"{worker.groups[-1]}::test_it"))
    assert [{group.split("/")[1] for group in worker.groups} for worker in workers] == [{"contract"}, {"unit"}]


@pytest.mark.parametrize("seconds", [{}, {"tests/unit/test_a.py": 1.0, "tests/unit/test_c.py": 9.0}])
def test_the_longest_begins_whether_that_is_known_from_the_last_run_or_not(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]
) -> None:
    collection = [f"tests/unit/test_{letter}.py::test_it" for letter in "abc"]
    monkeypatch.setattr(pytestconfig.option, "tx", ["popen"])
    monkeypatch.setattr(distribution, "known", lambda _config: seconds)
    monkeypatch.setattr(distribution, "_LONGEST", {"tests/unit/test_b.py": 2, "tests/unit/test_c.py": 5})
    scheduler = distribution.Distribution(pytestconfig, None)
    worker: Any = Worker(1, collection)
    scheduler.add_node(worker)
    scheduler.add_node_collection(worker, collection)
    scheduler.schedule()
    assert worker.groups[0][len("tests/unit/test_")] == ("b" if seconds else "c")  # which is new, or else the longest


def test_the_end_of_a_run_shows_the_longest_groups() -> None:
    durations, lines = distribution.Durations(), list[str]()
    durations.seconds.update({"tests/unit/test_a.py": 2.6, "tests/unit/test_b.py": 15.0})
    reporter: Any = SimpleNamespace(section=lines.append, line=lines.append)
    durations.pytest_terminal_summary(reporter)
    assert lines[1:] == ["    15 s  tests/unit/test_b.py", "     3 s  tests/unit/test_a.py"]


def test_the_kinds_of_sources_run_beside_each_other() -> None:
    files = [f"tests/contract/test_source_{name}.py" for name in ("contract", "test")]
    groups = {distribution.group(f"{file}::test_it[{kind}]") for file in files for kind in ("jetstream", "redis_list")}
    assert groups == {"tests/contract/sources[jetstream]", "tests/contract/sources[redis_list]"}


@pytest.mark.parametrize("served", ["amqp", "amqp_stream", "kafka", "sqs", "sqs_fifo"])
def test_a_source_and_a_target_have_one_server_that_takes_long_to_start(served: str) -> None:
    kind = served.partition("_")[0]
    cases = [f"test_{name}.py::test_it[{served}]" for name in ("source_contract", "source_test", f"{kind}_source")]
    cases += [f"test_target_contract.py::test_it[{kind}-1]", f"test_{kind}.py::test_it"]
    assert len({distribution.group(f"tests/contract/{case}") for case in cases}) == 1


def test_a_kind_of_target_has_one_server_for_all_that_put_something_to_it() -> None:
    files = ("test_hanging_server", "test_target_contract", "test_target_test")
    groups = {distribution.group(f"tests/contract/{file}.py::test_it[mqtt-qos0-hangs]") for file in files}
    assert groups == {"tests/contract/probes[mqtt]"}


def test_what_uses_one_elasticsearch_and_one_kafka_is_a_group() -> None:
    cases = [f"test_{name}.py::test_it[elasticsearch]" for name in ("kafka", "elasticsearch", "late_requests")]
    cases += [f"test_target_contract.py::test_it[{kind}-1]" for kind in ("elasticsearch-access", "kafka")]
    assert {distribution.group(f"tests/contract/{case}") for case in cases} == {"tests/contract/elasticsearch"}


def test_whole_services_over_the_sessions_rabbitmq_are_a_group_and_those_by_other_clocks_another() -> None:
    cases = {
        "beat.py::test_it[rabbitmq]": "rabbitmq",
        "clocks.py::test_it_over_mariadb_and_rabbitmq[ahead]": "rabbitmq",
        "clocks.py::test_it_over_postgresql_and_redis[ahead]": "test_clocks.py",
        "end_to_end.py::test_it": "rabbitmq",
        "faults.py::test_it[over_rabbitmq-faults1]": "rabbitmq",
        "faults.py::test_it[over_redis-faults0]": "test_faults.py::test_it[over_redis-faults0]",
        "local_faults.py::test_it": "test_clocks.py",
    }
    groups = {case: distribution.group(f"tests/acceptance/test_{case}") for case in cases}
    assert groups == {case: f"tests/acceptance/{group}" for case, group in cases.items()}


def test_the_databases_run_beside_each_other_whatever_comes_before_them_among_the_parameters() -> None:
    case = "tests/integration/outbox/test_lost_leases.py::test_it[Policy.MIRROR-{}-put and get]"
    groups = {distribution.group(case.format(name)) for name in ("mysql", "mariadb")}
    assert groups == {f"tests/integration/outbox/test_lost_leases.py[{name}]" for name in ("mysql", "mariadb")}


def test_every_file_that_is_named_is_there() -> None:
    files = (distribution._CASES, distribution._PROBES, distribution._SOURCES, distribution._ELASTIC)
    named = {*chain(*files, distribution._RABBITMQ, distribution._WITHOUT_A_SESSION)}
    named |= {name.partition("[")[0] for name in (*distribution._LONGEST, *distribution._TOGETHER) if ".py" in name}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
