"""Export the worker metrics that the database does not hold, such as attempts and end-to-end latency, to Prometheus.

A worker process records them once per settled batch and per drain, in files that it shares with the pool's parent,
which serves the sums. Each position in the pool has its own files, and a replacement process continues with the files
of its predecessor: nothing is lost or counted twice, and the number of files is bounded by the size of the pool. (There
are no gauges, so no files of dead processes need to be removed.) Nothing is recorded if `PROMETHEUS_MULTIPROC_DIR` is
not set.
"""

import logging
import os
from bisect import bisect_right
from collections import Counter as Tally
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram, make_wsgi_app, values
from prometheus_client.multiprocess import MultiProcessCollector

from app.broker import BrokerUnavailable
from app.config.arn import TargetId, parse_target
from app.config.fields.addresses import HostPort
from app.folders import VARIABLE
from app.outbox.engine.database import DatabaseUnavailable
from workers.delivery.outcomes import Delivered, Failed, NotAttempted, Rejected, Unavailable
from workers.delivery.settlement import BatchRecord, Observer, TargetCall
from workers.targets.base import LeaseExpired
from workers.telemetry.http_server import BackgroundServer

log = logging.getLogger("bucketwire.worker")

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
