"""The PromQL of the alerts, the dashboard and the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import orjson
import yaml

ROOT = Path(__file__).parents[2]
ALERTS = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD = orjson.loads((ROOT / "deploy/grafana/bucketwire.json").read_text())
SCALE_OUT = (ROOT / "docs/how-to/scale-out.md").read_text()


def dashboard_expressions() -> Iterator[str]:
    yield from (target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ()))


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in ALERTS)
    yield from dashboard_expressions()
    yield from re.findall(r"^ +(?:query|expr): (.+)$", SCALE_OUT, re.MULTILINE)
