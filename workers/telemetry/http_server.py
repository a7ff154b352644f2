"""An HTTP server for metrics and probes: strangers may reach it, it has few connections, and waits for none for long.

The library's server (`prometheus_client.start_http_server`) has a thread for each connection, however many there are,
and keeps those of silent clients forever: their sockets are those of the worker, which then cannot replace a process.
"""

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, ClassVar
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client.exposition import ThreadingWSGIServer

from app.config.fields.addresses import HostPort
from app.config.networks import is_loopback

log = logging.getLogger("bucketwire.worker")

WsgiApp = Callable[..., Iterable[bytes]]
_PATIENCE = 5.0  # seconds between two attempts to listen
_MAX_CONNECTIONS = 16  # another one ends the oldest of them
_SECONDS_FOR_CLIENT = 10.0  # without a byte from or to it
_MISDIRECTED = "421 Misdirected Request"
_HEADERS = [("Cross-Origin-Resource-Policy", "same-origin"), ("X-Content-Type-Options", "nosniff")]
_Headers = list[tuple[str, str]]


class BackgroundServer:
    """Serves an application over HTTP, by threads of this process; `path` is what the log names of it."""

    def __init__(self, listen: HostPort, app: WsgiApp, path: str) -> None:
        self._listen = listen
        self._app = app
        self._path = path
        self._server: WSGIServer | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=path, daemon=True)

    def start(self) -> None:
        """Serve in a background thread; retry while the address is in use, and log the address once it listens."""
        self._thread.start()

    def forget(self) -> None:
        """Close the inherited listening socket in a forked child, so that a restarted parent can bind."""
        if self._server is not None:
            self._server.socket.close()

    def stop(self) -> None:
        """Stop serving."""
        self._over.set()
        self._thread.join()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _serve(self) -> None:
        host, port = self._listen
        refused = False
        while not self._over.is_set():
            try:
                self._server = _listening(host, port, self._app)
            except OSError as error:
                if not refused:
                    log.warning("%s waits: nothing can listen on %s: %s", self._path, self._listen, error.strerror)
                refused = True
                self._over.wait(_PATIENCE)
            else:
                log.info("%s at http://%s%s", self._path[1:], HostPort(host, self._server.server_port), self._path)
                return


def _listening(host: str, port: int, app: WsgiApp) -> WSGIServer:
    server = (_IPv6Server if ":" in host else _Server)((host, port), _Handler)
    server.set_app(_guarded(app, local=is_loopback(host)))
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server


def _guarded(app: WsgiApp, *, local: bool) -> WsgiApp:
    """Answer no web page: on a loopback address only requests for this machine's own names (DNS rebinding)."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        def start(status: str, headers: _Headers) -> Any:
            return start_response(status, headers + _HEADERS)

        if local and not _is_this_machine(environ.get("HTTP_HOST", "")):
            start(_MISDIRECTED, [("Content-Type", "text/plain")])
            return [b"listen on another address than a loopback one to be asked by another name\n"]
        return app(environ, start)

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
