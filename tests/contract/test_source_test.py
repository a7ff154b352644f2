"""`bucketwire source test`: what a queue answers is told step by step, and no message is taken."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import orjson
import pytest

from app.config.declared_types import source_type
from app.config.target_settings import load
from app.events.limits import Limits
from tests import services
from tests.contract.source_probes.base import SourceProbe
from tests.services import forking
from tests.support.builders import SECRET_KEY, migrated
from tests.support.pulled_events import Sources, messages, numbered
from workers.source_test import run_source_test
from workers.target_test import Step

NIGHTLY = pytest.mark.nightly(
    "a queue of SQS with groups: a source does not know which of the two it is", when=lambda served: served == "sqs"
)


@pytest.fixture
def probe(served: SourceProbe) -> SourceProbe:
    """Every type of queue in turn, running and empty."""
    served.renew()
    return served


def steps_of(probe: SourceProbe, port: int | None = None) -> list[Step]:
    """The steps of a test of the queue, or of one at another port of this machine."""
    place = str(probe.server.port)
    values = {name: str(value).replace(place, str(port or place)) for name, value in probe.values().items()}
    return list(run_source_test(load(source_type(probe.type), values), {}, Limits()))


@NIGHTLY
def test_the_first_message_is_read_and_not_taken(probe: SourceProbe) -> None:
    assert [(step.step, step.ok) for step in steps_of(probe)] == [("open", True), ("lag", True), ("read", True)]
    events = numbered(3)
    probe.send(messages(events))
    for _ in range(2):
        steps = steps_of(probe)
        assert all(step.ok for step in steps), steps
        assert steps[-1].message == f"1 event, the first in {events[0].bucket}"


@NIGHTLY
def test_a_message_without_valid_events_and_a_queue_that_is_away_fail_a_step(probe: SourceProbe) -> None:
    probe.send([b"{"])
    steps = steps_of(probe)
    assert [(step.step, step.ok) for step in steps][-1] == ("read", False)
    assert "not JSON" in steps[-1].message
    [step] = steps_of(probe, services.free_port())
    assert (step.step, step.ok, bool(step.message)) == ("open", False, True)


@pytest.mark.nightly(
    "AMQP: the command prints the steps, which each type takes within this process",
    when=lambda served: served != "amqp",
)
def test_the_command_tells_each_step_and_its_exit_code_whether_all_are_ok(probe: SourceProbe, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/outbox.db"
    with contextlib.closing(migrated(url, partitions=4)) as database:
        source = Sources(database).put(probe.type, probe.values())
    probe.send(messages(numbered(1)))

    def tested(*words: str) -> subprocess.CompletedProcess[str]:
        environ = {"BUCKETWIRE_DATABASE_URL": url, "BUCKETWIRE_SECRET_KEYS": SECRET_KEY, "PATH": os.environ["PATH"]}
        environ |= {"BUCKETWIRE_BROKER_URL": "redis://127.0.0.1:9/0"}
        command = [forking.command(), "source", "test", *words]
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)

    done = tested(str(source), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    result = orjson.loads(done.stdout)
    assert (result["source"], result["ok"], [step["step"] for step in result["steps"]]) == (
        str(source), True, ["open", "lag", "read"],
    )  # fmt: skip
    unknown = tested(f"{source}-other")
    assert (unknown.returncode, "there is no source" in unknown.stdout) == (1, True)
