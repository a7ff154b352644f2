"""The command line as a person meets it: what it prints, what it says when it cannot, how it exits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from app.cli import main
from app.config.arn import TargetId
from app.events.model import Event
from app.folders import make_private
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from tests.support.builders import migrated
from tests.support.scripted_target import Courier, ScriptedTarget
from workers.delivery.outcomes import DELIVERED, Outcome, Rejected


@dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The answer of `--json`."""
        return orjson.loads(self.out)


Cli = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The service's own folder, named by the environment; nothing else is set."""
    place = tmp_path / "var"
    monkeypatch.setenv("BUCKETWIRE_DATA_DIR", str(place))
    return place


@pytest.fixture
def bare(folder: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    """`bucketwire …` in this process, where nothing was set up yet. A refused command must have said why."""

    def run(*arguments: str) -> Result:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        said = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        assert "Traceback" not in said.err
        assert ended.value.code == 0 or said.err or "problem" in said.out
        return Result(ended.value.code, said.out, said.err)

    return run


@pytest.fixture
def cli(bare: Cli, folder: Path) -> Cli:
    """`bucketwire …` in this process, over an outbox of its own, as `bucketwire migrate` leaves it."""
    assert make_private(folder) == ""
    migrated(f"sqlite:///{folder}/bucketwire.db").close()
    return bare


@pytest.fixture
def database(cli: Cli, folder: Path) -> Iterator[Database]:
    """The outbox that the commands look at."""
    opened = migrated(f"sqlite:///{folder}/bucketwire.db")
    yield opened
    opened.close()


def deliver(database: Database, target: TargetId, events: Sequence[Event], *, rejecting: str = "") -> ScriptedTarget:
    """Record events and have a worker deliver them to a target that rejects those whose key is `rejecting`."""

    def script(event: Event) -> Outcome:
        return Rejected("it is too large") if event.key == rejecting else DELIVERED

    Log(database).append([events])
    scripted = ScriptedTarget(script)
    Courier(database, target, scripted).run()
    return scripted
