"""A label on a message agrees with the data in it; what is in two forms at once is not taken for one of them."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import urlencode

import pytest

from app.events.parsing import BadEvents, parse
from tests.support.captured import record

RESOURCE = {"kind": "storage#object", "bucket": "b", "name": "k", "generation": "5", "metageneration": "1"}
ATTRIBUTES = {"eventType": "OBJECT_FINALIZE", "bucketId": "b", "objectId": "k", "objectGeneration": "5"}
CLOUD_EVENT: dict[str, Any] = {"specversion": "1.0", "data": record(1)}
RENAMED: dict[str, Any] = {
    "eventType": "Microsoft.Storage.BlobRenamed",
    "subject": "/blobServices/default/containers/c/blobs/new 1",
    "data": {"sourceUrl": "https://a.dfs/c/old%201"},
}
FIRST, SECOND = (json.dumps(record(number)) for number in (1, 2))
ENTRY = "PublishBatchRequestEntries.member.1."


def coded(value: Any) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


def of_google(**attributes: str) -> dict[str, Any]:
    """A message of Pub/Sub, with these attributes besides those of its resource."""
    return {"subscription": "s", "message": {"attributes": ATTRIBUTES | attributes, "data": coded(RESOURCE)}}


def of_a_filer(member: str, name: str, folder: str = "/buckets/b") -> dict[str, Any]:
    """A change of /buckets/b/a of SeaweedFS, with another name or folder in its entry."""
    return {
        "event_type": "create",
        "key": "/buckets/b/a",
        "message": {member: {"name": name}, "new_parent_path": folder},
    }


def paths(body: Any, headers: dict[str, str] | None = None) -> list[str]:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    return [event.path for event in parse(sent, headers or {}, now_ms=1).events]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (of_google(bucketId="other"), 'bucketId is "other", and bucket of the object\'s resource is "b"'),
        (of_google(objectId="other"), 'objectId is "other", and name of'),
        (of_google(objectGeneration="6"), 'objectGeneration is "6", and generation of'),
        (of_a_filer("new_entry", "z"), 'message.new_entry.name is "z", which is not the end of key, "/buckets/b/a"'),
        (of_a_filer("old_entry", "z"), "message.old_entry.name is"),
        (of_a_filer("new_entry", "a", "/buckets/c"), 'message.new_parent_path is "/buckets/c"'),
        (RENAMED | {"data": {**RENAMED["data"], "destinationUrl": "https://a.dfs/c/z"}}, "data.destinationUrl is"),
        (CLOUD_EVENT | {"data_base64": coded(record(2))}, "data_base64 is beside data"),
        (record(1) | {"Records": []}, "s3 is beside Records"),
        ({"Type": "Notification", "Message": FIRST, "Records": [record(2)]}, "Message is beside Records"),
        (CLOUD_EVENT | {"Messages": []}, "data is beside Messages"),
    ],
)
def test_a_label_that_contradicts_its_data_is_refused(body: Any, words: str) -> None:
    with pytest.raises(BadEvents) as caught:
        paths(body)
    assert words in caught.value.problem


def test_a_label_that_agrees_changes_nothing() -> None:
    assert paths(of_google()) == ["b/k"]
    for folder in ("/buckets/b", "/buckets/b/", ""):
        assert paths(of_a_filer("new_entry", "a", folder)) == ["b/a"]
    for target in ("https://a.dfs/c/new 1", "https://a.dfs/c/new%201"):
        renamed = RENAMED | {"data": {**RENAMED["data"], "destinationUrl": target}}
        assert paths(renamed)[1:] == ["c/new 1"]


def test_only_the_end_of_a_generation_is_ignored_because_another_has_replaced_it() -> None:
    replaced = {"overwrittenByGeneration": "9"}
    assert paths(of_google(**replaced)) == ["b/k"]
    assert paths(RESOURCE, {"eventType": "OBJECT_FINALIZE", "overwrittenByGeneration": "9"}) == ["b/k"]
    for kind in ("OBJECT_DELETE", "OBJECT_ARCHIVE"):
        assert paths(of_google(eventType=kind, **replaced)) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([("Action", "Publish"), ("Message", FIRST), ("Message", SECOND)], 'has the field "Message" twice'),
        ([("Action", "Publish"), ("Message", FIRST), (f"{ENTRY}Message", SECOND)], "has entries"),
        ([("Action", "PublishBatch"), ("Message", FIRST), (f"{ENTRY}Id", "a"), (f"{ENTRY}Message", SECOND)], "beside"),
        ([("Action", "PublishBatch"), (f"{ENTRY}Id", "a"), (f"{ENTRY}Message", "no")], "is not JSON"),
    ],
)
def test_no_message_in_a_call_of_sns_is_left_out(fields: list[tuple[str, str]], words: str) -> None:
    for partial in (False, True):  # the answer to a batch says of each entry that it is recorded
        with pytest.raises(BadEvents, match=words):
            parse(urlencode(fields).encode(), {}, now_ms=1, partial=partial)
