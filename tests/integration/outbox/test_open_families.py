"""An event whose name no version knew belongs to the family of its name: at a mirror, in replays, searches, guards."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.events.names import ContentChange, selectors_with
from app.events.parsing import parse
from app.outbox.admin.replays import Replays, Selection, checked
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.outbox.reconcile.log_queries import log_mark, unchanged_since
from app.outbox.search import EventFilter, search
from app.outbox.symptoms import guessed_keys, shared_names, unknown_names
from tests.support.builders import DELETE, PUT, add_target, event
from tests.support.mirror import Mirror
from tests.support.scripted_target import Courier

NEW, GONE, MARKER = "s3:ObjectCreated:PostObject", "s3:ObjectRemoved:Deleted", "s3:ObjectRemoved:DeletionMarkerCreated"


@pytest.mark.parametrize(("new", "gone"), [(NEW, GONE), ("s3:ObjectCreated:*", "s3:ObjectRemoved:*")])
@pytest.mark.parametrize("version", ["", "v1"])
def test_a_mirror_writes_and_removes_rows_of_unknown_members_of_a_family(
    database: Database, version: str, new: str, gone: str
) -> None:
    mirror = Mirror(database, add_target(database))
    made = event("k", name=new, version=version)
    assert mirror.tell(made) == {"k": version or made.sequencer}
    assert mirror.tell(event("k", name="s3:ObjectAccessed:New", version=version)) == mirror.rows
    assert mirror.tell(event("k", name=gone, version=version)) == {}


def test_an_unknown_marker_hides_what_is_beneath_it_and_its_history_is_read_from_the_log(database: Database) -> None:
    target = add_target(database)
    Log(database).append([[event("k", name=NEW, version="v1")]])
    Courier(database, target).run()  # not as a mirror, which has the key's history to read then
    mirror = Mirror(database, target)
    assert mirror.tell(event("k", version="v2")) == {"k": "v2"}
    assert mirror.tell(event("k", name=GONE, version="v2")) == {"k": "v1"}
    assert mirror.tell(event("k", name=MARKER, version="v3")) == {}


def test_unknown_members_are_found_with_their_family_and_named(database: Database) -> None:
    target = add_target(database)
    begun = [event("made", name=NEW), event("gone", name=GONE), event("tag", name="s3:ObjectCreated:PutTagging")]
    begun += [event("put"), event("upper", name="S3:OBJECTREMOVED:DELETED"), event("delete", name=DELETE)]
    creations = selectors_with(ContentChange.CREATED)
    Log(database).append([begun])
    in_flight = set[str]()
    log_mark(database, target, "images", in_flight.update, event_names=creations)
    assert in_flight == {"made", "put"}
    late = [event(key, name=PUT) for key in ("made", "gone", "tag")]
    [receipt] = Log(database).append([late], only_target=target, guard=unchanged_since(0))
    assert receipt.overtaken == 2, "a tag is no change of the content"
    found = search(database, EventFilter(checked(Selection(names=("s3:ObjectRemoved:*",))))).events
    assert {one.key for one in found} == {"gone", "delete"}
    courier = Courier(database, target)
    courier.run()
    courier.scripted.got.clear()
    replays = Replays(database)
    replays.begin(target, Selection(names=("s3:ObjectRemoved:*",)))
    courier.run()
    assert {one.key for one in courier.scripted.got} == {"gone", "delete"}
    with database.reading() as connection:
        assert unknown_names(connection) == {GONE: 1, NEW: 1, "S3:OBJECTREMOVED:DELETED": 1}


def test_keys_that_are_guesses_are_counted_by_the_origin_of_their_events(database: Database) -> None:
    origins = ["", "request t unknown", "request  unknown-encoding", "source kafka:x unknown-encoding 17 3"]
    events = [event(f"{number}")._replace(origin=origin) for number, origin in enumerate(origins)]
    with database.reading() as connection:
        assert guessed_keys(connection) == (0, "")
    Log(database).append([events])
    with database.reading() as connection:
        assert guessed_keys(connection) == (2, events[-1].id)


def test_buckets_whose_name_several_tenants_or_deployments_have_are_found(database: Database) -> None:
    def sent(bucket: str, account: str, deployment: Any = "", source: str = "minio:s3", tenant: str = "") -> None:
        record = {
            "eventName": PUT, "eventSource": source, "responseElements": {"x-minio-deployment-id": deployment},
            "s3": {"bucket": {"name": bucket, "arn": f"arn:aws:s3::{account}:{bucket}"}, "object": {"key": "k"}},
        }  # fmt: skip
        body = json.dumps({"Records": [record]}).encode()
        Log(database).append([parse(body, {}, now_ms=1, tenant=tenant).events])

    sent("one", "acme", "a")
    sent("one", "acme", "a")
    sent("two", "acme")
    sent("clusters", "", "a")
    sent("clusters", "", "b")
    sent("given", "", "a", tenant="a")
    sent("given", "", "b", tenant="b")
    sent("two", "", source="bucketwire:reconcile")
    with database.reading() as connection:
        assert shared_names(connection) == {"clusters": ({""}, {"a", "b"})}
    sent("two", "")
    with database.reading() as connection:
        assert shared_names(connection)["two"] == ({"", "acme"}, {""})
