"""The span in which events are recorded, and whose context they get: whatever happens to them later follows it."""

from collections.abc import Sequence

from app.events.model import Event
from app.events.origin import origin_of
from app.telemetry.tracing import Span, Tracing, Value

_IDS = slice(3, 35)  # the trace's id in a stored context


def append_span(tracing: Tracing, operation: str, events: Sequence[Event], parent: Span | None = None) -> Span:
    """Start the span that records these events, within `parent`, or of a trace of its own.

    It is linked to the traces that the events have and it has not. Its attributes say by what the first of them came,
    as all others do, but for the position in a source's queue, and for the senders of a mixed body.
    """
    own = "" if parent is None else parent.trace[_IDS]
    return tracing.start(
        f"{operation} events",
        "producer",
        parent=parent or "",
        links=(event.trace for event in events if event.trace[_IDS] != own),
        attributes={
            "messaging.system": "bucketwire",
            "messaging.operation.type": "send",
            "messaging.operation.name": operation,
            "messaging.destination.name": "events",
            "messaging.batch.message_count": len(events),
            **(_origin(events[0].origin) if events else {}),
        },
    )


def in_span(span: Span, events: Sequence[Event], trace: str = "") -> list[Event]:
    """Return the events as they are to be stored: those without a trace, or with this one, get the span's context.

    Those with a trace of their own (that of the CloudEvent which contains them) keep it.
    """
    context, own = span.trace, trace[_IDS]
    return [event._replace(trace=context) if event.trace[_IDS] in ("", own) else event for event in events]


def _origin(text: str) -> dict[str, Value]:
    origin = origin_of(text)
    named = {"request": "token", "source": "source"}.get(origin.kind, "")
    members = {"kind": origin.kind, named: origin.name, "frontend": origin.frontend}
    return {f"bucketwire.origin.{member}": value for member, value in members.items() if value}
