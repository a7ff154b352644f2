"""Every sender of reference §14.1, as it sends, and the record that becomes of it."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from app.events.minio_json import encode_key
from app.events.model import Event
from app.events.parsing import BadEvents, Parsed, parse
from tests.support.captured import HEADERS, line, record
from tests.support.frontend_records import TEST_EVENT, aws, ceph, eventbridge, seaweed, sns

NOW = 1_800_000_000_123


def take(body: Any, headers: dict[str, str] | None = None, **options: bool) -> Parsed:
    sent = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return parse(sent, headers or {}, now_ms=NOW, **options)


def one(body: Any, headers: dict[str, str] | None = None) -> Event:
    (event,) = take(body, headers).events
    return event


def entry(**members: Any) -> dict[str, Any]:
    return {
        "name": "c.txt",
        "chunks": [{"file_id": "3,01637037d6", "size": 4}, {"file_id": "4,02", "size": 3}],
        "attributes": {
            "mtime": 1795221236,
            "mtime_ns": 82123456,
            "mime": "text/plain",
            "md5": base64.b64encode(b"\xd4\x1d").decode(),
        },
        "extended": {
            "X-Amz-Meta-Color": base64.b64encode("blé".encode()).decode(),
            "Seaweed-X": base64.b64encode(b"1").decode(),
        },
    } | members


# ---------------------------------------------------------------- MinIO and its like: as they came


@pytest.mark.parametrize("number", range(1, 106))
def test_a_captured_event_of_minio_goes_on_byte_for_byte(number: int) -> None:
    event = one(line(number), HEADERS[number - 1])
    came = json.loads(line(number))
    text = json.dumps([event.name, event.path], ensure_ascii=False, separators=(",", ":"))[1:-1]
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    name, key = text.split(",", 1)
    assert f'{{"EventName":{name},"Key":{key},"Records":[{event.record}]}}' == line(number)
    assert (event.name, event.path) == (came["EventName"], came["Key"])
    assert event.version == record(number)["s3"]["object"].get("versionId", "")
    assert event.sequencer == record(number)["s3"]["object"]["sequencer"]


def test_every_captured_event_has_an_id_of_its_own() -> None:
    ids = {one(line(number)).id for number in range(1, 106)}
    assert len(ids) == 105
    assert all(len(each) == 32 and set(each) <= set("0123456789abcdef") for each in ids)


OLD_RECORD = {
    "eventVersion": "2.0",
    "eventSource": "aws:s3",
    "awsRegion": "us-east-1",
    "eventTime": "2017-03-30T08:00:41Z",
    "eventName": "s3:ObjectCreated:Put",
    "userIdentity": {"principalId": "minio"},
    "requestParameters": {"sourceIPAddress": "127.0.0.1:38062"},
    "responseElements": {"x-amz-request-id": "14B09A09703FC47B"},
    "s3": {
        "s3SchemaVersion": "1.0",
        "configurationId": "Config",
        "bucket": {"name": "images", "ownerIdentity": {"principalId": "minio"}, "arn": "arn:aws:s3:::images"},
        "object": {
            "key": "my+photo%2F1.jpg",
            "size": 6474,
            "userDefined": {"a": "b"},
            "versionId": "1",
            "sequencer": "14B09A09703FC47B",
        },
    },
}


@pytest.mark.parametrize(
    "body",
    [
        {"EventType": "s3:ObjectCreated:Put", "Key": "images/my photo/1.jpg", "Records": [OLD_RECORD]},
        {"Records": [OLD_RECORD]},
        {"EventType": "s3:ObjectCreated:Put", "Records": [OLD_RECORD], "level": "info", "msg": "", "time": "2017"},
    ],
)
def test_an_old_minio_is_understood_and_its_record_left_alone(body: dict[str, Any]) -> None:
    event = one(body)
    assert event.record == json.dumps(OLD_RECORD, separators=(",", ":"))
    assert (event.key, event.name, event.time) == ("my photo/1.jpg", "s3:ObjectCreated:Put", 1490860841000)
    assert event.version == ""  # "1" was no version


def test_a_version_1_of_another_sender_is_one() -> None:
    sent = json.loads(json.dumps(OLD_RECORD)) | {"eventSource": "cloud:s3"}
    assert one({"Records": [sent]}).version == "1"


@pytest.mark.parametrize("number", [1, 18, 42, 105])
def test_an_element_of_minios_list_in_redis_is_the_event_that_its_webhook_gets(number: int) -> None:
    element = [{"Event": [record(number)], "EventTime": record(number)["eventTime"]}]
    assert one(element) == one(line(number))


def test_an_element_of_a_list_that_was_written_by_a_target_has_minios_form_whoever_sent_the_event() -> None:
    first = one({"Records": [ceph(key="a+b%2Fc.txt")]})
    assert one(f'[{{"Event":[{first.record}],"EventTime":""}}]') == first


def test_rustfs_is_as_minio_and_keeps_members_of_its_own() -> None:
    sent = record(18) | {"eventSource": "rustfs:s3", "glacierEventData": {"restoreEventData": {}}}
    event = one({"EventName": sent["eventName"], "Key": "plain/with space/a b  c.txt", "Records": [sent]})
    assert event.key == "with space/a b  c.txt"
    assert json.loads(event.record) == sent


@pytest.mark.parametrize("source", ["minio:s3", "rustfs:s3"])
def test_an_unknown_name_is_kept_as_it_is(source: str) -> None:
    assert one(record(1) | {"eventSource": source, "eventName": "b2:New"}).name == "b2:New"


# ---------------------------------------------------------------- AWS, in all its wrappings


def test_aws_gets_minios_spellings_and_keeps_all_else() -> None:
    sent = aws(
        key="photos/a+b%2Bc%C3%A9(1).jpg", glacierEventData={"restoreEventData": {"n": 1}}, later=[1, {"x": None}]
    )
    event = one({"Records": [sent]})
    assert (event.name, event.bucket, event.key) == ("s3:ObjectCreated:Put", "amzn", "photos/a b+cé(1).jpg")
    assert (event.version, event.sequencer, event.time) == ("096f", "13F31A4E1C6862ADD90281E5", 1795221236082)
    sent["eventName"] = "s3:ObjectCreated:Put"
    sent["s3"]["object"]["key"] = "photos%2Fa+b%2Bc%C3%A9%281%29.jpg"
    assert event.record == json.dumps(sent, separators=(",", ":"))


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        ("ObjectRemoved:DeleteMarkerCreated", "s3:ObjectRemoved:DeleteMarkerCreated"),
        ("LifecycleExpiration:Delete", "s3:LifecycleExpiration:Delete"),
        ("ObjectNew:Thing", "s3:ObjectNew:Thing"),
    ],
)
def test_a_name_of_aws_gets_its_prefix_known_or_not(sent: str, name: str) -> None:
    assert one(aws(sent)).name == name


TEXT = {"content-type": "text/plain; charset=UTF-8", "x-amz-sns-message-type": "Notification"}
S3_MESSAGE = {"Records": [aws()]}
CLOUD_EVENT = {"specversion": "1.0", "type": "com.amazonaws.ObjectCreated:Put", "source": "aws:s3.us.amzn", "id": "1"}
WRAPPINGS = {
    "plain": (S3_MESSAGE, {}),
    "bare record": (aws(), {}),
    "array": ([S3_MESSAGE], {}),
    "array of records": ([aws()], {}),
    "lines": (json.dumps(aws()) + "\r\n\n", {"Content-Type": "application/x-ndjson"}),
    "SNS": (sns(S3_MESSAGE), TEXT),
    "SNS without headers": (sns(S3_MESSAGE), {}),
    "SNS raw": (S3_MESSAGE, TEXT | {"x-amz-sns-rawdelivery": "true"}),
    "SQS": ({"Records": [{"eventSource": "aws:sqs", "messageId": "1", "body": json.dumps(S3_MESSAGE)}]}, {}),
    "SNS in SQS": ({"Records": [{"eventSource": "aws:sqs", "body": json.dumps(sns(S3_MESSAGE))}]}, {}),
    "SNS to Lambda": ({"Records": [{"EventSource": "aws:sns", "Sns": sns(S3_MESSAGE)}]}, {}),
    "CloudEvent": (CLOUD_EVENT | {"data": S3_MESSAGE}, {"Content-Type": "application/cloudevents+json"}),
    "CloudEvent of text": (CLOUD_EVENT | {"data": json.dumps(S3_MESSAGE)}, {}),
    "CloudEvent of base64": (CLOUD_EVENT | {"data_base64": base64.b64encode(json.dumps(aws()).encode()).decode()}, {}),
    "CloudEvents batch": ([CLOUD_EVENT | {"data": aws()}], {"content-type": "application/cloudevents-batch+json"}),
    "spread over lines": (json.dumps(S3_MESSAGE, indent=2), {}),
    "members in another order": (dict(reversed(list(aws().items()))), {}),
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_record_has_one_id_in_whatever_it_is_wrapped(wrapping: str) -> None:
    body, headers = WRAPPINGS[wrapping]
    event = one(body, headers)
    assert event.id == one(aws()).id
    assert event.key == "photos/a b.jpg"


@pytest.mark.parametrize("member", ["eventName", "eventTime", "responseElements"])
def test_a_record_that_differs_anywhere_has_another_id(member: str) -> None:
    assert one(aws() | {member: None if member != "eventName" else "ObjectCreated:Copy"}).id != one(aws()).id


@pytest.mark.parametrize(
    "body",
    [
        TEST_EVENT,
        sns(TEST_EVENT),
        {"Records": [{"eventSource": "aws:sqs", "body": json.dumps(TEST_EVENT)}]},
        [TEST_EVENT],
        sns("You have chosen to deactivate subscription", Type="UnsubscribeConfirmation", Token="t"),
    ],
)
def test_a_test_message_is_accepted_and_yields_nothing(body: Any) -> None:
    parsed = take(body, TEXT)
    assert (parsed.events, parsed.ignored, parsed.handshake) == ([], 1, None)


def test_a_subscription_is_handed_on_for_the_api_to_decide() -> None:
    url = "https://sns.us-west-2.amazonaws.com/?Action=ConfirmSubscription&Token=2336"
    sent = sns("You have chosen to subscribe", Type="SubscriptionConfirmation", Token="2336", SubscribeURL=url)
    parsed = take(sent, {"x-amz-sns-message-type": "SubscriptionConfirmation"})
    assert parsed.handshake is not None
    assert parsed.handshake.subscribe_url == url
    assert parsed.handshake.token == "2336"
    assert parsed.handshake.topic_arn == sent["TopicArn"]
    assert parsed.handshake.message == sent  # all that the signature covers
    assert (parsed.events, parsed.ignored) == ([], 0)


def test_a_subscription_inside_of_something_else_is_nobodys() -> None:
    sent = sns("…", Type="SubscriptionConfirmation", Token="2336", SubscribeURL="https://example.com")
    parsed = take([sent])
    assert (parsed.handshake, parsed.ignored) == (None, 1)


# ---------------------------------------------------------------- EventBridge


def test_an_event_of_eventbridge_becomes_a_record_and_travels_along() -> None:
    sent = eventbridge()
    event = one(sent)
    assert (event.name, event.bucket, event.key) == ("s3:ObjectCreated:Put", "amzn", "a b+c%2F/é")
    assert (event.version, event.sequencer, event.time) == ("IYV3p45B", "16B33A3ABA5DF8919329D189", 1795221236000)
    found = json.loads(event.record)
    assert found.pop("original") == sent
    assert found == {
        "eventVersion": "2.0",
        "eventSource": "aws:s3",
        "awsRegion": "ca-central-1",
        "eventTime": "2026-11-21T00:33:56.000Z",
        "eventName": "s3:ObjectCreated:Put",
        "userIdentity": {"principalId": "123456789012"},
        "requestParameters": {"principalId": "123456789012", "region": "ca-central-1", "sourceIPAddress": "1.2.3.4"},
        "responseElements": {"x-amz-request-id": "N4N7GDK58NMKJ12R"},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "Config",
            "bucket": {"name": "amzn", "ownerIdentity": {"principalId": "111122223333"}, "arn": "arn:aws:s3:::amzn"},
            "object": {
                "key": encode_key("a b+c%2F/é"),
                "size": 5,
                "eTag": "b1946ac9",
                "versionId": "IYV3p45B",
                "sequencer": "00617F08299329D189",
            },
        },
        "source": {"host": "1.2.3.4", "port": "", "userAgent": ""},
    }


@pytest.mark.parametrize(
    ("detail_type", "detail", "name"),
    [
        ("Object Created", {"reason": "POST Object"}, "s3:ObjectCreated:Post"),
        ("Object Created", {"reason": "CopyObject"}, "s3:ObjectCreated:Copy"),
        ("Object Created", {"reason": "CompleteMultipartUpload"}, "s3:ObjectCreated:CompleteMultipartUpload"),
        ("Object Created", {"reason": "Some New Way"}, "s3:ObjectCreated:SomeNewWay"),
        (
            "Object Deleted",
            {"reason": "DeleteObject", "deletion-type": "Permanently Deleted"},
            "s3:ObjectRemoved:Delete",
        ),
        ("Object Deleted", {"deletion-type": "Delete Marker Created"}, "s3:ObjectRemoved:DeleteMarkerCreated"),
        (
            "Object Deleted",
            {"reason": "Lifecycle Expiration", "deletion-type": "Permanently Deleted"},
            "s3:LifecycleExpiration:Delete",
        ),
        (
            "Object Deleted",
            {"reason": "Lifecycle Expiration", "deletion-type": "Delete Marker Created"},
            "s3:LifecycleExpiration:DeleteMarkerCreated",
        ),
        ("Object Created", {"reason": "PostObject"}, "s3:ObjectCreated:Post"),
        ("Object Created", {"reason": "PutTagging"}, "s3:ObjectCreated:Put"),  # that would mean another change
        ("Object Created", {"reason": "a:b"}, "s3:ObjectCreated:Put"),
        ("Object Created", {"reason": "x" * 500}, "s3:ObjectCreated:Put"),
        ("Object Created", {"reason": ["PutObject"]}, "s3:ObjectCreated:Put"),
        ("Object Created", {"reason": None}, "s3:ObjectCreated:Put"),
        ("Object Deleted", {"deletion-type": "Some New Way"}, "s3:ObjectRemoved:SomeNewWay"),
        ("Object Deleted", {"deletion-type": "NoOP"}, "s3:ObjectRemoved:Delete"),
        ("Object Deleted", {"reason": "DeleteObject"}, "s3:ObjectRemoved:Delete"),
        ("Object Deleted", {"reason": "lifecycle expiration"}, "s3:LifecycleExpiration:Delete"),
        # A reason that contradicts the kind decides nothing.
        ("Object Created", {"reason": "DeleteObject"}, "s3:ObjectCreated:DeleteObject"),
        ("Object Created", {"reason": "Lifecycle Expiration"}, "s3:ObjectCreated:LifecycleExpiration"),
        ("Object Created", {"deletion-type": "Permanently Deleted"}, "s3:ObjectCreated:Put"),
        ("Object Deleted", {"reason": "PutObject"}, "s3:ObjectRemoved:Delete"),
        ("Object Deleted", {"deletion-type": "PutObject"}, "s3:ObjectRemoved:PutObject"),
        ("Object Tags Added", {"reason": "DeleteObject"}, "s3:ObjectTagging:Put"),
        ("Object ACL Updated", {"deletion-type": "Permanently Deleted"}, "s3:ObjectAcl:Put"),
        ("Object Restore Initiated", {}, "s3:ObjectRestore:Post"),
        ("Object Restore Completed", {}, "s3:ObjectRestore:Completed"),
        ("Object Restore Expired", {}, "s3:ObjectRestore:Delete"),
        ("Object Tags Added", {}, "s3:ObjectTagging:Put"),
        ("Object Tags Deleted", {}, "s3:ObjectTagging:Delete"),
        ("Object ACL Updated", {}, "s3:ObjectAcl:Put"),
        ("Object Storage Class Changed", {}, "s3:LifecycleTransition"),
        ("Object Access Tier Changed", {}, "s3:IntelligentTiering"),
        ("Object Sent To The Moon", {}, "s3:ObjectSentToTheMoon"),
    ],
)
def test_eventbridges_kinds_become_names(detail_type: str, detail: dict[str, str], name: str) -> None:
    assert one(eventbridge(detail_type, **detail)).name == name


# ---------------------------------------------------------------- Ceph

CEPH_HEADERS = {
    "ce-specversion": "1.0",
    "ce-type": "com.amazonaws.ObjectCreated:Put",
    "ce-id": "503a4c37.14d2-zone1",
    "ce-source": "ceph:s3.zonegroup1.mybucket1",
    "ce-subject": "my image+1%2F.jpg",
    "Content-Type": "application/json",
}


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({"Records": [ceph()]}, {}),
        ({"Records": [ceph()]}, CEPH_HEADERS),
        (CLOUD_EVENT | {"data": {"Records": [ceph()]}}, {"Content-Type": "application/cloudevents+json"}),
    ],
    ids=["HTTP push", "CloudEvents binary", "CloudEvents structured"],
)
def test_a_key_of_ceph_is_never_decoded(body: dict[str, Any], headers: dict[str, str]) -> None:
    event = one(body, headers)
    assert (event.name, event.bucket, event.key) == ("s3:ObjectCreated:Put", "mybucket1", "my image+1%2F.jpg")
    assert (event.version, event.time) == ("", 1795221236082)


def test_ceph_gets_minios_members_and_keeps_its_own() -> None:
    metadata = [{"key": "x-amz-meta-b", "val": "2"}, {"key": "x-amz-meta-a", "val": "1"}, "odd"]
    tags = [{"key": "color", "val": "blue"}, {"key": "color", "val": "red"}]
    sent = ceph(metadata=metadata, tags=tags)
    found = json.loads(one({"Records": [sent]}).record)
    sent["eventName"] = "s3:ObjectCreated:Put"
    sent["s3"]["object"] |= {
        "key": "my+image%2B1%252F.jpg",
        "size": 1024,
        "userMetadata": {"x-amz-meta-a": "1", "x-amz-meta-b": "2"},
    }
    assert found == sent


@pytest.mark.parametrize(("size", "expected"), [("0", 0), (7, 7), ("", ""), ("7 kB", "7 kB"), ("٧", "٧")])
def test_a_size_of_ceph_in_digits_becomes_a_number(size: Any, expected: Any) -> None:
    assert json.loads(one(ceph(size=size)).record)["s3"]["object"]["size"] == expected


# ---------------------------------------------------------------- SeaweedFS


def test_a_new_file_of_seaweedfs_becomes_a_put() -> None:
    sent = seaweed(new_entry=entry())
    event = one(sent)
    assert (event.name, event.bucket, event.key) == ("s3:ObjectCreated:Put", "photos", "a b/c.txt")
    assert (event.sequencer, event.time) == (f"{1795221236_082123456:016X}", 1795221236082)
    found = json.loads(event.record)
    assert found["original"] == sent
    assert found["eventTime"] == "2026-11-21T00:33:56.082Z"
    assert found["s3"]["object"] == {
        "key": "a+b%2Fc.txt",
        "size": 7,
        "eTag": "d41d",
        "contentType": "text/plain",
        "userMetadata": {"X-Amz-Meta-Color": "blé", "content-type": "text/plain"},
        "sequencer": event.sequencer,
    }


@pytest.mark.parametrize(
    ("members", "size"),
    [
        ({"attributes": {"file_size": 12}}, 12),
        ({"attributes": {"file_size": "12"}}, 12),
        ({"chunks": [], "content": base64.b64encode(b"hello").decode()}, 0),
        ({"chunks": None, "content": base64.b64encode(b"hello").decode()}, 5),
        ({"chunks": "?", "content": "?", "attributes": "?", "extended": "?"}, 0),
    ],
)
def test_the_size_of_a_file_is_found_wherever_it_stands(members: dict[str, Any], size: int) -> None:
    assert json.loads(one(seaweed(new_entry=entry(**members))).record)["s3"]["object"]["size"] == size


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (seaweed("update", old_entry=entry(), new_entry=entry()), [("s3:ObjectCreated:Put", "photos/a b/c.txt")]),
        (seaweed("delete", old_entry=entry()), [("s3:ObjectRemoved:Delete", "photos/a b/c.txt")]),
        (seaweed("rename", old_entry=entry()), [("s3:ObjectRemoved:Delete", "photos/a b/c.txt")]),
        (seaweed("", old_entry=entry()), [("s3:ObjectRemoved:Delete", "photos/a b/c.txt")]),
        (seaweed(None, new_entry=entry()), [("s3:ObjectCreated:Put", "photos/a b/c.txt")]),
        (
            seaweed("rename", old_entry=entry(), new_entry=entry(name="d+.txt"), new_parent_path="/buckets/other/x"),
            [("s3:ObjectRemoved:Delete", "photos/a b/c.txt"), ("s3:ObjectCreated:Copy", "other/x/d+.txt")],
        ),
        (
            seaweed("rename", old_entry=entry(), new_entry=entry(name="d.txt")),
            [("s3:ObjectRemoved:Delete", "photos/a b/c.txt"), ("s3:ObjectCreated:Copy", "photos/a b/d.txt")],
        ),
        (
            seaweed("rename", old_entry=entry(), new_entry=entry(), new_parent_path="/trash"),
            [("s3:ObjectRemoved:Delete", "photos/a b/c.txt")],
        ),
        (
            seaweed(
                "rename", key="/tmp/c.txt", old_entry=entry(), new_entry=entry(), new_parent_path="/buckets/photos"
            ),
            [("s3:ObjectCreated:Copy", "photos/c.txt")],
        ),
        (
            seaweed(key="/buckets/photos/a%2Fb+c", new_entry=entry(name="a%2Fb+c")),
            [("s3:ObjectCreated:Put", "photos/a%2Fb+c")],
        ),
    ],
)
def test_seaweedfs_tells_of_files(sent: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    parsed = take(sent)
    assert [(event.name, event.path) for event in parsed.events] == expected
    assert len({event.id for event in parsed.events}) == len(expected)
    assert parsed.ignored == 0


@pytest.mark.parametrize(
    "sent",
    [
        seaweed(new_entry=entry(is_directory=True)),
        seaweed("delete", old_entry=entry(is_directory=True)),
        seaweed("rename", old_entry=entry(is_directory=True), new_entry=entry(is_directory=True)),
        seaweed(key="/buckets/photos/.uploads/1f/0001.part", new_entry=entry(name="0001.part")),
        seaweed(key="/buckets/photos/.uploads", new_entry=entry(name=".uploads")),
        seaweed(key="/buckets/photos", new_entry=entry(name="photos")),
        seaweed(key="/buckets/photos/", new_entry=entry(name="photos")),
        seaweed(key="/buckets//x", new_entry=entry(name="x")),
        seaweed(key="/topics/.system/log", new_entry=entry(name="log")),
        seaweed(key="buckets/photos/x", new_entry=entry(name="x")),
    ],
)
def test_what_is_no_object_of_a_bucket_is_ignored_and_counted(sent: dict[str, Any]) -> None:
    parsed = take(sent)
    assert (parsed.events, parsed.ignored) == ([], 1)


def test_an_object_from_before_its_bucket_had_versions_is_overwritten_by_one_put() -> None:
    """What has no version is the null version, as which SeaweedFS writes it once versioning is suspended."""
    null = entry(content="eA==", extended={"Seaweed-X-Amz-Version-Id": base64.b64encode(b"null").decode()})
    written = one(seaweed("update", old_entry=entry(), new_entry=null))
    assert (written.name, written.version) == ("s3:ObjectCreated:Put", "null")


def test_a_deleted_file_is_as_old_as_it_was_and_a_renamed_one_has_no_age() -> None:
    deleted = one(seaweed("delete", old_entry=entry()))
    assert int(deleted.sequencer, 16) == int(one(seaweed(new_entry=entry())).sequencer, 16) + 1
    gone, copied = take(seaweed("rename", old_entry=entry(), new_entry=entry(name="d"))).events
    assert (gone.sequencer, copied.sequencer) == (deleted.sequencer, "")
    assert "size" not in json.loads(deleted.record)["s3"]["object"]


@pytest.mark.parametrize("time", ["", "soon", "0", "-5", "٧", "9" * 5000])
def test_a_renamed_version_whose_time_cannot_be_is_as_of_its_renaming(time: str) -> None:
    since = {"Seaweed-X-Amz-Noncurrent-Since-Ns": base64.b64encode(time.encode()).decode()}
    new = entry(name="d", extended=since, commit_ts_ns=1795718485777173530)
    _, copied = take(seaweed("rename", old_entry=entry(), new_entry=new)).events
    assert copied.sequencer == f"{1795718485777173530:016X}"


@pytest.mark.parametrize("mtime", [None, 0, -5, 10**30, "soon", True])
def test_a_file_without_a_time_that_can_be_is_as_of_its_arrival(mtime: Any) -> None:
    sent = seaweed(new_entry=entry(attributes={"mtime": mtime}))
    event = one(sent)
    assert (event.sequencer, event.time) == ("", NOW)
    assert one(sent).id == event.id


# ---------------------------------------------------------------- what cannot be taken


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        (7, "", "is 7; it must be an S3 record"),
        ("null", "", "it must be an S3 record"),
        ({}, "", "unknown shape"),
        ({"hello": "world"}, "", "unknown shape"),
        ({"Records": None}, "Records", "must be an array"),
        ({"Records": {"0": aws()}}, "Records", "must be an array"),
        ({"Records": [1]}, "Records[0]", "must be an object"),
        ({"Records": [{}]}, "Records[0].s3", "is missing"),
        ([[aws()]], "[0]", "an array in an array"),
        ([aws(), {}], "[1]", "unknown shape"),
        ([{"Records": [aws(), aws(key="a%zz")]}], "[0].Records[1].s3.object.key", "stray %"),
        (sns("hello"), "Message", "is not JSON at its byte 0"),
        (sns({"x": 1}), "Message", "unknown shape"),
        (sns(None, Message=None), "Message", "is missing"),
        (sns("x", Type="SubscriptionConfirmation"), "Token", "is missing"),
        ({"Records": [{"eventSource": "aws:sqs"}]}, "Records[0].body", "is missing"),
        ({"Records": [{"eventSource": "aws:sqs", "body": "{"}]}, "Records[0].body", "is not JSON at its byte 1"),
        ({"Records": [{"EventSource": "aws:sns", "Sns": 1}]}, "Records[0].Sns.Message", "is missing"),
        (CLOUD_EVENT | {"data_base64": "!"}, "data_base64", "is not base64"),
        (CLOUD_EVENT | {"data_base64": "/w=="}, "data_base64", "is not JSON"),
        (CLOUD_EVENT | {"data": 1}, "data", "it must be an S3 record"),
        (eventbridge(bucket={}), "detail.bucket.name", "is missing"),
        (eventbridge(object={"key": 1}), "detail.object.key", "is 1; it must be text"),
        (eventbridge(7), "detail-type", "must be text"),
        (eventbridge() | {"source": "aws.ec2"}, "source", 'is "aws.ec2"; it must be "aws.s3"'),
        (seaweed("chmod"), "event_type", "create, update, delete or rename"),
        (seaweed(key=""), "key", "not empty"),
        (seaweed("rename"), "message.new_entry.name", "is missing"),
        (seaweed(""), "event_type", "not empty"),
        (aws(key="a%zz"), "s3.object.key", '"a%zz" has a stray %'),
    ],
)
def test_what_cannot_be_taken_is_told_with_its_place(body: Any, field: str, words: str) -> None:
    with pytest.raises(BadEvents) as caught:
        take(body)
    assert caught.value.status == 400
    assert caught.value.field == field
    assert words in caught.value.problem


def test_a_thing_wrapped_without_end_is_refused() -> None:
    body: Any = aws()
    for _ in range(8):
        body = sns(body)
    assert take(body).events
    with pytest.raises(BadEvents, match="wrapped more than 8 times"):
        take(sns(body))
