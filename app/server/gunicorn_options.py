"""Gunicorn's options for the API, with its certificate; `app.server.gunicorn_conf` passes them to gunicorn."""

import logging
import ssl
import threading
from pathlib import Path
from typing import Any

from gunicorn.glogging import Logger

from app import logs
from app.config.errors import BadSettings, Problem
from app.config.settings import Settings

log = logging.getLogger("bucketwire.tls")

_Stamp = tuple[tuple[int, int], ...]


class TextLogger(Logger):  # type: ignore[misc]  # gunicorn ships no types
    """Gunicorn's own log, as all logs. (With `logconfig_dict` gunicorn would format a line for each request.)"""

    form: logs.Form = "text"

    def setup(self, cfg: Any) -> None:
        """Set up gunicorn's handlers, then give them the format of all logs."""
        super().setup(cfg)
        for handler in self.error_log.handlers:
            handler.setFormatter(logs.formatter(self.form))


class JsonLogger(TextLogger):
    """The same in JSON."""

    form = "json"


APP = "app.server.wsgi:app"
CONFIG = "python:app.server.gunicorn_conf"
WORKERS, THREADS = 2, 32
_MEMORY = "/dev/shm"  # noqa: S108 - gunicorn makes its own files there, unguessable and unlinked


def options(settings: Settings, *, workers: int = WORKERS, threads: int = THREADS) -> dict[str, Any]:
    """Return gunicorn's settings for the API. It is not preloaded: each worker opens the database itself.

    Raises `BadSettings` if the certificate is unusable.
    """
    values = {
        "bind": str(settings.listen),
        "worker_class": "app.server.gunicorn_worker.Worker",  # gthread, with streams that occupy no thread
        "workers": workers,
        "threads": threads,
        # Longer than senders keep an idle connection (Go's HTTP clients 90 s), so that the sender closes it: a request
        # that meets a closing connection is lost, and a POST is not always repeated.
        "keepalive": 100,
        "graceful_timeout": 30,
        "timeout": 60,
        "worker_tmp_dir": _MEMORY if Path(_MEMORY).is_dir() else None,  # a slow disk must not make a worker look dead
        "proc_name": "bucketwire api",
        "limit_request_line": 8190,  # a key of 1,024 bytes may take three times that in a query
        "accesslog": None,
        "forwarded_allow_ips": "127.0.0.1,::1",
        "sendfile": False,  # it would not wait for a slow reader
        "forwarder_headers": "",  # a client's SCRIPT_NAME would change which route a path means
        "control_socket_disable": True,
        "logger_class": JsonLogger if settings.log_format == "json" else TextLogger,
    }
    if settings.tls_cert:
        values |= {"certfile": settings.tls_cert, "keyfile": settings.tls_key}
        certificate = Certificate(settings.tls_cert, settings.tls_key)
        values["ssl_context"] = lambda _conf, _default: certificate.context()
    return values


def command() -> list[str]:
    """Return the arguments after `python -m` that run the API with the environment's settings."""
    return ["gunicorn", "--config", CONFIG, APP]


class Certificate:
    """The certificate of the API, for TLS 1.2 or later. Raises `BadSettings` if its files are unusable.

    A renewed certificate is used from the next connection on. While its files are unusable the previous one is used.
    """

    def __init__(self, cert: str, key: str) -> None:
        self._cert, self._key = cert, key
        self._lock = threading.Lock()
        self._stamp = self._read_stamp()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for a new connection. May be called from any thread."""
        with self._lock:
            stamp = self._read_stamp()
            if stamp != self._stamp:
                try:
                    self._context = self._load()
                    log.info("the TLS certificate was reloaded")
                except BadSettings as error:
                    log.warning("the new TLS certificate is unusable, the previous one stays in use: %s", error)
                self._stamp = stamp
            return self._context

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # For an encrypted key OpenSSL would prompt on the terminal; with the empty password it fails instead.
            context.load_cert_chain(self._cert, self._key, password="")
        except (OSError, ssl.SSLError) as error:
            reason = f"cannot be used with the key {self._key}: {error.strerror or error}"
            hint = "both must be PEM: the chain, the server's certificate first, and its key, without a password"
            raise BadSettings([Problem("BUCKETWIRE_TLS_CERT", self._cert, reason, hint)]) from None
        return context

    def _read_stamp(self) -> _Stamp:
        stamps = []
        for path in (self._cert, self._key):
            try:
                status = Path(path).stat()
            except OSError:
                stamps.append((0, 0))
            else:
                stamps.append((status.st_mtime_ns, status.st_ino))
        return tuple(stamps)
