"""How gunicorn serves the API: `options` for whoever starts it, `app.api.server.gunicorn_conf` for gunicorn itself."""

from pathlib import Path
from typing import Any

from gunicorn.config import KNOWN_SETTINGS
from gunicorn.glogging import Logger

from app import logs
from app.api.server.tls import Certificate
from app.config.settings import Settings


class JsonLogger(Logger):  # type: ignore[misc]  # gunicorn ships no types
    """Gunicorn's own log in JSON. (With `logconfig_dict` gunicorn would put together a line for each request.)"""

    def setup(self, cfg: Any) -> None:
        """As gunicorn does, then each line in JSON."""
        super().setup(cfg)
        for each in self.error_log.handlers:
            each.setFormatter(logs.Json())


APP = "app.api.server.wsgi:app"
CONFIG = "python:app.api.server.gunicorn_conf"
WORKERS, THREADS = 2, 32
_MEMORY = "/dev/shm"  # noqa: S108 - gunicorn makes its own files there, unguessable and unlinked


def options(settings: Settings, *, workers: int = WORKERS, threads: int = THREADS) -> dict[str, Any]:
    """Gunicorn's settings for the API. Not preloaded: each worker opens the database for itself.

    Raises `BadSettings` where the certificate cannot be used.
    """
    wanted = {
        "bind": str(settings.listen),
        "worker_class": "app.api.listen.gunicorn_worker.Worker",  # gthread, for streams that hold no thread
        "workers": workers,
        "threads": threads,
        "keepalive": 75,  # longer than senders keep an idle connection, so that it is they who close it
        "graceful_timeout": 30,
        "timeout": 60,
        "worker_tmp_dir": _MEMORY if Path(_MEMORY).is_dir() else None,  # a slow disk must not make a worker look dead
        "proc_name": "bucketwire api",
        "limit_request_line": 8190,  # a key of 1,024 bytes may take three times that in a query
        "accesslog": None,
        "forwarded_allow_ips": "127.0.0.1,::1",
        "control_socket_disable": True,
    }
    if settings.tls_cert:
        wanted |= {"certfile": settings.tls_cert, "keyfile": settings.tls_key}
        certificate = Certificate(settings.tls_cert, settings.tls_key)
        wanted["ssl_context"] = lambda _conf, _default: certificate.context()
    if settings.log_format == "json":
        wanted["logger_class"] = JsonLogger
    known = {setting.name for setting in KNOWN_SETTINGS}  # older releases do not know the last one, nor need it
    return {name: value for name, value in wanted.items() if name in known}


def command() -> list[str]:
    """The words after `python -m` that run the API as the environment says."""
    return ["gunicorn", "--config", CONFIG, APP]
