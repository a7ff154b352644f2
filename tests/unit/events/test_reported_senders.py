"""What senders post by public reports and sources: each record is recorded under the key that it is about, or named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.events.effects import ContentChange, content_change
from app.events.frontends import S3_FRONTENDS
from app.events.frontends.registry import order_of
from app.events.limits import Limits
from app.events.messages import Message, read_message
from app.events.minio_json import encode_key
from app.events.model import Event
from app.events.order import comparable
from app.events.origin import by_request, origin_of
from app.events.parsing import BadEvents, Parsed, parse
from app.rules.conditions import EventFacts
from tests.support.reported_senders import PUT, RIGHT, facts, reports

NOW = 1_800_000_000_123


def taken(*records: dict[str, Any], sender: str = "", origin: str = "") -> Parsed:
    frontend = S3_FRONTENDS[sender] if sender else None
    return parse(json.dumps({"Records": records}).encode(), {}, now_ms=NOW, sender=frontend, origin=by_request(origin))


def record(source: str | None, key: str, name: str = "ObjectCreated:Put", **thing: Any) -> dict[str, Any]:
    """A record of S3's form."""
    return {
        "eventVersion": "2.1", "eventSource": source, "awsRegion": "", "eventTime": "2026-11-20T10:00:00.000Z",
        "eventName": name, "userIdentity": {"principalId": "x"}, "requestParameters": {}, "responseElements": {},
        "s3": {"configurationId": "c", "bucket": {"name": "b"}, "object": {"key": key} | thing},
    }  # fmt: skip


def one(*records: dict[str, Any], sender: str = "") -> Event:
    [event] = taken(*records, sender=sender).events
    return event


@pytest.mark.parametrize("number", RIGHT)
def test_a_reported_body_is_recorded_as_what_it_is_about(number: int) -> None:
    report, right = reports()[number], RIGHT[number]
    sender = S3_FRONTENDS.get(report["query"].partition("=")[2])
    body = json.dumps(report["body"]).encode()
    from_queue = read_message(Message(body), Limits(), sender)
    if isinstance(right, str):
        with pytest.raises(BadEvents, match=right):
            parse(body, {}, now_ms=NOW, sender=sender)
        assert right in from_queue.problem
    else:
        assert facts(parse(body, {}, now_ms=NOW, sender=sender).events) == right
        assert facts(from_queue.events) == right


# ---------------------------------------------------------------- senders with raw keys

RAW_KEYS = ["a+b/c d.txt", "100%.txt", "a%2Fb", "ü &?", "plain"]


@pytest.mark.parametrize("key", RAW_KEYS)
@pytest.mark.parametrize(("sender", "before"), [("scality", ""), ("storj", ""), ("ozone", "s3v/b/")])
def test_a_raw_key_of_a_known_sender_is_never_decoded(sender: str, before: str, key: str) -> None:
    source = f"{sender}:s3"
    event = one(record(source, before + key))
    assert (event.key, event.name) == (key, PUT)
    assert json.loads(event.record)["s3"]["object"]["key"] == encode_key(key)
    assert order_of(event.record) == comparable(event.sequencer)
    assert origin_of(taken(record(source, before + key), origin="t").events[0].origin).frontend == sender
    named = one(record("other:s3", before + key), sender=sender)
    assert named.key == key
    envelope = {"EventName": event.name, "Key": event.path, "Records": [json.loads(event.record)]}
    assert parse(json.dumps(envelope).encode(), {}, now_ms=NOW).events == [event._replace(origin="")]


def test_a_record_of_scality_has_null_for_what_it_does_not_know() -> None:
    sent = record("scality:s3", "toto/k%y", PUT, size="2", eTag=None, versionId=None, sequencer=None)
    sent |= {"eventVersion": "1.0", "userIdentity": {"principalId": None}, "awsRegion": None}
    sent["s3"] |= {
        "bucket": {"name": "b", "ownerIdentity": {"principalId": None}, "arn": None},
        "s3SchemaVersion": None,
    }
    event = one(sent)
    assert (event.path, event.version, event.sequencer) == ("b/toto/k%y", "", "")
    assert json.loads(event.record)["s3"]["object"]["size"] == 2
    gone = record("scality:s3", "k", "s3:ObjectRemoved:Delete", size=None, eTag=None, versionId="v", sequencer=None)
    assert (one(gone).version, content_change(one(gone).name)) == ("v", ContentChange.REMOVED)


def test_ozone_tells_an_order_by_time_and_transaction_and_its_etags_are_none() -> None:
    sent = record("ozone:s3", "vol/b/k", eTag="7b5e6a62-1d2c-4000-8000-0123456789ab")
    sent["ozoneEventData"] = {"opType": "CommitKey", "trxLogIndex": 8}
    first, second = one(sent), one(sent | {"ozoneEventData": {"trxLogIndex": 9}})
    assert first.sequencer < second.sequencer < one(sent | {"eventTime": "2026-11-20T10:00:00.000000001Z"}).sequencer
    assert "eTag" not in json.loads(first.record)["s3"]["object"]
    assert one(sent | {"eventTime": None}).sequencer == ""


def test_a_rename_in_ozone_is_a_removal_and_a_creation() -> None:
    sent = record("ozone:s3", "vol/b/new k", "ObjectRenamed:Rename", eTag="x")
    sent["ozoneEventData"] = {"renameFromKey": "vol/b/old+k", "trxLogIndex": 4}
    assert [(event.name, event.path) for event in taken(sent).events] == [
        ("s3:ObjectRemoved:Delete", "b/old+k"), ("s3:ObjectCreated:Copy", "b/new k"),
    ]  # fmt: skip
    del sent["ozoneEventData"]["renameFromKey"]
    assert one(sent).name == "s3:ObjectRenamed:Rename"


def test_a_folder_and_a_bucket_of_ozone_are_known_as_such() -> None:
    folder = record("ozone:s3", "vol/b/some/folder") | {"ozoneEventData": {"isDirectory": True}}
    assert one(folder).key == "some/folder/"
    bucket = one(record("ozone:s3", "vol/b", "OzoneBucketCreated:Put"))
    assert (bucket.name, bucket.bucket, bucket.key) == ("s3:BucketCreated:*", "b", "")
    assert one(record("ozone:s3", "other/k")).key == "other/k"


# ---------------------------------------------------------------- senders that nobody knows


@pytest.mark.parametrize("name", ["ObjectCreated:Put", "s3:ObjectCreated:Put"])
@pytest.mark.parametrize(
    ("key", "read", "frontend"),
    [
        ("dir/plain.txt", "dir/plain.txt", "unknown"),
        ("100%.txt", "100%.txt", "unknown"),  # raw: it does not decode
        ("a%FF", "a%FF", "unknown"),
        ("a+b", "a b", "unknown-encoding"),
        ("a%2Bb", "a+b", "unknown-encoding"),
        ("a%2Fb", "a/b", "unknown-encoding"),
    ],
)
def test_the_origin_says_that_the_key_of_an_unknown_sender_is_a_guess(
    name: str, key: str, read: str, frontend: str
) -> None:
    [event] = taken(record("cloud:s3", key, name), origin="t").events
    assert (event.key, origin_of(event.origin).frontend) == (read, frontend)
    assert order_of(event.record) == comparable(event.sequencer)
    for sender, right in (("aws", minio_decoded(key)), ("raw", key)):
        if right is not None:
            [named] = taken(record("cloud:s3", key, name), sender=sender, origin="t").events
            assert (named.key, origin_of(named.origin).frontend) == (right, sender)


def minio_decoded(key: str) -> str | None:
    return {"a+b": "a b", "a%2Bb": "a+b", "a%2Fb": "a/b", "dir/plain.txt": "dir/plain.txt"}.get(key)


def test_the_key_of_a_known_sender_or_in_an_envelope_of_minio_is_no_guess() -> None:
    for source in ("aws:s3", "minio:s3", "rustfs:s3", "sgws:s3", "ceph:s3", "bucketwire:reconcile"):
        [event] = taken(record(source, "a%2Bb"), origin="t").events
        assert not origin_of(event.origin).frontend.startswith("unknown"), source
    envelope = {"EventName": PUT, "Key": "b/a+b", "Records": [record("cloud:s3", "a%2Bb", PUT)]}
    [event] = parse(json.dumps(envelope).encode(), {}, now_ms=NOW, origin=by_request("t")).events
    assert (event.key, origin_of(event.origin).frontend) == ("a+b", "unknown")


def test_a_refusal_names_an_unknown_sender() -> None:
    with pytest.raises(BadEvents, match=r'Record 0, at Records\[0\], of "cloud:s3": s3.object.key is ""'):
        taken(record("cloud:s3", ""))


def test_an_old_ceph_calls_itself_aws() -> None:
    sent = record("aws:s3", "c+d.txt", "s3:ObjectCreated:Put", metadata=[], size="7")
    sent |= {"eventId": "1574430455.124724.37b5", "opaqueData": ""}
    sent["s3"]["bucket"]["id"] = "503a4c37.5332.38"
    assert one(sent).key == "c+d.txt"
    assert one(record("aws:s3", "c+d.txt")).key == "c d.txt"


# ---------------------------------------------------------------- values that senders write otherwise


@pytest.mark.parametrize("source", ["aws:s3", "minio:s3", "rustfs:s3", "sgws:s3", "ceph:s3", "vast:s3", "scality:s3"])
@pytest.mark.parametrize(
    ("members", "size", "etag"),
    [
        ({"size": "1024", "eTag": '"d41d"'}, 1024, "d41d"),
        ({"size": "0", "eTag": "d41d"}, 0, "d41d"),
        ({"size": 5, "eTag": '""'}, 5, ""),
        ({"size": "many", "eTag": '"'}, "many", '"'),
        ({"size": "9" * 40, "eTag": None}, "9" * 40, None),
        ({"size": "-1", "eTag": 'W/"d"'}, "-1", 'W/"d"'),
        ({"size": "٣"}, "٣", None),
    ],
)
def test_sizes_as_text_are_numbers_and_etags_have_no_quotes(
    source: str, members: dict[str, Any], size: Any, etag: Any
) -> None:
    event = one(record(source, "k", **members))
    thing = json.loads(event.record)["s3"]["object"]
    assert (thing["size"], thing.get("eTag")) == (size, etag)
    assert EventFacts(event.name, event.record).size == (size if type(size) is int else None)


def test_a_time_with_a_space_is_a_time() -> None:
    assert one(record("cloud:s3", "k") | {"eventTime": "2026-11-20 10:00:00"}).time == 1795168800000
    assert one(record("cloud:s3", "k") | {"eventTime": "Friday"}).time == NOW
