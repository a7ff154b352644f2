"""What real frontends sent, or their own serialising code wrote: every body is recorded, and under the right key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from app.events.frontends.registry import FRONTENDS, order_of, recognize
from app.events.names import ContentChange, content_change
from app.events.order import comparable
from app.events.parsing import BadEvents, Parsed, parse

FOLDER = Path(__file__).parents[2] / "fixtures" / "frontends"
ENVELOPES = {"aws-sns-moto", "silo", "rustfs"}  # MinIO's envelope, or a record of AWS's: keys are form-encoded
NOW = 1_800_000_000_123


def captured(*names: str) -> list[Any]:
    files = [FOLDER / f"{name}.jsonl" for name in names] or sorted(FOLDER.glob("*.jsonl"))
    lines = [(file.stem, json.loads(line)) for file in files for line in file.read_text().splitlines()]
    return [pytest.param(file, one, id=f"{file}: {one['kind']}") for file, one in lines]


def body(file: str, kind: str) -> Any:
    (found,) = [
        json.loads(one["body"])
        for line in (FOLDER / f"{file}.jsonl").read_text().splitlines()
        if (one := json.loads(line))["kind"] == kind
    ]
    return found


def taken(sent: Any, sender: str = "") -> Parsed:
    frontend = FRONTENDS[sender] if sender else None
    return parse(json.dumps(sent).encode(), {}, now_ms=NOW, sender=frontend)


def test_every_fixture_is_here() -> None:
    assert len(captured()) == 216


KEYLESS = "s3:ObjectCreated:Post key "  # Versity does not report the key of a form's upload


@pytest.mark.parametrize(("file", "one"), captured())
def test_a_captured_body_is_recorded_under_the_key_that_it_was_about(file: str, one: dict[str, Any]) -> None:
    if one["kind"] == KEYLESS:
        with pytest.raises(BadEvents, match=r"s3\.object\.key"):
            parse(one["body"].encode(), one["headers"], now_ms=NOW)
        return
    parsed = parse(one["body"].encode(), one["headers"], now_ms=NOW)
    assert not parsed.refused
    if file == "seaweedfs":
        assert [event.path for event in parsed.events] == seaweed_paths(json.loads(one["body"]))
        return
    sent = json.loads(one["body"])
    sent = json.loads(sent["Message"]) if "Message" in sent else sent
    records = [record for record in sent.get("Records", []) if "s3" in record]
    assert parsed.ignored == (not records)
    for event, record in zip(parsed.events, records, strict=True):
        if "Key" in sent:
            assert event.path == sent["Key"]
        elif file not in ENVELOPES:
            assert event.key == record["s3"]["object"]["key"]
        assert event.name.removeprefix("s3:").removesuffix("Objects") == record["eventName"].removeprefix(
            "s3:"
        ).removesuffix("Objects")
        assert "`" not in event.record
        assert '\\"' not in str(json.loads(event.record)["s3"]["object"].get("eTag"))


def seaweed_paths(sent: dict[str, Any]) -> list[str]:
    """The objects that a change of files is about, by rules of thumb of the test's own."""
    path, message = sent["key"], sent["message"]
    entry = message.get("new_entry") or message.get("old_entry")
    parts = path.split("/", 3)
    if len(parts) < 4 or parts[1] != "buckets" or parts[2].startswith(".") or parts[3].startswith(".uploads"):
        return []
    if entry.get("is_directory"):
        return [f"{parts[2]}/{parts[3]}/"] if entry["attributes"].get("mime") == "httpd/unix-directory" else []
    if "Seaweed-X-Amz-Noncurrent-Since-Ns" in entry.get("extended", {}):
        return []
    folder, _, name = parts[3].rpartition("/")
    key = folder.removesuffix(".versions") if name.startswith("v_") else parts[3]
    paths = [f"{parts[2]}/{key}"]
    if sent["event_type"] == "rename":
        paths.append(f"{message['new_parent_path']}/{entry['name']}".removeprefix("/buckets/"))
    return paths


@pytest.mark.parametrize(
    ("file", "sender"),
    [
        ("ceph", "ceph"),
        ("ceph-main", "ceph"),
        ("versity", "versity"),
        ("noobaa", "noobaa"),
        ("rustfs", "rustfs"),
        ("silo", "minio"),
    ],
)
def test_a_frontend_is_recognised_by_its_records(file: str, sender: str) -> None:
    bodies = [json.loads(one.values[1]["body"]) for one in captured(file)]  # type: ignore[index]
    records = [record for sent in bodies for record in sent.get("Records", []) if "s3" in record]
    assert {recognize(record).name for record in records} == {sender}


# ---------------------------------------------------------------- what is peculiar to each


def test_a_record_of_ceph_is_ordered_by_the_time_in_its_sequencer() -> None:
    (event,) = taken(body("ceph", "ObjectCreated:Put")).events
    assert event.sequencer == f"{1795549401_250784222:016X}"
    record = json.loads(event.record)
    assert record["s3"]["object"]["sequencer"] == "D9E8056BDEA9F20E"  # as it came


@pytest.mark.parametrize(
    ("sequencer", "event_id", "event_time", "expected"),
    [
        ("D9E8056BDEA9F20E", "1795549401.250784.83c8", "2026-11-24T19:43:21.243567Z", 1795549401_250784222),
        ("d9e8056bdea9f20e", "1795549401.250784.83c8", "2026-11-24T19:43:21.243567Z", 1795549401_250784222),
        ("6B05E8D90EF2A9DE", "1795549401.250784.83c8", "2026-11-24T19:43:21.243567Z", 1795549401_250784222),
        ("D9E8056BDEA9F20E", "", "2026-11-24T19:43:21.243567Z", 1795549401_250784222),
        ("6B05E8D90EF2A9DE", None, "2026-11-24T19:43:21.243567Z", 1795549401_250784222),
        ("D9E8056BDEA9F20E", None, None, 1795549401_250784222),
        ("D9E8056BFFFFFFFF", "1795549401.250784.83c8", "2026-11-24T19:43:21.243567Z", 1795549401_250784000),
        ("FFFFFFFFDEA9F20E", "", "2026-11-24T19:43:21.243567Z", 1795549401_243567000),
        ("", "1795549401.250784.83c8", "", 1795549401_250784000),
        (None, None, "2026-11-24T19:43:21Z", 1795549401_000000000),
        ("F00D", 7, "soon", None),
    ],
)
def test_the_order_of_ceph_is_checked_against_its_other_times(
    sequencer: Any, event_id: Any, event_time: Any, expected: int | None
) -> None:
    sent = body("ceph", "ObjectCreated:Put")
    record = sent["Records"][0]
    record["s3"]["object"]["sequencer"] = sequencer
    record |= {"eventId": event_id, "eventTime": event_time}
    (event,) = taken(sent).events
    assert event.sequencer == ("" if expected is None else f"{expected:016X}")


def test_a_record_of_versity_is_ordered_by_its_second_and_its_counter() -> None:
    sent = body("versity", "s3:ObjectCreated:Put")
    record = sent["Records"][0]
    orders = []
    for time, counter in [
        ("2026-11-24T19:57:50Z", "1"),
        ("2026-11-24T19:57:50Z", "9"),
        ("2026-11-24T19:57:50Z", "A"),
        ("2026-11-24T19:57:50Z", "10"),
        ("2026-11-24T19:57:50Z", "192"),
        ("2026-11-24T19:57:51Z", "1"),  # started anew
    ]:
        record["eventTime"], record["s3"]["object"]["sequencer"] = time, counter
        orders.append(taken(sent).events[0].sequencer)
    assert orders == sorted(set(orders))
    record["eventTime"] = ""
    assert taken(sent).events[0].sequencer == ""  # a counter without its time orders nothing


def test_versity_deletes_many_as_others_do_and_quotes_no_etag() -> None:
    (gone,) = taken(body("versity", "s3:ObjectRemoved:DeleteObjects")).events
    assert (gone.name, gone.key) == ("s3:ObjectRemoved:Delete", "del3.txt")
    assert json.loads(gone.record)["eventName"] == gone.name
    (put,) = taken(body("versity", "s3:ObjectCreated:Put")).events
    assert json.loads(put.record)["s3"]["object"]["eTag"] == "83c8b39ff7243bf968a9163ee66e2295"


@pytest.mark.parametrize("configuration", ["webhook-global", "kafka-global", "nats-global", "rabbitmq-global"])
def test_versity_is_told_from_aws_by_its_configuration(configuration: str) -> None:
    sent = body("versity", "s3:ObjectCreated:Put key a+b c.txt")
    sent["Records"][0]["s3"]["configurationId"] = configuration
    assert taken(sent).events[0].key == "a+b c.txt"
    sent["Records"][0]["s3"]["configurationId"] = "mine"
    assert taken(sent).events[0].key == "a b c.txt"
    assert taken(sent, "versity").events[0].key == "a+b c.txt"  # exact where recognition guesses


def test_an_integer_of_noobaa_orders_nothing_and_its_time_does() -> None:
    (put,) = taken(body("noobaa", "ObjectCreated:Put")).events
    assert put.sequencer == ""
    assert json.loads(put.record)["s3"]["object"]["sequencer"] == 1034  # as it came
    (on_files,) = taken(body("noobaa", "NC ObjectCreated:Put")).events
    assert on_files.sequencer == f"{1795549214813_000000:016X}"


@pytest.mark.parametrize("sender", ["silo", "rustfs", "ceph", "versity"])
def test_a_number_in_place_of_any_senders_sequencer_is_none(sender: str) -> None:
    sent = body(sender, {"ceph": "ObjectCreated:Put"}.get(sender, "s3:ObjectCreated:Put"))
    thing = sent["Records"][0]["s3"]["object"]
    thing.pop("sequencer")
    (without,) = taken(sent).events
    thing["sequencer"] = 1577453615
    (event,) = taken(sent).events
    assert event.sequencer == without.sequencer
    assert order_of(event.record) == comparable(event.sequencer)
    thing["sequencer"] = 7.5
    with pytest.raises(BadEvents, match=r"s3\.object\.sequencer is 7\.5; it must be text"):
        taken(sent)


@pytest.mark.parametrize("sent", [b'"test notification"', b"test notification", b"test notification\n"])
def test_the_text_by_which_noobaa_tested_a_connection_is_ignored(sent: bytes) -> None:
    parsed = parse(sent, {}, now_ms=0)
    assert (parsed.events, parsed.ignored) == ([], 1)
    for other in (b"test notification, again", b'["test notification"]', b'"test notification" {}', b"notification"):
        with pytest.raises(BadEvents):
            parse(other, {}, now_ms=0)


def test_an_etag_of_rustfs_before_2026_is_found_though_it_is_in_lower_case() -> None:
    made = body("rustfs", "s3:ObjectCreated:Put")
    thing = made["Records"][0]["s3"]["object"]
    digest = thing["etag"] = thing.pop("eTag")
    (event,) = taken(made).events
    assert json.loads(event.record)["s3"]["object"]["eTag"] == digest
    assert "etag" not in json.loads(event.record)["s3"]["object"]


def test_a_test_event_of_noobaa_is_ignored_though_it_is_in_records() -> None:
    parsed = taken(body("noobaa", "s3:TestEvent"))
    assert (parsed.events, parsed.ignored) == ([], 1)


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        ("create", "s3:ObjectCreated:Put", ContentChange.CREATED),
        ("update", "s3:ObjectCreated:Put", ContentChange.CREATED),
        ("create multipart", "s3:ObjectCreated:CompleteMultipartUpload", ContentChange.CREATED),
        ("update tag added", "s3:ObjectCreated:PutTagging", ContentChange.NOTHING),
        # It has other metadata and another type, so it was copied onto itself.
        ("update tag removed or same content", "s3:ObjectCreated:Copy", ContentChange.CREATED),
        ("create version", "s3:ObjectCreated:Put", ContentChange.CREATED),
        ("create delete marker", "s3:ObjectRemoved:DeleteMarkerCreated", ContentChange.DELETE_MARKER),
        ("delete delete marker", "s3:ObjectRemoved:Delete", ContentChange.REMOVED),
        ("delete version", "s3:ObjectRemoved:Delete", ContentChange.REMOVED),
    ],
)
def test_a_change_of_a_file_of_seaweedfs_has_the_name_of_what_it_was(
    kind: str, name: str, change: ContentChange
) -> None:
    sent = body("seaweedfs", kind)
    (event,) = taken(sent).events
    assert event.name == name
    assert content_change(event.name) is change
    assert bool(event.version) == ("version" in kind or "marker" in kind)


def test_a_tag_that_is_taken_away_from_a_file_is_no_creation() -> None:
    sent = body("seaweedfs", "update tag added")
    message = sent["message"]
    message["old_entry"], message["new_entry"] = message["new_entry"], message["old_entry"]
    assert [event.name for event in taken(sent).events] == ["s3:ObjectCreated:DeleteTagging"]


def test_a_file_of_seaweedfs_is_ordered_by_when_it_was_committed() -> None:
    put, overwritten = (taken(body("seaweedfs", kind)).events[0] for kind in ("create", "update"))
    assert (put.key, put.sequencer) == ("plain.txt", f"{1795550378393600124:016X}")
    assert (overwritten.key, overwritten.sequencer) == ("plain.txt", f"{1795550378714089387:016X}")
    (gone,) = taken(body("seaweedfs", "delete")).events
    assert gone.sequencer == f"{1795550379882078320 + 1:016X}"
    old, new = taken(body("seaweedfs", "rename")).events
    assert old.sequencer == new.sequencer == f"{1795550836061275540:016X}"


def test_a_multipart_upload_of_seaweedfs_has_its_etag() -> None:
    (event,) = taken(body("seaweedfs", "create multipart")).events
    thing = json.loads(event.record)["s3"]["object"]
    assert (thing["eTag"], thing["size"]) == ("f963d204806f25f4b7101c25a5164f31-2", 5242897)


STORAGEGRID = {
    "eventVersion": "2.0",
    "eventSource": "sgws:s3",
    "eventTime": "2026-11-24T19:43:21Z",
    "eventName": "ObjectCreated:Put",
    "userIdentity": {"principalId": "1111111111111111111"},
    "requestParameters": {"sourceIPAddress": "193.51.100.20"},
    "responseElements": {"x-amz-request-id": "122047343"},
    "s3": {
        "s3SchemaVersion": "1.0",
        "configurationId": "Image-created",
        "bucket": {"name": "grid", "ownerIdentity": {"principalId": "1"}, "arn": "urn:sgws:s3:::grid"},
        "object": {"key": "a+b%2Bc/d.jpg", "size": 5, "eTag": "d41d", "sequencer": "14B90402C148C7FC"},
    },
}


@pytest.mark.parametrize("form", [False, True], ids=["JSON", "SNS's action Publish"])
def test_storagegrid_sends_json_or_a_call_of_sns(form: bool) -> None:
    text = json.dumps({"Records": [STORAGEGRID]})
    sent = text
    if form:
        sent = urlencode({"Action": "Publish", "Version": "2010-03-31", "Message": text, "TopicArn": "urn:x:y:z"})
    kind = "application/x-www-form-urlencoded" if form else "application/json"
    (event,) = parse(sent.encode(), {"Content-Type": kind}, now_ms=NOW).events
    assert (event.name, event.path) == ("s3:ObjectCreated:Put", "grid/a b+c/d.jpg")
    assert event.sequencer == "14B90402C148C7FC"


@pytest.mark.parametrize(("protocol", "other"), [("https", "default"), ("http", "default"), ("default", "sqs")])
def test_of_a_message_for_each_protocol_that_of_http_is_read(protocol: str, other: str) -> None:
    message = json.dumps({other: "no JSON", protocol: json.dumps({"Records": [STORAGEGRID]})})
    sent = urlencode({"Action": "Publish", "MessageStructure": "json", "Message": message}).encode()
    (event,) = parse(sent, {}, now_ms=NOW).events
    assert event.path == "grid/a b+c/d.jpg"
    missing = urlencode({"Action": "Publish", "MessageStructure": "json", "Message": '{"sqs": "{}"}'}).encode()
    with pytest.raises(BadEvents, match=r"Message\.default is missing"):
        parse(missing, {}, now_ms=NOW)


ENTRY = b"&PublishBatchRequestEntries.member.%d.Id=a&PublishBatchRequestEntries.member.%d.Message=%%7B%%7D"


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"Action=Subscribe&Message=%7B%7D", 'Action is "Subscribe"; it must be "Publish" or "PublishBatch"'),
        (b"Action=PublishBatch&Message=%7B%7D", "has 0 entries; a call of PublishBatch has one to 10"),
        (b"Action=PublishBatch" + b"".join(ENTRY % (n, n) for n in range(1, 12)), "has 11 entries"),
        (b"Action=PublishBatch" + ENTRY.replace(b"Id", b"D") % (3, 3), r"member\.3\.Id is missing"),
        (b"Action=PublishBatch" + (ENTRY % (2, 2)).rpartition(b"&")[0], r"member\.2\.Message is missing"),
        (b"Action=Publish", "Message is missing"),
        (b"Action=Publish&Message=no", "Message is not JSON"),
        (b"Action=Publish&Message=%7B%7D", "unknown shape"),
        (b"Action=\xff", "it is no form"),
        (b"Action=Publish" + b"".join(b"&a%d=1" % n for n in range(600)), "it is no form"),
    ],
)
def test_another_call_of_sns_is_refused(sent: bytes, words: str) -> None:
    with pytest.raises(BadEvents, match=words):
        parse(sent, {}, now_ms=NOW)


@pytest.mark.parametrize("file", ["ceph", "versity", "noobaa"])
def test_a_record_that_a_bucketwire_has_passed_on_keeps_its_key_and_order(file: str) -> None:
    sent = body(file, "ObjectCreated:Put key a+b c.txt" if file != "versity" else "s3:ObjectCreated:Put key a+b c.txt")
    (event,) = taken(sent).events
    envelope = {"EventName": event.name, "Key": event.path, "Records": [json.loads(event.record)]}
    (again,) = taken(envelope).events
    assert again == event


def test_a_repair_has_minios_form_whoever_sends() -> None:
    record = STORAGEGRID | {"eventSource": "bucketwire:reconcile", "eventName": "s3:ObjectCreated:Put"}
    assert taken({"Records": [record]}, "ceph").events[0].key == "a b+c/d.jpg"


@pytest.mark.parametrize(("file", "one"), captured("ceph", "versity", "noobaa", "silo", "rustfs", "seaweedfs"))
def test_the_order_of_a_recorded_event_can_be_read_from_its_record(file: str, one: dict[str, Any]) -> None:
    if one["kind"] != KEYLESS:
        for event in parse(one["body"].encode(), one["headers"], now_ms=NOW).events:
            assert order_of(event.record) == comparable(event.sequencer)


def test_the_order_of_a_tag_of_aws_can_be_read_from_its_record() -> None:
    thing = {"key": "k", "sequencer": "0065AED6B1B2C3D4E5"}
    sent = {"eventSource": "aws:s3", "eventName": "ObjectTagging:Put", "s3": {"bucket": {"name": "b"}, "object": thing}}
    [event] = taken({"Records": [sent]}).events
    assert order_of(event.record) == comparable(event.sequencer) == "17ACC6E41080E2EDB2C3D4E5"


def test_what_every_frontend_sends_is_recorded_in_a_tenant_with_nothing_else_changed() -> None:
    buckets = set()
    for _, one in (each.values for each in captured()):
        sent = one["body"].encode()
        plain = parse(sent, one["headers"], now_ms=NOW, partial=True).events
        events = parse(sent, one["headers"], now_ms=NOW, partial=True, tenant="acme").events
        assert [event.path for event in events] == [f"acme:{event.path}" for event in plain]
        for event, before in zip(events, plain, strict=True):
            record = json.loads(event.record)
            record["s3"]["bucket"]["name"] = before.bucket
            assert record == json.loads(before.record)
            assert event.id != before.id
            buckets.add(before.bucket)
    assert len(buckets) > 20
