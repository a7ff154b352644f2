"""Figures for Prometheus, read from the database at each scrape: right however many processes there are.

Beside the service's own names stand those of MinIO that mean the same (reference §7), so that dashboards go on.
"""

from collections.abc import Iterator, Sequence

from flask import Blueprint, Response
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry

from app.api.access import READ, needs
from app.api.parts import Parts, parts
from app.outbox.books import Books, read_books, snapshot
from app.outbox.database import DatabaseUnavailable, now_ms
from app.outbox.registry import StoredTarget

routes = Blueprint("metrics", __name__)
_STATES = ("running", "paused", "disabled", "unavailable", "broken")
_COUNTERS = {
    "recorded": "Events taken for the target, those of replays included.",
    "delivered": "Events that the target confirmed.",
    "superseded": "Events that a newer one of the same object made needless.",
    "discarded": "Events left out because the target's queue was full.",
    "purged": "Dead letters that an operator threw away.",
}
_GAUGES = {
    "pending": "Events not yet tried, or waiting for a target that is away.",
    "parked": "Events that failed and wait for their next try, and those behind them.",
    "dead": "Dead letters.",
}


@routes.get("/metrics")
@needs(READ)
def metrics() -> Response:
    """Give the figures.
    ---
    get:
      summary: Figures for Prometheus
      description: Without the database only `bucketwire_database_up` and the staging folder's figures.
      security: [{token: [read]}]
      responses:
        200: {description: text exposition format, content: {text/plain: {schema: {type: string}}}}
        default: Problem
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Scrape(parts()))
    return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


class Scrape:
    """One scrape's figures."""

    def __init__(self, found: Parts) -> None:
        self._parts = found

    def collect(self) -> Iterator[Metric]:
        """Every figure, as of one moment."""
        try:
            stored = {one.target: one for one in self._parts.registry.targets()}
            with snapshot(self._parts.database) as connection:
                books = read_books(connection)
        except DatabaseUnavailable:
            yield _single("database_up", "Whether the outbox database can be read.", 0)
        else:
            yield _single("database_up", "Whether the outbox database can be read.", 1)
            yield from figures([(stored[each.target], each) for each in books if each.target in stored], now_ms())
        if self._parts.feeder is not None:
            staging = self._parts.feeder.staging
            yield _single(
                "staging_files",
                "Files in the staging folder, to be fed: a request or several each.",
                len(staging.files()),
            )
            yield _single("staging_set_aside", "Staged files that could not be recorded.", staging.damaged())


def figures(targets: Sequence[tuple[StoredTarget, Books]], now: int) -> Iterator[Metric]:
    """The figures of targets with these books."""
    labels = ["type", "name"]
    for name, text in _COUNTERS.items():
        counter = CounterMetricFamily(f"bucketwire_target_{name}_events", text, labels=labels)
        for stored, books in targets:
            counter.add_metric([stored.target.type, stored.target.name], getattr(books, name))
        yield counter
    for name, text in _GAUGES.items():
        gauge = GaugeMetricFamily(f"bucketwire_target_{name}_events", text, labels=labels)
        for stored, books in targets:
            gauge.add_metric([stored.target.type, stored.target.name], getattr(books, name))
        yield gauge
    oldest = GaugeMetricFamily(
        "bucketwire_target_oldest_event_age_seconds", "Age of its oldest undelivered event, 0 for none.", labels=labels
    )
    breaker = GaugeMetricFamily("bucketwire_target_breaker_open", "Whether its breaker is open.", labels=labels)
    states = GaugeMetricFamily("bucketwire_target_state", "1 for the state it is in.", labels=[*labels, "state"])
    for stored, books in targets:
        place = [stored.target.type, stored.target.name]
        oldest.add_metric(place, max(0, now - books.oldest) / 1000 if books.oldest else 0)
        breaker.add_metric(place, int(stored.breaker != "closed"))
        for each in _STATES:
            states.add_metric([*place, each], int(stored.standing[0] == each))
    yield from (oldest, breaker, states)
    yield from _minio([books for _, books in targets])


def _minio(books: Sequence[Books]) -> Iterator[Metric]:
    """What MinIO calls the same things: a save is an event put in a target's queue, which a full one refuses."""
    labels = ["target_id", "target_name"]
    total = _Named("minio_notify_target_total_events", "Events that rules named for the target.", labels, "counter")
    failed = _Named("minio_notify_target_failed_events", "Events left out by a full queue.", labels, "counter")
    length = _Named("minio_notify_target_queue_length", "Undelivered events.", labels, "gauge")
    for each in books:
        place = dict(zip(labels, (each.target.name, each.target.type), strict=True))
        total.add_sample(total.name, place, each.matched)
        failed.add_sample(failed.name, place, each.discarded)
        length.add_sample(length.name, place, each.pending + each.parked)
    yield from (total, failed, length)
    sent = CounterMetricFamily("minio_notify_events_sent", "Events delivered, to all targets together.")
    sent.add_metric([], sum(each.delivered + each.superseded for each in books))
    skipped = CounterMetricFamily("minio_notify_events_skipped", "Events left out by full queues, all together.")
    skipped.add_metric([], sum(each.discarded for each in books))
    yield from (sent, skipped)


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
