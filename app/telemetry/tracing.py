"""The interface of spans: what the service needs of them, in its own terms, and a span that records nothing.

A trace context is the text that is stored with an event (`app.events.trace`); "" is none.
"""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Literal, Protocol, Self

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
