"""Record a span for each call to a target. It is not used at all while traces are not exported."""

from collections import Counter
from collections.abc import Sequence

from app.config.arn import TargetId
from app.events.model import Event
from app.telemetry.tracing import NO_SPAN, Span, Tracing, Value
from workers.delivery.outcomes import DELIVERED, Delivered, Failed, NotAttempted, Outcome, Rejected, Unavailable
from workers.delivery.settlement import Observer, TargetCall
from workers.targets.base import LeaseExpired, TargetUnavailable, begin_call_trace

_COUNTED = {
    Delivered: "delivered",
    Failed: "failed",
    Rejected: "rejected",
    Unavailable: "unavailable",
    NotAttempted: "not_attempted",
}


class CallSpans(Observer):
    """The spans of one target, whose reasons contain no secrets.

    A call with one event continues the event's trace, and the event is sent with the context of this span. A call with
    several has a trace of its own, unless they all came with the same; its span is linked to theirs. Each of these
    events is sent with its own context, and a request with several of them with that of the call.
    """

    def __init__(self, tracing: Tracing, name: TargetId, arn: str) -> None:
        self._tracing = tracing
        self._span: Span = NO_SPAN
        self._span_name = f"deliver {name}"
        self._attributes: dict[str, Value] = {
            "messaging.system": name.type,
            "messaging.operation.type": "send",
            "messaging.operation.name": "deliver",
            "messaging.destination.name": str(name),
            "bucketwire.target": arn,
        }

    def call_begins(self, call: TargetCall) -> None:
        """Start the span."""
        self._span = self._start(call.events)
        call.trace = self._span.trace
        begin_call_trace(call.trace)
        if len(call.events) == 1:
            call.events = [call.events[0]._replace(trace=call.trace)]

    def call_ended(self, call: TargetCall) -> None:
        """End the span with what came of the call."""
        span, self._span = self._span, NO_SPAN
        begin_call_trace("")
        if isinstance(call.error, TargetUnavailable):
            span.fail("unavailable", call.error.reason)
        elif isinstance(call.error, LeaseExpired):
            span.fail("lease_expired")
        elif call.error is not None:
            span.fail(type(call.error).__name__)  # its text may contain secrets
        else:
            _record(span, call.outcomes)
        span.end()

    def _start(self, events: Sequence[Event]) -> Span:
        first = events[0]
        if len(events) == 1:
            attributes = {
                **self._attributes,
                "messaging.message.id": first.id,
                "aws.s3.bucket": first.bucket,
                "aws.s3.key": first.key,
                "bucketwire.event.name": first.name,
            }
            return self._tracing.start(self._span_name, "producer", parent=first.trace, attributes=attributes)
        attributes = {**self._attributes, "messaging.batch.message_count": len(events)}
        shared = first.trace if all(event.trace == first.trace for event in events) else ""
        links = () if shared else (event.trace for event in events)
        return self._tracing.start(self._span_name, "client", parent=shared, links=links, attributes=attributes)


def _record(span: Span, outcomes: Sequence[Outcome]) -> None:
    """Set the number of each outcome, and the first reason if any event was not delivered."""
    if outcomes.count(DELIVERED) == len(outcomes):  # nearly always, and a tenth of the time
        span.set("bucketwire.delivered", len(outcomes))
        return
    for kind, count in Counter(map(type, outcomes)).items():
        span.set(f"bucketwire.{_COUNTED[kind]}", count)
    for outcome in outcomes:
        if isinstance(outcome, Failed | Rejected | Unavailable):
            span.fail(_COUNTED[type(outcome)], outcome.reason)
            return
