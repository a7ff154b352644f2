"""Pass log lines on to OpenTelemetry, and write the ids of traces into those of the process itself.

(The SDK's own handler is deprecated, and loses every line of a request in which one has a lone surrogate.)
"""

import contextlib
import logging
import os
import traceback

from opentelemetry import trace
from opentelemetry._logs import LoggerProvider, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, format_span_id, format_trace_id

from app.telemetry.otlp.conversions import exportable, parent_context, span_context
from app.telemetry.otlp.reports import is_exporting

_OWN = "bucketwire.telemetry"  # says that nothing can be exported
_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "trace_id", "span_id"}


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
    current = trace.get_current_span().get_span_context()
    return current if current.is_valid else span_context(str(getattr(record, "traceparent", "")))


def _context(record: logging.LogRecord) -> Context | None:
    if trace.get_current_span().get_span_context().is_valid:
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
