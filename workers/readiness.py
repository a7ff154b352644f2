"""Whether this process serves at the moment, and whether it reaches the task broker.

Systemd learns of the first time that it serves, a probe can ask at any time; a loss of the broker is logged once.
"""

import logging
import time
from collections.abc import Iterable
from typing import Any

from app import service_manager
from app.broker import BrokerState
from app.config.fields.addresses import HostPort
from app.outbox.policies import HEARTBEATS
from workers.telemetry.http_server import BackgroundServer

PATH = "/readyz"


class Readiness:
    """The readiness of one process. The loop that does the work reports; what does not report any more is not ready."""

    def __init__(self) -> None:
        self._served_at: float | None = None  # by time.monotonic()
        self._has_notified = False
        self._server: BackgroundServer | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the process serves."""
        served_at = self._served_at
        return served_at is not None and time.monotonic() - served_at < HEARTBEATS.silence_ms / 1000

    def report(self, *, serves: bool) -> None:
        """Note whether the process serves now; call this every few seconds."""
        self._served_at = time.monotonic() if serves else None
        if serves and not self._has_notified:
            self._has_notified = True
            service_manager.notify(service_manager.READY)

    def answer_probes(self, listen: HostPort) -> None:
        """Answer `/readyz` at this address, in the background, if it is set; a second call does nothing."""
        if self._server is None and listen.host:
            self._server = BackgroundServer(listen, self._answer, PATH)
            self._server.start()

    def forget(self) -> None:
        """Leave the answers to the parent, in a forked child."""
        if self._server is not None:
            self._server.forget()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        headers = [("Content-Type", "application/json")]
        if environ.get("PATH_INFO") != PATH:
            start_response("404 Not Found", headers)
            return [b"{}"]
        ready = self.is_ready
        start_response("200 OK" if ready else "503 Service Unavailable", headers)
        return [b'{"ready":true}' if ready else b'{"ready":false}']


readiness = Readiness()


log = logging.getLogger("bucketwire.worker")

# All that use the broker share it.
broker_state = BrokerState(log, "no work is begun until it works again")
