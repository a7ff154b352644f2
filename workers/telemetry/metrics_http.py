"""An HTTP server for metrics that strangers may reach: it has few connections, and waits for none of them for long.

The library's server (`prometheus_client.start_http_server`) has a thread for each connection, however many there are,
and keeps those of silent clients forever: their sockets are those of the worker, which then cannot replace a process.
"""

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, ClassVar
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from app.config.networks import is_loopback

_MAX_CONNECTIONS = 16  # another one ends the oldest of them
_SECONDS_FOR_CLIENT = 10.0  # without a byte from or to it
_MISDIRECTED = "421 Misdirected Request"
_HEADERS = [("Cross-Origin-Resource-Policy", "same-origin"), ("X-Content-Type-Options", "nosniff")]
_Headers = list[tuple[str, str]]


def serve(port: int, host: str, registry: CollectorRegistry) -> WSGIServer:
    """Serve the metrics in a background thread. Raises `OSError`."""
    server = (_IPv6Server if ":" in host else _Server)((host, port), _Handler)
    server.set_app(_guarded(make_wsgi_app(registry), local=is_loopback(host)))
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


def _guarded(metrics: Callable[..., Iterable[bytes]], *, local: bool) -> Callable[..., Iterable[bytes]]:
    """Answer no web page: on a loopback address only requests for this machine's own names (DNS rebinding)."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        def start(status: str, headers: _Headers) -> Any:
            return start_response(status, headers + _HEADERS)

        if local and not _is_this_machine(environ.get("HTTP_HOST", "")):
            start(_MISDIRECTED, [("Content-Type", "text/plain")])
            return [b"listen on another address than a loopback one to be asked by another name\n"]
        return metrics(environ, start)

    return answer


def _is_this_machine(host: str) -> bool:
    try:
        return not host or is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


class _Server(ThreadingWSGIServer):
    """Has at most `_MAX_CONNECTIONS`, each with a thread."""

    request_queue_size = 64

    def __init__(self, *positional: Any, **options: Any) -> None:
        super().__init__(*positional, **options)
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= _MAX_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with suppress(OSError):  # it has ended
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: the client is gone, or was too slow."""


class _IPv6Server(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout: ClassVar[float] = _SECONDS_FOR_CLIENT

    def log_message(self, *_: Any) -> None:
        """Log no request."""
