"""What a shell completes."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from shutil import which

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from app.cli import bucketwire
from tests import services

TARGETS = [("redis", "cache"), ("redis", "rows"), ("kafka", "orders")]
ANSWER = {"targets": [{"type": kind, "name": name, "arn": f"arn:minio:sqs::{name}:{kind}"} for kind, name in TARGETS]}


class Api(BaseHTTPRequestHandler):
    """Answers the list of targets to one token."""

    def do_GET(self) -> None:
        allowed = self.headers["Authorization"] == "Bearer secret"
        body = json.dumps(ANSWER if allowed and self.path == "/v1/targets?brief=true" else {"status": 401}).encode()
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = HTTPServer((services.LOOPBACK, 0), Api)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("BUCKETWIRE_URL", f"http://{services.LOOPBACK}:{server.server_port}")
    monkeypatch.setenv("BUCKETWIRE_TOKEN", "secret")
    yield str(server.server_port)
    server.shutdown()
    thread.join()
    server.server_close()


def completed(*words: str) -> list[str]:
    *before, incomplete = words
    complete = ShellComplete(bucketwire, {}, "bucketwire", "_BUCKETWIRE_COMPLETE")
    return [item.value for item in complete.get_completions(before, incomplete)]


def test_commands_are_completed() -> None:
    assert completed("re") == ["retry", "replay", "reconcile"]
    assert completed("rule", "") == ["add", "ls", "match", "rm"]
    assert completed("event", "") == ["history", "search", "show"]


@pytest.mark.usefixtures("api")
def test_targets_and_arns_are_those_of_the_service() -> None:
    assert completed("target", "show", "red") == ["redis:cache", "redis:rows"]
    assert completed("dead-letter", "ls", "--target", "kafka:") == ["kafka:orders"]
    assert completed("rule", "add", "images", "arn:minio:sqs::r") == ["arn:minio:sqs::rows:redis"]


def test_nothing_is_completed_without_the_service_or_the_right_to_read(
    api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert completed("target", "show", "") != []
    monkeypatch.setenv("BUCKETWIRE_TOKEN", "other")
    assert completed("target", "show", "") == []
    for url in (
        f"https://{services.LOOPBACK}:{api}",
        f"http://{services.LOOPBACK}:9",
        "nonsense",
        "http://[",
        "http://a:b",
    ):
        monkeypatch.setenv("BUCKETWIRE_URL", url)
        assert completed("target", "show", "") == []


def test_event_names_and_scopes_are_completed_in_lists() -> None:
    assert completed("rule", "add", "images", "redis:x", "--event", "put,de") == ["put,delete"]
    assert "s3:ObjectCreated:Put" in completed("rule", "add", "images", "redis:x", "--event", "s3:ObjectCreated:P")
    assert "put,s3:ObjectRemoved:*" in completed("replay", "--event", "put,s3:ObjectRem")
    assert completed("rule", "match", "images", "k", "--event", "s3:ObjectCreated:PutT") == [
        "s3:ObjectCreated:PutTagging"
    ]
    assert completed("token", "create", "x", "--scope", "read,in") == ["read,ingest"]


@pytest.mark.usefixtures("api")
def test_bash_completes_a_name_with_colons() -> None:
    script = CliRunner().invoke(bucketwire, ["completion", "bash"]).output
    shell = f'{script}\nprintf %s "$COMP_WORDBREAKS"\n'
    done = subprocess.run([which("bash") or "bash", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert ":" not in done.stdout
