"""One trace from the request that posts an event to the request that delivers it, and what a collector gets besides.

The service exports to OpenTelemetry's own collector. That passes everything on to a receiver, and what it sends is
decoded by OpenTelemetry's own protobuf classes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import psutil
import pytest
import sqlalchemy as sa

from app.events.model import Event
from app.outbox import tables
from tests import services
from tests.services import Answer, until
from tests.support import otlp
from tests.support.builders import event
from tests.support.otlp import Line, Point, Span
from tests.support.service_processes import Role, System, start_all, system

PATIENCE = 90
DROPPED = "are dropped, because OpenTelemetry's collector does not accept them"


@dataclass
class Observed:
    """A service that exports everything, its target, the collector, and what that passes everything on to."""

    whole: System
    hook: services.Receiver
    collector: services.Collector
    collected: services.Receiver

    def post(self, *events: Event, **headers: str) -> None:
        """Post these events in one request."""
        content = b'{"Records":[' + b",".join(one.record.encode() for one in events) + b"]}"
        self.whole.ask("POST", "/v1/events", content=content, headers=headers)

    def delivered(self, bucket: str, count: int) -> list[services.Request]:
        """The requests to the bucket's target, once they bring so many records."""

        def records() -> int:
            return sum(len(one.json()["Records"]) for one in self.hook.requests(f"/{bucket}"))

        until(lambda: records() >= count, PATIENCE, what=f"{count} records at the target")
        return self.hook.requests(f"/{bucket}")

    def span(self, what: str, fits: Callable[[Span], bool]) -> Span:
        """The one span that fits, as soon as it is at the collector."""
        return self._one(otlp.spans, fits, f"the span {what}")

    def line(self, fits: Callable[[Line], bool]) -> Line:
        """The one log line that fits, as soon as it is at the collector."""
        return self._one(otlp.lines, fits, "the line")

    def point(self, name: str, fits: Callable[[Point], bool]) -> Point:
        """The newest value of a metric that fits, as soon as there is one."""

        def found() -> list[Point]:
            return [one for one in otlp.points(self.collected, name) if fits(one)]

        until(lambda: bool(found()), PATIENCE, what=name)
        return found()[-1]

    def _one(self, read: Callable[[services.Receiver], list[Any]], fits: Callable[[Any], bool], what: str) -> Any:
        until(lambda: any(map(fits, read(self.collected))), PATIENCE, what=what)
        found, *others = filter(fits, read(self.collected))
        assert all(other == found for other in others), "only an export that was repeated may bring it again"
        return found


@pytest.fixture(scope="module")
def observed(postgres_server: services.Postgres) -> Iterator[Observed]:
    url = postgres_server.create_database(f"outbox_{uuid4().hex[:12]}")
    with services.receiver() as collected, services.collector(collected.url) as collector:
        telemetry = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "2",
            "OTEL_SERVICE_NAME": "notifications",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_BLRP_SCHEDULE_DELAY": "100",
            "OTEL_METRIC_EXPORT_INTERVAL": "2000",  # each process exports all of its metrics
        }
        with (
            services.redis() as broker,
            services.receiver() as hook,
            system(url, broker.url, start=False, environ=telemetry, log_format="json") as whole,
        ):
            whole.beat.ready = "beat: Starting"
            start_all(whole.roles)
            yield Observed(whole, hook, collector, collected)


@pytest.fixture
def bucket(observed: Observed) -> str:
    """A bucket of its own, whose target is a webhook with its name as path."""
    name = f"bucket-{uuid4().hex[:12]}"
    observed.whole.add_target(
        f"webhook:{name}", name, endpoint=f"{observed.hook.url}{name}", sync="on", events_per_post=10
    )
    return name


def traceparent() -> tuple[str, str, str]:
    """A header of a sender, with its trace and its span."""
    trace, span = uuid4().hex, uuid4().hex[:16]
    return f"00-{trace}-{span}-01", trace, span


def test_one_trace_leads_from_the_request_of_the_frontend_to_the_webhooks(observed: Observed, bucket: str) -> None:
    header, trace, sender = traceparent()
    sent = event("x" * 1000, bucket=bucket)
    observed.post(sent, traceparent=header, tracestate="vendor=1")
    [request] = observed.delivered(bucket, 1)

    received = observed.span("of the request", lambda one: one.trace == trace and one.kind == "SERVER")
    assert (received.name, received.parent) == ("POST /v1/events", sender)
    assert received.attributes["http.response.status_code"] == 202
    appended = observed.span("of the append", lambda one: one.parent == received.span)
    assert (appended.name, appended.kind, appended.trace) == ("append events", "PRODUCER", trace)
    origin = {name.removeprefix("bucketwire.origin."): text for name, text in appended.attributes.items()}
    assert (origin["kind"], origin["frontend"]) == ("request", "minio")
    delivery = observed.span("of the delivery", lambda one: one.parent == appended.span)
    assert (delivery.name, delivery.trace) == (f"deliver webhook:{bucket}", trace)
    assert delivery.attributes["aws.s3.key"] == sent.key
    assert delivery.attributes["messaging.message.id"]
    assert not delivery.error
    assert request.headers["traceparent"] == f"00-{trace}-{delivery.span}-01"
    assert request.headers["tracestate"] == "vendor=1"
    for span in (received, delivery):
        assert span.resource["service.name"] == "notifications"
        assert span.resource["deployment.environment.name"] == "test"
    assert {received.resource["bucketwire.role"], delivery.resource["bucketwire.role"]} == {"api", "worker"}


def test_the_body_is_the_same_byte_for_byte_as_without(observed: Observed, bucket: str) -> None:
    sent = event("cat.jpg", bucket=bucket)
    observed.post(sent)
    [request] = observed.delivered(bucket, 1)
    with observed.whole.database.reading() as connection:
        stored = sa.select(tables.events.c.record).where(tables.events.c.bucket == bucket)
        record = connection.execute(stored).scalar_one()
    assert request.body == f'{{"EventName":"{sent.name}","Key":"{sent.path}","Records":[{record}]}}'.encode()
    assert b"trace" not in request.body
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[13]", request.headers["traceparent"])


def test_a_request_with_several_events_has_a_span_that_is_linked_to_their_traces(
    observed: Observed, bucket: str
) -> None:
    observed.whole.ask("POST", f"/v1/targets/webhook/{bucket}/pause", json={"reason": "so that they wait"})
    traces = []
    for number in range(3):  # of one object, so that they are of one partition, and of one batch
        header, trace, _ = traceparent()
        observed.post(event("k", bucket=bucket, sequencer=f"{number:016X}"), traceparent=header)
        traces.append(trace)
    observed.whole.ask("POST", f"/v1/targets/webhook/{bucket}/resume", json={})
    [request] = observed.delivered(bucket, 3)
    appended = [
        observed.span("of an append", lambda one, trace=trace: one.trace == trace and one.name == "append events")
        for trace in traces
    ]
    batch = observed.span("of the batch", lambda one: one.name == f"deliver webhook:{bucket}")
    assert batch.links == [(one.trace, one.span) for one in appended]
    assert batch.parent == ""
    assert batch.attributes["messaging.batch.message_count"] == 3
    assert request.headers["traceparent"].startswith(f"00-{batch.trace}-{batch.span}-")


def test_a_retry_and_a_replay_are_in_the_trace_of_the_frontends_request(observed: Observed, bucket: str) -> None:
    observed.hook.set(Answer(status=500, path=f"/{bucket}", times=1))
    header, trace, sender = traceparent()
    sent = event("k", bucket=bucket)
    observed.post(sent, traceparent=header)
    observed.delivered(bucket, 2)  # the first one was refused
    observed.whole.ask("POST", "/v1/replays", json={"target": f"webhook:{bucket}", "all": True})
    requests = observed.delivered(bucket, 3)
    assert [one.status for one in requests] == [500, 200, 200]
    received = observed.span("of the request", lambda one: one.trace == trace and one.kind == "SERVER")
    assert received.parent == sender
    appended = observed.span("of the append", lambda one: one.parent == received.span)
    for request in requests:
        _, of_trace, of_span, _ = request.headers["traceparent"].split("-")
        assert of_trace == trace
        delivery = observed.span("of the delivery", lambda one, of_span=of_span: one.span == of_span)
        assert (delivery.parent, delivery.name) == (appended.span, f"deliver webhook:{bucket}")
        assert delivery.error == (request.status == 500)
    assert len({request.headers["traceparent"] for request in requests}) == 3


def test_a_cloud_events_own_trace_is_kept_and_linked(observed: Observed, bucket: str) -> None:
    (header, trace, _), (own, own_trace, own_span) = traceparent(), traceparent()
    cloud_event = {
        "specversion": "1.0", "id": uuid4().hex, "source": "s", "type": "t", "traceparent": own,
        "data": {"Records": [orjson.loads(event("k", bucket=bucket).record)]},
    }  # fmt: skip
    observed.whole.ask("POST", "/v1/events", json=cloud_event, headers={"traceparent": header})
    [request] = observed.delivered(bucket, 1)
    appended = observed.span("of the append", lambda one: one.trace == trace and one.name == "append events")
    assert appended.links == [(own_trace, own_span)]
    delivery = observed.span("of the delivery", lambda one: one.parent == own_span)
    assert request.headers["traceparent"] == f"00-{own_trace}-{delivery.span}-01"


def test_a_drain_that_wakes_a_worker_has_a_span(observed: Observed, bucket: str) -> None:
    observed.whole.ask("POST", f"/v1/targets/webhook/{bucket}/pause", json={"reason": "for the drain"})
    time.sleep(1.5)  # until the API, which knows a target's state for a second, wakes no worker with what is posted
    observed.post(event("k", bucket=bucket))
    before = {one.span for one in otlp.spans(observed.collected)}
    observed.whole.ask("POST", f"/v1/targets/webhook/{bucket}/resume", json={})
    observed.delivered(bucket, 1)
    until(
        lambda: any(
            one.name == "drain" and one.span not in before and one.attributes["bucketwire.wake_ups"] >= 1
            for one in otlp.spans(observed.collected)
        ),
        PATIENCE,
        what="the drain's span",
    )


def test_the_metrics_of_outbox_and_workers_arrive_under_the_names_they_have_for_prometheus(
    observed: Observed, bucket: str
) -> None:
    def of_it(one: Point) -> bool:
        return one.attributes == {"type": "webhook", "name": bucket} and one.value == 2

    observed.post(event("a", bucket=bucket), event("b", bucket=bucket))
    observed.delivered(bucket, 2)
    outbox = observed.point("bucketwire_target_delivered_events_total", of_it)
    assert (outbox.kind, outbox.resource["bucketwire.role"]) == ("sum", "api")
    worker = observed.point("bucketwire_worker_delivery_seconds", of_it)
    assert (worker.kind, worker.resource["bucketwire.role"]) == ("histogram", "worker")
    gauge = observed.point("bucketwire_database_up", lambda one: one.value == 1)
    assert gauge.kind == "gauge"
    exported = otlp.points(observed.collected, "bucketwire_database_up")
    assert len({one.resource["service.instance.id"] for one in exported}) == 1, "the API's processes are one instance"


def test_log_lines_arrive_with_the_trace_of_their_event_or_batch(observed: Observed, bucket: str) -> None:
    observed.hook.set(Answer(status=422, body="not this", path=f"/{bucket}", containing="bad"))
    header, trace, _ = traceparent()
    observed.post(event("bad", bucket=bucket), traceparent=header)
    arn = f"arn:minio:sqs::{bucket}:webhook"
    failure = observed.line(lambda one: one.attributes.get("target") == arn and "event" in one.attributes)
    assert (failure.trace, failure.level, failure.attributes["outcome"]) == (trace, "WARNING", "rejected")
    assert "not this" in failure.body
    delivery = observed.span("of the delivery", lambda one: one.trace == trace and one.name.startswith("deliver"))
    assert delivery.error
    assert delivery.attributes["error.type"] == "rejected"
    batch = observed.line(lambda one: one.attributes.get("target") == arn and "partitions" in one.attributes)
    assert (batch.trace, batch.span) == (trace, delivery.span)
    [logged] = [
        line
        for line in map(orjson.loads, observed.whole.workers[0].log.read_text().splitlines())
        if line.get("target") == arn and "partitions" in line
    ]
    assert (logged["trace_id"], logged["span_id"]) == (trace, delivery.span)
    observed.hook.set()


def has_protobuf(process: psutil.Process) -> bool:
    return "_upb" in Path(f"/proc/{process.pid}/maps").read_text()


def test_each_process_that_exports_has_loaded_what_it_needs(observed: Observed) -> None:
    """The opposite, that others have not, is a test of test_observability.py, and means something by this one."""
    for role in (observed.whole.api, *observed.whole.workers):
        assert all(map(has_protobuf, role.children())), role.arguments
    assert has_protobuf(psutil.Process(observed.whole.drain.pid))


@pytest.mark.nightly("traces, metrics and log lines at a collector; one that hangs, in test_otlp_exports.py")
def test_a_collector_that_hangs_stops_neither_intake_nor_delivery_nor_the_end_of_a_process(
    observed: Observed, bucket: str
) -> None:
    def dropped(role: Role, signal: str) -> list[str]:
        found = [orjson.loads(line) for line in role.said().splitlines()]
        return [line["message"] for line in found if f"{signal} {DROPPED}" in line["message"]]

    observed.collector.freeze()
    # So that there is something to export in each process of the pool, and more of it than its queue holds.
    events = [event(f"k{number}", bucket=bucket) for number in range(40)]
    for sent in events:
        observed.post(sent)
    observed.delivered(bucket, 40)
    until(lambda: dropped(observed.whole.api, "traces"), PATIENCE, what="the line that spans are dropped")
    for sent in events:
        observed.post(event(f"again-{sent.key}", bucket=bucket))
    observed.delivered(bucket, 80)
    assert len(dropped(observed.whole.api, "traces")) <= 2, "one for each process of the API"
    hurt = (observed.whole.api, *observed.whole.workers)
    for role in hurt:
        role.stop()  # it must end in time, although the collector does not answer
    observed.collector.thaw()
    start_all(hurt)
    header, trace, _ = traceparent()
    observed.post(event("after", bucket=bucket), traceparent=header)
    observed.span("after the collector's return", lambda one: one.trace == trace and one.name.startswith("deliver"))
