"""`bucketwire doctor --frontend`: a real MinIO whose webhooks lose events, and the alerts on the same metrics."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from requests import Session

from app.cli.commands import doctor
from app.cli.frontend_metrics import CLUSTER_PATH
from tests import services
from tests.integration.cli.conftest import Cli
from tests.services import until

pytestmark = pytest.mark.nightly("its metrics as texts in tests/unit/test_frontend_metrics.py")

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
        for name in ("stored", "direct"):
            _make_bucket(server, name)
            _put(server, name, PUTS)
        lost = {"stored": PUTS - LIMIT, "direct": PUTS, "idle": 0}
        until(lambda: _counted(server, "failed_events") == lost, 40, what="the metrics")
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


def _counted(server: services.MinIO, metric: str) -> dict[str, float]:
    """A metric of each target."""
    found = [one for one in _samples(server) if one.name.startswith(f"minio_notify_target_{metric}")]
    return {one.labels["target_id"]: one.value for one in found}


def _make_bucket(server: services.MinIO, name: str) -> None:
    """Make a bucket whose rule names the webhook of the same name."""
    with closing(server.boto3()) as s3:
        s3.create_bucket(Bucket=name)
        rule = {"QueueArn": server.arn(name), "Events": ["s3:ObjectCreated:*"]}
        s3.put_bucket_notification_configuration(Bucket=name, NotificationConfiguration={"QueueConfigurations": [rule]})


def _put(server: services.MinIO, bucket: str, count: int) -> None:
    with closing(server.boto3()) as s3:
        for number in range(count):
            s3.put_object(Bucket=bucket, Key=f"{number}", Body=b"x")


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


def test_without_authentication_a_frontend_is_well_until_its_queue_grows(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "MINIO_PROMETHEUS_AUTH_TYPE": "public", "MINIO_NOTIFY_WEBHOOK_ENABLE_hook": "on",
        "MINIO_NOTIFY_WEBHOOK_ENDPOINT_hook": f"http://{services.LOOPBACK}:9/",
        "MINIO_NOTIFY_WEBHOOK_QUEUE_DIR_hook": str(services.new_folder("queue")),
    }  # fmt: skip
    with services.minio(extra_env=settings) as server:
        until(lambda: "SQS ARNs:" in server.log.read_text(), 30, what="MinIO's targets")
        for path in ("/minio/v2/metrics/node", "/minio/metrics/v3", "/minio/metrics/v3/notification"):
            told = _graded(cli, server, "--frontend", server.url + path)
            assert (told["problem"], len(told["ok"])) == ([], 1), path
        _make_bucket(server, "hook")
        _put(server, "hook", 1)

        class Clock:
            """The second look comes when MinIO has computed its metrics with the second event."""

            monotonic, time = staticmethod(time.monotonic), staticmethod(time.time)

            @staticmethod
            def sleep(_: float) -> None:
                _put(server, "hook", 1)
                until(lambda: _counted(server, "queue_length") == {"hook": 2}, 40, what="the metrics")

        monkeypatch.setattr(doctor, "time", Clock)
        [told] = _graded(cli, server, "--frontend", server.url)["problem"]
        assert re.match(
            rf"webhook hook on {server.endpoint} has 2 events in its queue, and it grows: 1 \d+ s ago\. ", told
        )


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
    said = " ".join(gone.out.split())
    assert (gone.code, "does not answer" in said, "secret" in said + gone.err) == (1, True, False)
    assert "is not a URL; write http://host:9000/minio/v2/metrics/cluster" in said


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
