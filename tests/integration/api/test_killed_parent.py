"""Gunicorn's parent process is killed: its workers make room for the next one, and answer what they have begun."""

from __future__ import annotations

import contextlib
import os
import signal
import socket

import httpx

from app.outbox.engine.database import Database
from tests import services
from tests.integration.api.conftest import Api, Start, keys, url_of
from tests.services import until
from tests.support.api_requests import body

PATIENCE = 60


def is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((services.LOOPBACK, port))
        return True
    return False


def test_a_new_api_listens_at_once_and_a_request_that_had_begun_is_answered(log: Database, start: Start) -> None:
    killed = start(url_of(log))
    content = body("begun")
    head = (
        f"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
        "Content-Type: application/json\r\nExpect: 100-continue\r\n\r\n"
    )
    with socket.create_connection((services.LOOPBACK, killed.port), timeout=PATIENCE) as begun:
        begun.sendall(head.encode())
        assert b"100 Continue" in begun.recv(1000)  # a worker has it
        os.kill(killed.pid, signal.SIGKILL)
        until(lambda: is_free(killed.port), PATIENCE, what="the address to be free")
        successor = Api(url_of(log))
        successor.client.close()
        successor.port = killed.port
        successor.client = httpx.Client(base_url=successor.url, timeout=PATIENCE)
        with successor, successor.client:
            successor.start()
            assert successor.post(body("new")).status_code == 202
            begun.sendall(content)
            assert b" 202 " in begun.recv(1000)
            assert keys(log) == ["new", "begun"]
