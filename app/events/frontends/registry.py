"""Every frontend by name, those without rules of their own, which of them sent a record (§14.1), and who is none.

The key's encoding and the order of events follow from the sender, never from the characters of a key or a sequencer.
Services that post events of object storage in a form that is not accepted are named, with what to do instead.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from app.events.errors import BadRecord
from app.events.frontends import eventbridge, gcs, seaweedfs
from app.events.frontends.clouds import (
    AZURE,
    AZURE_SOURCE,
    B2,
    B2_SOURCE,
    OCI,
    OCI_SOURCE,
    R2,
    R2_SOURCE,
    TIGRIS,
    TIGRIS_SOURCE,
)
from app.events.frontends.frontend import Frontend, as_sent, find, normalize_raw, optional_text, unordered
from app.events.frontends.s3_records import (
    AWS,
    AWS_SOURCE,
    CEPH,
    CEPH_SOURCE,
    EXPIRED,
    NOOBAA,
    NOOBAA_SOURCE,
    OF_CEPH,
    OZONE,
    OZONE_SOURCE,
    RAW,
    UNKNOWN,
    UNKNOWN_ENCODING,
    VERSITY,
    is_ceph,
    is_guess,
    is_noobaa,
    is_versity,
    normalize_encoded,
)
from app.events.order import comparable

_OWN_SOURCES = "bucketwire:"  # what they begin with: repairs, backfills, scans, tests, events of the service

# MinIO, also before 2018, and its forks, such as SILO, which call themselves `minio:s3` (§1.4). Keys are form-encoded,
# and the sequencer is the object's modification time in nanoseconds (§1.7). Tags and accesses repeat the sequencer of
# the object's creation. Bucketwire's own events have the same form.
MINIO = Frontend("minio", as_sent)
# MinIO's form in every respect; it encodes more or fewer characters of a key, which decodes to the same.
RUSTFS = Frontend("rustfs", as_sent)
# Scality Zenko and Artesca (Backbeat): raw keys, sizes as text, null for what is not known, and no sequencer. Its
# queue's order is that of an object's events, so they are ordered by their arrival.
SCALITY = Frontend("scality", normalize_raw, unordered)
# NetApp StorageGRID: records of AWS's form under its own source, as JSON or as a call of SNS's action Publish.
STORAGEGRID = Frontend("storagegrid", normalize_encoded)
# Storj: records of AWS's form with raw keys; a sequencer is the time of the commit in nanoseconds.
STORJ = Frontend("storj", normalize_raw)

# Those that a request may name.
S3_FRONTENDS: Mapping[str, Frontend] = {
    frontend.name: frontend
    for frontend in (
        MINIO, RUSTFS, CEPH, AWS, VERSITY, NOOBAA, STORAGEGRID,
        SCALITY, OZONE, STORJ, RAW,
    )
}  # fmt: skip
# Those that have messages of their own, by which they are always recognised.
FRONTENDS: Mapping[str, Frontend] = dict(S3_FRONTENDS) | {
    frontend.name: frontend
    for frontend in (
        eventbridge.EVENTBRIDGE, seaweedfs.SEAWEEDFS, gcs.GCS, AZURE, B2, R2, TIGRIS, OCI,
    )
}  # fmt: skip
# Records that a MinIO-like service has passed on: in its envelope they have MinIO's form, whichever frontend sent them.
RELAYED: Mapping[str, Frontend] = {name: replace(frontend, normalize=as_sent) for name, frontend in FRONTENDS.items()}
_RELAYED_UNKNOWN = replace(UNKNOWN, normalize=as_sent)

_BY_SOURCE = {
    "minio:s3": MINIO,
    "rustfs:s3": RUSTFS,
    CEPH_SOURCE: CEPH,
    NOOBAA_SOURCE: NOOBAA,
    "sgws:s3": STORAGEGRID,
    "scality:s3": SCALITY,
    OZONE_SOURCE: OZONE,
    "storj:s3": STORJ,
    # Of messages of their own, these records are what Bucketwire has made.
    seaweedfs.SOURCE: RELAYED["seaweedfs"],
    gcs.SOURCE: RELAYED["gcs"],
    AZURE_SOURCE: RELAYED["azure"],
    B2_SOURCE: RELAYED["b2"],
    R2_SOURCE: RELAYED["r2"],
    TIGRIS_SOURCE: RELAYED["tigris"],
    OCI_SOURCE: RELAYED["oci"],
}  # fmt: skip


def recognize(record: Mapping[str, Any]) -> Frontend:
    """Return the frontend that sent a record of S3's form, by its source; `unknown` if nobody knows that.

    AWS, Versity, Ceph before Octopus and MinIO before 2018 all send `aws:s3`. Of the last two, only MinIO's and Ceph's
    names begin with `s3:` (§1.9, §13).
    """
    source = record.get("eventSource")
    if isinstance(source, str) and (frontend := _BY_SOURCE.get(source)) is not None:
        return frontend
    if source == AWS_SOURCE:
        return _of_aws(record)
    if is_own(record):
        return MINIO
    if is_noobaa(record):
        return NOOBAA
    return UNKNOWN_ENCODING if is_guess(record) else UNKNOWN


def _of_aws(record: Mapping[str, Any]) -> Frontend:
    if is_versity(record):
        return VERSITY
    if is_ceph(record):
        return CEPH
    name = record.get("eventName")
    return MINIO if isinstance(name, str) and name.startswith("s3:") else AWS


def recognize_relayed(record: Mapping[str, Any]) -> Frontend:
    """Return the frontend that sent a record which a MinIO-like service has passed on in its envelope."""
    return RELAYED.get(recognize(record).name, _RELAYED_UNKNOWN)


def order_of(record: str) -> str:
    """Return the comparable value that orders a recorded event, from its record's JSON; "" for none."""
    members = orjson.loads(record)
    if not isinstance(members, dict):  # it stands for a record that is too long to be read
        return ""
    frontend = recognize(members)
    if members.get("eventSource") == AWS_SOURCE and frontend is MINIO:
        frontend = AWS  # recorded names begin with `s3:`; MinIO's own sequencers have another form than AWS's
    try:
        return comparable(frontend.order(members))
    except BadRecord:
        return ""


def is_own(record: Mapping[str, Any]) -> bool:
    """Return whether Bucketwire made the record: a repair, for example, which has MinIO's form with every frontend."""
    source = record.get("eventSource")
    return isinstance(source, str) and source.startswith(_OWN_SOURCES)


# What is in the JSON of a sender's records → the names of its events by which the removal of the newest version does
# not make the one beneath the newest.
HIDING = {OF_CEPH: (EXPIRED,), gcs.OF_GCS: gcs.OF_VERSIONS}


def hides_older(name: str, record: str) -> bool:
    """Return whether what is older than the event's version is hidden or gone once that version was removed."""
    return any(name in names and source in record for source, names in HIDING.items())


class Unsupported(NamedTuple):
    """Who sends a form that is not accepted; `remedy` is what its owner can do, "" if that is the same for all."""

    name: str
    remedy: str = ""

    def __str__(self) -> str:
        """Return the part of the sentence that the shapes follow."""
        return f"looks like {self.name}, which is not accepted" + (f": {self.remedy}" if self.remedy else "")


_OF_STORAGE = "let it send only events of {}"
_OBS = Unsupported("Huawei Cloud OBS")
_COS = Unsupported("Tencent Cloud COS")
_OSS = Unsupported("Alibaba Cloud OSS")
_IBM = Unsupported("IBM Cloud Object Storage")
_YANDEX = Unsupported("a trigger of Yandex Object Storage")
_TOS = Unsupported("Volcengine TOS")
_BOS = Unsupported("Baidu AI Cloud BOS")
_CLOUDTRAIL = Unsupported(
    "AWS CloudTrail",
    "it records calls, not what became of objects. Switch EventBridge on for the bucket, and let the rule match the "
    "source aws.s3 and detail-types such as Object Created and Object Deleted, not AWS API Call via CloudTrail",
)
_GOOGLE_AUDIT = Unsupported(
    "an audit log of Google Cloud",
    "it records calls, not what became of objects. Let the trigger of Eventarc match google.cloud.storage.object.v1 "
    "types such as finalized and deleted, not google.cloud.audit.log.v1.written",
)
_MINIO_AUDIT = Unsupported(
    "an audit log of MinIO",
    "it records calls, not what became of objects. Set notify_webhook or another notify_… target, not audit_…, and "
    "`mc event add` for each bucket",
)
_FUNCTION = "it asks a function for something and is no event. Let the bucket itself send its events"
_BATCH = Unsupported("a call of S3 Batch Operations", _FUNCTION)
_OBJECT_LAMBDA = Unsupported("a call of S3 Object Lambda", _FUNCTION)
_QUEUE_OF_CLOUDFLARE = Unsupported(
    "an answer of Cloudflare's API to a pull from a queue", "post the body of each of its messages, decoded"
)
_VK_HANDSHAKE = Unsupported(
    "the handshake of VK Cloud",
    "its answer has to be a signature of the webhook's own URL. Let something before Bucketwire answer it once; the "
    "events that follow are accepted",
)
_OLD_RUSTFS = Unsupported("a RustFS of before December 2025", "its events lack the object's key. Update it")
_LOG_FILES = Unsupported(
    "AWS CloudTrail's message about a log file",
    "let the bucket of the log files itself send its events, by a notification configuration or EventBridge",
)
_SECURITY_LAKE = Unsupported(
    "a subscription of Amazon Security Lake, or another transformed event of EventBridge without detail-type",
    "nothing in it says what has happened. Let a rule of EventBridge for the source aws.s3 send the event as it is",
)
_SEAWEEDFS_394 = Unsupported("the webhook of SeaweedFS 3.94", "update the filer to 3.95 or newer")
FILER_WITHOUT_PATH = Unsupported(
    "a message of SeaweedFS's filer without the path of its object, as [notification.gocdk_pub_sub] sends it",
    "use [notification.webhook] or [notification.kafka]",
)
_EVENT_TYPES = {  # how their values of `eventType` or, in a CloudEvent, of `type` begin, in lower case
    "microsoft.": Unsupported("another service's event by Azure Event Grid", _OF_STORAGE.format("a storage account")),
    "com.oraclecloud.": Unsupported("another service's event of OCI", _OF_STORAGE.format("Object Storage")),
    "obs:": _OBS,
    "cos:": _COS,
    "oss:": _OSS,
    "com.ibm.cloud.cos.": _IBM,
    "yandex.cloud.": _YANDEX,
}
_STORAGE = ("Microsoft.Storage.", "com.oraclecloud.objectstorage.")
_MEMBERS = {"obs": _OBS, "cos": _COS, "oss": _OSS, "tos": _TOS}  # in place of a record's `s3`


def unsupported_service(value: Mapping[str, Any]) -> Unsupported | None:
    """Return which service made an object that no frontend has; None if that cannot be told."""
    inner = value.get("messages")
    return _service_of(inner[0] if isinstance(inner, list) and inner and isinstance(inner[0], dict) else value)


def _service_of(value: Mapping[str, Any]) -> Unsupported | None:
    for kind in (value.get("eventType"), value.get("type"), find(value, "event_metadata", "event_type")):
        if isinstance(kind, str) and kind.startswith(_STORAGE):
            return None
        for beginning, sender in _EVENT_TYPES.items():
            if isinstance(kind, str) and kind.lower().startswith(beginning):
                return sender
    for member, sender in _MEMBERS.items():
        if isinstance(value.get(member), dict):
            return sender
    source = optional_text(value, "eventSource")
    if source == "s3.amazonaws.com" or optional_text(value, "detail-type").endswith("via CloudTrail"):
        return _CLOUDTRAIL
    return _by_members(value)


def _by_members(value: Mapping[str, Any]) -> Unsupported | None:
    of_filer = optional_text(value, "key").startswith("/") and "event_type" not in value
    forms = (
        (isinstance(value.get("notification"), dict) and optional_text(value, "operation").startswith("Object:"), _IBM),
        ("topic_urn" in value, _OBS),
        ({"event_name", "key", "records"} <= value.keys(), _OLD_RUSTFS),
        ({"s3Bucket", "s3ObjectKey"} <= value.keys(), _LOG_FILES),
        (optional_text(value, "eventOrigin").startswith("bos:"), _BOS),
        ("protoPayload" in value, _GOOGLE_AUDIT),
        ({"trigger", "api", "deploymentid"} <= value.keys(), _MINIO_AUDIT),
        ({"invocationSchemaVersion", "tasks"} <= value.keys(), _BATCH),
        ({"getObjectContext", "userRequest"} <= value.keys(), _OBJECT_LAMBDA),
        (isinstance(find(value, "result", "messages"), list), _QUEUE_OF_CLOUDFLARE),
        ("Token" in value and "|" in optional_text(value, "TopicArn"), _VK_HANDSHAKE),
        (value.get("source") == "aws.s3" and "detail" in value and "detail-type" not in value, _SECURITY_LAKE),
        ({"TopicOwner", "TopicName"} <= value.keys(), _OSS),
        (of_filer and any(name.startswith("message") for name in value), _SEAWEEDFS_394),
    )
    return next((sender for is_its_form, sender in forms if is_its_form), None)
