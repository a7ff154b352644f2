"""A webhook receiver for tests and benchmarks: writes down each request, then answers by a rules file.

`tests.support.receiver PORT REQUESTS RULES [--cert FILE --key FILE [--ca FILE]]`; `--ca` demands a client certificate.
REQUESTS gets one JSON line a request, before its answer is sent. RULES is a JSON list of tests.services.webhook.Answer,
read again whenever the file is replaced. HTTP/1.1 by h11, so a client's bad framing is refused, not guessed at.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import itertools
import os
import ssl
import sys
import time
from pathlib import Path
from typing import Any

import h11
import orjson


class Rules:
    """The rules file as of now, and how often each rule may still answer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read: tuple[int, int] | None = None
        self.rules: list[dict[str, Any]] = []

    def answer(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        """The first rule that fits, counted; an empty one when none does."""
        found = self.path.stat()
        if (found.st_ino, found.st_mtime_ns) != self.read:  # a new file may get the number of the one that it replaces
            self.rules, self.read = orjson.loads(self.path.read_bytes()), (found.st_ino, found.st_mtime_ns)
        for rule in self.rules:
            if rule["times"] == 0 or rule["path"] not in (None, path) or rule["method"] not in (None, method):
                continue
            if rule["containing"] is not None and rule["containing"].encode() not in body:
                continue
            if rule["times"] is not None:
                rule["times"] -= 1
            return rule
        return {}


class Connection(asyncio.Protocol):
    """One client's connection: requests are answered one after the other, as they came."""

    numbers = itertools.count(1)

    def __init__(self, rules: Rules, requests: int) -> None:
        self.rules, self.requests = rules, requests
        self.http = h11.Connection(h11.SERVER)
        self.number = next(self.numbers)
        self.subject: str | None = None
        self.head: h11.Request | None = None
        self.body = bytearray()
        self.waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        presented = transport.get_extra_info("peercert") or {}
        names = {name: value for part in presented.get("subject", ()) for name, value in part}
        self.subject = names.get("commonName")

    def connection_lost(self, exc: Exception | None) -> None:
        if self.waiting:
            self.waiting.cancel()

    def data_received(self, data: bytes) -> None:
        self.http.receive_data(data)
        self.advance()

    def eof_received(self) -> bool:
        with contextlib.suppress(RuntimeError):
            self.http.receive_data(b"")
            self.advance()
        return self.waiting is not None  # a half-closed client still gets its delayed answer

    def advance(self) -> None:
        """Take what has come in until a request is whole, or more is needed, or an answer is still due."""
        while self.waiting is None and not self.transport.is_closing():
            try:
                event = self.http.next_event()
            except h11.RemoteProtocolError as error:
                self.refuse(error)
                return
            if isinstance(event, h11.Request):
                self.head = event
                self.body.clear()
                if self.http.they_are_waiting_for_100_continue:
                    self.write(h11.InformationalResponse(status_code=100, headers=[]))
            elif isinstance(event, h11.Data):
                self.body += event.data
            elif isinstance(event, h11.EndOfMessage):
                self.received()
            else:
                if isinstance(event, h11.ConnectionClosed):
                    self.transport.close()
                return

    def received(self) -> None:
        assert self.head is not None
        method, path = self.head.method.decode(), self.head.target.decode("latin-1")
        if method == "OPTIONS" and path == "*":  # the tests asking whether we are up
            self.respond({"status": 204})
            return
        answer = self.rules.answer(method, path, bytes(self.body))
        entry = {
            "method": method,
            "path": path,
            "headers": {name.decode(): value.decode("latin-1") for name, value in self.head.headers},
            "body": base64.b64encode(self.body).decode(),
            "at": time.time(),
            "status": 0 if answer.get("close") else answer.get("status", 200),
            "connection": self.number,
            "subject": self.subject,
        }
        os.write(self.requests, orjson.dumps(entry) + b"\n")
        if answer.get("delay"):
            self.waiting = asyncio.get_running_loop().call_later(answer["delay"], self.delayed, answer)
        else:
            self.respond(answer)

    def delayed(self, answer: dict[str, Any]) -> None:
        self.waiting = None
        self.respond(answer)
        self.advance()

    def respond(self, answer: dict[str, Any]) -> None:
        if answer.get("close"):
            self.transport.abort()
            return
        assert self.head is not None
        body, status = answer.get("body", "").encode(), answer.get("status", 200)
        headers = [*answer.get("headers", {}).items()]
        if status != 204:
            headers.append(("Content-Length", str(len(body))))
        self.write(h11.Response(status_code=status, headers=headers))
        if body and self.head.method != b"HEAD" and status not in (204, 304):
            self.write(h11.Data(data=body))
        self.write(h11.EndOfMessage())
        if self.http.our_state is h11.MUST_CLOSE:
            self.transport.close()
        else:
            self.http.start_next_cycle()

    def refuse(self, error: h11.RemoteProtocolError) -> None:
        sys.stdout.write(f"connection {self.number}: bad HTTP: {error}\n")
        sys.stdout.flush()
        if self.http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            status, headers = error.error_status_hint or 400, [("Content-Length", "0"), ("Connection", "close")]
            self.write(h11.Response(status_code=status, headers=headers))
            self.write(h11.EndOfMessage())
        self.transport.close()

    def write(self, event: h11.Event) -> None:
        sent = self.http.send(event)
        if sent:
            self.transport.write(sent)


def context(options: argparse.Namespace) -> ssl.SSLContext | None:
    """The TLS settings that the command line asks for."""
    if not options.cert:
        return None
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.load_cert_chain(options.cert, options.key)
    if options.ca:
        made.load_verify_locations(options.ca)
        made.verify_mode = ssl.CERT_REQUIRED
    return made


async def serve(options: argparse.Namespace) -> None:
    rules = Rules(options.rules)
    requests = os.open(options.requests, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(rules, requests), "127.0.0.1", options.port, ssl=context(options), backlog=1024
    )
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("requests", type=Path)
    parser.add_argument("rules", type=Path)
    parser.add_argument("--cert")
    parser.add_argument("--key")
    parser.add_argument("--ca")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
