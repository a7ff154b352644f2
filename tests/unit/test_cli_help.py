"""What `--help` says, and what it costs."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from app.cli import COMMANDS, SECTIONS, bucketwire
from app.cli.groups import Group, summary
from app.config.declared_types import SOURCE_TYPES, TYPES
from app.outbox import upkeep
from app.outbox.engine.database import Database, now_ms
from tests.support.builders import migrated
from tests.support.commands import EVERY
from tests.support.properties import times

SLOW = ("sqlalchemy", "flask", "requests", "orjson", "msgspec", "rich", "difflib", "pyspark", "celery", "alembic")

DECLARATIONS = {f"app.config.targets.{name}" for name in TYPES} | {
    f"app.config.sources.{name}" for name in SOURCE_TYPES
}

GROUPS = [name for name, command in EVERY.items() if isinstance(command, click.Group)]


def imported(*words: str) -> set[str]:
    """Return the modules that a command line imports, and `garbage` if it is looked for when Flask is imported."""
    code = (
        "import gc, sys; from app.cli import main\n"
        "gc.callbacks.append(lambda phase, info: 'flask' in sys.modules and sys.modules.setdefault('garbage', None))\n"
        f"try: main({list(words)})\n"
        "finally: print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode in (0, 1), ended.stderr
    return set(ended.stderr.split())


def libraries(modules: set[str]) -> set[str]:
    """Return the modules that are not Python's own."""
    return {name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names}


def test_help_imports_no_command_and_no_library_that_is_slow() -> None:
    modules = imported("--help")
    assert "app.cli" in modules
    assert [name for name in modules if name.startswith("app.cli.commands.") or name.partition(".")[0] in SLOW] == []


@pytest.mark.parametrize(
    ("line", "most"),
    [("bucketwire ", 40), ("bucketwire target show ", 220), ("bucketwire rule add x y --event ", 180)],
)
def test_completion_imports_little(line: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKETWIRE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("_BUCKETWIRE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split())))
    modules = imported()
    assert modules & {"sqlalchemy", "flask", "requests", "rich", "celery"} == set()
    assert len(libraries(modules)) <= most  # a fifth more than today


@pytest.mark.nightly(
    "two groups: imports are those of the group", when=lambda group: group in {"dead-letter", "retry", "rule", "token"}
)
@pytest.mark.parametrize("group", ["reconcile", "rule", "dead-letter", "target", "token", "retry"])
@pytest.mark.slow
def test_help_of_a_group_does_not_open_the_outbox(group: str) -> None:
    assert imported(group, "--help") & {"sqlalchemy", "flask", "requests", "rich", "difflib", "celery"} == set()


@pytest.mark.slow
def test_status_imports_nothing_that_only_other_commands_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKETWIRE_DATA_DIR", str(tmp_path))
    migrated(f"sqlite:///{tmp_path}/bucketwire.db").close()
    modules = imported("status")
    assert "app.api.in_process" in modules
    others = {"requests", "rich", "celery", "alembic", "pyspark", "psycopg2", "pymysql"}
    dialects = {"sqlalchemy.dialects.mysql", "sqlalchemy.dialects.postgresql"}
    assert modules & {*others, *dialects, "app.console", "garbage"} == set()
    without = {name for name in libraries(modules) if not name.startswith("opentelemetry")}  # `bucketwire` loads none
    assert len(without) <= 720  # a fifth more than today


@pytest.mark.slow
def test_status_connects_to_no_broker_that_has_just_carried_the_drain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUCKETWIRE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("BUCKETWIRE_DRAIN_INTERVAL", "10s")  # twice as long is recent
    with closing(migrated(f"sqlite:///{tmp_path}/bucketwire.db")) as database:
        ages = ((0, False), (25_000, True), (-600_000, True))  # the last: the clock was set back
        for age, connects in ages[: times(2, 3)]:
            with _drained(database, age):
                assert bool(imported("status") & {"kombu", "redis", "amqp"}) is connects


@contextmanager
def _drained(database: Database, age: int) -> Iterator[None]:
    """Within the block the last drain is of so many milliseconds ago, however long the block takes."""
    ends = threading.Event()

    def beat() -> None:
        while True:
            upkeep.record_heartbeat(database, upkeep.DRAIN, now_ms() - age)
            if ends.wait(0.5):
                return

    upkeep.record_heartbeat(database, upkeep.DRAIN, now_ms() - age)
    beating = threading.Thread(target=beat)
    beating.start()
    try:
        yield
    finally:
        ends.set()
        beating.join()


@pytest.mark.nightly(
    "one command: those that show something are imported by one code", when=lambda line: line != "status"
)
@pytest.mark.parametrize("line", ["status", "target ls", "source ls", "rule ls"])
@pytest.mark.slow
def test_a_command_imports_no_declaration_of_a_type_that_it_does_not_meet(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUCKETWIRE_DATA_DIR", str(tmp_path))
    migrated(f"sqlite:///{tmp_path}/bucketwire.db").close()
    modules = imported(*line.split())
    assert "app.config.target_settings" in modules
    assert modules & DECLARATIONS == set()


@pytest.mark.slow
def test_a_server_imports_every_declaration_at_its_start(tmp_path: Path) -> None:
    code = (
        "import sys; from app.api.services import open_services; from app.config.settings import Settings\n"
        f"open_services(Settings.from_environ({{'BUCKETWIRE_DATA_DIR': {str(tmp_path)!r}}}))\n"
        "print(*sys.modules, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) >= DECLARATIONS


def test_every_section_is_in_the_help_with_each_command_and_its_first_words() -> None:
    shown = CliRunner().invoke(bucketwire, ["--help"], terminal_width=200).output
    assert list(SECTIONS) == ["Rules", "Targets and sources", "Events and failures", "Mirrors", "Service"]
    assert all(f"\n{title}:\n" in shown for title in SECTIONS)
    for name, lazy in COMMANDS.items():
        assert lazy.summary in shown
        assert summary(EVERY[name]).startswith(lazy.summary.removesuffix("."))


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("group", ["", *GROUPS])
def test_no_line_of_a_list_of_commands_is_cut(group: str, width: int) -> None:
    shown = CliRunner().invoke(bucketwire, [*group.split(), "--help"], terminal_width=width).output
    assert "..." not in shown.partition("Commands:")[2].replace("KEY=VALUE ...", "")
    assert max(map(len, shown.splitlines())) <= width
    assert all(isinstance(command, Group) for command in EVERY.values() if isinstance(command, click.Group))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("statsu", "status"),
        ("rules", "rule"),
        ("dead", "dead-letter"),
        ("rule ad", "add"),
        ("event histroy", "history"),
    ],
)
def test_the_command_that_was_probably_meant_is_named(typed: str, meant: str) -> None:
    refused = CliRunner().invoke(bucketwire, typed.split())
    assert refused.exit_code == 2
    assert f"Did you mean '{meant}'?" in refused.output


def test_nothing_is_proposed_for_what_is_like_no_command() -> None:
    assert "Did you mean" not in CliRunner().invoke(bucketwire, ["xyzzy"]).output
