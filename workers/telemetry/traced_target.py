"""Record a span for each call to a target. It is not used at all while traces are not exported."""

from collections import Counter
from collections.abc import Sequence

from app.config.arn import TargetId
from app.events.model import Event
from app.telemetry.tracing import Span, Tracing, Value
from workers.delivery.outcomes import DELIVERED, Delivered, Failed, NotAttempted, Outcome, Rejected, Unavailable
from workers.targets import call_trace
from workers.targets.base import NO_LEASE, LeaseCheck, LeaseExpired, Target, TargetUnavailable

_COUNTED = {
    Delivered: "delivered",
    Failed: "failed",
    Rejected: "rejected",
    Unavailable: "unavailable",
    NotAttempted: "not_attempted",
}


class TracedTarget:
    """Wraps a target whose reasons contain no secrets.

    A call with one event continues the event's trace, and the event is sent with the context of this span. A call with
    several has a trace of its own, unless they all came with the same; its span is linked to theirs. Each of these
    events is sent with its own context, and a request with several of them with that of the call.
    """

    def __init__(self, target: Target, tracing: Tracing, name: TargetId, arn: str) -> None:
        self._target = target
        self._tracing = tracing
        self._span_name = f"deliver {name}"
        self._attributes: dict[str, Value] = {
            "messaging.system": name.type,
            "messaging.operation.type": "send",
            "messaging.operation.name": "deliver",
            "messaging.destination.name": str(name),
            "bucketwire.target": arn,
        }

    def open(self) -> None:
        """Open the target. Raises `TargetUnavailable`."""
        self._target.open()

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        """Deliver within a span. Raises what the target raises."""
        if not events:
            return self._target.deliver(events, window, lease)
        span = self._started(events)
        call_trace.begin(span.trace)
        try:
            sent = [events[0]._replace(trace=span.trace)] if len(events) == 1 else events
            outcomes = self._target.deliver(sent, window, lease)
            _record(span, outcomes)
        except TargetUnavailable as error:
            span.fail("unavailable", error.reason)
            raise
        except LeaseExpired:
            span.fail("lease_expired")
            call_trace.begin("")  # the batch gets no line
            raise
        except Exception as error:
            span.fail(type(error).__name__)
            raise
        finally:
            span.end()
        return outcomes

    def close(self) -> None:
        """Close the target."""
        self._target.close()

    def _started(self, events: Sequence[Event]) -> Span:
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
