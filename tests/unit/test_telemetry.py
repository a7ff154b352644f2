"""What of OpenTelemetry the environment switches on, and how texts, contexts, metrics and log lines become OTLP."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from app import telemetry
from app.events.parsing import Message, ReadMessage
from app.telemetry.otlp import records
from app.telemetry.otlp.metrics import metrics_data
from app.telemetry.otlp.records import (
    LogRecords,
    OtelTracing,
    exportable,
    links_to,
    severity,
    span_context,
    text_of,
    with_ids,
)
from app.telemetry.switch import Signals, endpoint, signals
from app.telemetry.tracing import NO_SPAN
from tests.support.builders import event
from workers.sources import puller

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
ALL = Signals(traces=True, metrics=True, logs=True)
HOSTILE = "a\ud800b" + "x" * 5000


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Signals()),
        ({"OTEL_SERVICE_NAME": "x", "OTEL_EXPORTER_OTLP_ENDPOINT": " "}, Signals()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, ALL),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "True"}, Signals()),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, Signals(traces=True)),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, Signals(metrics=True)),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_LOGS_EXPORTER": "none"},
            Signals(traces=True, metrics=True),
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            ALL,
        ),
    ],
)
def test_only_opentelemetrys_own_variables_switch_it_on(environ: dict[str, str], expected: Signals) -> None:
    assert signals(environ) == expected
    assert signals(environ).any == (expected != Signals())


def test_what_of_the_variables_has_no_effect_is_named_once() -> None:
    found = signals({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert not found.any
    [problem] = found.problems
    assert "OTEL_EXPORTER_OTLP_PROTOCOL=grpc" in problem
    assert "4318" in problem
    found = signals({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "zipkin, otlp"})
    assert found.traces
    [problem] = found.problems
    assert problem.startswith("OTEL_TRACES_EXPORTER: 'zipkin'")


def test_a_signals_own_endpoint_wins() -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://b/x"}
    assert [endpoint(environ, signal) for signal in ("traces", "logs")] == ["http://a", "http://b/x"]
    assert endpoint({}, "logs") == ""


OFF = """
import sys
from bucketwire.start import load
load()
import app.server.wsgi, app.cli.commands.processes, workers.tasks
from app import telemetry
from workers import runtime

telemetry.prepare()
telemetry.start("api")
telemetry.send_metrics(list)
with telemetry.span("x", a=1) as span:
    span.set("b", 2)
app.server.wsgi.app.test_client().post("/v1/events", json={"Records": []})
assert runtime.current().drain.run(print) == 0
telemetry.stop()
print([name for name, found in sys.modules.items() if name.partition(".")[0] in ("opentelemetry", "google") and found])
"""


@pytest.mark.slow
def test_off_nothing_of_it_is_imported_by_the_api_or_a_worker(tmp_path: Path) -> None:
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("OTEL_", "BUCKETWIRE_"))}
    done = subprocess.run(
        [sys.executable, "-c", OFF],
        env=environ | {"BUCKETWIRE_DATA_DIR": str(tmp_path), "BUCKETWIRE_BROKER_URL": "redis://127.0.0.1:9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stdout + done.stderr


TURNS = """
import os
from app.telemetry.otlp.metrics import one_at_a_time

def child(*, stays):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, str(int(one_at_a_time())).encode())
        if stays:
            os.read(gate, 1)
        os._exit(0)
    if not stays:
        os.waitpid(pid, 0)
    return os.read(reading, 1).decode()

gate, open_gate = os.pipe()
print(child(stays=True), child(stays=False), int(one_at_a_time()))
os.write(open_gate, b"x")
os.wait()
print(child(stays=False), int(one_at_a_time()), child(stays=False))
"""


def test_of_forked_processes_one_exports_the_metrics_and_another_when_it_has_ended() -> None:
    done = subprocess.run([sys.executable, "-c", TURNS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1 0 0", "1 1 0"]


@pytest.mark.parametrize("trace", [PARENT, f"{PARENT} a=1,b=2", f"00-{TRACE}-{SPAN}-00"])
def test_a_context_becomes_opentelemetrys_and_the_same_text_again(trace: str) -> None:
    found = span_context(trace)
    assert found is not None
    assert found.is_remote
    assert found.is_valid
    assert text_of(found) == trace


@pytest.mark.parametrize("trace", ["", "x", "00-0-0-00", HOSTILE, f"00-{'0' * 32}-{SPAN}-01"])
def test_what_is_no_context_is_none(trace: str) -> None:
    assert span_context(trace) is None


def test_links_lead_to_sampled_spans_each_once_and_not_too_many() -> None:
    many = [f"00-{TRACE}-{number:016x}-01" for number in range(1, 300)]
    assert [text_of(link.context) for link in links_to([*many, *many], 128)] == many[:128]
    assert [text_of(link.context) for link in links_to([PARENT, "", PARENT, f"00-{TRACE}-{SPAN}-00"], 128)] == [PARENT]


def test_any_text_can_be_exported() -> None:
    assert exportable("plain ü 🎉") == "plain ü 🎉"
    made = exportable(HOSTILE)
    assert made.startswith("a?bx")
    assert len(made) == 4096
    made.encode()


@pytest.fixture
def spans() -> Iterator[tuple[OtelTracing, InMemorySpanExporter]]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield OtelTracing(provider.get_tracer("x"), 2), exporter
    provider.shutdown()


def test_a_span_follows_its_parent_and_hostile_attributes_break_no_export(
    spans: tuple[OtelTracing, InMemorySpanExporter],
) -> None:
    tracing, exporter = spans
    with tracing.start("outer", "server", parent=f"{PARENT} a=1", attributes={"key": HOSTILE, "count": 3}) as outer:
        inner = tracing.start("inner", "producer", parent=outer, began=1_000)
        inner.set("more", HOSTILE)
        inner.fail("failed", HOSTILE)
        inner.end()
        inner.end()
    first, second = exporter.get_finished_spans()
    assert (first.name, second.name) == ("inner", "outer")
    assert first.start_time == 1_000
    assert second.parent is not None
    assert (f"{second.parent.trace_id:032x}", f"{second.parent.span_id:016x}") == (TRACE, SPAN)
    assert outer.trace.endswith(" a=1")
    assert outer.trace.startswith(f"00-{TRACE}-")
    assert inner.trace[3:35] == TRACE
    encoded = encode_spans([first, second])
    shown = {one.key: one.value for one in encoded.resource_spans[0].scope_spans[0].spans[1].attributes}
    assert shown["key"].string_value.startswith("a?bx")
    assert shown["count"].int_value == 3


def test_pulled_events_are_recorded_within_a_span_that_names_their_source(
    spans: tuple[OtelTracing, InMemorySpanExporter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "_tracing", spans[0])
    made = [event(key)._replace(origin="source kafka:minio minio 7 0") for key in ("a", "b")]
    made[1] = made[1]._replace(trace=PARENT)
    with puller._appending([ReadMessage(Message(b""), tuple(made))]) as [read]:
        assert [one.trace[:36] == PARENT[:36] for one in read.events] == [False, True], "an event keeps its own"
    [span] = spans[1].get_finished_spans()
    assert span.name == "append events"
    assert {name: text for name, text in (span.attributes or {}).items() if name.startswith("bucketwire.")} == {
        "bucketwire.origin.kind": "source", "bucketwire.origin.source": "kafka:minio",
        "bucketwire.origin.frontend": "minio",
    }  # fmt: skip
    assert [format(link.context.trace_id, "032x") for link in span.links] == [TRACE]
    assert read.events[0].trace.split("-")[1] == format(span.context.trace_id, "032x")


def test_an_error_within_a_span_is_named_without_its_words(spans: tuple[OtelTracing, InMemorySpanExporter]) -> None:
    tracing, exporter = spans
    with pytest.raises(ValueError, match="s3cr3t"), tracing.start("x"):
        raise ValueError("s3cr3t")
    [found] = exporter.get_finished_spans()
    assert found.attributes is not None
    assert found.attributes["error.type"] == "ValueError"
    assert "s3cr3t" not in found.to_json()


def test_a_span_that_is_not_sampled_has_a_context_that_says_so() -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    span = OtelTracing(provider.get_tracer("x"), None).start("x", parent=PARENT)
    assert span.trace.startswith(f"00-{TRACE}-")
    assert span.trace.endswith("-00")
    with span:
        span.set("a", 1)
    provider.shutdown()


def test_a_span_that_records_nothing_takes_everything() -> None:
    with NO_SPAN as span:
        span.set("a", 1)
        span.fail("x")
    span.end()
    assert span.trace == ""


def test_metrics_become_otlp_with_the_names_labels_and_values_of_prometheus() -> None:
    registry = CollectorRegistry()
    Counter("bw_events", "Events.", ["type"], registry=registry).labels("redis").inc(3)
    Gauge("bw_age", "An age.", registry=registry).set(math.inf)
    histogram = Histogram("bw_seconds", "Times.", ["name"], buckets=(1, 2), registry=registry)
    for seconds in (0.5, 1.5, 1.75, 9):
        histogram.labels("a").observe(seconds)
    encoded = encode_metrics(metrics_data(registry.collect(), Resource({"service.name": "x"}), 7))
    found = {one.name: one for one in encoded.resource_metrics[0].scope_metrics[0].metrics}
    assert set(found) == {"bw_events_total", "bw_age", "bw_seconds"}
    [point] = found["bw_events_total"].sum.data_points
    assert (point.as_double, point.attributes[0].key, point.attributes[0].value.string_value) == (3, "type", "redis")
    assert found["bw_events_total"].sum.is_monotonic
    assert found["bw_age"].gauge.data_points[0].as_double == math.inf
    [point] = found["bw_seconds"].histogram.data_points
    assert (list(point.explicit_bounds), list(point.bucket_counts)) == ([1, 2], [1, 2, 1])
    assert (point.count, point.sum, point.time_unix_nano) == (4, 12.75, 7)
    assert not point.HasField("min")
    assert [(one.key, one.value.string_value) for one in point.attributes] == [("name", "a")]


def test_a_line_is_exported_with_its_members_and_trace_whatever_it_says() -> None:
    exporter = InMemoryLogRecordExporter()
    provider = LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    handler = LogRecords(provider)
    logger = logging.Logger("bucketwire.x")
    logger.addHandler(handler)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        extra = {"target": "arn", "duration": 0.5, "odd": [HOSTILE], "none": None, "traceparent": PARENT}
        logger.warning("it says %s", HOSTILE, exc_info=True, extra=extra)
    handler.emit(logging.makeLogRecord({"name": "bucketwire.telemetry", "msg": "its own"}))
    records.SdkLog().watched(lambda: logger.warning("an export's own") is None, records.Report("logs"))
    handler.emit(logging.makeLogRecord({"name": "x", "msg": "%d", "args": ("not a number",)}))
    [record] = encode_logs(exporter.get_finished_logs()).resource_logs[0].scope_logs[0].log_records
    assert record.body.string_value.startswith("it says a?bx")
    assert (record.severity_text, record.severity_number) == ("WARNING", 13)
    assert (record.trace_id.hex(), record.span_id.hex()) == (TRACE, SPAN)
    found = {one.key: one.value for one in record.attributes}
    assert (found["target"].string_value, found["duration"].double_value) == ("arn", 0.5)
    assert found["exception.type"].string_value == "ValueError"
    assert "none" not in found
    provider.shutdown()


def test_the_levels_of_lines_have_their_severity() -> None:
    levels = (5, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL, 90)
    assert [severity(level).name for level in levels] == ["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "FATAL"]


def test_a_line_within_a_span_or_about_an_event_with_a_trace_has_its_ids(
    spans: tuple[OtelTracing, InMemorySpanExporter],
) -> None:
    plain, of_event = logging.makeLogRecord({}), logging.makeLogRecord({"traceparent": PARENT})
    assert with_ids(plain)
    assert with_ids(of_event)
    assert not hasattr(plain, "trace_id")
    assert (vars(of_event)["trace_id"], vars(of_event)["span_id"]) == (TRACE, SPAN)
    with spans[0].start("x") as span:
        with_ids(plain)
    assert f"00-{vars(plain)['trace_id']}-{vars(plain)['span_id']}-" in span.trace


def test_a_collector_that_is_away_costs_a_line_when_it_goes_and_one_when_it_returns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    report = records.Report("traces", "http://collector/?key=s3cr3t", lambda: now[0])
    sdk = records.SdkLog()
    sdk.install({"Span": report})
    caplog.set_level(logging.INFO, "bucketwire.telemetry")
    logger = logging.getLogger("opentelemetry.x")
    try:

        def away() -> bool:
            logger.warning("Transient error %s", "no route to http://collector/?key=s3cr3t")
            logger.error("Failed to export")
            return False

        def defect() -> bool:
            raise RuntimeError("unexpected")

        for _ in range(3):
            assert not sdk.watched(away, report)
            logger.warning("Queue full, dropping %s.", "Span")
        [line] = caplog.messages
        assert "traces are dropped" in line
        assert "no route" in line
        assert "s3cr3t" not in line
        assert sdk.watched(lambda: True, report)
        assert sdk.watched(lambda: True, report)
        assert caplog.messages[1:] == ["traces are exported to OpenTelemetry again"]
        assert not sdk.watched(defect, report)
        assert len(caplog.messages) == 2, "again within a minute"
        sdk.watched(lambda: True, report)
        assert not sdk.watched(defect, report)
        assert len(caplog.messages) == 2, "and again"
        now[0] = 61
        assert not sdk.watched(defect, report), "it has been away since then"
        assert not sdk.watched(defect, report)
        assert "RuntimeError: unexpected" in caplog.messages[2]
        logger.warning("something else %d", 1)
        logger.warning("something else %d", 2)
        assert caplog.messages[3:] == ["OpenTelemetry: something else 1"]
    finally:
        whole = logging.getLogger("opentelemetry")
        whole.handlers, whole.propagate = [], True
