"""What one process exports: the SDK's providers with their threads, and how they end."""

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider, ReadableLogRecord
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from prometheus_client import Metric

from app.telemetry.otlp.metrics import MetricSender, metrics_data, one_at_a_time
from app.telemetry.otlp.records import LogRecords, OtelTracing, Report, SdkLog, with_ids
from app.telemetry.switch import Signals, endpoint

_NAME = "bucketwire"
_VERSION = version(_NAME)
_INSTANCE = str(uuid.uuid4())  # of this process and all that it forks, which export the same metrics
_LOGGERS = ("", "gunicorn.error")  # those with handlers of their own

_sdk_log = SdkLog()


class Exports:
    """The exports of this process. Raises whatever the SDK raises on variables that it refuses."""

    def __init__(self, role: str, wanted: Signals) -> None:
        self._role = role
        self._wanted = wanted
        self._traces: TracerProvider | None = None
        self._logs: LoggerProvider | None = None
        self._metrics: MetricSender | None = None
        self._handler: LogRecords | None = None
        self.tracing: OtelTracing | None = None
        reports = {"Span": _report("traces"), "Log": _report("logs")}
        _sdk_log.install(reports)
        resource = Resource({**_resource(role).attributes, "process.pid": os.getpid()})
        if wanted.traces:
            self._traces = TracerProvider(resource=resource, shutdown_on_exit=False)
            self._traces.add_span_processor(BatchSpanProcessor(_Spans(reports["Span"])))
            self.tracing = OtelTracing(self._traces.get_tracer(_NAME, _VERSION), SpanLimits().max_links)
        if wanted.logs:
            self._logs = LoggerProvider(resource=resource, shutdown_on_exit=False)
            self._logs.add_log_record_processor(BatchLogRecordProcessor(_Logs(reports["Log"])))
            self._handler = LogRecords(self._logs)
        self._attach()

    def send_metrics(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """Export these metrics at intervals; further calls do nothing."""
        if not self._wanted.metrics or self._metrics is not None:
            return
        exporter, report, resource = OTLPMetricExporter(), _report("metrics"), _resource(self._role)

        def send() -> bool:
            if not one_at_a_time():
                return True
            exported = metrics_data(collect(), resource, time.time_ns())
            return exporter.export(exported) is MetricExportResult.SUCCESS

        self._metrics = MetricSender(lambda: _sdk_log.watched(send, report))
        self._metrics.start()

    def stop(self, patience: float) -> None:
        """Export what is left and end, all signals at once, for at most so many seconds."""
        self._detach()
        ending = []
        for end in self._ends():
            thread = threading.Thread(target=end, name="telemetry", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # newer versions of Python start no thread while they end
                return
            ending.append(thread)
        deadline = time.monotonic() + patience
        for thread in ending:
            thread.join(max(0.0, deadline - time.monotonic()))

    def forget(self) -> None:
        """Drop what a forked process inherited: its connections are its parent's, and nothing may be sent by them."""
        self._detach()
        # The SDK has started its threads again. They end beside this one, as a lock may have been held at the fork.
        for end in self._ends(with_metrics=False):
            threading.Thread(target=end, name="telemetry", daemon=True).start()

    def _ends(self, *, with_metrics: bool = True) -> list[Callable[[], None]]:
        providers = [one.shutdown for one in (self._traces, self._logs) if one is not None]
        return [*providers, self._metrics.stop] if with_metrics and self._metrics is not None else providers

    def _attach(self) -> None:
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            if name and logger.propagate:
                continue
            if self._traces is not None:
                for handler in logger.handlers:
                    handler.addFilter(with_ids)
            if self._handler is not None:
                logger.addHandler(self._handler)

    def _detach(self) -> None:
        for name in _LOGGERS:
            if self._handler is not None:
                logging.getLogger(name).removeHandler(self._handler)


class _Spans(SpanExporter):
    """The exporter of spans, watched."""

    def __init__(self, report: Report) -> None:
        self._exporter = OTLPSpanExporter()
        self._report = report

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans, and report the result."""

        def send() -> bool:
            return self._exporter.export(spans) is SpanExportResult.SUCCESS

        succeeded = _sdk_log.watched(send, self._report)
        return SpanExportResult.SUCCESS if succeeded else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """End retries, and close the connections."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the SDK has no types here


class _Logs(LogRecordExporter):
    """The exporter of log lines, watched."""

    def __init__(self, report: Report) -> None:
        self._exporter = OTLPLogExporter()
        self._report = report

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Export log lines, and report the result."""

        def send() -> bool:
            return self._exporter.export(batch) is LogRecordExportResult.SUCCESS

        succeeded = _sdk_log.watched(send, self._report)
        return LogRecordExportResult.SUCCESS if succeeded else LogRecordExportResult.FAILURE

    def shutdown(self) -> None:
        """End retries, and close the connections."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the SDK has no types here

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return true: nothing is buffered here."""
        return self._exporter.force_flush(timeout_millis)


def _report(signal: str) -> Report:
    return Report(signal, endpoint(os.environ, signal))


def _resource(role: str) -> Resource:
    """Return what all signals say of this process; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win.

    It is the same in all processes that export the same metrics.
    """
    own = {
        "service.name": _NAME,
        "service.version": _VERSION,
        "service.instance.id": _INSTANCE,
        "host.name": os.uname().nodename,
        "bucketwire.role": role,
    }
    return Resource.create(own).merge(OTELResourceDetector().detect())
