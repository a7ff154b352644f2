"""Which tests run one after the other in one process of pytest-xdist, and which of these groups begin first.

A group is a file, or a part of one where its tests share nothing but servers that every process has anyway. The group
that took longest the last time begins first, so that no process is left alone with it at the end.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

_KEY = "bucketwire/seconds"  # in pytest's cache
_SHOWN = 20  # of the longest groups, at the end of a run
_CASES = "tests/acceptance/test_beat.py", "tests/acceptance/test_faults.py"
_PROBES = {  # they share their servers
    "tests/contract/test_flooding_server.py",
    "tests/contract/test_hanging_server.py",
    "tests/contract/test_target_contract.py",
    "tests/contract/test_target_test.py",
    "tests/contract/test_untrue_answers.py",
}
_SOURCES = {f"tests/contract/test_source_{name}.py" for name in ("contract", "test")}  # these too
_ELASTIC = {  # they use one Elasticsearch and one Kafka
    "tests/contract/test_elasticsearch.py",
    "tests/contract/test_elasticsearch_cluster.py",
    "tests/contract/test_kafka.py",
    "tests/contract/test_late_requests.py",
    "tests/contract/test_refused_object.py",
    "tests/contract/test_stream_pages.py",
    "tests/contract/test_streams_minio_parity.py",
}
_RABBITMQ = {  # they use the session's
    "tests/acceptance/test_end_to_end.py",
    "tests/integration/test_wakeups.py",
}
_TOGETHER = {  # a server that takes long to start is started once for all of them
    "tests/acceptance/test_local_faults.py": "tests/acceptance/test_clocks.py",  # they fork by other clocks
    "tests/contract/probes[elasticsearch]": "tests/contract/elasticsearch",
    "tests/contract/probes[kafka]": "tests/contract/elasticsearch",
    "tests/contract/test_amqp.py": "tests/contract/probes[amqp]",
    "tests/contract/test_amqp_source.py": "tests/contract/probes[amqp]",
    "tests/contract/test_kafka_source.py": "tests/contract/elasticsearch",
    "tests/contract/test_sqs.py": "tests/contract/probes[sqs]",
    "tests/contract/test_sqs_source.py": "tests/contract/probes[sqs]",
    "tests/contract/sources[amqp]": "tests/contract/probes[amqp]",
    "tests/contract/sources[amqp_stream]": "tests/contract/probes[amqp]",
    "tests/contract/sources[kafka]": "tests/contract/elasticsearch",
    "tests/contract/sources[sqs]": "tests/contract/probes[sqs]",
    "tests/contract/sources[sqs_fifo]": "tests/contract/probes[sqs]",
}
_OTHERS_TOO = {"tests/contract/test_late_requests.py", "tests/contract/test_refused_object.py"}
# To start a Spark session, and to have compiled what it runs, takes longer than most tests of it: one process has one.
_WITHOUT_A_SESSION = {
    f"tests/spark/test_{name}.py"
    for name in ("cluster", "host_of_jobs", "limited_targets", "nightly", "source_requests")
}
# Half of the time of these is waiting for servers that hang, start or lose their leases.
_WAITING = ("tests/spark", "tests/acceptance", "tests/contract")
# Where nothing is known yet, as in a fresh clone: what took longest in a run of four processes on two cores, in seconds
# between its tests' beginnings and ends, and the folders in which the other long ones are.
_LONGEST = {
    "tests/spark": 575,
    "tests/contract/elasticsearch": 300,
    "tests/contract/probes[amqp]": 145,
    "tests/acceptance/rabbitmq": 105,
    "tests/contract/probes[sqs]": 94,
    "tests/integration/outbox/test_interleavings.py[postgresql]": 93,
    "tests/integration/console/test_pages.py": 82,
    "tests/contract/test_mqtt.py": 67,
    "tests/integration/api/test_outage.py": 65,
    "tests/acceptance/test_console.py": 63,
    "tests/integration/api/test_mc_admin.py": 58,
    "tests/acceptance/test_kill.py": 57,
    "tests/acceptance/test_stopped_workers.py": 51,
}
_KIND = re.compile(r"\[(nats-[a-z]+|\w+)")  # of server, the first parameter; NATS has three
_DATABASE = re.compile(r"[\[-](sqlite|postgresql|mysql|mariadb)\b")  # among any parameters
_FIRST = ("tests/spark", "tests/acceptance", "tests/contract", "tests/integration/outbox", "tests/integration")


def group(nodeid: str) -> str:
    """The name of a test's group."""
    name = _group_of_its_file(nodeid)
    return _TOGETHER.get(name, name)


def _group_of_its_file(nodeid: str) -> str:
    file, _, case = nodeid.partition("::")
    if file in _RABBITMQ or (file.startswith("tests/acceptance/") and "rabbitmq" in case):
        return "tests/acceptance/rabbitmq"
    if file in _CASES:
        return nodeid
    if file in _PROBES or file in _SOURCES or file.startswith("tests/integration/outbox/"):
        parameter = (_DATABASE if "outbox" in file else _KIND).search(case)
        return f"{_room(file)}[{parameter[1] if parameter else ''}]"
    if file.startswith("tests/spark/") and file not in _WITHOUT_A_SESSION:
        return "tests/spark"
    if file in _ELASTIC and ("elasticsearch" in case or file not in _OTHERS_TOO):
        return "tests/contract/elasticsearch"
    return file


def _room(file: str) -> str:
    """The file, or what several that share their servers are called."""
    return "tests/contract/probes" if file in _PROBES else "tests/contract/sources" if file in _SOURCES else file


def suits(name: str, process: int) -> bool:
    """Every other process begins with groups that wait, the others with those that compute: no core is idle."""
    return name.startswith(_WAITING) == (process % 2 == 0)


class Distribution(LoadScopeScheduling):
    """Gives out the groups that suit a process, the longest first, and then the others."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self.seconds = known(config)

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        process = int(node.gateway.id.removeprefix("gw"))
        first = max(self.workqueue, key=lambda name: (suits(name, process), *self._weight(name)))
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)

    def _weight(self, name: str) -> tuple[float, int, int]:
        rank = next((number for number, folder in enumerate(_FIRST) if name.startswith(folder)), len(_FIRST))
        unknown = math.inf if self.seconds else _LONGEST.get(name, 0)  # what is new may be long
        return self.seconds.get(name, unknown), -rank, len(self.workqueue[name])


class Durations:
    """Adds up how long each group takes, writes it down for the next run, and shows the longest."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[group(report.nodeid)] += report.duration

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        terminalreporter.section("the longest groups of tests")
        for name, seconds in self.seconds.most_common(_SHOWN):
            terminalreporter.line(f"{seconds:6.0f} s  {name}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "cache"):
            session.config.cache.set(_KEY, dict(known(session.config)) | dict(self.seconds))


def known(config: pytest.Config) -> Mapping[str, float]:
    """How many seconds each group took the last time; nothing, where that is not known."""
    found: Mapping[str, float] = config.cache.get(_KEY, {}) if hasattr(config, "cache") else {}
    return found
