"""Bodies of services that are not accepted: the refusal names the sender."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from app.events.errors import BadEvents
from app.events.parsing import parse

BODIES: dict[str, Any] = {
    "Azure Event Grid": [
        {
            "topic": "/subscriptions/x/storageAccounts/y",
            "subject": "/blobServices/default/containers/c/blobs/a.txt",
            "eventType": "Microsoft.Storage.BlobCreated",
            "eventTime": "2026-11-24T20:00:00Z",
            "id": "1",
            "data": {"api": "PutBlob", "eTag": "0x1", "contentLength": 1},
            "dataVersion": "",
        }
    ],
    "a Google Pub/Sub push subscription": {
        "message": {"attributes": {"eventType": "OBJECT_FINALIZE", "bucketId": "b"}, "data": "e30=", "messageId": "1"},
        "subscription": "projects/p/subscriptions/s",
    },
    "Google Eventarc": {
        "specversion": "1.0",
        "type": "google.cloud.storage.object.v1.finalized",
        "source": "//storage.googleapis.com/projects/_/buckets/b",
        "id": "1",
        "data": {"kind": "storage#object", "bucket": "b", "name": "a.txt"},
    },
    "Oracle Cloud Infrastructure Events": {
        "eventType": "com.oraclecloud.objectstorage.createobject",
        "cloudEventsVersion": "0.1",
        "data": {"resourceName": "a.txt"},
    },
    "Cloudflare R2": {
        "account": "a",
        "action": "PutObject",
        "bucket": "b",
        "object": {"key": "a.txt", "size": 1, "eTag": "e"},
        "eventTime": "2026-11-24T20:00:00.000Z",
    },
    "Backblaze B2": {"events": [{"eventType": "b2:ObjectCreated:Upload", "bucketName": "b", "objectName": "a.txt"}]},
}


@pytest.mark.parametrize("name", BODIES)
def test_a_refusal_names_the_service_that_sent_the_body(name: str) -> None:
    with pytest.raises(BadEvents, match=f"looks like {name}, which is not accepted; it must be an S3 record"):
        parse(orjson.dumps(BODIES[name]), {}, now_ms=1_800_000_000_000)
