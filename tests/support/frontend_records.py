"""Records as other storage frontends send them."""

from __future__ import annotations

import json
from typing import Any


def aws(name: str = "ObjectCreated:Put", key: str = "photos/a+b.jpg", **extra: Any) -> dict[str, Any]:
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": "us-west-2",
        "eventTime": "2026-11-21T00:33:56.082Z",
        "eventName": name,
        "userIdentity": {"principalId": "AIDAJDPLRKLG7UEXAMPLE"},
        "requestParameters": {"sourceIPAddress": "127.0.0.1"},
        "responseElements": {"x-amz-request-id": "C3D13FE58DE4C810", "x-amz-id-2": "FMyUVURIY8"},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "rule",
            "bucket": {"name": "amzn", "ownerIdentity": {"principalId": "A3"}, "arn": "arn:aws:s3:::amzn"},
            "object": {
                "key": key,
                "size": 1024,
                "eTag": "d41d",
                "versionId": "096f",
                "sequencer": "0055AED6DCD90281E5",
            },
        },
        **extra,
    }


def ceph(**thing: Any) -> dict[str, Any]:
    return {
        "eventVersion": "2.2",
        "eventSource": "ceph:s3",
        "awsRegion": "zonegroup1",
        "eventTime": "2026-11-21T00:33:56.082123Z",
        "eventName": "ObjectCreated:Put",
        "userIdentity": {"principalId": "tester"},
        "requestParameters": {"sourceIPAddress": ""},
        "responseElements": {"x-amz-request-id": "503a4c37", "x-amz-id-2": "14d2-zone1"},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "mynotif1",
            "bucket": {
                "name": "mybucket1",
                "ownerIdentity": {"principalId": "tester"},
                "arn": "arn:aws:s3:zg::mybucket1",
                "id": "503a4c37.4332.38",
            },
            "object": {
                "key": "my image+1%2F.jpg",
                "size": "1024",
                "eTag": "37b5",
                "versionId": "",
                "sequencer": "F7E6D75DC742D108",
            }
            | thing,
        },
        "eventId": "1575221657.102001.80dad3aad8584778352c68ea06250327",
        "opaqueData": "me@example.com",
    }


def eventbridge(detail_type: str = "Object Created", **detail: Any) -> dict[str, Any]:
    return {
        "version": "0",
        "id": "17793124-05d4-b198-2fde-7ededc63b103",
        "detail-type": detail_type,
        "source": "aws.s3",
        "account": "111122223333",
        "time": "2026-11-21T00:33:56Z",
        "region": "ca-central-1",
        "resources": ["arn:aws:s3:::amzn"],
        "detail": {
            "version": "0",
            "bucket": {"name": "amzn"},
            "object": {
                "key": "a b+c%2F/é",
                "size": 5,
                "etag": "b1946ac9",
                "version-id": "IYV3p45B",
                "sequencer": "00617F08299329D189",
            },
            "request-id": "N4N7GDK58NMKJ12R",
            "requester": "123456789012",
            "source-ip-address": "1.2.3.4",
            "reason": "PutObject",
        }
        | detail,
    }


def seaweed(kind: str = "create", key: str = "/buckets/photos/a b/c.txt", **message: Any) -> dict[str, Any]:
    return {"key": key, "event_type": kind, "message": message}


def sns(message: Any, **members: Any) -> dict[str, Any]:
    text = message if isinstance(message, str) else json.dumps(message)
    return {
        "Type": "Notification",
        "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
        "TopicArn": "arn:aws:sns:us-west-2:123456789012:MyTopic",
        "Subject": "Amazon S3 Notification",
        "Message": text,
        "Timestamp": "2026-11-21T00:33:57.000Z",
        "SignatureVersion": "1",
        "Signature": "EXAMPLE",
        "SigningCertURL": "https://sns.us-west-2.amazonaws.com/x.pem",
    } | members


TEST_EVENT = {
    "Service": "Amazon S3",
    "Event": "s3:TestEvent",
    "Time": "2026-11-21T00:33:56.082Z",
    "Bucket": "amzn",
    "RequestId": "5582815E1AEA5ADF",
    "HostId": "8cLeGAmw098X5cv4",
}
