"""What is wrong with an API, asked at its address."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from app.asked_servers import READY, problem_of
from app.outbox.engine.database import Database
from tests import services
from tests.integration.api.conftest import Start, url_of


def test_an_api_that_answers_has_no_problem_though_nothing_drains(log: Database, start: Start) -> None:
    api = start(url_of(log))
    assert api.client.get(READY).status_code == 503
    assert problem_of(api.url) == problem_of(api.url, READY) == ""


def test_an_api_without_its_database_says_what_is_wrong(start: Start) -> None:
    api = start(f"postgresql://x@{services.LOOPBACK}:{services.free_port()}/x", api_tokens=f"minio:ingest:{'t' * 32}")
    assert problem_of(api.url) == ""
    problem = problem_of(api.url, READY)
    assert problem.startswith("answers 503 Service Unavailable: database: it cannot be reached")
    assert "drain" not in problem


def test_an_api_that_is_gone_or_stopped_does_not_answer(log: Database, start: Start) -> None:
    api = start(url_of(log))
    api.freeze()
    assert problem_of(api.url, seconds=0.2) == "does not answer: no answer within 0.2 s"
    api.thaw()
    api.stop()
    assert problem_of(api.url) == "does not answer: connection refused"
    assert problem_of("http://no-such-host.invalid:1").startswith("does not answer: ")


@contextlib.contextmanager
def answering(*parts: bytes) -> Iterator[str]:
    """A server that sends each connection these bytes, again and again the last; its URL."""
    with socket.create_server((services.LOOPBACK, 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    wire, _ = listener.accept()
                    with wire, contextlib.suppress(OSError):
                        wire.recv(65_536)
                        for part in parts:
                            wire.sendall(part)
                        while parts[-1] and wire.send(parts[-1]):
                            time.sleep(0.01)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://{services.LOOPBACK}:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ((b"HTTP/1.1 200 OK\r\nX: ", b"a"), "does not answer: no answer within 0.3 s"),
        ((b"HTTP/1.1 503 x\r\nContent-Length: 2\r\n\r\n[]", b""), "answers 503 Service Unavailable"),
        ((b'HTTP/1.1 503 x\r\nContent-Length: 12\r\n\r\n{"checks":1}', b""), "answers 503 Service Unavailable"),
        ((b"HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n", b""), "answers 404 Not Found"),
        ((b"220 mail.example.com ESMTP\r\n", b""), "does not answer: "),
        ((b"",), "does not answer: "),
    ],
    ids=["drips", "no object", "no checks", "not found", "no http", "closes"],
)
def test_whatever_else_listens_there_is_no_api(parts: tuple[bytes, ...], problem: str) -> None:
    with answering(*parts) as url:
        assert problem_of(url, READY, seconds=0.3).startswith(problem)
