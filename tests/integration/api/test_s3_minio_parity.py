"""The same requests to a real MinIO: where its answers differ from ours, they differ as they are meant to.

Of streams only the keys are compared: what is built from MinIO's master sends nothing of them until some KiB have
gathered (§8).
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from urllib.parse import quote_plus
from xml.etree.ElementTree import fromstring

import httpx
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests import services
from tests.integration.api.conftest import S3
from tests.support.api_requests import EVENTS, Listener, document, key_of
from tests.support.builders import add_target, event
from tests.support.notification_xml import REFUSED, TAKEN, filtered, queue

pytestmark = pytest.mark.nightly(
    "what minio-py and boto3 set at the API, in test_s3.py; MinIO's answers to documents as units"
)

# What this service takes and MinIO refuses, or the other way round (reference §1.2, §10).
WIDER = {
    "the scanner family", "both spellings of a bucket event", "a regular expression",
    "filters in capitals, as AWS answers them",
}  # fmt: skip
STRICTER = {
    "a filter longer than a key", "a segment of two dots", "EventBridge", "EventBridge beside a queue", "a Lambda",
}  # fmt: skip


@pytest.fixture(scope="module")
def minio(request: pytest.FixtureRequest) -> Iterator[services.MinIO]:
    with services.receiver() as receiver, services.minio(webhooks={"cache": (receiver.url, "")}) as server:
        server.client().make_bucket("images")
        yield server


def sign(minio: services.MinIO, method: str, path: str, content: bytes = b"") -> httpx.Request:
    signed = AWSRequest(method, minio.url + path, data=content)
    S3SigV4Auth(Credentials(minio.access_key, minio.secret_key), "s3", "us-east-1").add_auth(signed)
    return httpx.Request(method, minio.url + path, content=content, headers=dict(signed.headers))


def ask(minio: services.MinIO, method: str, path: str, content: bytes = b"") -> httpx.Response:
    with httpx.Client(trust_env=False) as client:
        return client.send(sign(minio, method, path, content))


def answer(minio: services.MinIO, inner: str) -> tuple[int, str]:
    response = ask(minio, "PUT", "/images?notification", document(inner.replace("cache:redis", "cache:webhook")))
    return response.status_code, fromstring(response.content).findtext("Code") or "" if response.content else ""


@pytest.mark.parametrize("case", [name for name in TAKEN if name not in WIDER])
def test_minio_takes_what_is_taken_here(minio: services.MinIO, case: str) -> None:
    assert answer(minio, TAKEN[case][0]) == (200, "")


@pytest.mark.parametrize("case", [name for name in REFUSED if name not in STRICTER])
def test_minio_refuses_with_the_same_code_what_is_refused_here(minio: services.MinIO, case: str) -> None:
    assert answer(minio, REFUSED[case][0]) == (400, REFUSED[case][1])


def test_a_document_comes_back_as_from_minio(minio: services.MinIO, s3: S3) -> None:
    """Rules, filters and events in the client's order, empty filters too: a tool that compares sees no difference."""
    add_target(s3.database, "cache", bucket="other")
    s3.ask("PUT", "/images").raise_for_status()
    suffix_first = filtered(("suffix", ".jpg"), ("prefix", "")).replace("<Id>1<", "<Id>b<")
    removed_first = queue("<Event>s3:ObjectRemoved:*</Event><Event>s3:ObjectCreated:*</Event>")
    content = document((suffix_first + removed_first).replace("cache:redis", "cache:webhook"))
    answers = []
    for put in (lambda *request: ask(minio, *request), s3.ask):
        assert put("PUT", "/images?notification", content).status_code == 200
        answers.append(put("GET", "/images?notification").content)
    assert answers[1] == b'<?xml version="1.0" encoding="UTF-8"?>\n' + answers[0]
    assert b"<Value></Value>" in answers[1]


def test_the_differences_are_those_that_are_told(minio: services.MinIO) -> None:
    assert {case for case in WIDER if answer(minio, TAKEN[case][0])[0] == 200} == set()
    assert {case for case in STRICTER if answer(minio, REFUSED[case][0])[0] != 200} == set()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nowhere?notification"),
        ("GET", "/nowhere?location"),
        ("GET", f"/nowhere?{EVENTS.replace(':', '%3A').replace('*', '%2A')}"),
        ("PUT", "/images?notification"),
        ("GET", "/images?events=s3%3ANothing"),
        ("GET", "/images?events=s3%3AObjectCreated%3A%2A&prefix=a&prefix=b"),
        ("GET", "/images?events=s3%3AObjectCreated%3A%2A&prefix=a%5Cb"),
        ("GET", "/images?events=s3%3AObjectCreated%3A%2A&ping=0"),
        ("GET", "/images?events=s3%3AObjectCreated%3A%2A&ping=x"),
        ("GET", "/images?events=s3%3AObjectCreated%3A%2A&prefix=a%2F..%2Fb"),
        ("PUT", "/images"),
        ("PUT", "/ab"),
        ("PUT", "/Images"),
        ("DELETE", "/nowhere"),
        ("GET", "/images?policy"),
        ("GET", "/nowhere?policy"),
        ("GET", "/Im_ages?notification"),
        ("GET", "/a..b?location"),
        ("DELETE", "/Images"),
    ],
)
def test_other_refusals_are_minios_too(minio: services.MinIO, s3: S3, method: str, path: str) -> None:
    s3.ask("PUT", "/images").raise_for_status()
    there, here = ask(minio, method, path), s3.ask(method, path)
    assert here.status_code == there.status_code
    assert fromstring(here.content).findtext("Code") == fromstring(there.content).findtext("Code")


def test_listeners_get_keys_as_minio_sends_them(minio: services.MinIO, s3: S3) -> None:
    """Decoded, also those that look encoded, while the webhook's are encoded."""
    keys = ["plain", "dir/a b+c & é🎉", "%2F", "a%20b+"]
    s3.ask("PUT", "/images").raise_for_status()
    path = "/images?events=s3%3AObjectCreated%3A%2A"
    with httpx.Client(timeout=20, trust_env=False) as client:
        # MinIO sends the headers with the first 4 KiB, so it is filled from beside until all the keys have come.
        with filling(minio, keys), closing(client.send(sign(minio, "GET", path), stream=True)) as there:
            heard = {key_of(line) for line in islice(iter(Listener(there).__next__, None), 4 * len(keys))}
        with closing(client.send(s3.sign("GET", path), stream=True)) as here:
            s3.api.post(b'{"Records":[%s]}' % ",".join(event(quote_plus(key)).record for key in keys).encode())
            assert set(Listener(here).keys(len(keys))) == heard == set(keys)


@contextmanager
def filling(minio: services.MinIO, keys: Sequence[str]) -> Iterator[None]:
    """Write these objects again and again."""
    done = threading.Event()

    def write() -> None:
        client = minio.client()
        while not done.wait(0.05):
            for key in keys:
                client.put_object("images", key, io.BytesIO(b"x"), 1)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
