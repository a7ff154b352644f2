"""Spans as OpenTelemetry records them, behind the interface of `app.telemetry.tracing`."""

from collections.abc import Iterable, Mapping
from contextvars import Token
from types import TracebackType
from typing import Self

from opentelemetry import trace as api
from opentelemetry.context import Context, attach, detach

from app.telemetry.otlp.conversions import MAX_LINKS, exportable, links_to, parent_context, text_of
from app.telemetry.tracing import Kind, Span, Value

_KINDS: Mapping[str, api.SpanKind] = {kind.name.lower(): kind for kind in api.SpanKind}


class RecordedSpan:
    """A span of OpenTelemetry."""

    def __init__(self, span: api.Span) -> None:
        self._span = span
        self._attached: Token[Context] | None = None
        self.trace = text_of(span.get_span_context())

    def set(self, name: str, value: Value) -> None:
        """Set an attribute; see `app.telemetry.tracing.Span`."""
        self._span.set_attribute(name, exportable(value) if isinstance(value, str) else value)

    def fail(self, kind: str, reason: str = "") -> None:
        """Mark the span as an error."""
        self.set("error.type", kind)
        self._span.set_status(api.StatusCode.ERROR, exportable(reason) or None)

    def end(self) -> None:
        """End the span."""
        if self._span.is_recording():
            self._span.end()

    @property
    def context(self) -> Context:
        """The context in which other spans of this process follow this one."""
        return api.set_span_in_context(self._span, Context())

    def __enter__(self) -> Self:
        self._attached = attach(self.context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.fail(kind.__name__)  # without its words, which may quote anything
        if self._attached is not None:
            detach(self._attached)
            self._attached = None
        self.end()


class OtelTracing:
    """Starts spans with a tracer of OpenTelemetry."""

    def __init__(self, tracer: api.Tracer, most_links: int | None) -> None:
        self._tracer = tracer
        self._most_links = MAX_LINKS if most_links is None else min(most_links, MAX_LINKS)

    def start(
        self,
        name: str,
        kind: Kind = "internal",
        *,
        parent: Span | str = "",
        links: Iterable[str] = (),
        attributes: Mapping[str, Value] | None = None,
        began: int | None = None,
    ) -> RecordedSpan:
        """Start a span; see `app.telemetry.tracing.Tracing`."""
        context = parent.context if isinstance(parent, RecordedSpan) else parent_context(_text(parent))
        exported = {
            name: exportable(value) if isinstance(value, str) else value for name, value in (attributes or {}).items()
        }
        return RecordedSpan(
            self._tracer.start_span(
                name,
                context,
                _KINDS[kind],
                attributes=exported,
                links=links_to(links, self._most_links),
                start_time=began,
            )
        )


def _text(parent: Span | str) -> str:
    return parent if isinstance(parent, str) else parent.trace
