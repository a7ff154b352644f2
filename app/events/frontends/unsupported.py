"""Name the services that post events of object storage in a form that is not accepted, and what to do instead."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from app.events.frontends.json_path import find, optional_text


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


def service(value: Mapping[str, Any]) -> Unsupported | None:
    """Return which service made an object that no frontend has; None if that cannot be told."""
    inner = value.get("messages")
    return _service(inner[0] if isinstance(inner, list) and inner and isinstance(inner[0], dict) else value)


def _service(value: Mapping[str, Any]) -> Unsupported | None:
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
