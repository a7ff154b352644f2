"""A kind of drift is declared once: a fifth one, which no code knows, is counted, stored, described and shown."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from app.resources.reconciliation import DRIFT_KINDS

ROOT = Path(__file__).parents[3]

WITH_A_FIFTH_KIND = """
import importlib.util, json, os, re, sys

# As if the enumeration had one more member: other lines of its module read this one.
KINDS = "DRIFT_KINDS = tuple(kind.value for kind in DriftKind)"
spec = importlib.util.find_spec("app.resources.reconciliation")
source = spec.loader.get_source(spec.name)
assert KINDS in source
drift = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
exec(source.replace(KINDS, KINDS + ' + ("misplaced",)'), drift.__dict__)

import sqlalchemy as sa
from click.testing import CliRunner

from app.server.application import create_app
from app.cli import bucketwire
from app.cli.commands.mirrors import reconcile
from app.config.arn import TargetId
from app.config.settings import Settings
from app.outbox import tables
from app.outbox.notices import NoticeRecorder
from app.outbox.reconcile.runs import store_findings
from app.outbox.reconcile.runs import Reconciliations
from spark_jobs.reports import _COLOURS
from tests.support.builders import add_target, migrated

settings = Settings.from_environ(os.environ)
database = migrated(settings.database_url)
values = {"address": "127.0.0.1:1", "key": "k"}
target = add_target(database, "rows", type_name="redis", values=values, bucket="bucketwire:service", events=["*"])
recorder, runs = NoticeRecorder(database, interval=1, backlog=0), Reconciliations(database)
with database.writing() as connection:  # else what it notices first is no news
    connection.execute(tables.notices.insert().values(kind="drift", target_id=1, value=1, notified_at=0))
counts = {kind: 2 + number for number, kind in enumerate(drift.DRIFT_KINDS)}
runs.end(run := runs.begin(target, "images", lease=60_000), "drift", counts | {"repaired": 1})
store_findings(database, run, [{"kind": kind, "key": f"key of {kind}"} for kind in drift.DRIFT_KINDS])
recorder.record()

client = create_app(settings).test_client()
shown = client.get(f"/v1/reconciliations/{run}").json
described = client.get("/openapi.json").json["components"]["schemas"]
with database.reading() as connection:
    record = json.loads(connection.execute(sa.select(tables.events.c.record)).scalar_one())["responseElements"]
metrics = client.get("/metrics").text
page = client.get(f"/console/reconciliations/{run}").text
listed = client.get("/console/reconciliations").text
command = [CliRunner().invoke(bucketwire, ["reconcile", *words]) for words in (["ls"], ["ls", "--json"])]
facts = {"drift": float(re.search(r"bucketwire_reconcile_drift\\{.*\\} (.*)", metrics)[1])}
kinds = described["Finding"]["properties"]["kind"]["enum"]
for kind in drift.DRIFT_KINDS:
    found = client.get(f"/v1/reconciliations/{run}/findings?kind={kind}").json["findings"]
    asked = CliRunner().invoke(bucketwire, ["reconcile", "findings", run, "--kind", kind, "--json"])
    facts[kind] = {
        "api": shown[kind],
        "described": kind in kinds and kind in described["Reconciliation"]["properties"],
        "findings": [one["key"] for one in found],
        "event": record[f"x-bucketwire-{kind}"],
        "tile": f"<dt>{kind}</dt><dd>{counts[kind]}</dd>" in page,
        "link": f"kind={kind}" in page,
        "list": f"{counts[kind]} {kind}" in listed,
        "column": kind.upper() in command[0].output.upper(),
        "command": json.loads(command[1].output)[0][kind],
        "command's findings": [one["key"] for one in json.loads(asked.output)],
        "colour": kind in _COLOURS,
    }
print(json.dumps(facts))
"""


@pytest.mark.nightly("the places of the source that name a kind")
def test_a_new_kind_needs_its_declaration_alone_to_be_counted_stored_described_and_shown(tmp_path: Path) -> None:
    environ = os.environ | {"BUCKETWIRE_DATA_DIR": str(tmp_path), "BUCKETWIRE_BROKER_URL": "redis://127.0.0.1:9/0"}
    ended = subprocess.run(
        [sys.executable, "-c", WITH_A_FIFTH_KIND], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    facts = orjson.loads(ended.stdout.splitlines()[-1])
    kinds = [*DRIFT_KINDS, "misplaced"]
    assert facts.pop("drift") == sum(range(2, 2 + len(kinds))) - 1
    assert facts == {
        kind: {
            "api": number, "described": True, "findings": [f"key of {kind}"], "event": str(number), "tile": True,
            "link": True, "list": True, "column": True, "command": number, "command's findings": [f"key of {kind}"],
            "colour": True,
        }
        for number, kind in enumerate(kinds, 2)
    }  # fmt: skip


def test_the_source_names_a_kind_where_it_is_declared_and_where_it_is_found() -> None:
    named = set()
    for folder in ("app", "workers", "spark_jobs"):
        for path in (ROOT / folder).rglob("*.py"):
            source = path.read_text()
            if not any(kind in source for kind in DRIFT_KINDS):
                continue
            texts = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
            named |= {path.relative_to(ROOT).as_posix()} if texts & set(DRIFT_KINDS) else set()
        for path in (ROOT / folder).rglob("*.html"):
            words = set(re.findall(r"\w+", path.read_text()))
            named |= {path.relative_to(ROOT).as_posix()} if words & set(DRIFT_KINDS) else set()
    # The tables have the columns of the version before.
    assert named == {"app/resources/reconciliation.py", "app/outbox/tables.py"}


def test_the_page_of_reconciliation_explains_every_kind() -> None:
    page = (ROOT / "docs/reference/reconciliation.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) >= set(DRIFT_KINDS)
