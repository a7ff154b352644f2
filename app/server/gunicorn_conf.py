"""Gunicorn's configuration file: `gunicorn --config python:app.server.gunicorn_conf app.server.wsgi:app`."""

import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import app.server.worker_imports  # noqa: F401 - before the workers are forked
from app import logs, service_manager, telemetry
from app.api.services import services_of
from app.api.wsgi_layers import stopping
from app.broker import load_transport
from app.config.errors import BadSettings
from app.config.settings import Settings
from app.outbox.engine.database import Database
from app.outbox.engine.db_errors import outbox_state
from app.outbox.tokens import check_listen
from app.server.api_heartbeat import ApiHeartbeat
from app.server.gunicorn_options import options

_settings = Settings.from_environ(os.environ)
_heartbeat: ApiHeartbeat | None = None
_service_manager = os.environ.pop(service_manager.VARIABLE, "")  # gunicorn would notify it before any worker answers


try:
    globals().update(options(_settings))
    logs.configure(_settings.log_format)  # also of the main process, which loads no application
except BadSettings as error:
    sys.stderr.write(f"bucketwire: {error}\n")
    sys.exit(1)


def on_starting(_server: object) -> None:
    """Refuse to start if the API would be open to the network.

    Checked once, before the first worker: a worker that is replaced later must start whatever the tokens are then.
    """
    database = Database(_settings.database_url, patience=_settings.database_timeout)
    try:
        check_listen(_settings, database)
    except BadSettings as error:
        sys.stderr.write(f"bucketwire: {error}\n")
        sys.exit(1)
    finally:
        database.close()
    global _heartbeat  # noqa: PLW0603 - the main process makes it for its workers
    outbox_state.watch()
    stopping.share()
    _heartbeat = ApiHeartbeat(_settings)
    load_transport(_settings.broker_url)
    telemetry.prepare()
    gc.collect()
    gc.freeze()  # a collection in a worker would otherwise write to every shared page


def when_ready(server: Any) -> None:
    """Delay the end after SIGTERM, for which gunicorn has installed its handler by now."""
    if _settings.stop_delay:
        delay_stop(server.signal, _settings.stop_delay)


def post_worker_init(worker: Any) -> None:
    """Record the API's heartbeats in one of the workers, and notify the service manager that a worker answers."""
    service_manager.notify(service_manager.READY, _service_manager)
    if _heartbeat is not None:
        _heartbeat.begin(worker.sockets)


def on_exit(_server: object) -> None:
    """Record that the API ends in order."""
    if _heartbeat is not None:
        _heartbeat.end()


def worker_exit(_server: object, worker: Any) -> None:
    """Store and export what a worker that ends has counted and recorded last."""
    if (application := getattr(worker, "wsgi", None)) is not None:  # it has started
        services_of(application).request_counts.close()
    telemetry.stop()


def delay_stop(stop: Callable[[int, Any], None], seconds: float) -> None:
    """Have SIGTERM call `stop`, which has handled it so far, only after so many seconds; a second one at once.

    Call this in the main thread of gunicorn's parent, which goes on to supervise its workers meanwhile.
    """

    def end(_number: int, frame: Any) -> None:
        stop(signal.SIGTERM, frame)

    def begin(_number: int, _frame: Any) -> None:
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, seconds)  # of this process alone: a worker that is forked later has none
        stopping.begin()

    signal.signal(signal.SIGTERM, begin)
