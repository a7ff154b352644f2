"""The way of an event, as docs/explanation/architecture.md lists it, is the way of a real one."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import services
from tests.support.builders import SECRET_KEY, add_target, migrated

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/architecture.md"
MAX_FUNCTIONS, MAX_FILES = 25, 15
Hop = tuple[str, str]  # file and qualified name


def hops() -> tuple[list[Hop], list[Hop]]:
    """The listed hops of the API, and those of a worker."""
    section = PAGE.read_text().split("\n## The hops of one event\n")[1].split("\n## ")[0]
    listed = [
        [(file, name) for name, file in re.findall(r"^\d+\. `([\w.]+)` in `([\w/]+\.py)`: .+$", part, re.MULTILINE)]
        for part in section.split("\n**In a worker**")
    ]
    api, worker = listed
    return api, worker


def defined(file: str) -> set[str]:
    """The qualified names of the functions of a file."""

    def inside(node: ast.AST, prefix: str) -> set[str]:
        names = set[str]()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                if isinstance(child, ast.FunctionDef):
                    names.add(prefix + child.name)
                names |= inside(child, f"{prefix}{child.name}.")
        return names

    return inside(ast.parse((ROOT / file).read_text()), "")


def test_every_hop_is_a_function_of_the_file_that_it_names() -> None:
    api, worker = hops()
    assert api
    assert worker
    assert [hop for hop in api + worker if hop[1] not in defined(hop[0])] == []
    assert len(api + worker) <= MAX_FUNCTIONS
    assert len({file for file, _ in api + worker}) <= MAX_FILES
    numbers = re.findall(r"^(\d+)\. `", PAGE.read_text(), re.MULTILINE)
    assert numbers == [str(number) for number in range(1, len(api + worker) + 1)]


@pytest.fixture
def traced(
    postgres_outbox: str, redis_server: services.Redis, receiver: services.Receiver, tmp_path: Path
) -> tuple[list[Hop], list[Hop]]:
    """What one event passed in the API and in a worker, by the first calls."""
    database = migrated(postgres_outbox)
    target = add_target(database, "x", values={"endpoint": receiver.url})
    database.close()
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(tmp_path),
        "BUCKETWIRE_DATABASE_URL": postgres_outbox,
        "BUCKETWIRE_BROKER_URL": f"{redis_server.url}14",
        "BUCKETWIRE_DATA_DIR": str(tmp_path),
        "BUCKETWIRE_SECRET_KEYS": SECRET_KEY,
        "BUCKETWIRE_ALLOW_PRIVATE": "on",
    }
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.event_trace", target.arn("")],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert len(receiver.requests()) == 2
    delivered, api, worker = json.loads(run.stdout)
    assert "delivered=1" in delivered
    return [tuple(hop) for hop in api], [tuple(hop) for hop in worker]


def test_a_real_event_passes_the_hops_in_their_order(traced: tuple[list[Hop], list[Hop]]) -> None:
    for listed, passed in zip(hops(), traced, strict=True):
        assert [hop for hop in passed if hop in set(listed)] == listed
