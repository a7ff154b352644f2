"""Headers that no answer lacks: browsers guess no kind of content, and pages of other origins embed no answer."""

from __future__ import annotations

import socket

import httpx
import pytest

from tests.integration.api.conftest import S3

PLAIN = [
    ("GET", "/"), ("GET", "/healthz"), ("HEAD", "/healthz"), ("GET", "/readyz"), ("GET", "/minio/health/live"),
    ("OPTIONS", "/v1/events"), ("GET", "/v1/events"), ("GET", "/v1/targets"), ("GET", "/metrics"),
    ("GET", "/openapi.json"), ("GET", "/asyncapi.json"), ("GET", "/none"), ("DELETE", "/v1/events"),
    ("POST", "/v1/events"), ("PUT", "/v1/targets/webhook/x"), ("GET", "/v1/targets/webhook/none"),
    ("GET", "/console"), ("GET", "/console/sign-in"), ("GET", "/console/none"), ("GET", "/console/static/none.js"),
    ("GET", "/images?notification"), ("GET", "/minio/admin/v3/info"), ("HEAD", "/minio/admin/v3/none"),
]  # fmt: skip
SIGNED = [
    ("GET", "/"), ("PUT", "/images"), ("HEAD", "/images"), ("GET", "/images?notification"), ("GET", "/none"),
    ("PUT", "/images?notification"), ("GET", "/images/key"), ("GET", "/minio/admin/v3/help-config-kv"),
    ("DELETE", "/images"),
]  # fmt: skip
STREAMS = ["/images?events=s3:ObjectCreated:*&prefix=&suffix=", "?events=s3:ObjectCreated:*"]
MALFORMED = [
    b"GET / HTTP/9.9\r\n\r\n", b"nonsense\r\n\r\n", b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 70_000 + b"\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nA B: c\r\n\r\n",
]  # fmt: skip


def check(headers: httpx.Headers, what: object) -> None:
    found = {name: headers.get_list(name) for name in ("x-content-type-options", "cross-origin-resource-policy")}
    assert list(found.values()) == [["nosniff"], ["same-origin"]], what


def test_every_answer_has_the_headers(s3: S3) -> None:
    assert s3.ask("PUT", "/images").status_code == 200
    for method, path in PLAIN:
        check(s3.api.client.request(method, path).headers, (method, path))
    for method, path in SIGNED:
        check(s3.ask(method, path).headers, (method, path))
    check(s3.ask("GET", "/images?notification", secret="wrong").headers, "a wrong signature")


def test_every_stream_has_the_headers(s3: S3) -> None:
    for request in (
        *(s3.sign("GET", f"/{path.removeprefix('/')}") for path in STREAMS),
        s3.api.client.build_request("GET", "/v1/events/stream"),
    ):
        answer = s3.api.client.send(request, stream=True)
        try:
            check(answer.headers, request.url)
        finally:
            answer.close()


@pytest.mark.parametrize("head", MALFORMED, ids=lambda head: head[:12].decode())
def test_an_answer_to_what_is_no_request_has_the_headers(s3: S3, head: bytes) -> None:
    with socket.create_connection(("127.0.0.1", s3.api.port), 30) as connection:
        connection.sendall(head)
        answer = b""
        while b"\r\n\r\n" not in answer:
            received = connection.recv(65536)
            assert received, answer
            answer += received
    status, *lines = answer.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    assert int(status.split()[1]) >= 400, status
    check(httpx.Headers([tuple(line.split(": ", 1)) for line in lines]), status)  # type: ignore[misc]  # two of each
