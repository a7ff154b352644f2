"""Export the metrics for Prometheus, read from the database at each scrape: correct with any number of processes.

MinIO's names for the same values (reference §7) are exported too, so that existing dashboards continue to work.
"""

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flask import Blueprint, Flask, Response, current_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import CollectorRegistry

from app.api.auth import READ, needs
from app.api.description import answers
from app.api.services import Services, services
from app.cached_probe import CachedProbe, ProbeResult
from app.config.arn import TargetId
from app.outbox import log_head, refusals, upkeep
from app.outbox.admin.counters import Audit, TargetCounters, TargetStatus, audit, read_status
from app.outbox.delivery.leases import leased_partitions
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database, DatabaseUnavailable, now_ms
from app.outbox.log.spool import Spool, waiting_files
from app.outbox.policies import CERTIFICATES
from app.outbox.processes import (
    API,
    RUNNING,
    Certificate,
    Process,
    Queue,
    hindered_workers,
    live_workers,
    near_end,
    processes_of,
    read_certificates,
    read_processes,
    read_queues,
    silent_workers,
)
from app.outbox.reconcile.runs import TABLES, latest_results
from app.outbox.reconcile.schedule import RunState, read_run_states
from app.outbox.refusals import AnswerKind
from app.outbox.sources.intake import read_kept
from app.outbox.sources.rows import StoredSource, read_sources
from app.outbox.sources.watched import FOUND_KINDS, Watched, read_watched
from app.outbox.symptoms import NEWEST, OldSnapshots, read_old_snapshots, unknown_names
from app.outbox.tokens import StoredToken, read_tokens
from app.outbox.upkeep import TaskState, beat_at, read_tasks
from app.resources.refusal import COUNTED_REASONS, surface_of
from app.resources.source import SOURCE_STATES
from app.resources.target import STATES

routes = Blueprint("metrics", __name__)
_PREFIXES = ("minio_notify", "minio_notification")  # MinIO's metrics v2 and v3
_AUDITS = "bucketwire_audits"
_WORKERS = "PROMETHEUS_MULTIPROC_DIR"  # the folder of the workers' metrics, if API and workers share one, as in `up`
_AUDIT_AGE = 300  # seconds; an audit reads the whole backlog
_SCRAPES = "bucketwire_scrapes"
_SCRAPE_PATIENCE = 60.0  # seconds; the database has less time for an answer
_COUNTERS = {
    "recorded": "Events recorded for the target, including replayed ones.",
    "delivered": "Events that the target confirmed.",
    "superseded": "Events settled without delivery because of a newer event of the same object.",
    "discarded": "Events not recorded for the target because its queue was full.",
    "purged": "Dead letters that an operator deleted.",
    "dead_lettered": "Events that became dead letters, including those replayed since.",
}
_SOURCE_COUNTERS = {
    "messages": "Messages that were taken from the queue.",
    "recorded_events": "Events of the source that were recorded.",
    "repeated_events": "Events of the source that were in the log already.",
    "rejected_messages": "Messages without valid events, also those deleted or retried since.",
}
_LISTING_COUNTERS = {
    "listings": "Listings of the bucket that were compared to their ends.",
    "listing_requests": "Requests of these listings.",
    "explained_differences": "Differences between listings and what was known that events explain.",
}
_LISTING_GAUGES = {
    "objects": "Objects of the last listing.",
    "skipped_entries": "Entries of the last listing that no event can have.",
    "pending_differences": "Differences that wait for the end of the grace.",
    "listing_duration_seconds": "Seconds that the last listing took to read.",
    "listing_age_seconds": "Seconds since the last listing that was compared to its end began.",
    "listing_overdue_seconds": "Seconds since a listing was due that is not compared to its end.",
}
_GAUGES = {
    "pending": "Events not yet attempted, also because the target is unavailable.",
    "parked": "Events that wait for the next attempt, or behind such an event of the same object.",
    "dead": "Dead letters.",
}


def install(app: Any, database_url: str) -> None:
    """Add the audit of the counters to the app; a thread makes it at the first scrape, then every five minutes.

    One scrape is made at a time, for all who ask meanwhile: it takes long enough to keep requests from their threads.
    """
    app.extensions[_AUDITS] = CachedProbe(lambda: _audited(database_url), age=_AUDIT_AGE, patience=0.2)
    app.extensions[_SCRAPES] = CachedProbe(lambda: _exposition(app), age=0.0, patience=_SCRAPE_PATIENCE)


def _audited(database_url: str) -> list[Audit]:
    database = Database(database_url, pool_size=1, patience=None)  # a large backlog takes longer than a request may
    try:
        return audit(database)
    finally:
        database.close()


@routes.get("/metrics")
@needs(READ)
@answers(None, "the metrics in the text exposition format", media_type="text/plain")
def metrics() -> Response:
    """Return the metrics for Prometheus.

    While the database is unavailable, only `bucketwire_database_up` and the spool folder's metrics.
    """
    scraped: ProbeResult[bytes] = current_app.extensions[_SCRAPES].get()
    if scraped.error is not None:
        raise scraped.error
    return Response(scraped.value, content_type=CONTENT_TYPE_LATEST)


def _exposition(app: Flask) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    folder = os.environ.get(_WORKERS)
    with app.app_context():
        registry.register(scrape())
        if folder and Path(folder).is_dir():
            MultiProcessCollector(registry, path=folder)  # type: ignore[no-untyped-call]  # the library has no types
        exposition: bytes = generate_latest(registry)
    return exposition


def scrape() -> "Scrape":
    """Return the metrics of the current app's outbox, which are read when they are collected."""
    return Scrape(services(), current_app.extensions[_AUDITS].get().value or ())


class Scrape:
    """Collect the metrics of one scrape."""

    def __init__(self, services: Services, audits: Sequence[Audit]) -> None:
        self._services = services
        self._audits = audits

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, as of one moment."""
        try:
            with self._services.database.snapshot() as connection:
                statuses = read_status(connection)
                drained = upkeep.last_drain(connection)
                now = database_now(connection)
                processes = read_processes(connection)
                queues = read_queues(connection, processes, now)
                leased = leased_partitions(connection, now)
                drifts = latest_results(connection)
                settings = self._services.settings
                oldest = now - int(settings.report_retention * 1000)
                runs = read_run_states(connection, now, tables_schedule=settings.tables_schedule, oldest=oldest)
                sources, kept, watched = read_sources(connection), read_kept(connection), read_watched(connection)
                posted = log_head.read_posted(connection)
                snapshots = read_old_snapshots(connection)
                unknown = sum(unknown_names(connection).values())
                tasks = read_tasks(connection, now, service_events=settings.service_events)
                answered = refusals.read_counts(connection)
                certificates, tokens = read_certificates(connection, processes, now), read_tokens(connection)
        except DatabaseUnavailable:
            yield _single("database_up", "Whether the outbox database can be read.", 0)
        else:
            yield _single("database_up", "Whether the outbox database can be read.", 1)
            yield from target_metrics(statuses, now)
            yield _heartbeat_ages(queues, now)
            yield from process_metrics(processes, now)
            worked_at = beat_at(processes)
            seconds = math.inf if worked_at is None else max(0, now - worked_at) / 1000
            yield _single("beat_age_seconds", "Seconds since a beat last did its work, +Inf for never.", seconds)
            age = upkeep.drain_age(drained, now)
            # Without a sample, the alert on its age would never fire for a drain that has never run.
            seconds = math.inf if age is None else age / 1000
            yield _single("drain_age_seconds", "Seconds since the last drain, +Inf for never.", seconds)
            yield from _leased({one.stored.target: leased.get(one.stored.row_id, 0) for one in statuses})
            yield from _drift(drifts)
            yield from _runs(runs, now)
            yield from _upkeep(tasks, now)
            yield _difference(self._audits)
            yield _posted(posted)
            yield from _snapshots(snapshots)
            text = f"Events among the newest {NEWEST:,} of the log whose name is not known."
            yield _single("unknown_name_events", text, unknown)
            yield from source_metrics(sources, kept, now)
            yield from listing_metrics(sources, watched, now)
            yield from _requests(answered)
            yield from expiry_metrics(certificates, [one for one in tokens if one.is_in_use(now)])
        if self._services.feeder is not None:
            yield from _spooled(self._services.feeder.spool)


def _spooled(spool: Spool) -> Iterator[Metric]:
    """Yield the metrics of the spool folder."""
    waiting = waiting_files(spool.folder)
    text = "Files in the spool folder that are not recorded yet; each has the events of one or more requests."
    yield _single("spool_files", text, waiting.number)
    text = "Age of the oldest file in the spool folder that is not recorded yet; 0 if none waits."
    yield _single("spool_age_seconds", text, waiting.age(now_ms()) / 1000)
    yield _single(
        "spool_quarantined_files", "Spool files quarantined because they could not be recorded.", spool.damaged()
    )


def target_metrics(statuses: Sequence[TargetStatus], now: int) -> Iterator[Metric]:
    """Yield the metrics of targets with these counters."""
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
        "bucketwire_target_oldest_event_age_seconds", "Age of the oldest undelivered event, 0 for none.", labels=labels
    )
    breaker = GaugeMetricFamily("bucketwire_target_breaker_open", "Whether the circuit breaker is open.", labels=labels)
    in_row = GaugeMetricFamily(
        "bucketwire_target_failed_attempts_in_row",
        "Failed attempts since the last success of a failing target, 0 for others.",
        labels=labels,
    )
    text = "1 for the target's state, 0 for the others."
    states = GaugeMetricFamily("bucketwire_target_state", text, labels=[*labels, "state"])
    for status in statuses:
        stored, counters = status.stored, status.counters
        place = _labels(stored.target)
        oldest.add_metric(place, max(0, now - counters.oldest) / 1000 if counters.oldest else 0)
        breaker.add_metric(place, int(stored.breaker != "closed"))
        in_row.add_metric(place, stored.failing.attempts if stored.failing else 0)
        for each in STATES:
            states.add_metric([*place, each], int(stored.state == each))
    yield from (oldest, breaker, in_row, states)
    yield from _minio([status.counters for status in statuses])


def source_metrics(sources: Sequence[StoredSource], kept: Mapping[int, int], now: int) -> Iterator[Metric]:
    """Yield the metrics of sources; `kept` are the rejected messages of each, by row id."""
    labels = ["type", "name"]
    counters = {
        name: CounterMetricFamily(f"bucketwire_source_{name}", text, labels=labels)
        for name, text in _SOURCE_COUNTERS.items()
    }
    lag = GaugeMetricFamily("bucketwire_source_lag_messages", "Messages that wait in the queue.", labels=labels)
    rejected = GaugeMetricFamily("bucketwire_source_kept_rejected_messages", "Rejected messages.", labels=labels)
    age = GaugeMetricFamily(
        "bucketwire_source_answer_age_seconds",
        "Seconds since the queue of a source that is to be pulled from last answered, or since it was set.",
        labels=labels,
    )
    text = "1 for the source's state, 0 for the others."
    states = GaugeMetricFamily("bucketwire_source_state", text, labels=[*labels, "state"])
    text = "Whether it is paused by what pulls or lists it, until an operator resumes it."
    paused = GaugeMetricFamily("bucketwire_source_paused_itself", text, labels=labels)
    for stored in sources:
        place = [stored.source.type, stored.source.name]
        for name, counter in counters.items():
            counter.add_metric(place, getattr(stored, name.partition("_")[0]))
        if stored.lag is not None:
            lag.add_metric(place, stored.lag)
        rejected.add_metric(place, kept.get(stored.row_id, 0))
        if stored.enabled and not stored.paused:
            age.add_metric(place, stored.answer_age(now) / 1000)
        for each in SOURCE_STATES:
            states.add_metric([*place, each], int(stored.state(now) == each))
        paused.add_metric(place, int(stored.paused_itself))
    yield from (*counters.values(), lag, rejected, age, states, paused)


def listing_metrics(sources: Sequence[StoredSource], watched: Mapping[int, Watched], now: int) -> Iterator[Metric]:
    """Yield the metrics of watched buckets; `watched` is how far the listings of each came, by row id."""
    counters = {
        name: CounterMetricFamily(f"bucketwire_source_{name}", text, labels=["type", "name"])
        for name, text in _LISTING_COUNTERS.items()
    }
    found = CounterMetricFamily(
        "bucketwire_source_unexplained_differences",
        "Differences that no event explains, each recorded as an event.",
        labels=["type", "name", "kind"],
    )
    gauges = {
        name: GaugeMetricFamily(f"bucketwire_source_{name}", text, labels=["type", "name"])
        for name, text in _LISTING_GAUGES.items()
    }
    for stored in sources:
        listing, place = watched.get(stored.row_id), [stored.source.type, stored.source.name]
        if stored.lists and stored.enabled and not stored.paused:
            due_at = listing.due_at if listing and listing.due_at else stored.created_at
            gauges["listing_overdue_seconds"].add_metric(place, max(0, now - due_at) / 1000)
        if listing is None:
            continue
        for name, value in (
            ("listings", listing.listings),
            ("listing_requests", listing.requests),
            ("explained_differences", listing.explained),
        ):
            counters[name].add_metric(place, value)
        for kind in FOUND_KINDS:
            found.add_metric([*place, kind], getattr(listing, kind))
        if not listing.complete:
            continue
        for name, number in (
            ("objects", listing.objects),
            ("skipped_entries", listing.skipped),
            ("pending_differences", listing.pending),
            ("listing_duration_seconds", (listing.ended_at - listing.began_at) / 1000),
            ("listing_age_seconds", max(0, now - listing.began_at) / 1000),
        ):
            gauges[name].add_metric(place, number)
    yield from (*counters.values(), found, *gauges.values())


def expiry_metrics(certificates: Sequence[Certificate], tokens: Sequence[StoredToken]) -> Iterator[Metric]:
    """Yield until when certificates and tokens are valid, and by when each should have been replaced."""
    labels = ["of", "certificate"]
    text = "End of a certificate, seconds since 1970, by who meets or uses it."
    ends = GaugeMetricFamily("bucketwire_certificate_expiry_timestamp_seconds", text, labels=labels)
    text = "By when a certificate should have been renewed, seconds since 1970."
    due = GaugeMetricFamily("bucketwire_certificate_renewal_timestamp_seconds", text, labels=labels)
    for one in certificates:
        ends.add_metric([one.of, one.name], one.valid.ends_at / 1000)
        due.add_metric([one.of, one.name], near_end(*one.valid, CERTIFICATES.alert_ms) / 1000)
    yield from (ends, due)
    if expiring := [one for one in tokens if one.expires_at]:
        text = "When the first of the tokens in use expires, seconds since 1970."
        yield _single("token_expiry_timestamp_seconds", text, min(one.expires_at for one in expiring) / 1000)
        text = "By when the first of the tokens in use should have been replaced, seconds since 1970."
        times = (near_end(one.created_at, one.expires_at, CERTIFICATES.token_alert_ms) for one in expiring)
        yield _single("token_renewal_timestamp_seconds", text, min(times) / 1000)


def _posted(count: int) -> Metric:
    counter = CounterMetricFamily("bucketwire_posted_events", "Events that requests to the API have recorded.")
    counter.add_metric([], count)
    return counter


def _requests(answered: Mapping[AnswerKind, int]) -> Iterator[Metric]:
    """Yield how many requests were answered and refused; why posts and sign-ins may be refused begins at 0."""
    by_status: Counter[tuple[str, str]] = Counter()
    refused = Counter({(surface, reason): 0 for surface, reasons in COUNTED_REASONS.items() for reason in reasons})
    for kind, number in answered.items():
        by_status[kind.route, str(kind.status)] += number
        if kind.reason:
            refused[surface_of(kind.route, kind.reason), kind.reason] += number
    text = "Requests by route and status, without probes."
    requests = CounterMetricFamily("bucketwire_http_requests", text, labels=["route", "status"])
    for route_and_status, number in by_status.items():
        requests.add_metric(route_and_status, number)
    text = "Requests that were refused, by surface of the API and reason."
    refusals_by_reason = CounterMetricFamily("bucketwire_refused_requests", text, labels=["surface", "reason"])
    for surface_and_reason, number in refused.items():
        refusals_by_reason.add_metric(surface_and_reason, number)
    yield from (requests, refusals_by_reason)


def _snapshots(state: OldSnapshots | None) -> Iterator[Metric]:
    if state is not None:
        text = "Age of the oldest open transaction of another PostgreSQL session, 0 for none."
        yield _single("database_oldest_snapshot_age_seconds", text, state.age / 1000)
        text = "Old versions that PostgreSQL keeps of a row that each append updates."
        yield _single("database_old_row_versions", text, state.old_versions)


def _labels(target: TargetId) -> list[str]:
    return [target.type, target.name]


def _minio(counters: Sequence[TargetCounters]) -> Iterator[Metric]:
    """Yield the metrics by MinIO's names; its failed events are those that a full queue refused."""
    labels = ["target_id", "target_name"]
    total = _Named("minio_notify_target_total_events", "Events that matched rules of the target.", labels, "counter")
    failed = _Named("minio_notify_target_failed_events", "Events that a full queue refused.", labels, "counter")
    length = _Named("minio_notify_target_queue_length", "Undelivered events.", labels, "gauge")
    for each in counters:
        place = dict(zip(labels, (each.target.name, each.target.type), strict=True))
        total.add_sample(total.name, place, each.matched)
        failed.add_sample(failed.name, place, each.discarded)
        length.add_sample(length.name, place, each.undelivered)
    yield from (total, failed, length)
    together = {
        "events_sent": (
            "Events delivered to all targets.",
            sum(b.delivered + b.superseded for b in counters),
        ),
        "events_errors": ("Events that full queues refused.", sum(b.discarded for b in counters)),
        "events_skipped": ("Events that full queues refused.", sum(b.discarded for b in counters)),
    }
    for prefix in _PREFIXES:
        for name, (text, value) in together.items():
            counter = CounterMetricFamily(f"{prefix}_{name}", text)
            counter.add_metric([], value)
            yield counter


def _leased(leased: Mapping[TargetId, int]) -> Iterator[Metric]:
    """Yield the leased partitions, also as MinIO's "send in progress", which is one request there."""
    partitions = GaugeMetricFamily(
        "bucketwire_target_leased_partitions", "Partitions that workers have leased.", labels=["type", "name"]
    )
    minio = GaugeMetricFamily(
        "minio_notify_target_current_send_in_progress",
        "Partitions that workers have leased.",
        labels=["target_id", "target_name"],
    )
    for target, count in leased.items():
        partitions.add_metric(_labels(target), count)
        minio.add_metric([target.name, target.type], count)
    yield from (partitions, minio)
    for prefix in _PREFIXES:
        total = GaugeMetricFamily(f"{prefix}_current_send_in_progress", "Partitions that workers have leased.")
        total.add_metric([], sum(leased.values()))
        yield total


def _heartbeat_ages(queues: Sequence[Queue], now: int) -> Metric:
    ages = GaugeMetricFamily(
        "bucketwire_target_worker_heartbeat_age_seconds",
        "Seconds since the last heartbeat of a worker that serves the target's queue.",
        labels=["type", "name"],
    )
    for queue in queues:
        ages.add_metric(_labels(queue.target), queue.heartbeat_age(now) / 1000)
    return ages


def process_metrics(processes: Sequence[Process], now: int) -> Iterator[Metric]:
    """Yield the metrics of the processes."""
    text = "Whether an API answers at its address."
    apis = GaugeMetricFamily("bucketwire_api_up", text, labels=["host", "address"])
    for api in processes_of(API, processes, now):
        apis.add_metric([api.host, api.address], int(api.state(now) == RUNNING))
    text = (
        "Workers that do their work, by what they serve: drain, targets, sources, spark, or types and names of targets."
    )
    live = GaugeMetricFamily("bucketwire_live_workers", text, labels=["serves"])
    for what, count in live_workers(processes, now).items():
        live.add_metric([what], count)
    text = "Workers of a host that recorded no heartbeat for 30 seconds, did not end, and were not replaced."
    silent = GaugeMetricFamily("bucketwire_silent_workers", text, labels=["host"])
    for host, count in Counter(one.host for one in silent_workers(processes, now)).items():
        silent.add_metric([host], count)
    text = "Workers of a host that are there, and have served nothing for 30 seconds."
    hindered = GaugeMetricFamily("bucketwire_hindered_workers", text, labels=["host"])
    for host, count in Counter(one.host for one in hindered_workers(processes, now)).items():
        hindered.add_metric([host], count)
    yield from (apis, live, silent, hindered)


def _drift(results: Sequence[tuple[TargetId, str, int, int]]) -> Iterator[Metric]:
    labels = ["type", "name", "bucket"]
    drift = GaugeMetricFamily(
        "bucketwire_reconcile_drift",
        "Entries that the last reconciliation that did not fail left missing or wrong.",
        labels=labels,
    )
    ended = GaugeMetricFamily(
        "bucketwire_reconcile_finished_timestamp_seconds",
        "End of the last reconciliation that did not fail, seconds since 1970.",
        labels=labels,
    )
    for target, bucket, finished, entries in results:
        drift.add_metric([*_labels(target), bucket], entries)
        ended.add_metric([*_labels(target), bucket], finished / 1000)
    yield from (drift, ended)


def _runs(states: Sequence[RunState], now: int) -> Iterator[Metric]:
    labels = ["kind", "type", "name", "bucket"]  # "job" is a label of Prometheus's own
    failed = GaugeMetricFamily(
        "bucketwire_run_failed",
        "1 if the newest reconciliation, scan, backfill or update of the tables failed, else 0.",
        labels=labels,
    )
    overdue = GaugeMetricFamily(
        "bucketwire_run_overdue_seconds",
        "Seconds since a scheduled run was due that has not begun; 0 if none is overdue.",
        labels=labels,
    )
    for state in states:
        target = ("", "") if state.kind == TABLES else _labels(state.target)
        values = [state.kind, *target, state.bucket]
        failed.add_metric(values, int(bool(state.failed_at)))
        overdue.add_metric(values, (now - state.due_at) / 1000 if state.due_at else 0)
    yield from (failed, overdue)


def _upkeep(tasks: Sequence[TaskState], now: int) -> Iterator[Metric]:
    failed = GaugeMetricFamily(
        "bucketwire_upkeep_failed",
        "1 if what runs by time beside deliveries failed when it ran last, else 0.",
        labels=["task"],
    )
    overdue = GaugeMetricFamily(
        "bucketwire_upkeep_overdue_seconds",
        "Seconds since what runs by time beside deliveries was due and did not run; 0 if it is not overdue.",
        labels=["task"],
    )
    for state in tasks:
        failed.add_metric([state.name], int(state.has_failed))
        overdue.add_metric([state.name], (now - state.due_at) / 1000 if state.due_at else 0)
    yield from (failed, overdue)


def _difference(audits: Sequence[Audit]) -> Metric:
    """Return the mismatches; no samples before the first audit, because 0 would not be true."""
    gauge = GaugeMetricFamily(
        "bucketwire_target_counter_mismatch_events",
        "Pending events by the counters minus those in the log; anything but 0 is a defect.",
        labels=["type", "name"],
    )
    for each in audits:
        gauge.add_metric(_labels(each.counters.target), each.difference)
    return gauge


class _Named(Metric):
    """A metric whose samples have exactly its name; the client library would add `_total` to a counter's."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str], kind: str) -> None:
        # MinIO's counters do not end in _total, which the exposition format requires of a "counter".
        super().__init__(name, documentation, "unknown" if kind == "counter" else kind)
        self.labels = labels


def _single(name: str, text: str, value: float) -> Metric:
    gauge = GaugeMetricFamily(f"bucketwire_{name}", text)
    gauge.add_metric([], value)
    return gauge
