"""Export traces, metrics and logs to OpenTelemetry (OTLP), while the variables `OTEL_…` ask for it.

Off, which is the default, nothing of OpenTelemetry is imported (not even by libraries that would, see
`bucketwire.start`), and the functions of this module return at once. Only `app.telemetry.otlp` imports it. On,
everything is exported by threads of its own, from bounded queues: a collector that is away, slow or hangs costs the
service nothing but what is not exported.

Threads and connections do not survive a fork. So a parent calls `prepare` at most, which only imports, and each process
calls `start` for itself.
"""

import atexit
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterable
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

from app.release import install_command
from app.telemetry.switch import Signals, signals
from app.telemetry.tracing import NO_SPAN, Span, Tracing, Value

if TYPE_CHECKING:
    from prometheus_client import Metric

    from app.telemetry.otlp.exports import Exports

log = logging.getLogger("bucketwire.telemetry")

_PACKAGE = "opentelemetry"
_PATIENCE = 1.0  # seconds for the last export; `bucketwire up` gives a process not much more to end

_running: "tuple[int, Exports] | None" = None  # with the process that started it
_tracing: Tracing | None = None
_logged: set[str] = set()  # problems that this process or its parent has logged


def exports_metrics() -> bool:
    """Return whether the environment asks for metrics, and OpenTelemetry is installed."""
    return signals(os.environ).metrics and PathFinder.find_spec(_PACKAGE) is not None


def prepare() -> None:
    """Import what `start` needs, if anything is to be exported: processes that are forked later share its memory."""
    if signals(os.environ).any:
        with contextlib.suppress(Exception):  # `start` logs it; a parent's logs may not be configured yet
            _load()


def start(role: str) -> None:
    """Export what the environment asks for from this process on, and log what of it is not possible.

    Call it in each process after its fork and after the logs are configured; a further call does nothing. `role` names
    the process in the resource: api, worker or beat. It never fails: the service runs without telemetry too.
    """
    global _running, _tracing
    wanted = signals(os.environ)
    for problem in wanted.problems:
        _warn_once(problem)
    if not wanted.any or (_running is not None and _running[0] == os.getpid()):
        return
    if _running is not None:
        _running[1].forget()
    _running, _tracing = None, None
    started = _started(role, wanted)
    if started is not None:
        _running, _tracing = (os.getpid(), started), started.tracing
        atexit.register(stop)


def stop() -> None:
    """Export what is left, for at most a second, and end. Call it before a process that called `start` ends."""
    global _running, _tracing
    running, _running, _tracing = _running, None, None
    if running is not None and running[0] == os.getpid():
        running[1].stop(_PATIENCE)


def tracing() -> Tracing | None:
    """Return what starts spans; None if traces are not exported."""
    return _tracing


def span(name: str, **attributes: Value) -> Span:
    """Start a span of its own trace for a context manager; one that records nothing if traces are not exported."""
    return NO_SPAN if _tracing is None else _tracing.start(name, attributes=attributes)


def send_metrics(collect: "Callable[[], Iterable[Metric]]") -> None:
    """Export the metrics that `collect` returns, at the interval that the environment sets, if it asks for metrics.

    `start` must have been called. Of several processes that are forked from one that called `prepare`, one at a time
    exports: their metrics are the same.
    """
    if _running is not None:
        try:
            _running[1].send_metrics(collect)
        except Exception as error:  # noqa: BLE001 - as in `_started`
            _warn_once(f"metrics are not exported to OpenTelemetry: {error}")


def _load() -> "type[Exports]":
    if sys.modules.get(_PACKAGE, sys) is None:
        del sys.modules[_PACKAGE]  # `bucketwire.start` hides it
    from app.telemetry.otlp.exports import Exports  # noqa: PLC0415 - only where it is wanted

    return Exports


def _started(role: str, wanted: Signals) -> "Exports | None":
    try:
        return _load()(role, wanted)
    except ImportError as error:
        _warn_once(f"the variables OTEL_… have no effect: {error.name} is not installed: {install_command('otel')}")
    except Exception as error:  # noqa: BLE001 - such as a variable that the SDK refuses
        _warn_once(f"OpenTelemetry cannot be started, and nothing is exported: {error}")
    return None


def _warn_once(problem: str) -> None:
    if problem not in _logged:
        _logged.add(problem)
        log.warning("%s", problem)
