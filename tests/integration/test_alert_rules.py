"""The alert rules, as Prometheus's own tool reads and evaluates them."""

from __future__ import annotations

import subprocess

import yaml

from tests import provision, services
from tests.support.metric_expressions import ALERTS, ROOT

RULES = ROOT / "deploy/prometheus"


def promtool(*arguments: str) -> str:
    services.need("promtool")
    command = [provision.PROMTOOL / "promtool", *arguments]
    done = subprocess.run(command, cwd=RULES, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_reads_every_rule() -> None:
    assert f"SUCCESS: {len(ALERTS)} rules found" in promtool("check", "rules", "--lint=all", "alerts.yml")


def test_alerts_fire_and_end_as_their_tests_say() -> None:
    promtool("test", "rules", "alerts_test.yml")
    tested = yaml.safe_load((RULES / "alerts_test.yml").read_text())["tests"]
    fired = {one["alertname"] for test in tested for one in test["alert_rule_test"] if one.get("exp_alerts")}
    assert {rule["alert"] for rule in ALERTS} - fired == set()
