"""An HTTP proxy in front of a real server that refuses what names one object, and passes on everything else."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.services.certificates import certificates
from tests.services.server_process import LOOPBACK


class RefusingProxy(ThreadingHTTPServer):
    """Answers `status` to requests whose body contains `needle`, none while that is empty.

    With `per_item` a `_bulk` request passes without those documents, and its answer has the status in their places.
    With `tls` its clients have to speak that.
    """

    daemon_threads = True

    def __init__(self, to: int, *, tls: bool = False) -> None:
        super().__init__((LOOPBACK, 0), _Handler)
        self.to = to
        self.port = int(self.server_address[1])
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates().cert, certificates().key)
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.needle, self.status, self.per_item = b"", 503, False
        self.bulks: list[int] = []  # how many documents each `_bulk` request had

    def refuse(self, needle: str, status: int, *, per_item: bool = False) -> None:
        """Refuse from the next request on."""
        self.status, self.per_item = status, per_item
        self.needle = needle.encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RefusingProxy

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Say nothing."""

    def _pass(self) -> None:
        proxy = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = _operations(body) if "/_bulk" in self.path else [body]
        if "/_bulk" in self.path:
            proxy.bulks.append(len(parts))
        refused = [bool(proxy.needle) and proxy.needle in part for part in parts]
        if any(refused) and not proxy.per_item:
            self._answer(proxy.status, b'{"error":"refused by the proxy"}', {})
            return
        kept = [part for part, is_refused in zip(parts, refused, strict=True) if not is_refused]
        if any(refused) and not kept:
            status, headers, answer = 200, {}, b'{"errors":false,"items":[]}'
        else:
            status, headers, answer = self._ask(b"".join(kept))
        if any(refused):
            answer = _with_refusals(answer, refused, proxy.status)
        self._answer(status, answer, headers)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _pass  # noqa: N815 - the library's names

    def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        upstream = http.client.HTTPConnection(LOOPBACK, self.server.to, timeout=30)
        try:
            headers = {name: value for name, value in self.headers.items() if name != "Content-Length"}
            upstream.request(self.command, self.path, body or None, headers)
            answer = upstream.getresponse()
            product = answer.headers.get("X-Elastic-Product")
            return answer.status, {"X-Elastic-Product": product} if product else {}, answer.read()
        finally:
            upstream.close()

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Type": "application/json", "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _operations(body: bytes) -> list[bytes]:
    """The parts of a `_bulk` request: an action, with its document where it has one."""
    lines = iter(body.splitlines(keepends=True))
    return [action if action.startswith(b'{"delete"') else action + next(lines) for action in lines]


def _with_refusals(answer: bytes, refused: list[bool], status: int) -> bytes:
    said = json.loads(answer)
    items = iter(said.get("items") or [{"create": {"status": 201}}] * (len(refused) - sum(refused)))
    error = {"type": "es_rejected_execution_exception", "reason": "refused by the proxy"}
    merged = [{"create": {"status": status, "error": error}} if each else next(items) for each in refused]
    return json.dumps({"errors": True, "items": merged}).encode()


@contextlib.contextmanager
def refusing_proxy(to: int, *, tls: bool = False) -> Iterator[RefusingProxy]:
    """A proxy to the HTTP server at this port, ended with the block."""
    proxy = RefusingProxy(to, tls=tls)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join(10)
