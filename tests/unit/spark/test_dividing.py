"""A bucket is divided into ranges of about the same size by few requests, and each page costs little."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from hashlib import md5
from io import BytesIO
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qs, quote, urlsplit
from xml.sax.saxutils import escape

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from urllib3 import HTTPResponse

from app.listings.limits import BadListing
from app.listings.pages import is_bound
from spark_jobs.listings import s3_listing
from spark_jobs.listings.listing_source import ListingSource
from spark_jobs.listings.s3_listing import Bucket, between, bisected, entries, found_bounds, objects

ENDPOINT = "http://s3.example.com"
TIME = "2026-11-28T21:54:02.123Z"
LOGIN = ("key", "secret", None)
ALPHABET = "a/-.~é\ud7ff\ue000\U0001f600"


class Model:
    """Answers boto3's requests to list a bucket, without a network; each takes `latency` seconds."""

    def __init__(self, keys: list[str], latency: float = 0.0, entry: str = "") -> None:
        self.keys, self.latency, self.entry = keys, latency, entry
        self.requests, self.in_flight, self.most = list[Any](), 0, 0
        self.busy = 0  # answers of 503 that come first
        self._lock = threading.Lock()

    def __call__(self, request: Any, **_: Any) -> AWSResponse:
        with self._lock:
            self.in_flight += 1
            self.most = max(self.most, self.in_flight)
            self.requests.append(request)
            is_busy, self.busy = self.busy > 0, self.busy - 1
        time.sleep(self.latency)
        body = b"<Error><Code>SlowDown</Code></Error>" if is_busy else self._page(request.url)
        with self._lock:
            self.in_flight -= 1
        status = 503 if is_busy else 200
        return AWSResponse(request.url, status, {}, HTTPResponse(BytesIO(body), status=status, preload_content=False))

    def _page(self, url: str) -> bytes:
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        most = int(query.get("max-keys", 1000))
        start = bisect_right(self.keys, query.get("continuation-token", query.get("start-after", "")))
        keys = self.keys[start : start + most]
        is_cut = start + most < len(self.keys)
        entries = "".join(
            f"<Contents><Key>{escape(quote(key, safe='/'))}</Key><LastModified>{TIME}</LastModified><ETag>&#34;e&#34;"
            f"</ETag><Size>7</Size><StorageClass>STANDARD</StorageClass></Contents>{self.entry}"
            for key in keys
        )
        following = f"<NextContinuationToken>{escape(keys[-1])}</NextContinuationToken>" if is_cut else ""
        return (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bkt</Name>'
            f"<IsTruncated>{str(is_cut).lower()}</IsTruncated><EncodingType>url</EncodingType>{following}{entries}"
            "</ListBucketResult>"
        ).encode()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    return Bucket("bkt", ENDPOINT, login=LOGIN)


def answered_by(model: Model, patch: pytest.MonkeyPatch) -> None:
    made, clients = Bucket.client, dict[Bucket, Any]()  # to make one takes botocore 0.1 s

    def client(self: Bucket) -> Any:
        if self not in clients:
            clients[self] = made(self)
            clients[self].meta.events.register("before-send.s3", model)
        return clients[self]

    patch.setattr(Bucket, "client", client)


def counted(keys: list[str], bounds: list[str], tasks: int) -> list[int]:
    """Return the number of keys of each range."""
    ends = [
        (bisect_right(keys, after), len(keys) if until is None else bisect_right(keys, until))
        for after, until in between(bounds, tasks)
    ]
    return [end - start for start, end in ends]


FLAT = {
    "numbers": [f"data/part-{number:012}.parquet" for number in range(20_000)],
    "hashes": sorted(md5(str(number).encode(), usedforsecurity=False).hexdigest() for number in range(20_000)),
    "dates": sorted(f"2026-{1 + n % 12:02}-{1 + n % 28:02}T{n % 24:02}-{n}.json" for n in range(20_000)),
    "one folder": sorted(f"log/2026/11/host-{number % 3}/{number:07}" for number in range(20_000)),
}  # fmt: skip


@pytest.mark.parametrize("keys", FLAT.values(), ids=FLAT)
def test_a_flat_bucket_is_divided_by_few_requests(keys: list[str]) -> None:
    asked = list[str]()

    def first_after(text: str) -> str | None:
        asked.append(text)
        return next(iter(keys[(at := bisect_right(keys, text)) : at + 1]), None)

    ranges = counted(keys, bisected(first_after, [], 16), 16)
    assert len(ranges) == 16
    assert sum(ranges) == len(keys)
    four = [0] * 4  # tasks at once
    for size in ranges:
        four[four.index(min(four))] += size
    assert max(four) <= 0.33 * len(keys)
    assert len(asked) <= 200
    assert all(is_bound(text) for text in asked if text)


@given(st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=40, unique=True), st.integers(1, 8))
def test_the_ranges_of_any_keys_are_all_of_them(keys: list[str], count: int) -> None:
    keys.sort()
    bounds = bisected(lambda text: next(iter(keys[(at := bisect_right(keys, text)) : at + 1]), None), [], count)
    assert set(bounds) <= set(keys)
    assert sum(counted(keys, bounds, 4 * count)) == len(keys)


def test_a_server_that_ignores_where_to_begin_is_not_divided() -> None:
    assert bisected(lambda _: "a", [], 16) == []
    assert bisected(lambda _: None, [], 16) == []


def test_a_million_keys_are_listed_by_four_at_once_a_quarter_each(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In thousands: each task lists a range, as Spark's do, and no more requests follow each other than a third."""
    model = Model(FLAT["numbers"], latency=0.002)
    answered_by(model, monkeypatch)
    ranges = between(found_bounds(bucket, 4), 16)
    asked, most = len(model.requests), model.most
    assert asked <= 200
    assert most == 4
    listed = [list(objects(bucket, keys, versioned=False)) for keys in ranges]
    assert [row[0] for rows in listed for row in rows] == model.keys
    assert max(map(len, listed)) <= 0.15 * len(model.keys)


@pytest.mark.nightly("what is parsed, compared with botocore")
def test_a_page_is_parsed_as_botocore_does_in_a_third_of_its_time(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model([f"a b/ü&<{number:04}\n" for number in range(1000)])
    plain = boto3.client(
        "s3", endpoint_url=ENDPOINT, region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s"
    )
    plain.meta.events.register("before-send.s3", model)
    answered_by(model, monkeypatch)
    ours = bucket.client()

    def took(client: Any) -> tuple[float, Any]:
        begun = time.thread_time()
        page = client.list_objects_v2(Bucket="bkt")
        return time.thread_time() - begun, page

    theirs, expected = min((took(plain) for _ in range(3)), key=lambda each: each[0])
    own, page = min((took(ours) for _ in range(3)), key=lambda each: each[0])
    for entry in expected["Contents"]:
        del entry["StorageClass"]
    assert page["Contents"] == expected["Contents"]
    assert {name: value for name, value in page.items() if name not in ("Contents", "ResponseMetadata")} == {
        name: value for name, value in expected.items() if name not in ("Contents", "ResponseMetadata")
    }
    assert own < theirs / 3
    plain.close()
    ours.close()


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("<Contents><Key>k</Key><LastModified>2026-11-28T00:00:00Z</LastModified></Contents>", "'k', has no Size"),
        ("<Contents><Size>1</Size></Contents>", "'', has no Key, LastModified"),
        ("<Contents><Key>k</Key><Size>many</Size></Contents>", "has 'many' as its Size"),
        ("<Contents><Key>k</Key><LastModified>noon?</LastModified></Contents>", "has 'noon?' as its LastModified"),
    ],
)
def test_an_entry_that_lacks_what_each_has_ends_the_listing(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, entry: str, reason: str
) -> None:
    answered_by(Model(["a"], entry=entry), monkeypatch)
    with pytest.raises(BadListing) as refused:
        list(objects(bucket, ("", None), versioned=False))
    assert reason in str(refused.value)


def test_a_marker_that_has_a_size_is_a_marker(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """As MinIO writes it."""
    marker = f"<Key>b</Key><LastModified>{TIME}</LastModified><ETag></ETag><Size>0</Size><IsLatest>true</IsLatest>"
    answered_by(Model(["a"], entry=f"<DeleteMarker>{marker}</DeleteMarker>"), monkeypatch)
    assert [row[0] for row in objects(bucket, ("", None), versioned=True)] == ["a"]
    assert list(entries(bucket, ("", None), versioned=True)) == [("a", 7, False), ("b", 0, True)]


def test_a_busy_server_is_waited_for(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(["a"])
    model.busy = 9
    answered_by(model, monkeypatch)
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _: None)
    assert [row[0] for row in objects(bucket, ("", None), versioned=False)] == ["a"]


def test_credentials_that_expire_are_renewed_where_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(["a"])
    answered_by(model, monkeypatch)

    def used(expires_in: float) -> str:
        expiry = (datetime.now(UTC) + timedelta(seconds=expires_in)).isoformat()
        login = ("FIRST", "secret", "token")
        list(objects(Bucket("bkt", ENDPOINT, login=login, expiry=expiry), ("", None), versioned=False))
        header: bytes | str = model.requests[-1].headers["Authorization"]
        return (header.decode() if isinstance(header, bytes) else header).partition("Credential=")[2].partition("/")[0]

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "SECOND")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert used(7200) == "FIRST"
    assert used(5) == "SECOND"
    monkeypatch.setattr(s3_listing, "_login", lambda _: (None, ""))
    with pytest.raises(BadListing, match=r"the credentials expired at .* and boto3 finds no others on"):
        used(-5)


VPC = "https://bucket.vpce-1a2b-3c4d.s3.eu-west-1.vpce.amazonaws.com"


@pytest.mark.parametrize(
    ("environment", "endpoint", "host"),
    [
        ({}, "", "bkt.s3.eu-west-1.amazonaws.com"),
        ({"AWS_USE_FIPS_ENDPOINT": "true"}, "", "bkt.s3-fips.eu-west-1.amazonaws.com"),
        ({"AWS_USE_DUALSTACK_ENDPOINT": "true"}, "", "bkt.s3.dualstack.eu-west-1.amazonaws.com"),
        ({"AWS_ENDPOINT_URL_S3": VPC}, "", VPC.removeprefix("https://")),
        ({}, VPC, VPC.removeprefix("https://")),
        ({}, "http://minio:9000", "minio:9000"),
        ({"AWS_ENDPOINT_URL": "http://ceph"}, "", "ceph"),
        ({"AWS_CONFIG_FILE": "virtual"}, "http://minio:9000", "bkt.minio:9000"),
    ],
)  # fmt: skip
def test_the_endpoint_is_used_as_it_is_given(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], endpoint: str, host: str
) -> None:
    (tmp_path / "virtual").write_text("[default]\ns3 =\n  addressing_style = virtual\n")
    for name, value in {
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
    }.items():
        monkeypatch.setenv(name, value)
    for name, value in environment.items():
        monkeypatch.setenv(name, str(tmp_path / value) if name == "AWS_CONFIG_FILE" else value)
    bucket = Bucket.from_boto3("bkt", endpoint)
    for name in environment:
        monkeypatch.delenv(name)  # the executors have none of it
    model = Model(["a"])
    answered_by(model, monkeypatch)
    assert [row[0] for row in objects(bucket, ("", None), versioned=False)] == ["a"]
    assert urlsplit(model.requests[0].url).netloc == host


def test_the_requester_pays_if_it_is_said(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(["a"])
    answered_by(model, monkeypatch)
    for pays in (False, True):
        list(objects(Bucket("bkt", ENDPOINT, login=LOGIN, requester_pays=pays), ("", None), versioned=False))
        assert ("x-amz-request-payer" in model.requests[-1].headers) is pays


@pytest.mark.parametrize(
    ("size", "cores", "tasks"),
    [(0, 2, 4), (900_000, 2, 4), (100_000_000, 2, 100), (100_000_000, 200, 400), (10**12, 2, 4_000)],
)
def test_a_large_bucket_is_listed_by_many_tasks_also_where_executors_come_later(
    size: int, cores: int, tasks: int
) -> None:
    """With dynamic allocation a session begins with few cores, and gets more for tasks that wait."""
    session = cast("SparkSession", SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=cores)))
    assert ListingSource(bucket="b", size=size).tasks(session) == tasks
