"""Commands at the schema of a later version: after rolling back, and while the next version is rolled out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.outbox import migration, schema_version
from app.outbox.engine.database import Database
from tests import services
from tests.integration.cli.conftest import Cli
from tests.services import until
from tests.support.later_schema import LATER, migrate_further
from tests.support.service_processes import Role

COMMANDS = (
    ("target", "ls"), ("rule", "ls"), ("event", "ls"), ("dead-letter", "ls"), ("retry", "ls"),
    ("source", "ls"), ("token", "ls"), ("audit",), ("reconcile", "ls"), ("new-epoch",), ("config", "export"),
    ("target", "set", "webhook:a", "endpoint=https://example.com/"), ("token", "create", "ci", "--scope", "read"),
)  # fmt: skip
NOTE = f"is at revision {LATER}, which is newer than this version's {schema_version.head()}; this version works with it"


@pytest.fixture
def later(request: pytest.FixtureRequest, empty_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A database of a later version, which needs the code of the parameter at least, if there is one."""
    monkeypatch.setenv("BUCKETWIRE_DATABASE_URL", empty_url)
    database = Database(empty_url)
    migration.migrate(database)
    migrate_further(database, oldest_code=getattr(request, "param", ""))
    yield database
    database.close()


def test_commands_work_at_a_later_schema_that_only_adds_and_migrate_leaves_it(bare: Cli, later: Database) -> None:
    done = bare("migrate")
    assert (done.code, NOTE.removeprefix("is ") in done.out) == (0, True), done
    assert bare("migrate", "--json").json["revision"] == LATER
    for words in COMMANDS:
        done = bare(*words)
        assert (done.code, "revision" in done.err) == (0, False), (words, done)
    assert "revision" not in bare("status").err, "which has problems, as nothing runs"
    findings = bare("doctor", "--json").json["findings"]
    grades = {(each["subject"], each["grade"], each["text"]) for each in findings if each["subject"] != "database"}
    assert ("schema", "note", f"the database {NOTE}") in grades
    assert [each["grade"] for each in findings if each["subject"] == "database"] == ["ok"]
    assert schema_version.current(later) == LATER


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("later", ["9998"], indirect=True)
def test_a_later_schema_that_needs_newer_code_is_refused(bare: Cli) -> None:
    for words in (*COMMANDS, ("migrate",), ("up",), ("api",), ("worker",)):
        done = bare(*words)
        assert done.code == 1, words
        assert f"is at revision {LATER}, which is newer than this version's {schema_version.head()}" in done.err
        assert "needs code of revision 9998 or newer; use the version that migrated it, or a newer one" in done.err
    found = [each for each in bare("doctor", "--json").json["findings"] if each["grade"] == "problem"]
    assert ("database", True) in [(each["subject"], "needs code of revision 9998" in each["text"]) for each in found]
    refused = bare("migrate", "--down", "0015")
    assert "at revision 9999, which this version does not know; downgrade it with the version that" in refused.err


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("later", ["0010"], indirect=True)
def test_a_later_schema_that_needs_code_which_this_one_has_is_used(bare: Cli) -> None:
    assert bare("target", "ls").code == bare("migrate").code == 0


def test_up_starts_at_a_later_schema_and_says_so_once(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/bucketwire.db")
    migration.migrate(database)
    migrate_further(database)
    database.close()
    listen = f"{services.LOOPBACK}:{services.free_port()}"
    settings = {"BUCKETWIRE_DATA_DIR": str(tmp_path), "BUCKETWIRE_LISTEN": listen, "PATH": os.environ["PATH"]}
    with Role(["up", "--concurrency", "1"], settings, "Ctrl-C stops everything.").start() as up:
        said = up.said
        until(lambda: "works with it" in said(), 30, what="the note")
        assert said().count(NOTE) == 1
