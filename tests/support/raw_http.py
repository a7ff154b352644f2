"""An HTTP server whose answers are bytes of the test's choice, for what no real server sends.

`ANSWERED` has for each type of target that uses HTTP its settings, and what its remote answers to a request.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.services import LOOPBACK

Pieces = Sequence[bytes]


@dataclass(frozen=True)
class Asked:
    """One request: the number of its connection, and of those by it before."""

    connection: int
    before: int
    head: bytes
    body: bytes

    @property
    def is_delivery(self) -> bool:
        """Whether it carries events, and not what a target asks when it is opened."""
        return self.head.startswith((b"POST", b"PUT")) and b"AmazonSQS.GetQueueAttributes" not in self.head


@dataclass(eq=False)
class RawServer:
    """Sends the pieces that `answer` returns for a request, each by itself; None closes the connection instead."""

    answer: Callable[[Asked], Pieces | None]
    asked: list[Asked] = field(default_factory=list)
    closes: Callable[[Asked], bool] = lambda _: False  # after the answer
    sent: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))  # a count for each delivery

    def __enter__(self) -> RawServer:
        self._listening = socket.create_server((LOOPBACK, 0))
        self.port = self._listening.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._open: list[socket.socket] = []
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)

    def deliveries(self) -> list[Asked]:
        """The requests with events."""
        return [asked for asked in self.asked if asked.is_delivery]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.append(connection)
                self._threads.append(
                    threading.Thread(target=self._serve, args=(len(self._open), connection), daemon=True)
                )
                self._threads[-1].start()

    def _serve(self, number: int, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            for before, (head, body) in enumerate(_requests(connection)):
                asked = Asked(number, before, head, body)
                self.asked.append(asked)
                pieces = self.answer(asked)
                if pieces is None:
                    return
                for piece in pieces:
                    connection.sendall(piece)
                if asked.is_delivery:
                    self.sent.release()
                if self.closes(asked):
                    return


def _requests(connection: socket.socket) -> Iterator[tuple[bytes, bytes]]:
    received = b""
    while True:
        while b"\r\n\r\n" not in received:
            if not (more := connection.recv(65536)):
                return
            received += more
        head, _, received = received.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        while len(received) < int(length[1] if length else 0):
            if not (more := connection.recv(65536)):
                return
            received += more
        size = int(length[1] if length else 0)
        yield head, received[:size]
        received = received[size:]


def answer_of_webhook(asked: Asked) -> tuple[int, bytes]:
    """The status and the body of an endpoint that refuses the events whose key begins with `bad`."""
    return (500, b"cannot") if b"bad-" in asked.body else (200, b"thanks")


def answer_of_sqs(asked: Asked) -> tuple[int, bytes]:
    """What SQS answers, for a queue that cannot store the events whose key begins with `bad`."""
    if b"GetQueueAttributes" in asked.head:
        return 200, b'{"Attributes": {"QueueArn": "arn:aws:sqs:us-east-1:0:q"}}'
    named: dict[str, list[dict[str, object]]] = {"Successful": [], "Failed": []}
    for entry in json.loads(asked.body)["Entries"]:
        is_bad = "bad-" in entry["MessageBody"]
        named["Failed" if is_bad else "Successful"].append(
            {"Id": entry["Id"], "Code": "InternalError", "Message": "cannot", "SenderFault": False}
        )
    return 200, json.dumps(named).encode()


def answer_of_elasticsearch(asked: Asked) -> tuple[int, bytes]:
    """What Elasticsearch answers, for an index that cannot store the events whose key begins with `bad`."""
    if asked.head.startswith(b"GET / "):
        return 200, b'{"version": {"number": "8.19.0"}}'
    if not asked.is_delivery or b"/_mget" in asked.head:
        return 200, b'{"indices": [{"name": "events"}], "aliases": [], "data_streams": []}'
    good: dict[str, object] = {"status": 201}
    bad = {"status": 500, "error": {"type": "cannot", "reason": "cannot"}}
    lines = iter(asked.body.splitlines())
    items = []
    for action in lines:
        ((name, named),) = json.loads(action).items()
        items.append({name: {"_id": named.get("_id", "any")} | (bad if b"bad-" in next(lines) else good)})
    return 200, json.dumps({"errors": b"bad-" in asked.body, "items": items}).encode()


ANSWERED: dict[str, Callable[[Asked], tuple[int, bytes]]] = {
    "webhook": answer_of_webhook,
    "sqs": answer_of_sqs,
    "elasticsearch": answer_of_elasticsearch,
}


def settings(type_name: str, port: int) -> dict[str, str]:
    """The settings of a target of this type, for a server at this port of this machine."""
    url = f"http://{LOOPBACK}:{port}"
    return {
        "webhook": {"endpoint": f"{url}/", "allow_private": "on", "timeout": "5s", "read_timeout": "5s"},
        "sqs": {
            "queue_url": f"{url}/0/q", "access_key": "a", "secret_key": "b", "region": "us-east-1", "timeout": "5s",
        },
        "elasticsearch": {"url": url, "index": "events", "format": "access", "timeout": "5s"},
    }[type_name]  # fmt: skip


def written(status: int, body: bytes, *headers: str) -> bytes:
    """An answer as any server writes it, with these headers more."""
    lines = [f"HTTP/1.1 {status} Any", "X-Elastic-Product: Elasticsearch", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body
