"""The supported S3 operations: a bucket's rules, and what clients request before and after them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO
from xml.etree.ElementTree import Element, SubElement

from werkzeug.wrappers import Response

from app.api.listen.broadcaster import Streams
from app.api.listen.protocol import parse_query
from app.api.s3.errors import S3Error
from app.api.s3.signature import Received, Seal, read_signed_body
from app.api.services import Services
from app.events.minio_json import timestamp
from app.events.model import Event
from app.events.normalize import event_of
from app.outbox.buckets import every_bucket, is_bucket, remove_bucket
from app.outbox.declared import UnknownTarget
from app.outbox.engine.database import now_ms
from app.outbox.log.append import Log
from app.resources.declaration import format_time
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
_MAX_BUCKET_CHARACTERS = 255  # characters of a bucket's name in an event
_ADDRESS = re.compile(r"[0-9]+(\.[0-9]+){3}")


@dataclass(frozen=True, slots=True)
class Operation:
    """One request with a valid signature."""

    parts: Services
    streams: Streams
    received: Received
    seal: Seal
    bucket: str
    number: str
    sender: str
    content_length: int | None
    stream: IO[bytes]
    chunked: bool  # whether the response may be chunked

    def body(self) -> bytes:
        """Read the request's document. Raises `S3Error` without a Content-Length (as MinIO: §2.3)."""
        if not self.content_length:
            raise S3Error("MissingContentLength")
        return read_signed_body(self.stream, self.content_length, self.seal)

    def existing(self) -> str:
        """Return the bucket's name. Raises `S3Error` unless the bucket exists.

        A name that S3 does not allow is invalid, unless a frontend has reported events of such a bucket.
        """
        # A name that does not fit into its column needs no query.
        if (
            len(self.bucket) > _MAX_BUCKET_CHARACTERS
            or "\0" in self.bucket
            or not is_bucket(self.parts.database, self.bucket)
        ):
            code = "NoSuchBucket" if _is_valid(self.bucket) else "InvalidBucketName"
            raise S3Error(code, BucketName=self.bucket)
        return self.bucket


def list_buckets(call: Operation) -> Response:
    """Answer `GET /`."""
    root = Element("ListAllMyBucketsResult", xmlns=NAMESPACE)
    owner = SubElement(root, "Owner")
    add(owner, "ID", call.seal.key.name)
    add(owner, "DisplayName", call.seal.key.name)
    listed = SubElement(root, "Buckets")
    for bucket in every_bucket(call.parts.database):
        element = SubElement(listed, "Bucket")
        add(element, "Name", bucket.name)
        add(element, "CreationDate", format_time(bucket.created_at) or "1970-01-01T00:00:00.000Z")
    return _xml(root)


def head_bucket(call: Operation) -> Response:
    """Answer `HEAD /<bucket>`."""
    call.existing()
    return Response(status=200)


def location(call: Operation) -> Response:
    """Answer `GET /<bucket>?location`: the site's region, or none, which means us-east-1."""
    call.existing()
    root = Element("LocationConstraint", xmlns=NAMESPACE)
    root.text = call.parts.settings.region
    return _xml(root)


def create_bucket(call: Operation) -> Response:
    """Answer `PUT /<bucket>`: create the bucket and notify listeners."""
    if not _is_valid(call.bucket):
        raise S3Error("InvalidBucketName", BucketName=call.bucket)
    if is_bucket(call.parts.database, call.bucket):
        raise S3Error("BucketAlreadyOwnedByYou", BucketName=call.bucket)
    _record_event(call, CREATED, "bucket.create")
    return Response(status=200, headers={"Location": f"/{call.bucket}"})


def delete_bucket(call: Operation) -> Response:
    """Answer `DELETE /<bucket>`: remove the bucket and its rules; its events are kept, and a later one recreates it."""
    remove_bucket(call.parts.database, call.existing())
    _record_event(call, REMOVED)
    return Response(status=204)


def get_policy(call: Operation) -> Response:
    """Answer `GET /<bucket>?policy`: there is none, so that `mc stat` does not call the bucket public."""
    raise S3Error("NoSuchBucketPolicy", BucketName=call.existing())


def get_notification(call: Operation) -> Response:
    """Answer `GET /<bucket>?notification`."""
    rules = [stored.rule for stored in call.parts.registry.rules(call.existing())]
    return Response(configuration(rules, call.parts.settings.region), mimetype="application/xml")


def put_notification(call: Operation) -> Response:
    """Answer `PUT /<bucket>?notification`: replace the bucket's rules by the document's, all of them or none."""
    call.existing()
    body = call.body()
    registry, region = call.parts.registry, call.parts.settings.region
    existing = {stored.target for stored in registry.targets()}
    stored = [row.rule for row in registry.rules(call.bucket)]
    try:
        rules = parse_configuration(body, call.bucket, region=region, configured=existing, stored=stored)
        registry.replace_rules(call.bucket, rules)
    except BadConfiguration as error:
        raise S3Error(error.code, str(error)) from None
    except BadRules as error:
        raise S3Error("InvalidArgument", str(error)) from None
    except UnknownTarget as error:  # removed after it was checked
        raise S3Error("InvalidArgument", f"{NO_TARGET}: {error}") from None
    return Response(status=200)


def listen(call: Operation) -> Response:
    """Answer `GET /<bucket>?events=…` and `GET /?events=…`. Raises `SocketHandedOver`, which starts the stream."""
    if call.bucket:
        call.existing()
    query = parse_query(call.bucket, call.received.query)
    raise call.streams.begin(query, chunked=call.chunked, number=call.number)


Handler = Callable[[Operation], Response]

# By method and subresource; "" is the bucket itself.
BUCKET_CALLS: Mapping[tuple[str, str], Handler] = {
    ("GET", "location"): location,
    ("GET", "events"): listen,
    ("GET", "policy"): get_policy,
    ("GET", "notification"): get_notification,
    ("PUT", "notification"): put_notification,
    ("HEAD", ""): head_bucket,
    ("PUT", ""): create_bucket,
    ("DELETE", ""): delete_bucket,
}


def _is_valid(bucket: str) -> bool:
    return bool(_BUCKET.fullmatch(bucket)) and ".." not in bucket and not _ADDRESS.fullmatch(bucket)


def _record_event(call: Operation, name: str, action: str = "") -> None:
    """Record a bucket event. It is sent to no target: such events are for listeners only (as MinIO: §1.1)."""
    Log(call.parts.database).append([[bucket_event(call, name, now_ms())]], routed=False, action=action)


def bucket_event(call: Operation, name: str, now: int) -> Event:
    """Build a bucket event with the same members as MinIO's."""
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
