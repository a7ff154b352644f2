"""What reads answers over HTTP beside the targets, each as a function that makes one request to a port."""

from __future__ import annotations

import pytest

from app.asked_servers import problem_of
from app.cli.frontend_metrics import fetch
from app.cli_common.api_session import ApiSession
from app.cli_common.param_types import complete_target
from app.config.settings import Settings
from app.config.target_settings import load
from app.console.openid_provider import Provider
from app.minio_rules import bucket_rules
from spark_jobs.listings.s3_listing import Bucket
from spark_jobs.stores.elasticsearch import Cluster
from tests.services import LOOPBACK
from tests.support.raw_http import settings

METRICS = b"minio_notify_events_sent_total 1\n"
TARGETS = {"targets": [{"type": "redis", "name": "a", "arn": "arn"}]}


def command_line(port: int) -> None:
    assert ApiSession(f"http://{LOOPBACK}:{port}", max_answer_bytes=1 << 24).request("GET", "/").json() == TARGETS


def frontend(port: int) -> None:
    assert fetch(f"http://{LOOPBACK}:{port}/minio/v2/metrics/cluster", "").versions == {2}


def openid(port: int) -> None:
    issuer = f"http://{LOOPBACK}:{port}"
    address, _ = Provider(Settings(oidc_issuer=issuer, oidc_client_id="c", oidc_console_url=issuer)).begin("/")
    assert address.startswith(issuer)


def health(port: int) -> None:
    assert not problem_of(f"http://{LOOPBACK}:{port}")


def completion(port: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BUCKETWIRE_URL", f"http://{LOOPBACK}:{port}")
        assert [item.value for item in complete_target("r")] == ["redis:a"]


def spark(port: int) -> None:
    with Cluster(load("elasticsearch", settings("elasticsearch", port))) as cluster:
        assert cluster.request("GET", "/").body == TARGETS


def minio(port: int) -> None:
    assert list(bucket_rules(f"http://{LOOPBACK}:{port}", "a", "b")) == []


def listing(port: int) -> None:
    client = Bucket("images", f"http://{LOOPBACK}:{port}", login=("a", "b", None)).client()
    assert [entry["Key"] for entry in client.list_objects_v2(Bucket="images")["Contents"]] == ["a"]
    client.close()


READERS = {client.__name__: client for client in (command_line, frontend, openid, spark)}
CLIENTS = READERS | {client.__name__: client for client in (health, completion, minio, listing)}
ENTRY = b"<Contents><Key>%s</Key><LastModified>2026-11-28T00:00:00Z</LastModified><Size>1</Size></Contents>"
