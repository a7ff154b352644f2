"""`bucketwire doctor --frontend`: a real MinIO whose webhooks lose events, and the alerts on the same metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from requests import Session

from app.cli.frontend_metrics import CLUSTER_PATH
from tests import services
from tests.integration.cli.conftest import Cli
from tests.services import until

ALERTS = yaml.safe_load((Path(__file__).parents[3] / "deploy/prometheus/alerts.yml").read_text())["groups"][0]["rules"]
LIMIT = 3
PUTS = LIMIT + 2


@pytest.fixture(scope="module")
def losing() -> Iterator[services.MinIO]:
    """A MinIO whose webhooks are down: `stored` has a queue for three events, `direct` has none; `idle` has no rule."""
    nobody = f"http://{services.LOOPBACK}:{services.free_port()}/"
    settings = {f"MINIO_NOTIFY_WEBHOOK_ENABLE_{name}": "on" for name in ("stored", "direct", "idle")}
    settings |= {f"MINIO_NOTIFY_WEBHOOK_ENDPOINT_{name}": nobody for name in ("stored", "direct", "idle")}
    settings["MINIO_NOTIFY_WEBHOOK_QUEUE_DIR_stored"] = str(services.new_folder("queue"))
    settings["MINIO_NOTIFY_WEBHOOK_QUEUE_LIMIT_stored"] = str(LIMIT)
    with services.minio(extra_env=settings) as server:
        until(lambda: "SQS ARNs:" in server.log.read_text(), 30, what="MinIO's targets")
        s3 = server.boto3()
        for name in ("stored", "direct"):
            s3.create_bucket(Bucket=name)
            rule = {"QueueArn": server.arn(name), "Events": ["s3:ObjectCreated:*"]}
            s3.put_bucket_notification_configuration(
                Bucket=name, NotificationConfiguration={"QueueConfigurations": [rule]}
            )
            for number in range(PUTS):
                s3.put_object(Bucket=name, Key=f"{number}", Body=b"x")
        s3.close()
        until(lambda: _counted(server) == {"stored": PUTS - LIMIT, "direct": PUTS, "idle": 0}, 40, what="the metrics")
        yield server


@pytest.fixture
def token(losing: services.MinIO, monkeypatch: pytest.MonkeyPatch) -> str:
    """The bearer token of the metrics, in the environment."""
    made = _token(losing)
    monkeypatch.setenv("BUCKETWIRE_FRONTEND_TOKEN", made)
    return made


def _token(server: services.MinIO) -> str:
    return str(server.mc("admin", "prometheus", "generate", "m")[0]["bearerToken"])


def _samples(server: services.MinIO) -> list[Any]:
    with Session() as session:
        answer = session.get(
            server.url + CLUSTER_PATH, headers={"Authorization": f"Bearer {_token(server)}"}, timeout=10
        )
    return [sample for family in text_string_to_metric_families(answer.text) for sample in family.samples]


def _counted(server: services.MinIO) -> dict[str, float]:
    failed = [one for one in _samples(server) if one.name.startswith("minio_notify_target_failed_events")]
    return {one.labels["target_id"]: one.value for one in failed}


def _graded(cli: Cli, server: services.MinIO, *arguments: str) -> dict[str, list[str]]:
    """The findings about the frontend by grade."""
    findings = cli("doctor", "--json", "--frontend-wait", "0", *arguments).json["findings"]
    texts: dict[str, list[str]] = {"ok": [], "note": [], "problem": []}
    for one in findings:
        if one["subject"] == server.endpoint:
            texts[one["grade"]].append(one["text"])
    return texts


def test_the_doctor_names_what_a_frontend_has_lost_and_the_queue_that_is_stuck(
    cli: Cli, losing: services.MinIO, token: str
) -> None:
    told = _graded(cli, losing, "--frontend", losing.url)
    assert (len(told["problem"]), told["note"], told["ok"]) == (3, [], []), told
    lost, kept = sorted(told["problem"][:2]), told["problem"][2]
    assert lost[0].startswith(f"webhook direct on {losing.endpoint} lost {PUTS} events since it started ")
    assert lost[1].startswith(f"webhook stored on {losing.endpoint} lost {PUTS - LIMIT} events since it started ")
    assert kept.startswith(f"webhook stored on {losing.endpoint} has {LIMIT} events in its queue, as many as 0 s ago")
    shown = cli("doctor", "--frontend", losing.url, "--frontend-wait", "0")
    assert shown.code == 1
    assert "looking at the queues of 1 frontend again in 0 s" in shown.err
    assert token not in shown.out + shown.err


@pytest.mark.parametrize("path", ["/minio/metrics/v3", "/minio/metrics/v3/notification"])
def test_metrics_of_version_3_show_losses_without_the_target(
    cli: Cli, losing: services.MinIO, token: str, path: str
) -> None:
    told = _graded(cli, losing, "--frontend", losing.url + path)
    assert [text.split(" since")[0] for text in told["problem"]] == [
        f"its targets, of whatever type, lost {2 * PUTS - LIMIT} events"
    ]
    assert told["note"] == [f"these metrics show no queue; {CLUSTER_PATH} does"]


def test_a_frontend_without_authentication_that_loses_nothing_is_well(cli: Cli) -> None:
    settings = {
        "MINIO_PROMETHEUS_AUTH_TYPE": "public", "MINIO_NOTIFY_WEBHOOK_ENABLE_bw": "on",
        "MINIO_NOTIFY_WEBHOOK_ENDPOINT_bw": f"http://{services.LOOPBACK}:9/",
    }  # fmt: skip
    with services.minio(extra_env=settings) as server:
        for path in ("", CLUSTER_PATH, "/minio/v2/metrics/node", "/minio/metrics/v3/notification"):
            until(lambda path=path: _graded(cli, server, "--frontend", server.url + path)["ok"], 30)  # type: ignore[misc]
        told = _graded(cli, server, "--frontend", server.url)
        assert [told["problem"], len(told["ok"])] == [[], 1], told


def test_what_is_no_metrics_of_a_minio_is_said_with_the_path_and_the_token(
    cli: Cli, losing: services.MinIO, token: str
) -> None:
    def problem(*arguments: str) -> str:
        [told] = _graded(cli, losing, *arguments)["problem"]
        return told

    refused = problem("--frontend", losing.url, "--frontend-token", "wrong")
    assert "answered 403: set BUCKETWIRE_FRONTEND_TOKEN to the bearer token that `mc admin prometheus" in refused
    assert "wrong" not in refused
    assert "characters that are not allowed in a token" in problem("--frontend", losing.url, "--frontend-token", "a\nb")
    assert f"the path of the metrics is {CLUSTER_PATH}" in problem("--frontend", f"{losing.url}/minio/metrics/v3/nope")
    for path in ("/minio/v2/metrics/bucket", "/minio/health/live"):
        assert "has no minio_notify_… metrics" in problem("--frontend", losing.url + path)
    gone = cli("doctor", "--frontend", f"http://root:secret@{services.LOOPBACK}:9", "--frontend", "no url")
    assert (gone.code, "does not answer" in gone.out, "secret" in gone.out + gone.err) == (1, True, False)
    assert "is not a URL; write http://host:9000/minio/v2/metrics/cluster" in gone.out


def test_every_selector_of_the_alerts_on_frontends_finds_something_at_a_minio(losing: services.MinIO) -> None:
    alerts = {rule["alert"]: rule["expr"] for rule in ALERTS if "minio_" in rule["expr"]}
    assert len(alerts) == 3
    samples = _samples(losing)
    for name, expression in alerts.items():
        for metric, selector in re.findall(r"(minio_\w+)\{([^}]*)\}", expression):
            wanted = re.findall(r'(\w+)(!?=)"([^"]*)"', selector)
            assert any(
                # The client's parser adds `_total` to the name of a counter that does not have it.
                one.name in (metric, f"{metric}_total")
                and all((one.labels.get(label, "") == value) == (sign == "=") for label, sign, value in wanted)
                for one in samples
            ), f"{name}: {metric}{{{selector}}}"
            assert 'server!=""' in selector, "Bucketwire has the same names, without this label"
