"""On each server, what `make test` runs executes every statement that `make test-all` does.

MariaDB executes those whose text differs from MySQL's by more than the quotes around names; MySQL executes the rest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import executed_statements, tiers
from tests.support.databases import FOLDER

TOP = Path(__file__).parents[3]
SELECTED = {"postgresql": "postgresql", "mysql": "mysql and not mariadb", "mariadb": "mysql or mariadb"}


@pytest.mark.heavy
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("server", SELECTED)
def test_no_statement_is_executed_by_moved_tests_alone(server: str, tmp_path: Path) -> None:
    noted = tmp_path / "statements"
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", executed_statements.__name__]
    plain = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    plain[executed_statements.VARIABLE] = str(noted)
    subprocess.run([*argv, "-k", SELECTED[server], FOLDER], cwd=TOP, env=plain, check=True)
    staying: set[str] = set()
    moved: dict[str, str] = {}
    for line in map(json.loads, noted.read_text().splitlines()):
        statements = {each.replace("`", "") for each in line["statements"]}
        if line["tier"] == tiers.USUAL:
            staying |= statements
        else:
            moved |= dict.fromkeys(statements, line["id"])
    assert len(staying) > 300
    alone = [f"{test}: {statement}" for statement, test in moved.items() if statement not in staying]
    assert not alone, "\n".join(alone)
