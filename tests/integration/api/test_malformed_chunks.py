"""A request whose chunks are malformed is the client's fault, and concerns no other request."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest

from tests.integration.api.conftest import Api

BROKEN = {
    "no size": b"zz\r\nabc\r\n0\r\n\r\n",
    "an empty size": b"\r\nabc\r\n0\r\n\r\n",
    "a negative size": b"-3\r\nabc\r\n0\r\n\r\n",
    "a longer chunk than its size": b"3\r\nabcdef\r\n0\r\n\r\n",
    "an invalid extension": b"3;\n\r\nabc\r\n0\r\n\r\n",
}


CUT_OFF = {"before a chunk": b"", "within a size": b"5", "within a chunk": b"5\r\nab", "after a chunk": b"2\r\n{}\r\n"}


def _status(api: Api, path: str, body: bytes, more: str = "") -> int:
    address = urlsplit(api.url)
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=30) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n{more}"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + body)
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize("broken", BROKEN)
def test_malformed_chunks_are_refused(plain: Api, broken: str) -> None:
    for path in ("/v1/events", "/v1/rules", "/bucket?notification", "/minio/admin/v3/set-config-kv"):
        assert 400 <= _status(plain, path, BROKEN[broken]) < 500, path
    assert plain.client.get("/healthz").status_code == 200


@pytest.mark.parametrize("cut", CUT_OFF)
def test_chunks_that_are_cut_off_are_the_clients_fault(plain: Api, cut: str) -> None:
    for path in ("/v1/events", "/v1/rules"):
        assert _status(plain, path, CUT_OFF[cut]) == 400, path
        assert _status(plain, path, CUT_OFF[cut], "Content-Encoding: br\r\n") == 415, path  # and the rest is not there
