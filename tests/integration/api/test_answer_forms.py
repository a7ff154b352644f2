"""Each sender is answered as its protocol says: by its own clients, whether its events are recorded or refused."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode, urlsplit
from xml.etree.ElementTree import fromstring

import boto3
import httpx
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError
from cloudevents.core.bindings import http
from cloudevents.core.v1.event import CloudEvent
from flask import Flask

from app.api import answer_forms
from app.api.errors import PROBLEM_TYPES, ApiProblem
from app.outbox.engine.database import Database
from app.outbox.tokens import Tokens
from app.server import gunicorn_worker
from tests.integration.api.conftest import Api, Start, keys, problem, url_of
from tests.support.api_requests import body
from tests.support.builders import add_target

SENDER, OTHER = "s" * 40, "o" * 40
TOPIC = "arn:aws:sns:eu-west-1:123456789012:images"
LIMIT = 5000


@pytest.fixture
def closed(log: Database, start: Start) -> Api:
    """An API that needs a token."""
    return start(url_of(log), api_tokens=f"sender:ingest:{SENDER},other:ingest+read:{OTHER}", body_limit=LIMIT)


def publisher(url: str, **settings: Any) -> Any:
    """A client of SNS that signs nothing unless told to."""
    retries = {"total_max_attempts": 1}
    config = Config(**{"signature_version": UNSIGNED, "retries": retries, "region_name": "eu-west-1"} | settings)
    return closing(boto3.client("sns", endpoint_url=url, config=config))


def refusal(client: Any, message: str, **more: Any) -> tuple[int, str, str, dict[str, str]]:
    """Status, code, message and headers of what boto3 raises."""
    with pytest.raises(ClientError) as raised:
        client.publish(TopicArn=TOPIC, Message=message, **more)
    answer = raised.value.response
    assert answer["Error"]["Type"] in ("Sender", "Receiver")
    assert answer["ResponseMetadata"]["RequestId"]
    status: int = answer["ResponseMetadata"]["HTTPStatusCode"]
    return status, answer["Error"]["Code"], answer["Error"]["Message"], answer["ResponseMetadata"]["HTTPHeaders"]


def test_a_publisher_of_sns_learns_that_its_messages_are_recorded(closed: Api, log: Database) -> None:
    once = body("published").decode()
    with publisher(f"{closed.url}/v1/events?token={SENDER}") as client:
        first, again = (client.publish(TopicArn=TOPIC, Message=once) for _ in range(2))
        assert first["MessageId"] != again["MessageId"]
        entries = [{"Id": name, "Message": body(name).decode()} for name in ("in a", "batch")]
        answer = client.publish_batch(TopicArn=TOPIC, PublishBatchRequestEntries=entries)
    assert [entry["Id"] for entry in answer["Successful"]] == ["in a", "batch"]
    assert all(entry["MessageId"] for entry in answer["Successful"])
    assert answer.get("Failed", []) == []
    assert keys(log) == ["published", "in a", "batch"]


def test_a_publisher_of_sns_learns_why_its_message_is_refused(closed: Api, log: Database) -> None:
    target = add_target(log, queue_limit=1, queue_full="reject")
    place, good = f"{closed.url}/v1/events?token={SENDER}", body("one").decode()
    for batch_place in (place, f"{place}&partial=true"):  # of each entry of a batch it is said that it is recorded
        with publisher(batch_place) as client, pytest.raises(ClientError, match=r"member\.2\.Message"):
            client.publish_batch(
                TopicArn=TOPIC,
                PublishBatchRequestEntries=[{"Id": "1", "Message": good}, {"Id": "2", "Message": "{"}],
            )
    with publisher(place) as client:
        assert refusal(client, "no JSON")[:2] == (400, "InvalidParameter")
        assert "Message is not JSON" in refusal(client, "no JSON")[2]
        assert refusal(client, "x" * LIMIT)[:2] == (413, "InvalidParameter")
        assert keys(log) == []
        client.publish(TopicArn=TOPIC, Message=good)
        status, code, words, headers = refusal(client, body("two").decode())
        assert (status, code) == (503, "ServiceUnavailable")
        assert f"the queue of {target.arn()} is full" in words
        assert int(headers["retry-after"]) > 0
    for query, status, code, words in (
        ("", 401, "InvalidClientTokenId", "send a token"),
        ("?token=wrong", 401, "InvalidClientTokenId", "this token is not valid"),
        (f"?token={OTHER}", 403, "AuthorizationError", "has more scopes than ingest"),
    ):
        with publisher(f"{closed.url}/v1/events{query}") as client:
            assert refusal(client, good)[:2] == (status, code)
            assert words in refusal(client, good)[2]
    with publisher(f"{closed.url}/v1/event?token={SENDER}") as client:
        assert refusal(client, good)[:2] == (404, "NotFound")


def test_a_signed_call_of_sns_is_told_to_be_sent_unsigned(closed: Api, plain: Api) -> None:
    for place in (f"{closed.url}/v1/events", closed.url, f"{closed.url}/v1/events?token={SENDER}", plain.url):
        signing = boto3.client(
            "sns", endpoint_url=place, region_name="eu-west-1", aws_access_key_id="a", aws_secret_access_key="b",
            config=Config(retries={"total_max_attempts": 1}),
        )  # fmt: skip
        with closing(signing) as client:
            status, code, words, _ = refusal(client, body("signed").decode())
            if place.endswith("events") or "token" in place:
                assert (status, code) == (401, "InvalidClientTokenId")
                assert "signature_version=botocore.UNSIGNED" in words
            else:
                assert (status, "/v1/events" in words) == (405, True)


def test_a_call_of_sns_is_one_in_whatever_order_its_fields_are(plain: Api, plain_log: Database) -> None:
    """The AWS SDK for JavaScript writes the action last."""
    form = "application/x-www-form-urlencoded"
    sent = urlencode({"TopicArn": TOPIC, "Message": body("last").decode(), "Action": "Publish"}).encode()
    answer = plain.post(sent, content_type=form)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/xml; charset=utf-8")
    assert fromstring(answer.content).tag == "{http://sns.amazonaws.com/doc/2010-03-31/}PublishResponse"
    assert plain.post(body("curl"), content_type=form).json()["recorded"] == 1  # as curl declares all that it posts
    assert keys(plain_log) == ["last", "curl"]


def test_what_is_no_call_of_sns_is_refused_in_json_though_it_is_declared_as_a_form(closed: Api) -> None:
    form = {"content_type": "application/x-www-form-urlencoded"}
    problem(closed.post(body("a"), **form), 401, "unauthorized")
    problem(closed.post(b"{", authorization=SENDER, **form), 400, "bad-events")
    assert b"<ErrorResponse" in closed.post(b"TopicArn=a&Action=Publish", **form).content


@pytest.mark.parametrize("mode", ["binary", "structured", "batch"])
def test_a_cloud_event_is_accepted_without_a_body(closed: Api, log: Database, mode: str) -> None:
    """To Knative a body is a reply, and one that is no CloudEvent a failure, after which it sends the event again."""
    made = {
        "id": "1", "source": "/minio", "type": "com.amazon.s3.objectcreated", "specversion": "1.0",
        "time": datetime.now(UTC), "datacontenttype": "application/json",
    }  # fmt: skip
    event = CloudEvent(made, json.loads(body("a")))
    message = http.to_binary_event(event) if mode == "binary" else http.to_structured_event(event)
    headers, content = dict(message.headers), message.body
    if mode == "batch":
        headers = {"content-type": "application/cloudevents-batch+json; charset=utf-8"}
        content = b"[%s]" % content
    refused = closed.client.post("/v1/events", content=content, headers=headers)
    problem(refused, 401, "unauthorized")
    headers["Authorization"] = f"Bearer {SENDER}"
    for _ in range(2):
        answer = closed.client.post("/v1/events", content=content, headers=headers)
        assert (answer.status_code, answer.content) == (202, b"")
        assert "content-type" not in answer.headers
    assert keys(log) == ["a"]
    problem(closed.client.post("/v1/events", content=b"[{}]", headers=headers), 400, "bad-events")


def test_a_sender_of_cloud_events_may_ask_whether_it_may_send(closed: Api) -> None:
    asked = {"WebHook-Request-Origin": "eventgrid.azure.net", "WebHook-Request-Rate": "120"}
    read_only = {"Authorization": f"Bearer {OTHER}"}
    answer = closed.client.options(f"/v1/events?token={SENDER}", headers=asked)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["webhook-allowed-origin"] == "eventgrid.azure.net"
    assert answer.headers["webhook-allowed-rate"] == "*"
    assert "POST" in answer.headers["allow"]
    assert closed.client.options("/v1/events", headers=asked | read_only).status_code == 200  # not in the URL
    assert "webhook-allowed-origin" not in closed.client.options(f"/v1/events?token={SENDER}").headers
    for query, status in (("", 401), ("?token=wrong", 401), (f"?token={OTHER}", 403)):
        refused = closed.client.options(f"/v1/events{query}", headers=asked)
        assert refused.status_code == status
        assert "webhook-allowed-origin" not in refused.headers


GRID_CODE = "512d38b6-c7b8-40c8-89fe-f46f9e9622b6"
_DATA = {"validationCode": GRID_CODE, "validationUrl": "https://rp-eastus2.eventgrid.azure.net/?id=512d38b6"}
_VALIDATION = "Microsoft.EventGrid.SubscriptionValidationEvent"
GRID: dict[str, Any] = {
    "Event Grid": [
        {
            "id": "2d1781af-3a4c-4d7c-bd0c-e34b19da4e66", "topic": "/subscriptions/x", "subject": "", "data": _DATA,
            "eventType": _VALIDATION, "eventTime": "2026-01-25T22:12:19.4556811Z", "metadataVersion": "1",
            "dataVersion": "1",
        }
    ],
    "CloudEvents": {
        "specversion": "1.0", "id": "2d1781af", "source": "/subscriptions/x", "type": _VALIDATION, "data": _DATA,
        "time": "2026-01-25T22:12:19.4556811Z",
    },
}  # fmt: skip


@pytest.mark.parametrize("schema", GRID)
def test_event_grid_gets_its_code_back(closed: Api, schema: str) -> None:
    kind = "application/json" if schema == "Event Grid" else "application/cloudevents+json"
    headers = {"aeg-event-type": "SubscriptionValidation", "Content-Type": kind}
    content = json.dumps(GRID[schema])
    assert closed.client.post("/v1/events", content=content, headers=headers).status_code == 401
    answer = closed.client.post(f"/v1/events?token={SENDER}", content=content, headers=headers)
    assert (answer.status_code, answer.json()) == (200, {"validationResponse": GRID_CODE})


def test_what_comes_beside_a_handshake_is_recorded(plain: Api, plain_log: Database) -> None:
    answer = plain.post(json.dumps(GRID["Event Grid"] + json.loads(body("a"))["Records"]).encode())
    assert answer.json()["recorded"] == 1
    assert keys(plain_log) == ["a"]


def test_firehose_gets_the_number_of_its_request(closed: Api, log: Database) -> None:
    number = "ed4acda5-034f-9f42-bba1-f29aea6d7d8f"
    records = [{"data": base64.b64encode(body(key)).decode()} for key in ("a", "b")]
    content = json.dumps({"requestId": number, "timestamp": 1578090901599, "records": records}).encode()
    headers = {"X-Amz-Firehose-Protocol-Version": "1.0", "X-Amz-Firehose-Request-Id": number}

    def answer(status: int, sent: bytes = content, **more: str) -> dict[str, Any]:
        named = headers | {name.replace("_", "-"): value for name, value in more.items()}
        received: httpx.Response = closed.client.post("/v1/events", content=sent, headers=named)
        assert (received.status_code, received.headers["content-type"]) == (status, "application/json")
        found: dict[str, Any] = received.json()
        assert found.pop("requestId") == number
        assert isinstance(found.pop("timestamp"), int)
        return found

    key = {"X_Amz_Firehose_Access_Key": SENDER}
    for _ in range(2):
        assert answer(200, gzip.compress(content), Content_Encoding="gzip", **key) == {}
    assert keys(log) == ["a", "b"]
    assert "send a token" in answer(401)["errorMessage"]
    assert "not valid" in answer(401, X_Amz_Firehose_Access_Key="wrong")["errorMessage"]
    assert "records[0]" in answer(400, content.replace(b'"data": "', b'"data": "!'), **key)["errorMessage"]
    assert "at most" in answer(413, b"x" * 2 * LIMIT, **key)["errorMessage"]


def test_a_url_has_no_token_but_for_posting_events(closed: Api, log: Database) -> None:
    assert closed.post(body("a"), query=f"?token={SENDER}").status_code == 202
    assert closed.post(body("b"), query=f"?token={SENDER}", authorization="wrong").status_code == 401
    for path in ("/v1/events?bucket=images&key=a", "/v1/rules", "/v1/tokens", "/metrics"):
        joined = f"{path}{'&' if '?' in path else '?'}token={OTHER}"
        assert closed.client.get(joined).status_code == 401, path
    forbidden = problem(closed.post(body("c"), query=f"?token={OTHER}"), 403, "forbidden")
    assert "put one into the URL that has this scope alone" in forbidden["detail"]
    limited = Tokens(log).create("limited", ["ingest"], buckets=["elsewhere"])
    sent = closed.post(body("d"), query=f"?token={limited}")
    assert sent.status_code in (401, 403)  # 401 until the token is known
    assert keys(log) == ["a"]
    assert SENDER not in closed.log.read_text()


def test_a_request_that_cannot_be_read_leaves_no_token_in_the_log(closed: Api) -> None:
    address = urlsplit(closed.url)
    malformed = {
        f"POST /v1/events?token={SENDER}\r\n\r\n": "Invalid HTTP request line",
        f"POST http://[/v1/events?token={SENDER} HTTP/1.1\r\n\r\n": "Invalid HTTP request line",
        f"POST /v1/events?token='{SENDER}\r\n\r\n": "Invalid HTTP request line",
        f"POST /v1/events?token= {SENDER} HTTP/1.1\r\n\r\n": "Invalid HTTP Version",
        f"POST?token={SENDER} /v1/events HTTP/1.1\r\n\r\n": "Invalid HTTP method",
        f"POST /v1/events HTTP/1.1\r\nAuthorization Bearer {SENDER}\r\n\r\n": "Invalid HTTP Header",
        f"POST /v1/events HTTP/1.1\r\nX-Token {SENDER}: a\r\n\r\n": "Invalid HTTP header name",
        f"POST /v1/events HTTP/1.1\r\nExpect: {SENDER}\r\n\r\n": "Unable to comply with expectation",
        f"POST /v1/events HTTP/1.1\r\nTransfer-Encoding: {SENDER}\r\n\r\n": "Unsupported transfer coding",
        f"POST /v1/events?token={SENDER}{'a' * 9000} HTTP/1.1\r\n\r\n": "Request Line is too large (",
    }
    for request, reason in malformed.items():
        with socket.create_connection((address.hostname or "", address.port or 0), timeout=30) as connection:
            connection.sendall(request.encode())
            assert b" 4" in connection.recv(65536)[:13] or reason == "Unsupported transfer coding", request
        assert f": {reason}" in closed.log.read_text(), request
    assert SENDER not in closed.log.read_text()


def test_a_request_that_fails_in_the_server_leaves_no_query_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    assert gunicorn_worker.Worker.handle_error, "the module changes what gunicorn logs"
    logger = logging.getLogger("gunicorn.error")
    logger.error("Error handling request %s %s", "POST", "/v1/events?token=secret")
    logger.error("Error handling request %s", "/v1/events?token=secret")
    logger.warning("Invalid request from ip=::1: [SSL: HTTP_REQUEST] http request")
    assert caplog.messages == [
        "Error handling request POST /v1/events",
        "Error handling request /v1/events",
        "Invalid request from ip=::1: [SSL: HTTP_REQUEST] http request",
    ]


@pytest.fixture
def request_of_sns() -> Iterator[Flask]:
    app = Flask(__name__)
    with app.test_request_context("/v1/events", method="POST", data={"Action": "Publish"}):
        answer_forms.settle(b"Action=Publish")
        yield app


@pytest.mark.usefixtures("request_of_sns")
@pytest.mark.parametrize("kind", PROBLEM_TYPES)
def test_every_problem_has_a_form_that_an_sdk_of_aws_reads(kind: str) -> None:
    answer = answer_forms.refuse(ApiProblem(kind, "a key with \x00 < & \x1f"))
    status = PROBLEM_TYPES[kind][0]
    assert answer.status_code == (503 if status == 507 else status)  # an SDK does not send again after 507
    error = fromstring(answer.get_data()).find("{*}Error")
    assert error is not None
    assert error.findtext("{*}Type") == ("Sender" if status < 500 else "Receiver")
    elsewhere = kind in ("not-found", "wrong-method")
    assert ("/v1/events" if elsewhere else "a key with \ufffd < & \ufffd") in (error.findtext("{*}Message") or "")
    assert ("Retry-After" in answer.headers) == ("Retry-After" in ApiProblem(kind, "").response().headers)
