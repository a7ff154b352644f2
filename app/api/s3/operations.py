"""The S3 calls that are answered: a bucket's rules, and what clients ask before and after them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO
from xml.etree.ElementTree import Element, SubElement

from werkzeug.wrappers import Response

from app.api.listen.query import parse_query
from app.api.listen.streams import Streams
from app.api.s3 import payload
from app.api.s3.errors import S3Error
from app.api.s3.signature import Received, Seal
from app.api.serialization import format_time
from app.api.services import Services
from app.events.minio_json import timestamp
from app.events.model import Event
from app.events.normalize import event_of
from app.outbox.buckets import every_bucket, is_bucket, remove_bucket
from app.outbox.engine.database import now_ms
from app.outbox.log.append import Log
from app.outbox.registry import UnknownTarget
from app.rules.model import BadRules
from app.rules.notification_xml import (
    NAMESPACE,
    NO_TARGET,
    BadConfiguration,
    add,
    configuration,
    document,
    parse_configuration,
)

CREATED, REMOVED = "s3:BucketCreated:*", "s3:BucketRemoved:*"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_LONGEST = 255  # characters of a bucket's name in an event
_ADDRESS = re.compile(r"[0-9]+(\.[0-9]+){3}")


@dataclass(frozen=True, slots=True)
class Operation:
    """One request whose signature holds."""

    parts: Services
    streams: Streams
    received: Received
    seal: Seal
    bucket: str
    number: str
    sender: str
    content_length: int | None
    stream: IO[bytes]
    chunked: bool  # whether the answer may come in chunks

    def body(self) -> bytes:
        """The document sent along; `S3Error` unless its length was said (as MinIO: §2.3)."""
        if not self.content_length:
            raise S3Error("MissingContentLength")
        return payload.read(self.stream, self.content_length, self.seal)

    def existing(self) -> str:
        """The bucket, which has to be there."""
        # No database needs to be asked for what its columns cannot hold.
        if len(self.bucket) > _LONGEST or "\0" in self.bucket or not is_bucket(self.parts.database, self.bucket):
            raise S3Error("NoSuchBucket", BucketName=self.bucket)
        return self.bucket


def list_buckets(call: Operation) -> Response:
    """`GET /`."""
    root = Element("ListAllMyBucketsResult", xmlns=NAMESPACE)
    owner = SubElement(root, "Owner")
    add(owner, "ID", call.seal.key.name)
    add(owner, "DisplayName", call.seal.key.name)
    listed = SubElement(root, "Buckets")
    for bucket in every_bucket(call.parts.database):
        one = SubElement(listed, "Bucket")
        add(one, "Name", bucket.name)
        add(one, "CreationDate", format_time(bucket.created_at) or "1970-01-01T00:00:00.000Z")
    return _xml(root)


def head_bucket(call: Operation) -> Response:
    """`HEAD /<bucket>`."""
    call.existing()
    return Response(status=200)


def location(call: Operation) -> Response:
    """`GET /<bucket>?location`: the site's region, or none, which is us-east-1."""
    call.existing()
    root = Element("LocationConstraint", xmlns=NAMESPACE)
    root.text = call.parts.settings.region
    return _xml(root)


def create_bucket(call: Operation) -> Response:
    """`PUT /<bucket>`: from now on it is there, and whoever listens is told."""
    if not _BUCKET.fullmatch(call.bucket) or ".." in call.bucket or _ADDRESS.fullmatch(call.bucket):
        raise S3Error("InvalidBucketName", BucketName=call.bucket)
    if is_bucket(call.parts.database, call.bucket):
        raise S3Error("BucketAlreadyOwnedByYou", BucketName=call.bucket)
    _tell(call, CREATED)
    return Response(status=200, headers={"Location": f"/{call.bucket}"})


def delete_bucket(call: Operation) -> Response:
    """`DELETE /<bucket>`: its rules go with it; its events stay where they are, and a later one brings it back."""
    remove_bucket(call.parts.database, call.existing())
    _tell(call, REMOVED)
    return Response(status=204)


def get_notification(call: Operation) -> Response:
    """`GET /<bucket>?notification`."""
    rules = [stored.rule for stored in call.parts.registry.rules(call.existing())]
    return Response(configuration(rules, call.parts.settings.region), mimetype="application/xml")


def put_notification(call: Operation) -> Response:
    """`PUT /<bucket>?notification`: the document becomes the bucket's rules, all of it or none."""
    call.existing()
    body = call.body()
    registry, region = call.parts.registry, call.parts.settings.region
    there = {stored.target for stored in registry.targets()}
    try:
        rules = parse_configuration(body, call.bucket, region=region, configured=there.__contains__)
        registry.replace_rules(call.bucket, rules)
    except BadConfiguration as error:
        raise S3Error(error.code, str(error)) from None
    except BadRules as error:
        raise S3Error("InvalidArgument", str(error)) from None
    except UnknownTarget as error:  # removed between the two
        raise S3Error("InvalidArgument", f"{NO_TARGET}: {error}") from None
    return Response(status=200)


def listen(call: Operation) -> Response:
    """`GET /<bucket>?events=…` and `GET /?events=…`. Raises the `SocketHandedOver` that makes the connection a
    stream.
    """
    if call.bucket:
        call.existing()
    query = parse_query(call.bucket, call.received.query)
    raise call.streams.begin(query, chunked=call.chunked, number=call.number)


Answering = Callable[[Operation], Response]

# By method and what is asked of a bucket; "" is the bucket itself.
BUCKET_CALLS: Mapping[tuple[str, str], Answering] = {
    ("GET", "location"): location,
    ("GET", "events"): listen,
    ("GET", "notification"): get_notification,
    ("PUT", "notification"): put_notification,
    ("HEAD", ""): head_bucket,
    ("PUT", ""): create_bucket,
    ("DELETE", ""): delete_bucket,
}


def _tell(call: Operation, name: str) -> None:
    """Record what became of the bucket. It goes to no target: such events are for who listens (as MinIO: §1.1)."""
    Log(call.parts.database).append([[bucket_event(call, name, now_ms())]], routed=False)


def bucket_event(call: Operation, name: str, now: int) -> Event:
    """The event, with the members that MinIO's has."""
    region, principal = call.parts.settings.region, {"principalId": call.seal.key.access_key}
    record = {
        "eventVersion": "2.0",
        "eventSource": "bucketwire:s3",
        "awsRegion": region,
        "eventTime": timestamp(now),
        "eventName": name,
        "userIdentity": principal,
        "requestParameters": {**principal, "region": region, "sourceIPAddress": call.sender},
        "responseElements": {"x-amz-request-id": call.number},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "Config",
            "bucket": {"name": call.bucket, "ownerIdentity": principal, "arn": f"arn:aws:s3:::{call.bucket}"},
            "object": {"key": "", "sequencer": f"{now * 1_000_000:X}"},
        },
        "source": {"host": call.sender, "port": "", "userAgent": call.received.headers.get("user-agent", "")[:500]},
    }
    return event_of(record, now, 32)


def _xml(root: Element) -> Response:
    return Response(document(root), mimetype="application/xml")
