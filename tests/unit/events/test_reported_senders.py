"""What senders post by public reports and sources: each record is recorded under the key that it is about, or named."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from app.events.frontends import S3_FRONTENDS
from app.events.frontends.registry import order_of
from app.events.limits import Limits
from app.events.minio_json import encode_key
from app.events.model import Event, by_request, origin_of
from app.events.names import ContentChange, content_change
from app.events.order import comparable
from app.events.parsing import KEY_HEADER, BadEvents, Message, Parsed, parse, read_message
from app.rules.matching import EventFacts
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
    body, headers = json.dumps(report["body"]).encode(), report.get("headers", {})
    lowered = {name.lower(): value for name, value in headers.items()}
    from_queue = read_message(Message(body, headers=lowered), Limits(), sender)
    if isinstance(right, str):
        with pytest.raises(BadEvents, match=right):
            parse(body, headers, now_ms=NOW, sender=sender)
        assert right in from_queue.problem
    else:
        assert facts(parse(body, headers, now_ms=NOW, sender=sender).events) == right
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


def test_a_sender_with_the_version_of_noobaa_and_sequencers_of_its_own_is_unknown() -> None:
    for sequencer, frontend in ((1034, "noobaa"), ("19a4ba5dc8d", "noobaa"), ("18F0A1B2C3D4E5F6", "unknown-encoding")):
        sent = record("cloud:s3", "a+b", sequencer=sequencer) | {"eventVersion": "2.3"}
        [event] = taken(sent, origin="t").events
        assert origin_of(event.origin).frontend == frontend, sequencer


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
    for time in ("2026-11-20 10:00:00", "2026-11-20T10:00:00.000"):
        assert one(record("cloud:s3", "k") | {"eventTime": time}).time == 1795168800000
    assert one(record("cloud:s3", "k") | {"eventTime": "Friday"}).time == NOW


def test_the_constant_of_localstack_orders_nothing() -> None:
    sent = record("aws:s3", "k", sequencer="0055AED6DCD90281E5")
    assert one(sent).sequencer == "13F31A4E1C6862ADD90281E5"
    sent["s3"]["bucket"]["ownerIdentity"] = {"principalId": "A3NL1KOZZKExample"}
    assert one(sent).sequencer == order_of(one(sent).record) == ""


def test_every_line_of_the_reports_has_its_events() -> None:
    assert sorted(RIGHT) == list(range(len(reports())))


# ---------------------------------------------------------------- SeaweedFS from 3.95 to 4.17

VERSION = "6714ec71378dd745fc5ab68d38e7407f"


def filer_entry(name: str, content: str, mtime: int = 1764000000, **extended: str) -> dict[str, Any]:
    """An entry as these filers have it: its chunks are told by their digest, and no time of commit."""
    chunk = {"size": len(content), "modified_ts_ns": mtime * 10**9 + 5, "e_tag": content, "fid": {"volume_id": 7}}
    attributes = {"file_size": len(content), "mtime": mtime, "mime": "text/plain", "md5": content}
    coded = {each: base64.b64encode(text.encode()).decode() for each, text in extended.items()}
    return {"name": name, "chunks": [chunk], "attributes": attributes, "extended": coded}


def filer_message(path: str, old: Any, new: Any, label: str = "", folder: str | None = None) -> dict[str, Any]:
    """A message of the webhook; with the label of these versions unless another is given."""
    entries = {name: one for name, one in (("old_entry", old), ("new_entry", new)) if one is not None}
    if new is not None:
        entries["new_parent_path"] = path.rpartition("/")[0] if folder is None else folder
    kind = label or ("create" if old is None else "delete" if new is None else "rename")
    return {"event_type": kind, "key": path, "message": entries}


def as_protobuf(sent: dict[str, Any]) -> bytes:
    """The same message as the filer writes it to Kafka: names, digests and extended attributes of both entries."""

    def field(number: int, value: bytes) -> bytes:
        return bytes([number << 3 | 2]) + varint(len(value)) + value

    def varint(value: int) -> bytes:
        head = b""
        while value > 0x7F:
            head, value = head + bytes([value & 0x7F | 0x80]), value >> 7
        return head + bytes([value])

    def encode(entry: dict[str, Any]) -> bytes:
        [chunk] = entry["chunks"]
        made = field(1, entry["name"].encode())
        size, modified = varint(chunk["size"]), varint(chunk["modified_ts_ns"])
        made += field(3, b"\x18" + size + b"\x20" + modified + field(5, chunk["e_tag"].encode()))
        attributes = entry["attributes"]
        times = b"\x08" + varint(attributes["file_size"]) + b"\x10" + varint(attributes["mtime"])
        made += field(4, times + field(7, attributes["mime"].encode()) + field(14, attributes["md5"].encode()))
        for name, text in entry["extended"].items():
            made += field(5, field(1, name.encode()) + field(2, base64.b64decode(text)))
        return made

    message = sent["message"]
    made = b"".join(
        field(number, encode(message[name])) for number, name in ((1, "old_entry"), (2, "new_entry")) if name in message
    )
    return made + (field(4, message["new_parent_path"].encode()) if "new_parent_path" in message else b"")


def changes(*sent: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Name, path and version of the events of messages; by the webhook and by Kafka, which must be alike."""
    by_webhook = [event for one in sent for event in parse(json.dumps(one).encode(), {}, now_ms=NOW).events]
    by_kafka = [
        event
        for one in sent
        for event in read_message(Message(as_protobuf(one), headers={KEY_HEADER: one["key"]}), Limits(), None).events
    ]
    found = [(event.name, event.path, event.version, event.sequencer) for event in by_webhook]
    assert found == [(event.name, event.path, event.version, event.sequencer) for event in by_kafka]
    return [(name, path, version) for name, path, version, _ in found]


LABELS = ["", "create", "update", "delete", "rename", "chmod"]


@pytest.mark.parametrize("label", LABELS)
def test_what_a_filer_calls_a_change_of_both_entries_does_not_matter(label: str) -> None:
    path = "/buckets/b/dir/a.txt"
    old, new = filer_entry("a.txt", "one"), filer_entry("a.txt", "other", 1764000003)
    tagged = filer_entry("a.txt", "other", 1764000003, **{"X-Amz-Tagging-project": "x"})
    for folder in ("/buckets/b/dir", "/buckets/b/dir/", ""):
        assert changes(filer_message(path, old, new, label, folder)) == [(PUT, "b/dir/a.txt", "")]
        assert changes(filer_message(path, new, tagged, label, folder)) == [
            ("s3:ObjectCreated:PutTagging", "b/dir/a.txt", "")
        ]
    renamed = [("s3:ObjectRemoved:Delete", "b/dir/a.txt", ""), ("s3:ObjectCreated:Copy", "b/other/a.txt", "")]
    assert changes(filer_message(path, old, old, label, "/buckets/b/other")) == renamed
    renamed = [("s3:ObjectRemoved:Delete", "b/dir/a.txt", ""), ("s3:ObjectCreated:Copy", "b/dir/z.txt", "")]
    assert changes(filer_message(path, old, filer_entry("z.txt", "one"), label)) == renamed
    assert changes(filer_message("/buckets/b/a.txt", None, old, label and "update")) == [(PUT, "b/a.txt", "")]
    if label != "rename":
        assert changes(filer_message(path, old, None, label)) == [("s3:ObjectRemoved:Delete", "b/dir/a.txt", "")]


def test_a_version_is_one_event_though_it_gets_its_id_after_it_was_written() -> None:
    path = f"/buckets/b/k.versions/v_{VERSION}"
    bare = filer_entry(f"v_{VERSION}", "one")
    named = filer_entry(f"v_{VERSION}", "one", **{"Seaweed-X-Amz-Version-Id": VERSION})
    tagged = filer_entry(f"v_{VERSION}", "one", **{"Seaweed-X-Amz-Version-Id": VERSION, "X-Amz-Tagging-a": "x"})
    sent = [filer_message(path, None, bare), filer_message(path, bare, named), filer_message(path, named, tagged)]
    assert changes(*sent) == [(PUT, "b/k", VERSION), ("s3:ObjectCreated:PutTagging", "b/k", VERSION)]
    assert changes(filer_message(path, tagged, None)) == [("s3:ObjectRemoved:Delete", "b/k", VERSION)]
    assert changes(filer_message(path, bare, None)) == [], "it was never a version"
    marked = {"Seaweed-X-Amz-Version-Id": VERSION, "Seaweed-X-Amz-Delete-Marker": "true"}
    marker = filer_entry(f"v_{VERSION}", "", **marked)
    assert changes(filer_message(path, bare, marker)) == [("s3:ObjectRemoved:DeleteMarkerCreated", "b/k", VERSION)]
    mine = filer_entry("v_1", "one")  # a key like any other, though SeaweedFS lists it as a version
    assert changes(filer_message("/buckets/b/k.versions/v_1", None, mine)) == [(PUT, "b/k.versions/v_1", "")]


def test_a_change_without_the_entries_that_it_needs_is_refused() -> None:
    gone = filer_message("/buckets/b/a", None, None, "rename")
    with pytest.raises(BadEvents, match=r"message\.new_entry\.name is missing"):
        parse(json.dumps(gone).encode(), {}, now_ms=NOW)
    with pytest.raises(BadEvents, match=r"event_type is .chmod.; it must be create, update, delete or rename"):
        parse(json.dumps({"event_type": "chmod", "key": "/buckets/b/a", "message": {}}).encode(), {}, now_ms=NOW)
