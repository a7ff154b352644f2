"""A model bucket whose operations are sent as each frontend sends them, down to what it cannot tell."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any
from urllib.parse import quote, quote_plus

Message = dict[str, Any]
_START = 1795549401 * 10**9  # ns
_UPGRADED_AT = 30  # the number of an operation in the middle of a bucket's life
_HOSTILE = ["plain", "a b", "a+b", "100%", "x%41", "größe/ü", "q?x=1&y", "pct%2Fslash", "a<b>", "tilde~*()"]


@dataclass(frozen=True)
class Operation:
    """One operation. `old` is the content that it replaces or removes, with the time at which it came to be."""

    kind: str  # put, delete, marker, delete version, rename
    key: str
    time: int
    number: int
    content: str = ""
    version: str = ""
    old: tuple[str, int] | None = None
    new_key: str = ""


@dataclass
class ModelBucket:
    """Keys with a life of their own. `tick` is the shortest time (ns) between operations."""

    name: str
    rng: Random
    versioned: bool
    tick: int
    renames: bool = False
    removes_markers: bool = True
    uncovers: bool = True  # whether the removal of the newest version makes the one beneath the newest
    keys: int = 4
    _stacks: dict[str, list[Operation]] = field(default_factory=dict)
    _now: int = _START
    _number: int = 0

    def contents(self) -> dict[str, str]:
        """What the bucket holds, as key to content."""
        return {key: top.content for key, top in self.listing().items()}

    def listing(self) -> dict[str, Operation]:
        """The newest version of each object, as the operation that made it."""
        tops = {key: stack[-1] for key, stack in self._stacks.items() if stack}
        return {key: top for key, top in tops.items() if top.kind != "marker"}

    def wait(self, seconds: int) -> int:
        """Nothing happens for a while; return the time in milliseconds since 1970."""
        self._now += seconds * 10**9
        return self._now // 10**6

    def next(self) -> Operation:
        """Something happens to some key."""
        self._now += self.tick + (self.rng.randrange(10**9) if self.rng.random() < 0.5 else self.rng.randrange(300))
        self._number += 1
        key = f"{_HOSTILE[self.rng.randrange(len(_HOSTILE))]}-{self.rng.randrange(self.keys)}"
        stack = self._stacks.setdefault(key, [])
        return self._versioned(key, stack) if self.versioned else self._unversioned(key, stack)

    def _unversioned(self, key: str, stack: list[Operation]) -> Operation:
        old = (stack[-1].content, stack[-1].time) if stack else None
        choice = self.rng.random()
        if not stack or choice < 0.55:
            made = self._operation("put", key, content=self._content(), old=old)
            stack[:] = [made]
            return made
        if self.renames and choice < 0.7:
            new_key = f"{key}-renamed"
            renamed = self._operation("rename", key, content=stack[-1].content, old=old, new_key=new_key)
            stack.clear()
            self._stacks[new_key] = [renamed]
            return renamed
        stack.clear()
        return self._operation("delete", key, old=old)

    def _versioned(self, key: str, stack: list[Operation]) -> Operation:
        choice = self.rng.random()
        if not stack or choice < 0.5:
            stack.append(self._operation("put", key, content=self._content(), version=f"{self._number:032x}"))
            return stack[-1]
        if stack[-1].kind != "marker" and choice < 0.7:
            stack.append(self._operation("marker", key, version=f"{self._number:032x}"))
            return stack[-1]
        removable = [one for one in stack if one.kind != "marker" or self.removes_markers]
        if not removable:
            stack.append(self._operation("put", key, content=self._content(), version=f"{self._number:032x}"))
            return stack[-1]
        gone = self.rng.choice(removable)
        if not self.uncovers and gone is stack[-1]:
            stack.append(self._operation("marker", key))  # which nobody reports
        stack.remove(gone)
        kind = "delete marker" if gone.kind == "marker" else "delete version"
        return self._operation(kind, key, version=gone.version, old=(gone.content, gone.time))

    def _operation(self, kind: str, key: str, **members: Any) -> Operation:
        return Operation(kind, key, self._now, self._number, **members)

    def _content(self) -> str:
        return f"{self._number:032x}"


def _text(time: int, decimals: int) -> str:
    moment = datetime.fromtimestamp(time // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{time % 10**9:09d}"[: 20 + decimals].rstrip(".") + "Z"


_NAMES = {
    "put": "ObjectCreated:Put",
    "delete": "ObjectRemoved:Delete",
    "marker": "ObjectRemoved:DeleteMarkerCreated",
    "delete version": "ObjectRemoved:Delete",
    "delete marker": "ObjectRemoved:Delete",
}


def _record(bucket: str, operation: Operation, source: str, **members: Any) -> Message:
    thing: Message = {"key": operation.key, "size": 1, "eTag": operation.content, "versionId": operation.version}
    thing |= members.pop("thing")
    return {
        "eventVersion": "2.2",
        "eventSource": source,
        "awsRegion": "",
        "eventTime": _text(operation.time, 3),
        "eventName": _NAMES.get(operation.kind, ""),
        "responseElements": {"x-amz-request-id": str(operation.number)},
        "s3": {"s3SchemaVersion": "1.0", "configurationId": "n1", "bucket": {"name": bucket}, "object": thing},
    } | members


def minio(bucket: str, operation: Operation) -> list[Message]:
    """A removed marker has the name of its creation."""
    name = f"s3:{_NAMES['marker' if operation.kind == 'delete marker' else operation.kind]}"
    thing = {"key": quote_plus(operation.key, safe=""), "sequencer": f"{operation.time:X}"}
    record = _record(bucket, operation, "minio:s3", thing=thing, eventName=name)
    return [{"EventName": name, "Key": f"{bucket}/{operation.key}", "Records": [record]}]


def upgraded_minio(bucket: str, operation: Operation) -> list[Message]:
    """Up to October 2023 the sequencer is the time at which the event was made, a moment after the change."""
    [message] = minio(bucket, operation)
    if operation.number < _UPGRADED_AT:
        message["Records"][0]["s3"]["object"]["sequencer"] = f"{operation.time + operation.number * 7919 % 10**6:X}"
    return [message]


def rustfs(bucket: str, operation: Operation) -> list[Message]:
    """Keys are encoded in another way."""
    thing = {"key": quote(operation.key, safe="*-_.").replace("%20", "+"), "sequencer": f"{operation.time:X}"}
    name = f"s3:{_NAMES[operation.kind]}"
    record = _record(bucket, operation, "rustfs:s3", thing=thing, eventName=name)
    return [{"EventName": name, "Key": f"{bucket}/{operation.key}", "Records": [record]}]


def aws(bucket: str, operation: Operation) -> list[Message]:
    """An opaque sequencer, which begins with seconds."""
    fraction = (operation.time % 10**9 << 32) // 10**9
    thing = {
        "key": quote_plus(operation.key, safe="/"),
        "sequencer": f"{operation.time // 10**9:010X}{fraction:08X}",
    }
    return [{"Records": [_record(bucket, operation, "aws:s3", thing=thing)]}]


def ceph(bucket: str, operation: Operation) -> list[Message]:
    """The sequencer is the dump of a time; a marker's event does not name it."""
    seconds, rest = divmod(operation.time, 10**9)
    thing: Message = {"sequencer": struct.pack("<II", seconds, rest).hex().upper()}
    if operation.kind == "marker":
        thing["versionId"] = ""
    event_id = f"{seconds}.{rest // 1000:06d}.{operation.content}"
    return [
        {
            "Records": [
                _record(
                    bucket, operation, "ceph:s3", thing=thing, eventTime=_text(operation.time - 5 * 10**6, 6),
                    eventId=event_id,
                )
            ]
        }
    ]  # fmt: skip


def versity(bucket: str, operation: Operation) -> list[Message]:
    """Seconds, and a counter that begins anew when the gateway does: here every fourth second."""
    counter = operation.number % 1000 + operation.time // 10**9 % 4 * 7
    thing = {
        "eTag": f'"{operation.content}"' if operation.content else None,
        "versionId": None,
        "sequencer": f"{counter:X}",
    }
    many = operation.kind == "delete" and operation.number % 2
    name = f"s3:{_NAMES[operation.kind]}{'Objects' if many else ''}"
    record = _record(bucket, operation, "aws:s3", thing=thing, eventName=name, eventTime=_text(operation.time, 0))
    record["s3"]["configurationId"] = "webhook-global"
    return [{"Records": [record]}]


def noobaa(bucket: str, operation: Operation) -> list[Message]:
    """A number of the database's, which orders nothing."""
    thing = {"sequencer": (operation.number * 7919) % 1000}
    return [{"Records": [_record(bucket, operation, "noobaa:s3", thing=thing, eventVersion="2.3")]}]


def noobaa_on_files(bucket: str, operation: Operation) -> list[Message]:
    """Milliseconds in hexadecimal."""
    thing = {"sequencer": f"{operation.time // 10**6:x}"}
    return [{"Records": [_record(bucket, operation, "host-7:s3", thing=thing, eventVersion="2.3")]}]


def _entry(name: str, content: str, committed: int, **extended: str) -> Message:
    return {
        "name": name,
        "chunks": [{"size": 1, "modified_ts_ns": committed - 1000}],
        "attributes": {"mtime": committed // 10**9, "file_size": 1, "mime": "text/plain"},
        "extended": {
            key.replace("_", "-"): base64.b64encode(value.encode()).decode()
            for key, value in {"Seaweed_X_Amz_ETag": content, **extended}.items()
            if value
        },
        "commit_ts_ns": committed,
    }


def seaweedfs(bucket: str, operation: Operation) -> list[Message]:
    """Changes of files; a deletion has the time of what it deleted, a rename is preceded by one of its new name."""
    key = operation.key
    extended: dict[str, str] = {}
    if operation.version:
        key = f"{key}.versions/v_{operation.version}"
        is_marker = operation.kind in ("marker", "delete marker")
        extended = {"Seaweed_X_Amz_Version_Id": operation.version}
        extended |= {"Seaweed_X_Amz_Delete_Marker": "true"} if is_marker else {}
    folder, _, name = f"/buckets/{bucket}/{key}".rpartition("/")
    old = _entry(name, *operation.old, **extended) if operation.old is not None else None
    new = _entry(name, operation.content, operation.time, **extended)
    message: Message
    if operation.kind in ("put", "marker"):
        kind = "update" if old else "create"
        message = {"new_entry": new, "new_parent_path": folder} | ({"old_entry": old} if old else {})
    elif operation.kind == "rename":
        kind = "rename"
        new["name"] = operation.new_key.rpartition("/")[2]
        new["attributes"] = old["attributes"] if old else {}
        message = {"old_entry": old, "new_entry": new, "new_parent_path": folder}
    else:
        kind, message = "delete", {"old_entry": old}
    return [{"event_type": kind, "key": f"{folder}/{name}", "message": message}]


def seaweedfs_until_4_17(bucket: str, operation: Operation) -> list[Message]:
    """The same, of seconds, with one label for all changes of an entry, and versions that get their id later."""
    sent = seaweedfs(bucket, operation)
    for message in sent:
        entries = [entry for name in ("old_entry", "new_entry") if (entry := message["message"].get(name))]
        for entry in entries:
            del entry["commit_ts_ns"]
        if len(entries) > 1:
            message["event_type"] = "rename"
    [last] = sent
    if not operation.version or "new_entry" not in last["message"]:
        return sent
    named = last["message"]["new_entry"]
    # The marker of a removal and the id of a version are there with the second message.
    bare = named | {"extended": {}}
    first = last | {"event_type": "create", "message": last["message"] | {"new_entry": bare}}
    second = last | {"event_type": "rename", "message": last["message"] | {"old_entry": bare}}
    return [first, second]


def scality(bucket: str, operation: Operation) -> list[Message]:
    """Raw keys, sizes as text, and no order."""
    thing = {"size": "1", "sequencer": None, "versionId": operation.version or None}
    name = f"s3:{_NAMES[operation.kind]}"
    return [{"Records": [_record(bucket, operation, "scality:s3", thing=thing, eventName=name)]}]


def storj(bucket: str, operation: Operation) -> list[Message]:
    """Raw keys, and the time of the commit."""
    return [{"Records": [_record(bucket, operation, "storj:s3", thing={"sequencer": f"{operation.time:016X}"})]}]


def localstack(bucket: str, operation: Operation) -> list[Message]:
    """One sequencer for all."""
    thing = {"key": quote_plus(operation.key, safe="/"), "sequencer": "0055AED6DCD90281E5"}
    record = _record(bucket, operation, "aws:s3", thing=thing)
    record["s3"]["bucket"]["ownerIdentity"] = {"principalId": "A3NL1KOZZKExample"}
    return [{"Records": [record]}]


def ozone(bucket: str, operation: Operation) -> list[Message]:
    """Raw keys with the volume and the bucket before them; a rename is one event."""
    before = f"s3v/{bucket}/"
    members: Message = {"eventTime": _text(operation.time, 9), "ozoneEventData": {"trxLogIndex": operation.number}}
    thing: Message = {"key": before + operation.key}
    if operation.kind == "rename":
        thing = {"key": before + operation.new_key}
        members["eventName"] = "ObjectRenamed:Rename"
        members["ozoneEventData"]["renameFromKey"] = before + operation.key
    return [{"Records": [_record(bucket, operation, "ozone:s3", thing=thing, **members)]}]


def gcs(bucket: str, operation: Operation) -> list[Message]:
    """Generations are microseconds; what replaces an object says which it was, and what was replaced says by which."""

    def message(kind: str, generation: int, **attributes: str) -> Message:
        content = operation.old[0] if operation.old and kind == "OBJECT_DELETE" else operation.content
        resource = {
            "kind": "storage#object", "name": operation.key, "bucket": bucket, "generation": str(generation),
            "metageneration": "1", "size": "1", "md5Hash": base64.b64encode(bytes.fromhex(content)).decode(),
        }  # fmt: skip
        attributes |= {
            "eventType": kind, "bucketId": bucket, "objectId": operation.key, "objectGeneration": str(generation),
            "eventTime": _text(operation.time, 6),
        }  # fmt: skip
        data = base64.b64encode(json.dumps(resource).encode()).decode()
        return {"message": {"attributes": attributes, "data": data, "messageId": "1"}, "subscription": "s"}

    generation, former = operation.time // 1000, operation.old[1] // 1000 if operation.old else 0
    if operation.kind == "put":
        made = [message("OBJECT_FINALIZE", generation)]
        replaced = {"overwrittenByGeneration": str(generation)}
        return made + ([message("OBJECT_DELETE", former, **replaced)] if former else [])
    if operation.kind == "marker":
        return [message("OBJECT_ARCHIVE", generation - 1)]
    return [message("OBJECT_DELETE", former)]


def azure(bucket: str, operation: Operation) -> list[Message]:
    """Two schemas; a sequencer orders the events of a blob."""
    kind = "BlobCreated" if operation.kind == "put" else "BlobDeleted"
    subject = f"/blobServices/default/containers/{bucket}/blobs/{operation.key}"
    data = {"api": "PutBlob", "contentLength": 1, "eTag": operation.content, "sequencer": f"{operation.number:032X}"}
    event: Message = {"id": str(operation.number), "subject": subject, "data": data}
    if operation.number % 2:
        return [event | {"eventType": f"Microsoft.Storage.{kind}", "eventTime": _text(operation.time, 7)}]
    return [event | {"type": f"Microsoft.Storage.{kind}", "time": _text(operation.time, 7), "specversion": "1.0"}]


def b2(bucket: str, operation: Operation) -> list[Message]:
    """Milliseconds; every bucket has versions, and there are no ETags."""
    kinds = {"put": "ObjectCreated:Upload", "marker": "HideMarkerCreated:Hide", "delete": "HideMarkerCreated:Hide"}
    event = {
        "eventType": f"b2:{kinds.get(operation.kind, 'ObjectDeleted:Delete')}",
        "bucketName": bucket,
        "objectName": operation.key,
        "objectSize": 1,
        "objectVersionId": operation.version or f"{operation.number:032x}",
        "eventTimestamp": operation.time // 10**6,
    }
    return [{"events": [event]}]


def r2(bucket: str, operation: Operation) -> list[Message]:
    """Milliseconds."""
    action = "PutObject" if operation.kind == "put" else "DeleteObject"
    thing = {"key": operation.key, "size": 1, "eTag": operation.content}
    return [
        {"account": "a", "action": action, "bucket": bucket, "object": thing, "eventTime": _text(operation.time, 3)}
    ]


def tigris(bucket: str, operation: Operation) -> list[Message]:
    """Milliseconds."""
    name = "OBJECT_CREATED_PUT" if operation.kind == "put" else "OBJECT_DELETED"
    thing = {"key": operation.key, "size": 1, "eTag": operation.content}
    event = {"eventSource": "tigris", "eventName": name, "bucket": bucket, "object": thing}
    return [{"events": [event | {"eventTime": _text(operation.time, 3)}]}]


def oci(bucket: str, operation: Operation) -> list[Message]:
    """Seconds."""
    kind = "createobject" if operation.kind == "put" else "deleteobject"
    details = {"bucketName": bucket, "eTag": operation.content, "namespace": "n"}
    data = {"resourceName": operation.key, "additionalDetails": details}
    event = {"eventType": f"com.oraclecloud.objectstorage.{kind}", "eventID": str(operation.number), "data": data}
    return [event | {"eventTime": _text(operation.time, 0)}]


@dataclass(frozen=True)
class Sender:
    """How a frontend sends, and in which order its events may arrive."""

    messages: Callable[[str, Operation], list[Message]]
    versioned: bool = True
    shuffles: bool = True
    tick: int = 1
    renames: bool = False
    removes_markers: bool = True
    uncovers: bool = True


SENDERS = {
    "minio": Sender(minio),
    "rustfs": Sender(rustfs),
    "aws": Sender(aws, tick=1),
    # The removal of a marker that was never named cannot be told from that of a version.
    "ceph": Sender(ceph, removes_markers=False),
    "versity": Sender(versity, versioned=False),
    "noobaa": Sender(noobaa, shuffles=False),
    "noobaa on files": Sender(noobaa_on_files, tick=10**6),
    "seaweedfs": Sender(seaweedfs, renames=True),
}
# Those whose records are read by the code of others, in another combination.
RARE_SENDERS = {
    "minio upgraded": Sender(upgraded_minio, tick=10**6),
    "scality": Sender(scality, shuffles=False),
    "storj": Sender(storj),
    "localstack": Sender(localstack, shuffles=False),
    "ozone": Sender(ozone, versioned=False, renames=True),
    "gcs": Sender(gcs, tick=1000, removes_markers=False, uncovers=False),
    "azure": Sender(azure, versioned=False),
    "b2": Sender(b2, tick=10**6),
    "r2": Sender(r2, versioned=False, tick=10**6),
    "tigris": Sender(tigris, versioned=False, tick=10**6),
    "oci": Sender(oci, versioned=False, shuffles=False),
    "seaweedfs until 4.17": Sender(seaweedfs_until_4_17, shuffles=False, renames=True),
}
