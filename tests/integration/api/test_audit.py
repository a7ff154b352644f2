"""The audit log over HTTP: changes by routes, by S3 requests, by MinIO's admin API, and who may read of them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from tests.integration.api.conftest import S3, Api, Start, problem, token, url_of
from tests.integration.api.mc_admin import Admin
from tests.services import until
from tests.support.builders import add_target, event

SECRET = "hunter2-hunter2"


def entries(api: Api, headers: dict[str, str] | None = None, **params: Any) -> list[dict[str, Any]]:
    answer = api.client.get("/v1/audit", params=params, headers=headers)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["entries"]
    return found


def test_a_change_is_attributed_to_its_token_route_and_address(log: Database, start: Start) -> None:
    api = start(url_of(log))
    settings = {"endpoint": "http://127.0.0.1:9/", "auth_token": SECRET}
    assert api.client.put("/v1/targets/webhook/audit", json=settings).status_code == 201
    headers, reader = token(log, "admin"), token(log, "read")
    until(lambda: api.client.get("/v1/audit").status_code == 401)  # the API reads its tokens once a second
    rule = {"bucket": "images", "events": ["*"], "target": "webhook:audit"}
    assert api.client.post("/v1/rules", json=rule, headers=headers).status_code == 201
    api.client.post("/v1/targets/webhook/audit/pause", json={"reason": "mine"}, headers=headers)
    declared = {"targets": {"webhook:other": {"endpoint": "http://127.0.0.1:9/"}}}
    api.client.post("/v1/declaration", json=declared, headers=headers)
    problem(api.client.delete("/v1/targets/webhook/audit", headers=headers), 409, "target-in-use")
    found = entries(api, headers)
    assert SECRET not in str(found)
    by_request = [entry for entry in found if entry["action"] != "token.create"]
    assert [(entry["actor"], entry["via"], entry["action"], entry["resource"]) for entry in by_request] == [
        ("token:admin", "POST /v1/declaration", "target.create", "target:webhook:other"),
        ("token:admin", "POST /v1/targets/<type_name>/<name>/pause", "target.pause", "target:webhook:audit"),
        ("token:admin", "POST /v1/rules", "rule.add", "bucket:images"),
        ("local", "PUT /v1/targets/<type_name>/<name>", "target.create", "target:webhook:audit"),
    ]
    assert {entry["address"] for entry in by_request} == {"127.0.0.1"}
    assert len({entry["operation"] for entry in by_request}) == 4
    problem(api.client.get("/v1/audit", headers=reader), 403, "forbidden")


@pytest.mark.parametrize(
    ("endpoint", "shown", "secret"),
    [
        (f"https://hooks.example/services/T0/{SECRET}", "https://hooks.example/services/*redacted*", SECRET),
        ("https://hooks.example/my-secret-topic", "https://hooks.example/*redacted*", "my-secret-topic"),
    ],
)
def test_what_lets_anybody_post_to_a_webhook_is_neither_shown_nor_stored(
    plain: Api, plain_log: Database, endpoint: str, shown: str, secret: str
) -> None:
    """The path of Slack's and Teams's addresses: sealed, shown without it, and kept when it is sent back so."""
    path = "/v1/targets/webhook/chat"

    def stored() -> str:
        with plain_log.reading() as connection:
            return str(connection.execute(sa.select(tables.targets.c.settings)).scalar_one())

    settings = {"endpoint": endpoint}
    assert plain.client.put(path, json=settings).json()["settings"] == {"endpoint": shown}
    assert "hooks.example" not in stored()
    changed = plain.client.put(path, json={"endpoint": shown, "comment": "x"})
    assert changed.json()["settings"] == {"endpoint": shown, "comment": "x"}
    refused = problem(plain.client.put(path, json={"endpoint": shown.replace("hooks", "other")}), 400, "bad-settings")
    assert "contains the placeholder of a secret" in refused["detail"]
    # As a version before this one has left it.
    with plain_log.writing() as connection:
        connection.execute(tables.targets.update().values(settings=orjson.dumps(settings).decode()))
    assert plain.client.get(path).json()["settings"] == {"endpoint": shown}
    assert plain.client.put(path, json={"endpoint": shown}).status_code == 200
    assert "hooks.example" not in stored(), "it is sealed when it is written"
    assert secret not in str([entries(plain), plain.client.get("/v1/targets").json()])


def test_pages_and_filters(plain: Api, plain_log: Database) -> None:
    target = add_target(plain_log, "audit")
    for _ in range(3):
        plain.client.post("/v1/targets/webhook/audit/resume", json={})
    first = plain.client.get("/v1/audit", params={"limit": 2, "action": "target"}).json()
    rest = plain.client.get("/v1/audit", params={"action": "target", "after": first["next"]}).json()
    actions = [entry["action"] for entry in first["entries"] + rest["entries"]]
    assert actions == ["target.resume"] * 3 + ["target.create"]
    assert rest["next"] is None
    assert len(entries(plain, actor="local", resource=f"target:{target}")) == 3
    assert entries(plain, since="2030-01-01") == entries(plain, before="2020-01-01") == []
    for params in ({"action": "target.pauze"}, {"actr": "x"}, {"since": "yesterday"}, {"limit": 0}, {"after": -1}):
        problem(plain.client.get("/v1/audit", params=params), 400, "bad-value")


def test_who_records_repairs_for_a_target_is_known(plain: Api, plain_log: Database) -> None:
    target = add_target(plain_log, "mirror")
    content = f'{{"Records":[{event("a").record},{event("b").record}]}}'
    for _ in range(2):  # sent again, nothing is recorded
        answer = plain.client.post("/v1/targets/webhook/mirror/events", params={"after": 0}, content=content)
        assert answer.status_code == 202, answer.text
    [entry] = entries(plain, action="target.repair")
    assert (entry["actor"], entry["via"]) == ("local", "POST /v1/targets/<type_name>/<name>/events")
    assert (entry["resource"], entry["details"]) == (f"target:{target}", {"events": 2, "buckets": ["images"]})


def test_s3_requests_and_minios_admin_api_are_attributed_to_their_key(s3: S3) -> None:
    target = add_target(s3.database, "audit", bucket="seen")
    Log(s3.database).append([[event(bucket="images")]])
    inner = f"<QueueConfiguration><Queue>{target.arn('')}</Queue><Event>s3:ObjectCreated:*</Event></QueueConfiguration>"
    content = f"<NotificationConfiguration>{inner}</NotificationConfiguration>".encode()
    for _ in range(2):  # the second changes nothing
        assert s3.ask("PUT", "/images?notification", content).status_code == 200
    admin = Admin(s3.place, s3.access_key, s3.secret_key, s3.api.folder)
    admin.py.config_set("notify_webhook:two", {"endpoint": "http://127.0.0.1:9/", "auth_token": SECRET})
    assert s3.ask("DELETE", "/images").status_code == 204
    for status in (200, 409):  # the second changes nothing
        assert s3.ask("PUT", "/films").status_code == status
    found = entries(s3.api, actor="key:default")
    assert [(entry["via"], entry["action"], entry["resource"]) for entry in found] == [
        ("PUT /<bucket>", "bucket.create", "bucket:films"),
        ("DELETE /<bucket>", "bucket.remove", "bucket:images"),
        ("PUT /minio/admin/v3/set-config-kv", "target.create", "target:webhook:two"),
        ("PUT /<bucket>?notification", "rule.add", "bucket:images"),
    ]
    assert {entry["address"] for entry in found} == {"127.0.0.1"}
    assert SECRET not in str(found)
