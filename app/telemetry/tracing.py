"""The interface of spans: what the service needs of them, in its own terms, and a span that records nothing.

A trace context is the text that is stored with an event (`app.events.model`); "" is none. Events get the context of the
span in which they are recorded: whatever happens to them later follows it.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Literal, Protocol, Self

from app.events.model import Event, origin_of

Kind = Literal["internal", "server", "client", "producer", "consumer"]
Value = str | bool | int | float


class Span(Protocol):
    """One span. As a context manager it is current within (its ids are in the log lines), and ends with it."""

    @property
    def trace(self) -> str:
        """The context by which other spans follow this one."""

    def set(self, name: str, value: Value) -> None:
        """Set an attribute. Any text is accepted; a very long one is cut."""

    def fail(self, kind: str, reason: str = "") -> None:
        """Mark the span as an error of this kind (low cardinality), with a reason that contains no secrets."""

    def end(self) -> None:
        """End the span; it is exported later, by another thread. Further calls do nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Tracing(Protocol):
    """Starts spans. Thread-safe; never waits and never fails because of the collector."""

    def start(
        self,
        name: str,
        kind: Kind = "internal",
        *,
        parent: Span | str = "",
        links: Iterable[str] = (),
        attributes: Mapping[str, Value] | None = None,
        began: int | None = None,
    ) -> Span:
        """Start a span; without a parent it begins a trace.

        `links` are contexts of other spans; those that are not sampled, repeated ones, and all but the first 4 are
        left out. `began` is its start in nanoseconds since 1970; None: now.
        """


class NoSpan:
    """A span that records nothing."""

    trace = ""

    def set(self, name: str, value: Value) -> None:
        """Do nothing."""

    def fail(self, kind: str, reason: str = "") -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


NO_SPAN: Span = NoSpan()


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
