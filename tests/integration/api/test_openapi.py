"""The API does what its description says: schemathesis makes requests of every route from it, good ones and bad.

It takes longer to import than all of Flask, so only the process that runs these tests does.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from flask import Flask
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from app.config.settings import Settings
from app.server.application import create_app
from tests.support.api_requests import body
from tests.support.builders import add_target, migrated
from tests.support.properties import thorough
from tests.support.reported_senders import reports

TOKEN = "a-token-of-32-characters-for-you"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    folder = tmp_path_factory.mktemp("openapi")
    environ = {"BUCKETWIRE_DATA_DIR": str(folder), "BUCKETWIRE_BROKER_URL": "redis://127.0.0.1:9/0"}
    environ["BUCKETWIRE_API_TOKENS"] = f"tests:admin:{TOKEN}"
    made = create_app(Settings.from_environ(environ))
    database = migrated(made.extensions["bucketwire"].settings.database_url)
    add_target(database, "audit")
    database.close()
    yield made
    made.extensions["bucketwire"].database.close()


@pytest.fixture(scope="module")
def description(app: Flask) -> Any:
    import schemathesis

    return schemathesis.openapi.from_wsgi("/openapi.json", app)


def test_every_route_is_described(app: Flask) -> None:
    paths = app.test_client().get("/openapi.json").get_json()["paths"]
    described = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    routes = {
        method + " " + re.sub(r"<(?:[a-z]+:)?([a-z_]+)>", r"{\1}", rule.rule)
        for rule in app.url_map.iter_rules()
        if not rule.rule.startswith("/console/")  # for people
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert described == routes


def test_a_query_member_that_nobody_looks_at_is_refused(app: Flask) -> None:
    client, refused = app.test_client(), set()
    for path, methods in client.get("/openapi.json").get_json()["paths"].items():
        for method, operation in methods.items():
            if path != "/v1/events" and any(each.get("in") == "query" for each in operation.get("parameters", ())):
                place = path.format(type_name="webhook", name="audit", number=1, event_id="x", run="x")
                headers = {"Authorization": f"Bearer {TOKEN}"}
                answer = client.open(f"{place}?bukcet=photos", method=method, headers=headers, json={})
                assert answer.status_code == 400, f"{method} {path}: {answer.text}"
                assert "bukcet" in answer.text
                refused.add(path)
    assert {"/v1/rules", "/v1/declaration", "/v1/dead-letters", "/v1/targets/{type_name}/{name}"} <= refused


def test_a_number_that_no_database_has_room_for_is_that_of_no_rule(app: Flask) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert app.test_client().delete(f"/v1/rules/{2**63 + 1}", headers=headers).status_code == 404


# What no schema can say: whether a record is an event, which settings go together, whether a filter says anything.
KNOWS_MORE = {
    "POST /v1/events",
    "GET /v1/events",
    "PUT /v1/targets/{type_name}/{name}",
    "POST /v1/targets/{type_name}/{name}/test-settings",
    "PUT /v1/sources/{type_name}/{name}",
    "POST /v1/sources/{type_name}/{name}/rejected/delete",
    "POST /v1/rules",
    "POST /v1/declaration",
    "PATCH /v1/declaration",
    "GET /v1/audit",
    "GET /v1/dead-letters",
    "GET /v1/dead-letters/reasons",
    "POST /v1/dead-letters/replay",
    "POST /v1/dead-letters/purge",
    "POST /v1/replays",
    "POST /v1/reconciliations",
    "GET /v1/series",
    "GET /v1/retries",
    "POST /v1/retries/now",
    "POST /v1/retries/give-up",
    "POST /v1/tokens",  # each name once
}


@pytest.mark.nightly("each route's own tests; a hostile text in every place of every route in test_hostile_values.py")
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_every_answer_is_as_described(description: Any, mode: str) -> None:
    from schemathesis.core.failures import FailureGroup

    failures, probed = [], 0
    for found in description.get_all_operations():
        operation = found.ok()
        if operation.path == "/v1/events/stream":
            continue  # it takes the connection, which only gunicorn has: test_listen
        try:
            _probe(operation, mode)
            probed += 1
        except Unsatisfiable:
            assert mode == "negative", operation.label  # nothing can be wrong where nothing is given
        except FailureGroup as failure:  # each route's own is told, not only the first
            failures.append(f"{operation.label}: {failure}")
    assert not failures, "\n\n".join(failures)
    assert probed > (20 if mode == "positive" else 15)


def _probe(operation: Any, mode: str) -> None:
    from schemathesis import Case, GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

    # What is generated as wrong is at times right again once it is written into a URL: a list without members.
    excluded = [negative_data_rejection]
    excluded += [positive_data_acceptance] if operation.label in KNOWS_MORE else []
    excluded += [not_a_server_error] if operation.path == "/readyz" else []  # 503: nothing drains here

    @settings(
        thorough(12),
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=GenerationMode(mode)))
    def probe(case: Case) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        case.call_and_validate(base_url="http://127.0.0.1", headers=headers, excluded_checks=excluded)

    probe()


def _forms() -> Iterator[tuple[str, dict[str, str], bytes, int, str]]:
    """What each sender with a form of its own sends, and what status and type it gets."""
    record, wrong, json_type = body("a").decode(), b"{", "application/json"
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    firehose, signed = {"X-Amz-Firehose-Request-Id": "one"}, {"X-Bz-Event-Notification-Signature": "x"}
    delivery = {"requestId": "one", "records": [{"data": base64.b64encode(record.encode()).decode()}]}
    clouds = {report["case"]: json.dumps(report["body"]).encode() for report in reports()}
    handshake = {"eventType": "Microsoft.EventGrid.SubscriptionValidationEvent", "data": {"validationCode": "1"}}
    yield "SNS", form, urlencode({"Action": "Publish", "Message": record}).encode(), 200, "text/xml"
    yield "SNS, refused", form, b"Action=Publish&Message=x", 400, "text/xml"
    yield "Firehose", firehose, json.dumps(delivery).encode(), 200, json_type
    yield "Firehose, refused", firehose, wrong, 400, json_type
    yield "Event Grid", {}, json.dumps([handshake]).encode(), 200, json_type
    yield "B2", {}, clouds["Backblaze B2"], 200, json_type
    yield "B2, a test", signed, clouds["Backblaze B2, a test"], 200, json_type
    yield "Tigris", {}, clouds["Tigris"], 200, json_type
    yield "MinIO", {}, record.encode(), 202, json_type
    yield "MinIO, refused", {}, wrong, 400, "application/problem+json"


@pytest.mark.parametrize(
    ("headers", "content", "status", "media_type"), [pytest.param(*form, id=name) for name, *form in _forms()]
)
def test_an_answer_in_the_senders_form_is_as_described(
    app: Flask, description: Any, headers: dict[str, str], content: bytes, status: int, media_type: str
) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"} | headers
    answer = app.test_client().post("/v1/events", data=content, headers=headers)
    assert (answer.status_code, answer.mimetype) == (status, media_type), answer.text
    operation = description["/v1/events"]["POST"]
    declared = operation.definition.raw["responses"]
    assert media_type in declared.get(str(status), declared["default"])["content"]
    operation.validate_response(answer)
