"""Test targets: send one a test event by way of the log, or try settings that are not stored.

Settings are tried in a process of its own: `app` knows no target's driver.
"""

import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import orjson
from flask import Blueprint

from app.api.description import answers, target_of
from app.api.errors import ApiProblem, check_active
from app.api.services import services
from app.api.token_scopes import ADMIN, needs
from app.config.arn import TargetId
from app.events.own_events import TEST_BUCKET, make_test_events
from app.outbox.engine.database import now_ms
from app.outbox.log.append import QueueFull
from app.outbox.log.group_commit import Recorder
from app.resources.declaration import Nothing
from app.resources.target import TargetTest

routes = Blueprint("target_test", __name__)
MAX_SECONDS = 25.0  # of a test, less than clients wait for an answer
_PROGRAM = "workers.target_test"  # only a name here, as in `app.cli.commands.processes`
_running = threading.BoundedSemaphore(2)  # tests in this process, each of which takes some 60 MB and a second


@routes.post("/v1/targets/<type_name>/<name>/test")
@needs(ADMIN, limited=True)
@answers(TargetTest, "the test event is recorded", body=Nothing, status=202)
def test(type_name: str, name: str, body: Nothing) -> TargetTest:  # noqa: ARG001 - nothing else is accepted
    """Record a marked test event for this target only, independent of the rules.

    It is delivered like any other event, after those that are pending; `history` is the address of its delivery state.
    A namespace gets a PUT and the DELETE of the same object, so that it keeps nothing of them.
    """
    target = target_of(type_name, name)
    registry = services().registry
    stored = registry.target(target)
    check_active(stored)
    namespace = getattr(registry.settings(stored), "format", "") == "namespace"
    now, key = now_ms(), uuid.uuid4().hex
    events = make_test_events(key, now, namespace=namespace)
    [receipt] = Recorder(services().database, only_target=target, action="target.test").record([events])
    if isinstance(receipt, Exception):
        raise receipt
    arn = target.arn(services().settings.region)
    if isinstance(receipt, QueueFull):
        raise ApiProblem("queue-full", f"the queue of {arn} is full; no test event was recorded", {"targets": [arn]})
    return TargetTest(
        target=arn,
        ids=[event.id for event in events],
        bucket=TEST_BUCKET,
        key=key,
        history=f"/v1/events?{urlencode({'bucket': TEST_BUCKET, 'key': key})}",
    )


def run_settings_test(
    target: TargetId, settings: Mapping[str, str], *, allow_private: bool, limited: bool = False
) -> list[dict[str, Any]]:
    """Return the steps of a test: `step`, `ok`, `seconds`, `message`. Raises `ApiProblem` if others are running.

    The settings, which have secrets, are passed by standard input. A `limited` test reaches no link-local address.
    """
    if not _running.acquire(blocking=False):
        raise ApiProblem("too-many-tests", "two tests of settings are running; try again in some seconds")
    try:
        given = {"settings": dict(settings), "allow_private": allow_private, "limited": limited}
        return _run(target, orjson.dumps(given))
    finally:
        _running.release()


def _run(target: TargetId, given: bytes) -> list[dict[str, Any]]:
    command = [sys.executable, "-P", "-m", "bucketwire.start", _PROGRAM, str(target), "--json", "--settings"]
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=MAX_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return [_failed(MAX_SECONDS, f"no result within {MAX_SECONDS:g} s")]
    try:
        steps: list[dict[str, Any]] = orjson.loads(done.stdout)["steps"]
    except (ValueError, KeyError):  # a defect; what it wrote may quote a secret
        return [_failed(0.0, f"the test ended without a result, with exit code {done.returncode}")]
    return steps


def _failed(seconds: float, message: str) -> dict[str, Any]:
    return {"step": "test", "ok": False, "seconds": seconds, "message": message}
