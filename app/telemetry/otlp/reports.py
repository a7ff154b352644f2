"""Log once that a signal cannot be exported, and once that it can be again, instead of a line for each failed request.

The SDK logs each failed request, each retry and each dropped item. Its loggers are silenced here; the first message
during an export that fails is the reason in the one line.
"""

import logging
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

log = logging.getLogger("bucketwire.telemetry")

_APART = 60.0  # seconds between two lines about a signal that fails again and again
_MAX_SEEN = 100  # different other messages of the SDK that are logged, each once

_of_thread = threading.local()  # `reasons`: the SDK's messages during the export that this thread makes


def is_exporting() -> bool:
    """Return whether this thread makes an export, whose own log lines would be exported by the next one, and so on."""
    return hasattr(_of_thread, "reasons")


class Report:
    """Reports failures of the exports of one signal. Thread-safe enough: a race costs or saves a line."""

    def __init__(self, signal: str, endpoint: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._signal = signal
        self._endpoint = endpoint
        self._clock = clock
        self._is_reported = False
        self._reported_at = float("-inf")

    def failed(self, reason: str) -> None:
        """Log that something could not be exported, unless that is logged already or was a minute ago."""
        if self._is_reported or self._clock() - self._reported_at < _APART:
            return
        self._is_reported, self._reported_at = True, self._clock()
        shown = _without_secrets(reason, self._endpoint)
        log.warning("%s are dropped, because OpenTelemetry's collector does not accept them: %s", self._signal, shown)

    def succeeded(self) -> None:
        """Log that something was exported, if the last line reports the opposite."""
        if self._is_reported:
            self._is_reported = False
            log.info("%s are exported to OpenTelemetry again", self._signal)


class SdkLog(logging.Handler):
    """Handles the records of the SDK's loggers instead of their own handlers."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._seen: set[tuple[str, str]] = set()
        self._full: dict[str, Report] = {}

    def install(self, reports: dict[str, Report]) -> None:
        """Replace the handlers of the SDK's loggers. `reports`, by the SDK's names, get the failures of full queues."""
        self._full = reports
        sdk = logging.getLogger("opentelemetry")
        sdk.handlers, sdk.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message as a reason during an export; log any other once."""
        message = str(record.msg)
        if is_exporting():
            _of_thread.reasons.append(record.getMessage())
        elif message.startswith("Queue full") and record.args:
            name = str(record.args[0] if isinstance(record.args, tuple) else "")
            if name in self._full:
                self._full[name].failed("the queue is full")
        elif (record.name, message) not in self._seen and len(self._seen) < _MAX_SEEN:
            self._seen.add((record.name, message))
            log.warning("OpenTelemetry: %s", record.getMessage())

    def watched(self, export: Callable[[], bool], report: Report) -> bool:
        """Return whether `export` succeeded, and report that, with the first reason that the SDK logs."""
        reasons = _of_thread.reasons = list[str]()
        try:
            succeeded = export()
        except Exception as error:  # noqa: BLE001 - a thread of the SDK would only log it
            succeeded = False
            reasons.append(f"{type(error).__name__}: {error}")
        finally:
            del _of_thread.reasons
        if succeeded:
            report.succeeded()
        else:
            report.failed(reasons[0] if reasons else "no answer in time")
        return succeeded


def _without_secrets(reason: str, endpoint: str) -> str:
    """Return the reason without what may be a key in the endpoint's URL."""
    try:
        parts = urlsplit(endpoint)
        secrets = (parts.query, parts.password)
    except ValueError:
        return "the endpoint is no URL"
    for secret in secrets:
        if secret:
            reason = reason.replace(secret, "*redacted*")
    return reason[:500]
