"""Bodies of services that are not accepted: the refusal names the sender."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from app.events.errors import BadEvents
from app.events.limits import Limits
from app.events.parsing import Message, parse, read_message

BODIES: dict[str, Any] = {
    "Huawei Cloud OBS": {
        "Records": [
            {"eventVersion": "3.0", "eventSource": "OBS", "eventName": "ObjectCreated:Put", "obs": {"bucket": {}}}
        ]
    },
    "Tencent Cloud COS": {
        "Records": [
            {"cos": {"cosBucket": {"name": "b"}, "cosObject": {"key": "/1/b/a.txt"}}, "event": {"eventName": "x"}}
        ]
    },
    "Alibaba Cloud OSS": {
        "events": [{"eventName": "ObjectCreated:PutObject", "eventSource": "acs:oss", "oss": {"x": 1}}]
    },
    "IBM Cloud Object Storage": {
        "bucket": "b",
        "endpoint": "",
        "key": "a.txt",
        "operation": "Object:Write",
        "notification": {"bucket_name": "b", "event_type": "Object:Write", "object_name": "a.txt"},
    },
    "a trigger of Yandex Object Storage": {
        "messages": [
            {
                "event_metadata": {"event_type": "yandex.cloud.events.storage.ObjectCreate"},
                "details": {"bucket_id": "b", "object_id": "a.txt"},
            }
        ]
    },
}


OTHERS = [
    ("Huawei Cloud OBS", {"type": "Notification", "topic_urn": "urn:smn:x", "message": "{}", "message_id": "1"}),
    ("Huawei Cloud OBS", {"specversion": "1.0", "type": "OBS:DWR:ObjectCreated:PUT", "source": "x", "data": {"a": 1}}),
    ("Alibaba Cloud OSS", {"TopicOwner": "1", "TopicName": "t", "Message": "e30=", "MessageId": "1"}),
    ("Alibaba Cloud OSS", {"specversion": "1.0", "type": "oss:ObjectCreated:PutObject", "source": "x", "data": {}}),
    ("Tencent Cloud COS", {"specversion": "1.0", "type": "cos:created:PutObject", "source": "x", "data": {}}),
    ("Tencent Cloud COS", {"specversion": "1.0", "type": "COS:Created:PutObject", "source": "x", "data": {}}),
    ("Volcengine TOS", {"Records": [{"eventName": "tos:ObjectCreated:Put", "tos": {"object": {"key": "a"}}}]}),
    ("IBM Cloud Object Storage", {"specversion": "1.0", "type": "com.ibm.cloud.cos.document.write", "data": {}}),
]


@pytest.mark.parametrize(("name", "body"), OTHERS)
def test_another_form_of_a_service_is_named_too(name: str, body: Any) -> None:
    for sent in (body, [body]):
        with pytest.raises(BadEvents, match=f"looks like {name}, which is not accepted; it must be an S3 record"):
            parse(orjson.dumps(sent), {}, now_ms=1_800_000_000_000)


@pytest.mark.parametrize("name", BODIES)
def test_a_refusal_names_the_service_that_sent_the_body(name: str) -> None:
    with pytest.raises(BadEvents, match=f"looks like {name}, which is not accepted; it must be an S3 record"):
        parse(orjson.dumps(BODIES[name]), {}, now_ms=1_800_000_000_000)


CALL = {"eventVersion": "1.09", "eventSource": "s3.amazonaws.com", "eventName": "PutObject", "requestParameters": {}}


@pytest.mark.parametrize(
    ("body", "name", "remedy"),
    [
        (
            {"detail-type": "AWS API Call via CloudTrail", "source": "aws.s3", "detail": CALL},
            "AWS CloudTrail",
            "let the rule match the source aws.s3 and detail-types such as Object Created",
        ),
        (
            [{"eventType": "Microsoft.Resources.ResourceWriteSuccess", "subject": "x", "data": {}}],
            "another service's event by Azure Event Grid",
            "let it send only events of a storage account",
        ),
        (
            {"eventType": "com.oraclecloud.computeapi.launchinstance.end", "cloudEventsVersion": "0.1", "data": {}},
            "another service's event of OCI",
            "let it send only events of Object Storage",
        ),
        ({"Records": [CALL]}, "AWS CloudTrail", "Switch EventBridge on for the bucket"),
        (
            {"key": "/buckets/b/a.txt", "message": "old_entry"},
            "the webhook of SeaweedFS 3.94",
            "update the filer to 3.95",
        ),
    ],
)
def test_a_refusal_says_what_would_be_right(body: Any, name: str, remedy: str) -> None:
    with pytest.raises(
        BadEvents, match=f"looks like {name}, which is not accepted: .*{remedy}.*; it must be an S3 record"
    ):
        parse(orjson.dumps(body), {}, now_ms=1_800_000_000_000)


def test_a_message_of_a_filer_without_its_path_is_known_by_its_content() -> None:
    with (Path(__file__).parents[2] / "fixtures" / "seaweedfs_kafka.jsonl").open() as lines:
        body = base64.b64decode(next(json.loads(line)["body"] for line in lines))
    named = r"looks like a message of SeaweedFS's filer without the path .*\[notification.webhook\] or"
    with pytest.raises(BadEvents, match=named):
        parse(body, {}, now_ms=0)
    assert "[notification.gocdk_pub_sub]" in read_message(Message(body, headers={"key": "/a"}), Limits(), None).problem
