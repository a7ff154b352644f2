"""Texts that a database refuses, or takes long for, in every place of every route that takes a text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import Client

from app.config.settings import Settings
from app.resources.declaration import format_time
from app.server.application import create_app
from tests.support.builders import add_target, migrated
from tests.support.properties import times

TOKEN = "a-token-of-32-characters-for-you"
LENGTH = times(200_000, 1_000_000)  # characters: more than any name or setting may have
HOSTILE = {"NUL": "a\0b", "very long": "x" * LENGTH, "half a surrogate pair": "\\ud800"}


@pytest.fixture
def app(postgres_outbox: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    environ = {
        "BUCKETWIRE_DATA_DIR": str(tmp_path_factory.mktemp("hostile")),
        "BUCKETWIRE_BROKER_URL": "redis://127.0.0.1:9/0",
        "BUCKETWIRE_DATABASE_URL": postgres_outbox,
        "BUCKETWIRE_API_TOKENS": f"tests:admin:{TOKEN}",
    }
    database = migrated(postgres_outbox)
    add_target(database, "audit")
    database.close()
    made = create_app(Settings.from_environ(environ))
    yield made
    made.extensions["bucketwire"].database.close()


def _texts(schema: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    """The members of a body that are texts, or lists of texts."""
    schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    for name, member in schema.get("properties", {}).items():
        kind = member.get("type", "string")
        if kind == "string" or "string" in kind or "array" in kind:
            yield name


def _send(client: FlaskClient, method: str, path: str, **options: Any) -> int:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    if "data" in options:
        headers["Content-Type"] = "application/json"
    answer = client.open(path, method=method, headers=headers, **options)
    assert len(answer.text) < 8000, f"{method} {path[:80]} repeats what it was sent"
    return answer.status_code


def _json(members: dict[str, Any]) -> str:
    """JSON in which `\\ud800` stays the escape that it is."""
    return json.dumps(members).replace("\\\\ud800", "\\ud800")


GOOD: dict[str, dict[str, Any]] = {
    "NewRule": {"bucket": "images", "events": ["*"], "target": "webhook:audit"},
    "NewReplay": {"target": "webhook:audit"},
    "Settings": {"endpoint": "http://127.0.0.1:9/"},
}


def _requests(
    path: str, operation: dict[str, Any], schemas: dict[str, Any], value: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A request for each text that an operation takes, with this value in its place."""
    for parameter in operation.get("parameters", ()):
        if parameter.get("in") == "query" and not value.startswith("\\"):  # in a URL it is only a backslash
            query = {"key": "k", "bucket": "b"} if path == "/v1/events" else {}
            yield f"?{parameter['name']}", {"query_string": query | {parameter["name"]: value}, "json": {}}
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    name = content.get("$ref", "").rpartition("/")[2]
    for member, sent in _members(path, name, content, schemas, value):
        yield f"{member} {type(sent).__name__}", {"data": _json(GOOD.get(name, {}) | {member: sent})}


def _members(
    path: str, name: str, content: dict[str, Any], schemas: dict[str, Any], value: str
) -> Iterator[tuple[str, Any]]:
    if path == "/v1/declaration":
        yield "targets", {"webhook:x": {"endpoint": value}}
        yield "rules", [GOOD["NewRule"] | {"bucket": value}]
    elif name == "Settings":
        yield from dict.fromkeys(("endpoint", "auth_token", "queue_dir"), value).items()
    else:
        for member in _texts(content, schemas):
            yield member, value
            yield member, [value]


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_route_fails_at_a_text_that_no_database_takes(app: Flask, kind: str) -> None:
    client = app.test_client()
    described = client.get("/openapi.json").get_json()
    wrong, asked = [], 0
    for path, methods in described["paths"].items():
        place = path.format(type_name="webhook", name="audit", number=1, event_id="x", run="x")
        for method, operation in methods.items():
            for what, options in _requests(path, operation, described["components"]["schemas"], HOSTILE[kind]):
                asked += 1
                status = _send(client, method.upper(), place, **options)
                if status not in (400, 413):  # 413: the body itself may be too large
                    wrong.append(f"{method} {path} {what}: {status}")
    assert not wrong, "\n".join(wrong)
    assert asked > 30


def test_a_time_that_cannot_be_written_is_refused(app: Flask) -> None:
    client, headers = app.test_client(), {"Authorization": f"Bearer {TOKEN}"}
    for far in ("1795000000000000000", 10**17, "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"):
        for name in ("since", "before"):
            made = client.post("/v1/replays", json={"target": "webhook:audit", name: far}, headers=headers)
            assert (made.status_code, name in made.text) == (400, True), made.text
    last = client.post(
        "/v1/replays", json={"target": "webhook:audit", "before": "9999-12-31T23:59:59Z"}, headers=headers
    )
    assert last.status_code == 201, last.text
    [listed] = client.get("/v1/replays", headers=headers).json["replays"]  # type: ignore[index]
    assert listed["before"] == "9999-12-31T23:59:59.000Z"
    assert format_time(2**62) == "9999-12-31T23:59:59.999Z"
    assert format_time(-(2**62)) == "0001-01-01T00:00:00.000Z"


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/targets", {"Authorization": "Basic \u00e9"}, 401),
        ("//[?location", {}, 400),
        ("/console/sign-in", {"Origin": "http://["}, 400),
    ],
)
def test_an_odd_header_or_path_is_refused_without_a_trace(
    app: Flask, path: str, headers: dict[str, str], status: int
) -> None:
    method = "POST" if "Origin" in headers else "GET"
    answer = Client(app).open(method=method, path="/", environ_overrides=_environ(path, headers))
    assert answer.status_code in (status, 403), answer.text


def _environ(path: str, headers: dict[str, str]) -> dict[str, str]:
    """Return what gunicorn passes on for a request, which werkzeug's client would not send."""
    plain, _, query = path.partition("?")
    named = {f"HTTP_{name.upper()}": value.encode().decode("latin-1") for name, value in headers.items()}
    return {"RAW_URI": path, "PATH_INFO": plain, "QUERY_STRING": query, **named}
