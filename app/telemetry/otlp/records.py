"""Record spans and log lines as OpenTelemetry does, from trace contexts and texts, and log what cannot be exported.

The SDK's own handler of log lines is deprecated, and loses every line of a request in which one has a lone surrogate.

The SDK logs each failed request, each retry and each dropped item. Its loggers are silenced here: one line says that a
signal cannot be exported, and one that it can be again. The first message during an export that fails is the reason in
the line.
"""

import contextlib
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextvars import Token
from functools import lru_cache
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from opentelemetry import trace as api
from opentelemetry._logs import LoggerProvider, SeverityNumber
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    TraceState,
    format_span_id,
    format_trace_id,
    set_span_in_context,
)

from app.events.model import trace_of
from app.telemetry.tracing import Kind, Span, Value

# Each costs 9 µs, in both threads: 128, the specification's limit, would take a tenth as long as delivering 500 events.
MAX_LINKS = 4
_SAMPLED = 0x01
_OWN = "bucketwire.telemetry"  # says that nothing can be exported
_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "trace_id", "span_id"}
_KINDS: Mapping[str, api.SpanKind] = {kind.name.lower(): kind for kind in api.SpanKind}
_MAX_CHARACTERS = 4096  # characters; a key has up to 1,024 bytes, an error may quote a page
log = logging.getLogger("bucketwire.telemetry")
_APART = 60.0  # seconds between two lines about a signal that fails again and again
_MAX_SEEN = 100  # different other messages of the SDK that are logged, each once
_of_thread = threading.local()  # `reasons`: the SDK's messages during the export that this thread makes


@lru_cache(maxsize=16)  # each line of a log asks twice
def span_context(trace: str) -> SpanContext | None:
    """Return the context that a stored text describes; None for "" and for what is none."""
    text, _, members = trace.partition(" ")
    parent = trace_of(text)
    if not parent:
        return None
    _, trace_id, span_id, flags = parent.split("-")
    state = TraceState.from_header([members]) if members else None  # it was checked before it was stored
    return SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)), trace_state=state
    )


def parent_context(trace: str) -> Context:
    """Return the context in which a span follows the one that the text describes; without one it begins a trace."""
    parent = span_context(trace)
    return Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context())


def text_of(context: SpanContext) -> str:
    """Return a context as it is stored with an event."""
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    return trace_of(parent, context.trace_state.to_header()) if context.trace_state else parent


def links_to(traces: Iterable[str], most: int) -> list[Link]:
    """Return links to the sampled ones of these contexts, each once, and at most so many."""
    links: dict[str, Link] = {}
    for trace in traces:
        if not trace or trace in links:
            continue
        if len(links) == most:
            break
        # Without `span_context`, which takes three times as long: there may be many, and the text was checked before it
        # was stored. A context that is not sampled has no span to link to.
        flags = int(trace[53:55], 16)
        if flags & _SAMPLED:
            of_span = int(trace[3:35], 16), int(trace[36:52], 16)
            links[trace] = Link(SpanContext(*of_span, is_remote=True, trace_flags=TraceFlags(flags)))
    return list(links.values())


def exportable(text: str) -> str:
    """Return the text as UTF-8 can encode it, cut to 4,096 characters."""
    if len(text) > _MAX_CHARACTERS:
        text = f"{text[: _MAX_CHARACTERS - 1]}…"
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


class LogRecords(logging.Handler):
    """Passes every line on, with its members as attributes. It never waits, and never fails."""

    def __init__(self, provider: LoggerProvider) -> None:
        super().__init__()
        self._provider = provider
        self._pid = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a line on; not in a forked process, which has this handler of its parent, and not an export's own."""
        if record.name == _OWN or os.getpid() != self._pid or is_exporting():
            return
        with contextlib.suppress(Exception):  # a line that cannot be exported is in the log nevertheless
            self._provider.get_logger(record.name).emit(
                timestamp=int(record.created * 1e9),
                context=_context(record),
                severity_number=severity(record.levelno),
                severity_text=record.levelname,
                body=exportable(record.getMessage()),
                attributes=_attributes(record),
            )


def with_ids(record: logging.LogRecord) -> bool:
    """Give a line `trace_id` and `span_id`, if it belongs to a trace; a filter of the process's own handlers."""
    context = _span_context(record)
    if context is not None:
        record.trace_id, record.span_id = format_trace_id(context.trace_id), format_span_id(context.span_id)
    return True


def severity(level: int) -> SeverityNumber:
    """Return the number of a level of `logging`."""
    return SeverityNumber(1 if level < logging.DEBUG else 1 + 4 * min(5, level // 10))


def _span_context(record: logging.LogRecord) -> SpanContext | None:
    """Return the context of the current span, or the one that the line names itself: that of its event or its batch."""
    current = api.get_current_span().get_span_context()
    return current if current.is_valid else span_context(str(getattr(record, "traceparent", "")))


def _context(record: logging.LogRecord) -> Context | None:
    if api.get_current_span().get_span_context().is_valid:
        return None  # the current one
    return parent_context(str(getattr(record, "traceparent", "")))


def _attributes(record: logging.LogRecord) -> dict[str, str | bool | int | float]:
    attributes: dict[str, str | bool | int | float] = {}
    for name, value in vars(record).items():
        if name not in _KNOWN and value is not None:
            attributes[exportable(name)] = value if isinstance(value, bool | int | float) else exportable(str(value))
    if record.exc_info and record.exc_info[0] is not None:
        attributes["exception.type"] = record.exc_info[0].__name__
        attributes["exception.message"] = exportable(str(record.exc_info[1]))
        attributes["exception.stacktrace"] = exportable("".join(traceback.format_exception(*record.exc_info)))
    return attributes


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


def is_exporting() -> bool:
    """Return whether this thread makes an export, whose own log lines would be exported by the next one, and so on."""
    return hasattr(_of_thread, "reasons")


class Report:
    """Reports failures of the exports of one signal. Thread-safe enough: a race costs or saves a line."""

    def __init__(self, signal: str, endpoint: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._signal = signal
        self._endpoint = endpoint
        self._clock = clock
        self._is_reported = False
        self._reported_at = float("-inf")

    def failed(self, reason: str) -> None:
        """Log that something could not be exported, unless that is logged already or was a minute ago."""
        if self._is_reported or self._clock() - self._reported_at < _APART:
            return
        self._is_reported, self._reported_at = True, self._clock()
        shown = _without_secrets(reason, self._endpoint)
        log.warning("%s are dropped, because OpenTelemetry's collector does not accept them: %s", self._signal, shown)

    def succeeded(self) -> None:
        """Log that something was exported, if the last line reports the opposite."""
        if self._is_reported:
            self._is_reported = False
            log.info("%s are exported to OpenTelemetry again", self._signal)


class SdkLog(logging.Handler):
    """Handles the records of the SDK's loggers instead of their own handlers."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._seen: set[tuple[str, str]] = set()
        self._full: dict[str, Report] = {}

    def install(self, reports: dict[str, Report]) -> None:
        """Replace the handlers of the SDK's loggers. `reports`, by the SDK's names, get the failures of full queues."""
        self._full = reports
        sdk = logging.getLogger("opentelemetry")
        sdk.handlers, sdk.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message as a reason during an export; log any other once."""
        message = str(record.msg)
        if is_exporting():
            _of_thread.reasons.append(record.getMessage())
        elif message.startswith("Queue full") and record.args:
            name = str(record.args[0] if isinstance(record.args, tuple) else "")
            if name in self._full:
                self._full[name].failed("the queue is full")
        elif (record.name, message) not in self._seen and len(self._seen) < _MAX_SEEN:
            self._seen.add((record.name, message))
            log.warning("OpenTelemetry: %s", record.getMessage())

    def watched(self, export: Callable[[], bool], report: Report) -> bool:
        """Return whether `export` succeeded, and report that, with the first reason that the SDK logs."""
        reasons = _of_thread.reasons = list[str]()
        try:
            succeeded = export()
        except Exception as error:  # noqa: BLE001 - a thread of the SDK would only log it
            succeeded = False
            reasons.append(f"{type(error).__name__}: {error}")
        finally:
            del _of_thread.reasons
        if succeeded:
            report.succeeded()
        else:
            report.failed(reasons[0] if reasons else "no answer in time")
        return succeeded


def _without_secrets(reason: str, endpoint: str) -> str:
    """Return the reason without what may be a key in the endpoint's URL."""
    try:
        parts = urlsplit(endpoint)
        secrets = (parts.query, parts.password)
    except ValueError:
        return "the endpoint is no URL"
    for secret in secrets:
        if secret:
            reason = reason.replace(secret, "*redacted*")
    return reason[:500]
