"""Requests for a benchmark, and one thread that keeps connections busy with them."""

import itertools
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIXTURE = Path(__file__).parents[1] / "tests/fixtures/minio_webhook_events.jsonl"
BATCH = 1000
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Result:
    """One measurement: events per second, and the sorted latencies of the requests in seconds."""

    rate: float
    latencies: Sequence[float] = ()

    def quantile(self, part: float) -> float | None:
        """Return a latency in milliseconds."""
        return self.latencies[int(len(self.latencies) * part)] * 1000 if self.latencies else None


def envelope() -> tuple[bytes, bytes, int]:
    """Return a real event in two parts, between which a unique request id goes, and its size."""
    line = FIXTURE.read_bytes().splitlines()[0]
    mark = b'"x-amz-request-id":"'
    at = line.index(mark) + len(mark)
    return line[:at], line[at + 16 :], len(line)


def single(head: bytes, tail: bytes) -> bytes:
    number = next(_numbers)
    return (head + b"%016X" % number + tail).replace(b"a.txt", b"dir/%08d.bin" % (number % 100_000))


def record(body: bytes) -> bytes:
    return body[body.index(b'"Records":[') + 11 : -2]


def request(body: bytes, kind: bytes = b"application/json") -> bytes:
    start = b"POST /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: " + kind
    return start + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def makers(batch: int = BATCH) -> tuple[Callable[[], bytes], Callable[[], bytes], int]:
    """Return functions that make a request of one event and of `batch` events in lines, and an event's size."""
    head, tail, size = envelope()

    def post() -> bytes:
        return request(single(head, tail))

    def post_batch() -> bytes:
        lines = b"\n".join(record(single(head, tail)) for _ in range(batch))
        return request(lines, b"application/x-ndjson")

    return post, post_batch, size


def drive(
    ports: int | Sequence[int], connections: int, make: Callable[[], bytes], seconds: float, *, status: int = 202
) -> tuple[int, float, list[float]]:
    """Keep connections busy, one request at a time each; return requests, seconds and sorted latencies.

    One thread with bare sockets, because the cost of a heavy client would be measured too. The connections are divided
    among the ports; with `seconds` 0 each sends one request. Raises AssertionError at an answer of another status.
    """
    places = [ports] if isinstance(ports, int) else ports
    selector = selectors.DefaultSelector()
    waiting: dict[socket.socket, float] = {}
    responses: dict[socket.socket, bytes] = {}
    for number in range(connections):
        client = socket.create_connection(("127.0.0.1", places[number % len(places)]))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(client, selectors.EVENT_READ)
        client.sendall(make())
        waiting[client] = time.perf_counter()
    began, latencies = time.perf_counter(), []
    while waiting:
        ready = selector.select(60)
        assert ready, f"no answer within 60 s on {len(waiting)} connections"
        for key, _ in ready:
            connection: Any = key.fileobj
            received = connection.recv(65536)
            responses[connection] = response = responses.get(connection, b"") + received
            assert received, f"the connection was closed: {response!r}"
            if not _is_complete(response):
                continue
            now = time.perf_counter()
            assert response.startswith(b"HTTP/1.1 %d" % status), response
            latencies.append(now - waiting.pop(connection))
            del responses[connection]
            if now - began < seconds:
                connection.sendall(make())
                waiting[connection] = now
            else:
                connection.close()
                selector.unregister(connection)
    return len(latencies), time.perf_counter() - began, sorted(latencies)


def _is_complete(response: bytes) -> bool:
    head, divider, body = response.partition(b"\r\n\r\n")
    if not divider:
        return False
    _, found, length = head.lower().partition(b"content-length: ")
    assert found, response
    return len(body) >= int(length.partition(b"\r\n")[0])
