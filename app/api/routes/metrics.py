"""Figures for Prometheus, read from the database at each scrape: right however many processes there are.

Beside the service's own names stand those of MinIO that mean the same (reference §7), so that dashboards go on.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, current_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import CollectorRegistry

from app.api.auth import READ, needs
from app.api.services import Services, services
from app.config.arn import TargetId
from app.outbox.delivery import heartbeats
from app.outbox.delivery.counters import Audit, TargetCounters, TargetStatus, audit, read_status
from app.outbox.delivery.leases import leased_partitions
from app.outbox.engine.cached_probe import CachedProbe
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.reconcile.runs import latest_results

routes = Blueprint("metrics", __name__)
_PREFIXES = ("minio_notify", "minio_notification")  # MinIO's metrics v2 and v3
_AUDITS = "bucketwire_audits"
_WORKERS = "PROMETHEUS_MULTIPROC_DIR"  # the folder of the worker's figures, where API and worker share one: in `up`
_AUDIT_AGE = 300  # seconds; an audit reads the whole backlog
_STATES = ("running", "paused", "disabled", "unavailable", "broken")
_COUNTERS = {
    "recorded": "Events taken for the target, those of replays included.",
    "delivered": "Events that the target confirmed.",
    "superseded": "Events that a newer one of the same object made needless.",
    "discarded": "Events left out because the target's queue was full.",
    "purged": "Dead letters that an operator threw away.",
    "dead_lettered": "Events that became dead letters, those replayed since included.",
}
_GAUGES = {
    "pending": "Events not yet tried, or waiting for a target that is away.",
    "parked": "Events that failed and wait for their next try, and those behind them.",
    "dead": "Dead letters.",
}


def install(app: Any, database_url: str) -> None:
    """Give the app its audits of the counters: made on the side, at the first scrape and then each five minutes."""
    app.extensions[_AUDITS] = CachedProbe(lambda: _audited(database_url), age=_AUDIT_AGE, patience=0.2)


def _audited(database_url: str) -> list[Audit]:
    database = Database(database_url, pool_size=1, patience=None)  # a large backlog takes longer than any request may
    try:
        return audit(database)
    finally:
        database.close()


@routes.get("/metrics")
@needs(READ)
def metrics() -> Response:
    """Give the figures.
    ---
    get:
      summary: Figures for Prometheus
      description: Without the database only `bucketwire_database_up` and the spool folder's figures.
      security: [{token: [read]}]
      responses:
        200: {description: text exposition format, content: {text/plain: {schema: {type: string}}}}
        default: Problem
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Scrape(services(), current_app.extensions[_AUDITS].look().value or ()))
    folder = os.environ.get(_WORKERS)
    if folder and Path(folder).is_dir():
        MultiProcessCollector(registry, path=folder)  # type: ignore[no-untyped-call]  # the library has no types here
    return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


class Scrape:
    """One scrape's figures."""

    def __init__(self, found: Services, audits: Sequence[Audit]) -> None:
        self._parts = found
        self._audits = audits

    def collect(self) -> Iterator[Metric]:
        """Every figure, as of one moment."""
        try:
            with self._parts.database.snapshot() as connection:
                statuses = read_status(connection)
                drained = heartbeats.last_drain(connection)
                queues = heartbeats.queues(connection)
                now = database_now(connection)
                busy = leased_partitions(connection, now)
                drifts = latest_results(connection)
        except DatabaseUnavailable:
            yield _single("database_up", "Whether the outbox database can be read.", 0)
        else:
            yield _single("database_up", "Whether the outbox database can be read.", 1)
            yield from figures(statuses, now)
            yield _silences(queues, now)
            age = heartbeats.drain_age(drained, now)
            # Without a sample the alert on its age would never fire for a drain that never ran.
            seconds = math.inf if age is None else age / 1000
            yield _single("drain_age_seconds", "Since the last drain (beat and a worker), +Inf for never.", seconds)
            yield from _in_progress({one.stored.target: busy.get(one.stored.row_id, 0) for one in statuses})
            yield from _drift(drifts)
            yield _difference(self._audits)
        if self._parts.feeder is not None:
            spool = self._parts.feeder.spool
            yield _single(
                "spool_files",
                "Files in the spool folder, to be recorded: a request or several each.",
                len(spool.files()),
            )
            yield _single(
                "spool_quarantined_files",
                "Spool files quarantined because they could not be recorded.",
                spool.damaged(),
            )


def figures(statuses: Sequence[TargetStatus], now: int) -> Iterator[Metric]:
    """The figures of targets with these counters."""
    labels = ["type", "name"]
    for name, text in _COUNTERS.items():
        counter = CounterMetricFamily(f"bucketwire_target_{name}_events", text, labels=labels)
        for status in statuses:
            counter.add_metric(_labels(status.stored.target), getattr(status.counters, name))
        yield counter
    for name, text in _GAUGES.items():
        gauge = GaugeMetricFamily(f"bucketwire_target_{name}_events", text, labels=labels)
        for status in statuses:
            gauge.add_metric(_labels(status.stored.target), getattr(status.counters, name))
        yield gauge
    oldest = GaugeMetricFamily(
        "bucketwire_target_oldest_event_age_seconds", "Age of its oldest undelivered event, 0 for none.", labels=labels
    )
    breaker = GaugeMetricFamily("bucketwire_target_breaker_open", "Whether its breaker is open.", labels=labels)
    states = GaugeMetricFamily("bucketwire_target_state", "1 for the state it is in.", labels=[*labels, "state"])
    for status in statuses:
        stored, counters = status.stored, status.counters
        place = _labels(stored.target)
        oldest.add_metric(place, max(0, now - counters.oldest) / 1000 if counters.oldest else 0)
        breaker.add_metric(place, int(stored.breaker != "closed"))
        for each in _STATES:
            states.add_metric([*place, each], int(stored.state == each))
    yield from (oldest, breaker, states)
    yield from _minio([status.counters for status in statuses])


def _labels(target: TargetId) -> list[str]:
    return [target.type, target.name]


def _minio(counters: Sequence[TargetCounters]) -> Iterator[Metric]:
    """What MinIO calls the same things: a save is an event put in a target's queue, which a full one refuses."""
    labels = ["target_id", "target_name"]
    total = _Named("minio_notify_target_total_events", "Events that rules named for the target.", labels, "counter")
    failed = _Named("minio_notify_target_failed_events", "Events left out by a full queue.", labels, "counter")
    length = _Named("minio_notify_target_queue_length", "Undelivered events.", labels, "gauge")
    for each in counters:
        place = dict(zip(labels, (each.target.name, each.target.type), strict=True))
        total.add_sample(total.name, place, each.matched)
        failed.add_sample(failed.name, place, each.discarded)
        length.add_sample(length.name, place, each.undelivered)
    yield from (total, failed, length)
    together = {
        "events_sent": (
            "Events delivered, to all targets together.",
            sum(b.delivered + b.superseded for b in counters),
        ),
        "events_errors": ("Events left out by full queues, all together.", sum(b.discarded for b in counters)),
        "events_skipped": ("Events left out by full queues, all together.", sum(b.discarded for b in counters)),
    }
    for prefix in _PREFIXES:
        for name, (text, value) in together.items():
            counter = CounterMetricFamily(f"{prefix}_{name}", text)
            counter.add_metric([], value)
            yield counter


def _in_progress(busy: Mapping[TargetId, int]) -> Iterator[Metric]:
    """Partitions that a worker holds just now: MinIO's "send in progress", which is a call of one event there."""
    partitions = GaugeMetricFamily(
        "bucketwire_target_leased_partitions", "Partitions that a worker has in hand.", labels=["type", "name"]
    )
    each_of = GaugeMetricFamily(
        "minio_notify_target_current_send_in_progress",
        "Partitions that a worker has in hand.",
        labels=["target_id", "target_name"],
    )
    for target, count in busy.items():
        partitions.add_metric(_labels(target), count)
        each_of.add_metric([target.name, target.type], count)
    yield from (partitions, each_of)
    for prefix in _PREFIXES:
        total = GaugeMetricFamily(f"{prefix}_current_send_in_progress", "Partitions that workers have in hand.")
        total.add_metric([], sum(busy.values()))
        yield total


def _silences(queues: Sequence[heartbeats.Queue], now: int) -> Metric:
    silent = GaugeMetricFamily(
        "bucketwire_target_worker_heartbeat_age_seconds",
        "Since a worker last answered on the target's queue, which each is asked every 15 seconds.",
        labels=["type", "name"],
    )
    for queue in queues:
        silent.add_metric(_labels(queue.target), queue.silent(now) / 1000)
    return silent


def _drift(found: Sequence[tuple[TargetId, str, int, int]]) -> Iterator[Metric]:
    labels = ["type", "name", "bucket"]
    drift = GaugeMetricFamily(
        "bucketwire_reconcile_drift", "Entries that the last reconciliation left missing or wrong.", labels=labels
    )
    ended = GaugeMetricFamily(
        "bucketwire_reconcile_finished_timestamp_seconds", "When it ended, in seconds since 1970.", labels=labels
    )
    for target, bucket, finished, entries in found:
        drift.add_metric([*_labels(target), bucket], entries)
        ended.add_metric([*_labels(target), bucket], finished / 1000)
    yield from (drift, ended)


def _difference(audits: Sequence[Audit]) -> Metric:
    """Nothing before the first audit: a 0 would be a claim."""
    gauge = GaugeMetricFamily(
        "bucketwire_target_counter_mismatch_events",
        "Pending by the counters less pending in the log; not 0 is a defect.",
        labels=["type", "name"],
    )
    for each in audits:
        gauge.add_metric(_labels(each.counters.target), each.difference)
    return gauge


class _Named(Metric):
    """A family whose samples bear its name as it is: the client library would end a counter's in `_total`."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str], kind: str) -> None:
        # MinIO's counters do not end in _total, which the exposition of a "counter" insists on.
        super().__init__(name, documentation, "unknown" if kind == "counter" else kind)
        self.labels = labels


def _single(name: str, text: str, value: float) -> Metric:
    gauge = GaugeMetricFamily(f"bucketwire_{name}", text)
    gauge.add_metric([], value)
    return gauge
