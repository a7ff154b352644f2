"""What a worker's figures count."""

from __future__ import annotations

from random import Random

from prometheus_client import Histogram
from prometheus_client.metrics import MetricWrapperBase

from app.config.arn import TargetId
from app.outbox.delivery.logged_events import LoggedEvent
from tests.support.batch_records import NOW, settled
from tests.support.builders import event
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Failed, Outcome, Rejected, Unavailable
from workers.delivery.retry import RetrySchedule
from workers.delivery.settlement import TargetCall
from workers.targets.base import LeaseExpired
from workers.telemetry.metrics import Bulk, TargetMetrics, WorkerMetrics


def samples(metric: MetricWrapperBase) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in metric.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_many_observations_at_once_come_to_the_same_as_one_by_one() -> None:
    rng = Random(7)
    bounds = (0.5, 1, 5, 60)
    many = Bulk("x", "x", buckets=bounds, registry=None)
    single = Histogram("x", "x", buckets=bounds, registry=None)
    for size in (0, 1, 3, 500):
        observed = [rng.choice([0, 0.5, 1, 5, 60, 61, rng.random() * 100]) for _ in range(size)]
        many.observe_all(observed)
        for each in observed:
            single.observe(each)
        found, expected = samples(many), samples(single)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert abs(found[name] - value) < 1e-6, name


def test_each_event_handed_over_counts_once_by_its_outcome_and_those_not_tried_not_at_all() -> None:
    figures = WorkerMetrics()
    outcomes: list[Outcome] = [DELIVERED, DELIVERED, Failed("x"), NOT_ATTEMPTED, Rejected("x")]
    of = TargetMetrics(figures, TargetId("redis", "a"))
    of.call_ended(TargetCall((), [*outcomes, Unavailable("away")], 0.2))
    of.call_ended(TargetCall((), [DELIVERED], 0.2))
    of.call_ended(TargetCall([event()], error=LeaseExpired()))
    assert samples(figures.attempts) == {
        ("bucketwire_worker_attempts_total", "redis", "a", "delivered"): 3,
        ("bucketwire_worker_attempts_total", "redis", "a", "failed"): 1,
        ("bucketwire_worker_attempts_total", "redis", "a", "rejected"): 1,
        ("bucketwire_worker_attempts_total", "redis", "a", "unavailable"): 1,
    }
    assert samples(figures.sizes)["bucketwire_worker_batch_events_sum", "redis", "a"] == 7
    assert samples(figures.calls)["bucketwire_target_request_seconds_count", "redis", "a"] == 2


def test_a_clock_that_was_set_back_makes_no_negative_times() -> None:
    figures = WorkerMetrics()
    events = [LoggedEvent(event(), 3, 1, 1, NOW + 3000), LoggedEvent(event(), 3, 2, 2, NOW - 1000)]
    batch, _ = settled(events, [DELIVERED] * 2, RetrySchedule(), {3: 2})
    TargetMetrics(figures, TargetId("redis", "a")).batch_settled(batch)
    found = samples(figures.ages)
    assert found["bucketwire_worker_delivery_seconds_sum", "redis", "a"] == 1
    assert found["bucketwire_worker_delivery_seconds_count", "redis", "a"] == 2


def test_every_figure_is_there_from_the_start() -> None:
    figures = WorkerMetrics()
    of = figures.of("arn:minio:sqs:eu:a:redis")
    assert figures.of("arn:minio:sqs:eu:a:redis") is of
    assert samples(figures.leases_lost) == {("bucketwire_worker_leases_lost_total", "redis", "a"): 0}
    assert samples(figures.openings) == {("bucketwire_worker_breaker_openings_total", "redis", "a"): 0}
