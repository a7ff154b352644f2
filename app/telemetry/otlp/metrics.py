"""Export the metrics that are defined for Prometheus by OTLP, under the same names, with the same labels and values.

They are collected as for a scrape, converted to OpenTelemetry's data model and sent. So each metric is defined once,
and neither its meaning nor its value depends on how it is read.
"""

import fcntl
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as Exported
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import Metric
from prometheus_client.samples import Sample

_INTERVAL = 60_000  # milliseconds, the specification's default of OTEL_METRIC_EXPORT_INTERVAL
_UNKNOWN = 0  # when a counter began: before this process, or with another one that it continues
_CUMULATIVE = AggregationTemporality.CUMULATIVE

# A file without a name, which forked processes inherit; its lock belongs to one process, and ends with it.
_turn = os.memfd_create("bucketwire-metrics")


def one_at_a_time() -> bool:
    """Return whether this process exports the metrics: of those that were forked with this module, one does."""
    try:
        fcntl.lockf(_turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def metrics_data(families: Iterable[Metric], resource: Resource, now: int) -> MetricsData:
    """Return metrics as of `now`, in nanoseconds since 1970."""
    metrics = [metric for family in families for metric in _converted(family, now)]
    scope = ScopeMetrics(InstrumentationScope("bucketwire"), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def interval() -> float:
    """Return the seconds between two exports."""
    try:
        milliseconds = int(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") or _INTERVAL)
    except ValueError:
        milliseconds = _INTERVAL
    return max(100, milliseconds) / 1000


class MetricSender:
    """Calls `send` at intervals, in a thread, and once more at the end."""

    def __init__(self, send: Callable[[], object]) -> None:
        self._send = send
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Have the thread send once more and end; wait for it."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        every = interval()
        while not self._over.wait(every):
            self._send()
        self._send()


def _converted(family: Metric, now: int) -> Iterator[Exported]:
    """Yield a family's metrics; the client library adds none but the times at which counters were created."""
    if family.type == "histogram":
        yield Exported(family.name, family.documentation, "", Histogram(_histograms(family, now), _CUMULATIVE))
        return
    by_name: dict[str, list[NumberDataPoint]] = {}
    for sample in family.samples:
        if not sample.name.endswith("_created"):
            point = NumberDataPoint(sample.labels, _UNKNOWN, now, float(sample.value))
            by_name.setdefault(sample.name, []).append(point)
    for name, points in by_name.items():
        is_sum = family.type == "counter"
        data = Sum(points, _CUMULATIVE, is_monotonic=True) if is_sum else Gauge(points)
        yield Exported(name, family.documentation, "", data)


def _histograms(family: Metric, now: int) -> list[HistogramDataPoint]:
    """Return a point for each set of labels; Prometheus counts in a bucket all values up to its bound."""
    by_labels: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in family.samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        by_labels.setdefault(labels, []).append(sample)
    points = []
    for labels, samples in by_labels.items():
        reached = sorted((float(one.labels["le"]), int(one.value)) for one in samples if "le" in one.labels)
        if not reached:
            continue
        counts = [count for _, count in reached]
        points.append(
            HistogramDataPoint(
                attributes=dict(labels),
                start_time_unix_nano=_UNKNOWN,
                time_unix_nano=now,
                count=counts[-1],
                sum=sum(one.value for one in samples if one.name.endswith("_sum")),
                bucket_counts=[count - before for before, count in zip([0, *counts], counts, strict=False)],
                explicit_bounds=[bound for bound, _ in reached if not math.isinf(bound)],
                min=None,  # type: ignore[arg-type]  # unknown; the exporter leaves them out
                max=None,  # type: ignore[arg-type]
            )
        )
    return points
