"""The spans of intake, and the contexts that the events of a request are stored with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from flask import Blueprint, Flask
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from app import telemetry
from app.api.routes.events import appending, install_tracing
from app.config.settings import Settings
from app.events.model import Event
from app.server.application import create_app
from app.telemetry.otlp.records import OtelTracing
from tests.support.builders import event, migrated

HEADERS = {"traceparent": f"00-{7:032x}-{7:016x}-01", "tracestate": "a=1"}
REFUSED = ("bucketwire.refused.reason", "bucketwire.refused.actor")
OWN = f"00-{9:032x}-{9:016x}-01"
EVENTS = [event("plain"), event("of the request")._replace(trace=f"{HEADERS['traceparent']} a=1")]
EVENTS += [event("its own")._replace(trace=OWN)]


def intake(stored: list[Sequence[Event]], status: int = 202) -> Flask:
    """An app whose only route stores the events."""
    events = Blueprint("events", __name__)

    @events.post("/v1/events")
    def record() -> tuple[str, int]:
        with appending("append", EVENTS) as traced:
            stored.append(traced)
            if not status:
                raise RuntimeError("s3cr3t")
        return "", status

    app = Flask("x")
    app.register_blueprint(events)
    return app


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    made = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(made))
    monkeypatch.setattr(telemetry, "_tracing", OtelTracing(provider.get_tracer("x"), 128))
    yield made
    provider.shutdown()


def traced_intake(stored: list[Sequence[Event]], status: int = 202) -> Flask:
    app = intake(stored, status)
    found = telemetry.tracing()
    assert found is not None
    install_tracing(app, found)
    return app


def test_off_the_events_are_not_even_looked_at() -> None:
    stored: list[Sequence[Event]] = []
    assert intake(stored).test_client().post("/v1/events", headers=HEADERS).status_code == 202
    assert stored[0] is EVENTS


def test_events_are_stored_with_the_context_of_their_append_unless_they_have_their_own(
    exporter: InMemorySpanExporter,
) -> None:
    stored: list[Sequence[Event]] = []
    traced_intake(stored).test_client().post("/v1/events", headers=HEADERS)
    appended, received = exporter.get_finished_spans()
    assert appended.context is not None
    assert received.context is not None
    assert appended.parent is not None
    assert received.parent is not None
    assert (received.parent.span_id, appended.parent.span_id) == (7, received.context.span_id)
    context = f"00-{7:032x}-{appended.context.span_id:016x}-01 a=1"
    assert [one.trace for one in stored[0]] == [context, context, OWN]
    assert [one._replace(trace="") for one in stored[0]] == [one._replace(trace="") for one in EVENTS]
    assert [link.context.span_id for link in appended.links] == [9]
    assert received.attributes is not None
    assert received.attributes["http.response.status_code"] == 202
    assert received.status.is_unset


@pytest.mark.parametrize("status", [0, 503])
def test_a_request_that_fails_is_an_error_without_its_words(status: int, exporter: InMemorySpanExporter) -> None:
    client = traced_intake([], status).test_client()
    assert client.post("/v1/events", headers={"traceparent": "hostile\x7f"}).status_code == (status or 500)
    appended, received = exporter.get_finished_spans()
    assert received.parent is None
    assert not received.status.is_ok
    assert not received.status.is_unset
    assert "s3cr3t" not in received.to_json() + appended.to_json()


def test_a_post_that_is_refused_before_its_route_has_a_span_with_the_reason(
    exporter: InMemorySpanExporter, tmp_path: Path
) -> None:
    given = {"DATABASE_URL": f"sqlite:///{tmp_path}/outbox.db", "API_TOKENS": f"reader:read:{'r' * 40}"}
    migrated(given["DATABASE_URL"]).close()
    app = create_app(Settings.from_environ({f"BUCKETWIRE_{name}": text for name, text in given.items()}))
    for token in ("r" * 40, "an-unknown-one"):
        headers = {"Authorization": f"Bearer {token}", **HEADERS}
        assert app.test_client().post("/v1/events", data=b"{}", headers=headers).status_code in (401, 403)
    spans = exporter.get_finished_spans()
    assert [span.parent is not None and span.parent.span_id for span in spans] == [7, 7]
    found = [[(span.attributes or {})[name] for name in ("http.response.status_code", *REFUSED)] for span in spans]
    assert found == [[403, "scope", "token:reader"], [401, "token-unknown", ""]]
    assert "an-unknown-one" not in "".join(span.to_json() for span in spans)


def test_other_routes_have_no_span(exporter: InMemorySpanExporter) -> None:
    traced_intake([]).test_client().get("/v1/other", headers=HEADERS)
    assert exporter.get_finished_spans() == ()
