"""The spans of intake, if traces are exported: the request, and within it the append of its events.

The events get the context of the append, so that whatever happens to them later follows it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from flask import Flask, Response, g, request

from app import telemetry
from app.api.request_marks import refusal_of
from app.events.model import Event, trace_of
from app.telemetry.tracing import Span, Tracing, append_span, in_span

_INTAKE = "events.record"  # the endpoint that frontends post to


def install(app: Flask, tracing: Tracing) -> None:
    """Record a span for each request that posts events."""
    app.before_request(partial(_begin, tracing))
    app.after_request(_answered)
    app.teardown_request(_end)


@contextmanager
def appending(operation: str, events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """Provide the events as they are to be stored, within a span of the operation if the request has one."""
    intake: Span | None = g.get("intake")
    tracing = telemetry.tracing()
    if intake is None or tracing is None:
        yield events
        return
    with append_span(tracing, operation, events, intake) as span:
        yield in_span(span, events, intake.trace)


def _begin(tracing: Tracing) -> None:
    if request.endpoint != _INTAKE:
        return
    headers = request.headers
    span = tracing.start(
        "POST /v1/events",
        "server",
        parent=trace_of(headers.get("traceparent"), headers.get("tracestate")),
        attributes={
            "http.request.method": "POST",
            "http.route": "/v1/events",
            "url.path": request.path,
            "url.scheme": request.scheme,
        },
    )
    g.intake = span.__enter__()  # until `_end`


def _answered(response: Response) -> Response:
    span: Span | None = g.get("intake")
    if span is not None:
        span.set("http.response.status_code", response.status_code)
        if (refusal := refusal_of(request.environ)) is not None:
            span.set("bucketwire.refused.reason", refusal.reason)
            span.set("bucketwire.refused.actor", refusal.actor)
        if response.status_code >= 500:
            span.fail(str(response.status_code))
    return response


def _end(error: BaseException | None) -> None:
    span: Span | None = g.pop("intake", None)
    if span is not None:
        span.__exit__(None if error is None else type(error), error, None)
