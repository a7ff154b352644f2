"""Export the worker metrics that the database does not hold, such as attempts and end-to-end latency, to Prometheus.

A worker process records them once per settled batch and per drain, in files that it shares with the pool's parent,
which serves the sums. Each position in the pool has its own files, and a replacement process continues with the files
of its predecessor: nothing is lost or counted twice, and the number of files is bounded by the size of the pool. (There
are no gauges, so no files of dead processes need to be removed.) Nothing is recorded if `PROMETHEUS_MULTIPROC_DIR` is
not set.

The probes are served by a `BackgroundServer` too. Strangers may reach it: it has few connections, and waits for none
for long. The library's server (`prometheus_client.start_http_server`) has a thread for each connection, however many
there are, and keeps those of silent clients forever: their sockets are those of the worker, which then cannot replace a
process.
"""

import logging
import os
import socket
import threading
from bisect import bisect_right
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, Counter, Histogram, make_wsgi_app, values
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.multiprocess import MultiProcessCollector

from app.broker import BrokerUnavailable
from app.config.arn import TargetId, parse_target
from app.config.fields.addresses import HostPort
from app.config.networks import is_loopback
from app.folders import VARIABLE
from app.outbox.engine.database import DatabaseUnavailable
from workers.delivery.outcomes import Delivered, Failed, NotAttempted, Rejected, Unavailable
from workers.delivery.settlement import BatchRecord, Observer, TargetCall
from workers.targets.base import LeaseExpired

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


FOLDER = VARIABLE
_OUTCOMES = {Delivered: "delivered", Failed: "failed", Rejected: "rejected", Unavailable: "unavailable"}
DRAIN_OUTCOMES = ("succeeded", "broker", "database", "unexpected")  # which of them did not do its work
_AGES = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400)
_CALLS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
_ROOM = 1 << 20  # bytes, allocated at once for each file: enough for about a hundred targets


class Bulk(Histogram):
    """A histogram that records many observations at the cost of a few."""

    def observe_all(self, observed: Iterable[float]) -> None:
        """Record all values, with the same result as `observe` for each."""
        ordered = sorted(observed)
        self._sum.inc(sum(ordered))
        below = 0
        # The client library has no such method; a test compares the use of these two members with its `observe`.
        for bucket, bound in zip(self._buckets, self._upper_bounds, strict=True):
            reached = bisect_right(ordered, bound)
            if reached > below:
                bucket.inc(reached - below)
            below = reached
            if below == len(ordered):
                return


class TargetMetrics(Observer):
    """The metrics of one target in this process."""

    def __init__(self, worker: "WorkerMetrics", target: TargetId) -> None:
        labels = (target.type, target.name)
        self._attempts = {kind: worker.attempts.labels(*labels, word) for kind, word in _OUTCOMES.items()}
        self._ages: Bulk = worker.ages.labels(*labels)
        self._sizes = worker.sizes.labels(*labels)
        self._calls = worker.calls.labels(*labels)
        self._leases_lost = worker.leases_lost.labels(*labels)
        self._openings = worker.openings.labels(*labels)

    def call_ended(self, call: TargetCall) -> None:
        """Record a call to the target, unless the lease expired meanwhile."""
        if isinstance(call.error, LeaseExpired):
            return
        self._sizes.observe(len(call.outcomes))
        self._calls.observe(call.seconds)
        kinds = Tally(map(type, call.outcomes))
        del kinds[NotAttempted]
        for kind, count in kinds.items():
            self._attempts[kind].inc(count)

    def batch_settled(self, batch: BatchRecord) -> None:
        """Record how old the delivered events are."""
        if received := batch.delivered_times():
            self._ages.observe_all([max(0, batch.settled_at - at) / 1000 for at in received])

    def lost_lease(self) -> None:
        """Record that a lease expired while a worker was working it off."""
        self._leases_lost.inc()

    def opened_breaker(self) -> None:
        """Record that this process opened the target's circuit breaker."""
        self._openings.inc()


class WorkerMetrics:
    """All metrics that one process records."""

    def __init__(self) -> None:
        labels = ("type", "name")
        self.attempts = Counter(
            "bucketwire_worker_attempts", "Events attempted at the target.", [*labels, "outcome"], registry=None
        )
        self.ages = Bulk(
            "bucketwire_worker_delivery_seconds",
            "Seconds from an event's recording to its settlement as delivered, without replays.",
            labels,
            buckets=_AGES,
            registry=None,
        )
        self.sizes = Histogram(
            "bucketwire_worker_batch_events",
            "Events in a call to the target.",
            labels,
            buckets=_SIZES,
            registry=None,
        )
        self.calls = Histogram(
            "bucketwire_target_request_seconds",
            "Seconds that a call to the target took.",
            labels,
            buckets=_CALLS,
            registry=None,
        )
        self.leases_lost = Counter(
            "bucketwire_worker_leases_lost", "Leases that expired while a worker had them.", labels, registry=None
        )
        self.openings = Counter(
            "bucketwire_worker_breaker_openings",
            "Times that the breaker was opened.",
            labels,
            registry=None,
        )
        self.drains = Counter("bucketwire_worker_drains", "Drains by what came of them.", ["outcome"], registry=None)
        for outcome in DRAIN_OUTCOMES:
            self.drains.labels(outcome)  # 0 from the beginning
        self._of: dict[str, TargetMetrics] = {}

    def of(self, arn: str) -> TargetMetrics:
        """Return the metrics of one target."""
        metrics = self._of.get(arn)
        if metrics is None:
            metrics = self._of[arn] = TargetMetrics(self, parse_target(arn))
        return metrics


_recorded: WorkerMetrics | None = None


def begin(place: int) -> None:
    """Start recording in this process, which has this position in its pool; do nothing if no folder is set."""
    global _recorded  # noqa: PLW0603 - one for each process is the point
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    try:
        for kind in ("counter", "histogram"):
            _allocate(Path(folder) / f"{kind}_{place}.db")
    except OSError as error:
        log.warning("no metrics are recorded: %s: %s", folder, error.strerror)
        return
    values.ValueClass = values.MultiProcessValue(lambda: place)  # type: ignore[no-untyped-call]  # as the collector
    _recorded = WorkerMetrics()


def of(arn: str) -> TargetMetrics | None:
    """Return the metrics of a target, None if nothing is recorded."""
    return None if _recorded is None else _recorded.of(arn)


@contextmanager
def counted_drain() -> Iterator[None]:
    """Count a drain by what comes of it; raise what it raises. This needs neither the database nor the broker."""
    outcome = "unexpected"
    try:
        yield
        outcome = "succeeded"
    except BrokerUnavailable:
        outcome = "broker"
        raise
    except DatabaseUnavailable:
        outcome = "database"
        raise
    finally:
        if _recorded is not None:
            _recorded.drains.labels(outcome).inc()


def pool_registry(folder: str) -> CollectorRegistry:
    """Return the metrics of a worker's whole pool, which are summed when they are collected."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=folder)  # type: ignore[no-untyped-call]  # the library has no types here
    return registry


def server(listen: HostPort, folder: str) -> BackgroundServer:
    """Return a server of the metrics of a worker's whole pool, for the pool's parent."""
    return BackgroundServer(listen, make_wsgi_app(pool_registry(folder)), "/metrics")


def _allocate(path: Path) -> None:
    """Allocate the file on disk now: on a full disk, the first write to an unallocated page would end the process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if os.fstat(descriptor).st_size < _ROOM:
            os.posix_fallocate(descriptor, 0, _ROOM)
    finally:
        os.close(descriptor)
