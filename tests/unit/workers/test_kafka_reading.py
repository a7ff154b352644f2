"""A broker that sends faster than this process reads: what has come is looked at after a mebibyte."""

from __future__ import annotations

import socket
import ssl
from typing import Any, cast

import pytest
from kafka.errors import KafkaConnectionError
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

from workers.systems.kafka import client


class Wire:
    """A socket with answers: bytes, or an error; the last one for ever."""

    def __init__(self, *answers: bytes | Exception, pending: int = 0) -> None:
        self._answers, self._pending, self.received = list(answers), pending, 0

    def recv(self, _: int) -> bytes:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        self.received += len(answer)
        return answer

    def pending(self) -> int:
        """Bytes that TLS has already read and decrypted."""
        return max(0, self._pending - self.received)


@pytest.mark.parametrize("kind", [KafkaTCPTransport, KafkaSSLTransport])
def test_what_comes_without_end_is_read_in_parts(kind: type[Any]) -> None:
    transport = kind.__new__(kind)
    transport._sock = Wire(b"x" * 4096)
    assert transport._sock_recv() == (b"x" * (1 << 20), None)
    transport._sock = Wire(b"x" * 4096, pending=(1 << 20) + 8192)
    assert transport._sock_recv() == (b"x" * ((1 << 20) + 8192), None), "nobody would be told of it"


@pytest.mark.parametrize("nothing", [BlockingIOError(), ssl.SSLWantReadError(), ssl.SSLWantWriteError()])
def test_what_has_come_is_returned_when_nothing_more_is_there(nothing: Exception) -> None:
    transport = cast("Any", KafkaTCPTransport.__new__(KafkaTCPTransport))
    transport._sock = Wire(b"a", b"b", nothing)
    assert transport._sock_recv() == (b"ab", None)


def test_a_connection_that_was_closed_or_lost_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = cast("Any", KafkaTCPTransport.__new__(KafkaTCPTransport))
    for end in (b"", ConnectionResetError("reset")):
        transport._sock = Wire(b"a", end)
        received, error = transport._sock_recv()
        assert (received, type(error)) == (b"a", KafkaConnectionError)
    monkeypatch.setattr(client, "_MAX_AT_ONCE", 10)
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        far.sendall(b"y" * 100)
        transport._sock = near
        assert transport._sock_recv()[0] == b"y" * 100
