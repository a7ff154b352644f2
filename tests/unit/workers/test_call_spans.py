"""The span of a call to a target: whom it follows, what it is linked to, and what is sent with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from app.config.arn import TargetId
from app.config.targets.webhook import WebhookSettings
from app.events.model import Event
from app.telemetry.otlp.records import OtelTracing
from tests.support.builders import event
from workers.delivery.namespace_policy import Policy
from workers.delivery.outcomes import DELIVERED, Outcome, Rejected, Unavailable
from workers.delivery.pooled_target import BatchSizer, CallSpans, PooledTarget
from workers.delivery.retry import RetrySchedule
from workers.delivery.settlement import TargetCall
from workers.systems.webhook.requests import RequestFormat
from workers.targets import base
from workers.targets.base import NO_LEASE, LeaseCheck, LeaseExpired, TargetUnavailable

NAME = TargetId("webhook", "orders")


@dataclass
class Recorder:
    """A target that keeps what it gets, and answers as it is told."""

    answer: Callable[[Event], Outcome] = lambda _: DELIVERED
    got: list[Event] = field(default_factory=list)
    contexts: list[str] = field(default_factory=list)  # of the calls, while they are made

    def open(self) -> None: ...

    def close(self) -> None: ...

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        self.got += events
        self.contexts.append(base.call_trace())
        return [self.answer(each) for each in events]


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    made = InMemorySpanExporter()
    yield made
    base.begin_call_trace("")


def deliver(target: Recorder, exporter: InMemorySpanExporter, events: Sequence[Event]) -> TargetCall:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = CallSpans(OtelTracing(provider.get_tracer("x"), 128), NAME, "arn:x")
    sizer = BatchSizer(10)
    pooled = PooledTarget("arn:x", target, Policy.LOG, RetrySchedule(), 1, sizer, observers=[spans])
    return pooled.call(events, NO_LEASE)


def trace(number: int, flags: str = "01") -> str:
    return f"00-{number:032x}-{number:016x}-{flags}"


def ids(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}"


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def test_a_call_with_one_event_continues_its_trace_and_the_event_is_sent_with_the_span(
    exporter: InMemorySpanExporter,
) -> None:
    target = Recorder()
    sent = event("k")._replace(key="k\ud800", trace=f"{trace(7)} a=1")
    assert deliver(target, exporter, [sent]).outcomes == [DELIVERED]
    [span] = exporter.get_finished_spans()
    assert (span.name, span.kind.name, parent(span)) == ("deliver webhook:orders", "PRODUCER", 7)
    [got] = target.got
    assert got == sent._replace(trace=got.trace)
    assert got.trace.startswith(ids(span))
    assert got.trace.endswith(" a=1")
    assert span.attributes is not None
    assert span.attributes["messaging.message.id"] == sent.id
    assert span.attributes["aws.s3.key"] == "k?"
    assert span.attributes["bucketwire.delivered"] == 1
    assert span.status.is_unset


def test_a_call_with_several_is_linked_to_their_traces_and_leaves_them_as_they_are(
    exporter: InMemorySpanExporter,
) -> None:
    target = Recorder()
    events = [event(f"k{number}")._replace(trace=trace(number)) for number in (1, 2, 2)]
    events += [event("plain"), event("unsampled")._replace(trace=trace(9, "00"))]
    call = deliver(target, exporter, events)
    [span] = exporter.get_finished_spans()
    assert (span.kind.name, parent(span)) == ("CLIENT", None)
    assert [link.context.span_id for link in span.links] == [1, 2]
    assert target.got == events
    assert span.attributes is not None
    assert span.attributes["messaging.batch.message_count"] == 5
    assert not {"aws.s3.key", "messaging.message.id"} & set(span.attributes)
    assert call.trace.startswith(ids(span))
    assert target.contexts == [call.trace]
    assert base.call_trace() == "", "only during the call"


def test_a_call_with_events_of_one_request_is_in_its_trace(exporter: InMemorySpanExporter) -> None:
    deliver(Recorder(), exporter, [event(f"k{n}")._replace(trace=trace(5)) for n in range(3)])
    [span] = exporter.get_finished_spans()
    assert (parent(span), len(span.links)) == (5, 0)


def test_what_was_not_delivered_is_an_error_with_its_reason(exporter: InMemorySpanExporter) -> None:
    refusing = Recorder(lambda each: Rejected("too large") if each.key == "b" else DELIVERED)
    deliver(refusing, exporter, [event("a"), event("b")])
    [span] = exporter.get_finished_spans()
    assert span.attributes is not None
    assert (span.attributes["bucketwire.delivered"], span.attributes["bucketwire.rejected"]) == (1, 1)
    assert (span.status.status_code.name, span.status.description) == ("ERROR", "too large")
    assert span.attributes["error.type"] == "rejected"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TargetUnavailable("refused"), "unavailable"),
        (LeaseExpired(), "lease_expired"),
        (RuntimeError("s3cr3t"), "RuntimeError"),
    ],
)
def test_what_a_target_raises_ends_the_span(error: Exception, kind: str, exporter: InMemorySpanExporter) -> None:
    def raising(_: Event) -> Outcome:
        raise error

    call = deliver(Recorder(raising), exporter, [event("a")])
    assert call.error is error
    [span] = exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["error.type"] == kind
    assert span.status.description == ("refused" if kind == "unavailable" else None)


def test_a_target_that_cannot_be_opened_is_not_called_and_has_no_span(exporter: InMemorySpanExporter) -> None:
    class Closed(Recorder):
        def open(self) -> None:
            raise TargetUnavailable("refused")

    call = deliver(Closed(), exporter, [event("a"), event("b")])
    assert call.outcomes == [Unavailable("refused", unreachable=True)] * 2
    assert exporter.get_finished_spans() == ()


def test_a_webhook_request_has_the_context_of_its_event_or_of_the_call() -> None:
    requests = RequestFormat(WebhookSettings(endpoint="http://127.0.0.1/"))
    events = [event(f"k{number}")._replace(trace=trace(number)) for number in (1, 2)]
    bodies = [requests.build(events)[0]]
    assert "traceparent" not in requests.build(events)[1]
    base.begin_call_trace(trace(3))
    try:
        assert requests.build(events)[1]["traceparent"] == trace(3)
        assert requests.build(events[:1])[1]["traceparent"] == trace(1)
        bodies.append(requests.build(events)[0])
    finally:
        base.begin_call_trace("")
    assert bodies[0] == bodies[1]
