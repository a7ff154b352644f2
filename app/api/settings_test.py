"""Test a target's settings without storing them, in a process of its own: `app` knows no target's driver."""

import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import orjson

from app.api.errors import ApiProblem
from app.config.arn import TargetId

MAX_SECONDS = 25.0  # of a test, less than clients wait for an answer
_PROGRAM = "workers.target_test"  # only a name here, as in `app.cli.commands.processes`
_running = threading.BoundedSemaphore(2)  # tests in this process, each of which takes some 60 MB and a second


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
