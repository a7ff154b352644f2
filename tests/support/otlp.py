"""What came in at a collector: requests of OTLP over HTTP, which a receiver of the tests has on file, as objects."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests import services

KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")


@dataclass(frozen=True)
class Span:
    """A span; its ids in hexadecimal digits, `parent` empty for a root, `links` as (trace, span)."""

    name: str
    kind: str
    trace: str
    span: str
    parent: str
    links: list[tuple[str, str]]
    attributes: dict[str, Any]
    error: bool
    resource: dict[str, Any]


@dataclass(frozen=True)
class Line:
    """A log line."""

    body: str
    level: str
    logger: str
    trace: str
    span: str
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass(frozen=True)
class Point:
    """A value of a metric; a histogram's is the number of its observations."""

    name: str
    kind: str
    attributes: dict[str, Any]
    value: float
    resource: dict[str, Any]


def spans(collector: services.Receiver) -> list[Span]:
    """All spans, in the order of their arrival."""
    return [one for body in collector.bodies("/v1/traces") for one in _spans(body)]


def lines(collector: services.Receiver) -> list[Line]:
    """All log lines, in the order of their arrival."""
    return [one for body in collector.bodies("/v1/logs") for one in _lines(body)]


def points(collector: services.Receiver, name: str) -> list[Point]:
    """All values of one metric, in the order of their arrival."""
    return [one for body in collector.bodies("/v1/metrics") for one in _points(body) if one.name == name]


# A test looks at all that has arrived again and again, until what it waits for is there: each is decoded once.


@cache
def _spans(body: bytes) -> list[Span]:
    return [
        Span(
            name=one.name,
            kind=KINDS[one.kind],
            trace=one.trace_id.hex(),
            span=one.span_id.hex(),
            parent=one.parent_span_id.hex(),
            links=[(link.trace_id.hex(), link.span_id.hex()) for link in one.links],
            attributes=values(one.attributes),
            error=one.status.code == 2,
            resource=values(group.resource.attributes),
        )
        for group in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in group.scope_spans
        for one in scope.spans
    ]


@cache
def _lines(body: bytes) -> list[Line]:
    return [
        Line(
            body=one.body.string_value,
            level=one.severity_text,
            logger=scope.scope.name,
            trace=one.trace_id.hex(),
            span=one.span_id.hex(),
            attributes=values(one.attributes),
            resource=values(group.resource.attributes),
        )
        for group in ExportLogsServiceRequest.FromString(body).resource_logs
        for scope in group.scope_logs
        for one in scope.log_records
    ]


@cache
def _points(body: bytes) -> list[Point]:
    return [
        Point(metric.name, str(kind), values(point.attributes), value_of(point), values(group.resource.attributes))
        for group in ExportMetricsServiceRequest.FromString(body).resource_metrics
        for scope in group.scope_metrics
        for metric in scope.metrics
        for kind in [metric.WhichOneof("data")]
        for point in getattr(metric, str(kind)).data_points
    ]


def value_of(point: Any) -> float:
    return float(point.count if hasattr(point, "bucket_counts") else point.as_double)


def values(attributes: Any) -> dict[str, Any]:
    """Attributes as a dict."""
    return {one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in attributes}
