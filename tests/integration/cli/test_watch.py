"""`bucketwire watch` and `bucketwire completion`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import orjson
import pytest

from app.outbox import log_head
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.outbox.log.reading import LogReader
from tests.integration.cli.conftest import Cli
from tests.services import until
from tests.support.builders import DELETE, event
from tests.support.older_state import older_state
from tests.support.service_processes import BUCKETWIRE, Role


def test_events_are_printed_as_they_come_and_only_those_asked_for(database: Database, folder: Path) -> None:
    words = ["watch", "images", "--event", "put", "--prefix", "in/", "--json", "--count", "2"]
    Log(database).append([[event("in/before.txt")]])
    watching = Role(words, {"BUCKETWIRE_DATA_DIR": str(folder)})
    watching.start()
    try:
        lines: list[str] = []

        def seen() -> bool:
            # Until it looks, nobody knows where it began: each time another event comes.
            Log(database).append([[event("in/a.txt"), event("out/a.txt"), event("in/a.txt", name=DELETE)]])
            lines[:] = watching.said().splitlines()
            return len(lines) == 2

        until(seen, 30, what="two events on the screen")
    finally:
        watching.stop()
    found = [orjson.loads(line) for line in lines]
    assert [each["key"] for each in found] == ["in/a.txt", "in/a.txt"]
    assert found[0]["record"]["eventName"] == found[0]["event"] == "s3:ObjectCreated:Put"


def test_what_came_before_is_shown_if_asked_for_and_cannot_steer_the_terminal(cli: Cli, database: Database) -> None:
    Log(database).append([[event("first"), event("\x1b[2Jsecond")]])
    shown = cli("watch", "--since", "1h", "--count", "2").out
    assert shown.index("images/first") < shown.index("images/\\x1b[2Jsecond")
    assert cli("watch", "--event", "putt").code == 1


def test_a_follower_passes_nothing_over_and_reads_in_parts(database: Database) -> None:
    follower = LogReader(database)
    assert follower.read() == ()
    keys = [f"{number}" for number in range(25)]
    Log(database).append([[event(key) for key in keys]])
    parts = [[each.key for each in follower.read(10)] for _ in range(4)]
    assert [len(part) for part in parts] == [10, 10, 5, 0]
    assert sum(parts, []) == keys  # noqa: RUF017 - three of them


@pytest.mark.parametrize("is_said", [True, False], ids=["another epoch", "a shorter log"])
def test_a_follower_goes_back_to_what_an_older_state_of_the_log_still_has(database: Database, is_said: bool) -> None:
    """Else it passes over the events that get the seqs of those which are lost."""
    log = Log(database)
    log.append([[event("before")]])
    follower = LogReader(database)
    log.append([[event("kept")]])
    with older_state(database):
        log.append([[event("lost"), event("lost")]])
        assert [each.key for each in follower.read()] == ["kept", "lost", "lost"]
    keys = ["a", "b", "c"] if is_said else ["a"]
    Log(database).append([[event(key) for key in keys]])
    if is_said:
        with database.writing() as connection:
            log_head.begin_epoch(connection, "restored")
    assert [each.key for each in follower.read()] == keys
    assert follower.read() == ()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_asks_us(bare: Cli, shell: str) -> None:
    script = bare("completion", shell).out
    assert f"_BUCKETWIRE_COMPLETE={shell}_complete" in script


def test_the_shell_completes_commands_and_options() -> None:
    def completed(line: str) -> list[str]:
        words = {"_BUCKETWIRE_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        done = subprocess.run(
            [BUCKETWIRE], env=os.environ | words, capture_output=True, text=True, check=True, timeout=30
        )
        return [row.partition(",")[2] for row in done.stdout.splitlines()]

    assert "import" in completed("bucketwire im")
    assert "pause" in completed("bucketwire target pa")
    assert "--queue-dir" in completed("bucketwire import minio --q")
