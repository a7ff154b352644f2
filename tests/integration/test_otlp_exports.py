"""What a process spends on exports to OpenTelemetry that nobody takes: a bounded queue, and a line for each signal."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest

from tests import services

PATIENCE = 300
EVENTS = 6000
MAX_KEPT = 4096  # 2,048 in the queue, and those of requests that are being made
BUSY_PROCESS = f"""
import gc, json, logging
from app import telemetry
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.trace import ReadableSpan

logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
telemetry.start("worker")
for number in range({EVENTS}):
    with telemetry.span("work", number=number):
        logging.getLogger("bucketwire.test").info("line %d", number)
gc.collect()
objects = gc.get_objects()
print(json.dumps([sum(isinstance(one, kind) for one in objects) for kind in (ReadableSpan, ReadableLogRecord)]))
telemetry.stop()
"""


@contextmanager
def hanging() -> Iterator[int]:
    """The port of a socket to which the kernel connects, and which nobody reads."""
    with socket.create_server((services.LOOPBACK, 0)) as listening:
        yield listening.getsockname()[1]


@contextmanager
def refusing() -> Iterator[int]:
    """A port on which nothing listens."""
    yield services.free_port()


@contextmanager
def failing() -> Iterator[int]:
    """The port of a server that answers each request with 503, and asks for a pause of an hour."""
    with services.receiver() as server:
        server.set(status=503, headers={"Retry-After": "3600"})
        yield server.port


@pytest.mark.nightly(
    "one that hangs, and one that fails: a request is given up, whatever it failed by",
    when=lambda collector: collector is refusing,
)
@pytest.mark.parametrize("collector", [hanging, refusing, failing])
def test_a_process_whose_exports_nobody_takes_keeps_a_bounded_queue_logs_a_line_and_ends(collector: Any) -> None:
    with collector() as port:
        environ = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{services.LOOPBACK}:{port}"}
        command = [sys.executable, "-c", BUSY_PROCESS]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=True)
    spans, lines = orjson.loads(done.stdout)
    assert 0 < spans <= MAX_KEPT
    assert 0 < lines <= MAX_KEPT
    logged = done.stderr.splitlines()
    assert len([line for line in logged if line.startswith("bucketwire.test line")]) == EVENTS
    others = [line for line in logged if not line.startswith("bucketwire.test line")]
    dropped = [line.split()[1] for line in others if "are dropped" in line]
    # The SDK reports the full queue of one signal only in 20 s; its requests may not have failed by then.
    assert sorted(dropped) in (["logs"], ["traces"], ["logs", "traces"]), others
    assert len(others) == len(dropped), others
