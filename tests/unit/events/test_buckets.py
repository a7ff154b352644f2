"""Names of buckets, and the tenants before them: whose bucket an event is of, whatever its sender says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.config.errors import BadValue
from app.config.sources.base import Tenant
from app.events.buckets import is_bucket_name, name_at_store
from app.events.limits import Limits
from app.events.own_events import SERVICE_BUCKET
from app.events.parsing import BadEvents, Message, parse, read_message

GIVEN = ("acme", "b", "A-1._")


def record(name: str, arn: str | None = None, key: str = "a.txt", **members: Any) -> dict[str, Any]:
    bucket = {"name": name} | ({} if arn is None else {"arn": arn})
    return {
        "eventName": "ObjectCreated:Put", "eventSource": "ceph:s3", "eventTime": "2026-11-28T10:00:00.000Z",
        "s3": {"bucket": bucket, "object": {"key": key, "size": 1}}, **members,
    }  # fmt: skip


def recorded(tenant: str, *records: dict[str, Any]) -> list[str]:
    """The buckets of the events as they are recorded: in the column and in the record, of a request and of a queue."""
    body = json.dumps({"Records": records}).encode()
    events = parse(body, {}, now_ms=1, tenant=tenant).events
    assert [json.loads(event.record)["s3"]["bucket"]["name"] for event in events] == [event.bucket for event in events]
    read = read_message(Message(body, sent_at=1), Limits(), None, "", tenant)
    assert [event.id for event in read.events] == [event.id for event in events]
    return [event.bucket for event in events]


@pytest.mark.parametrize(
    ("tenant", "name", "arn", "bucket"),
    [
        ("", "images", "arn:aws:s3:default:acme:images", "images"),  # as before there were tenants
        ("", "other:images", None, "other:images"),
        ("acme", "images", None, "acme:images"),
        ("acme", "images", "arn:aws:s3:::images", "acme:images"),
        ("acme", "images", "arn:aws:s3:default:acme:images", "acme:images"),
        ("acme", "acme:images", "arn:aws:s3:::acme:images", "acme:images"),  # what another Bucketwire passes on
        ("arn", "images", "arn:aws:s3:default:acme:images", "acme:images"),
        ("arn", "images", "arn:aws:s3::Acme_2:images", "Acme_2:images"),
        ("arn", "images", "arn:aws:s3:default::images", "images"),  # Ceph's empty tenant
        ("arn", "images", "arn:aws:s3:::/images/a:b:c", "images"),  # Versity
        ("arn", "images", None, "images"),
        ("arn", "images", "acme", "images"),
        ("arn", "acme:images", "arn:aws:s3::acme:images", "acme:images"),
        ("arn", "acme:images", "arn:aws:s3:::images", "acme:images"),
        ("arn", "images", "arn:aws:s3:default:arn:images", "arn:images"),
    ],
)
def test_a_bucket_is_recorded_in_its_tenant(tenant: str, name: str, arn: str | None, bucket: str) -> None:
    assert recorded(tenant, record(name, arn)) == [bucket]


@pytest.mark.parametrize(
    ("tenant", "name", "arn", "problem"),
    [
        ("acme", "images", "arn:aws:s3:default:other:images", "s3.bucket.arn is of the tenant other; its token or"),
        ("acme", "other:images", None, 's3.bucket.name is "other:images", which is not of the tenant acme'),
        ("acme", "ACME:images", None, "not of the tenant acme"),
        ("acme", SERVICE_BUCKET, None, "not of the tenant acme"),
        ("acme", ":images", None, "not of the tenant acme"),
        ("arn", "other:images", "arn:aws:s3:default:acme:images", "not of the tenant acme"),
        ("arn", "service", "arn:aws:s3:default:bucketwire:service", "whose tenant cannot be"),
        ("arn", "images", "arn:aws:s3:default:a b:images", "whose tenant cannot be: use 1 to 64 letters"),
        ("arn", "images", "arn:aws:s3:default:-rf:images", "whose tenant cannot be"),
        ("arn", "images", "arn:aws:s3:default:../x:images", "whose tenant cannot be"),
        ("arn", "images", f"arn:aws:s3:default:{'x' * 65}:images", "whose tenant cannot be"),
        ("acme", "x" * 251, None, "the bucket's name as text, with its tenant of at most 255 characters"),
    ],
)
def test_a_sender_that_names_another_tenant_is_refused(tenant: str, name: str, arn: str | None, problem: str) -> None:
    with pytest.raises(BadEvents) as refused:
        recorded(tenant, record(name, arn))
    assert problem in refused.value.problem
    assert (
        problem in read_message(Message(json.dumps(record(name, arn)).encode()), Limits(), None, tenant=tenant).problem
    )
    sound = record("images")
    body = json.dumps({"Records": [record(name, arn), sound]}).encode()
    assert len(parse(body, {}, now_ms=1, tenant=tenant, partial=True).events) == 1, "its neighbour is taken"


def test_the_same_record_of_two_tenants_is_two_events_and_of_one_tenant_is_one() -> None:
    body = json.dumps(record("images")).encode()
    ids = {parse(body, {}, now_ms=1, tenant=tenant).events[0].id for tenant in ("", "acme", "other", "acme")}
    assert len(ids) == 3


@pytest.mark.parametrize("tenant", GIVEN)
def test_a_tenants_bucket_is_a_bucket(tenant: str) -> None:
    assert Tenant().parse(tenant) == tenant
    assert is_bucket_name(f"{tenant}:images")
    assert name_at_store(f"{tenant}:images") == "images"
    assert name_at_store("images") == "images"
    assert not any(is_bucket_name(name) for name in (f"{tenant}:", f"{tenant}:x", f"{tenant}:a:images", ":images"))


@pytest.mark.parametrize("tenant", ["", "-x", "a b", "a:b", "a/b", "é", "x" * 65, "a\n", "bucketwire", "*", ".hidden"])
def test_what_can_be_no_tenant_is_refused(tenant: str) -> None:
    with pytest.raises(BadValue):
        Tenant().parse(tenant)
    assert not is_bucket_name(f"{tenant}:images")
    assert not is_bucket_name(SERVICE_BUCKET)
