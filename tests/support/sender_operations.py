"""What is done at a real frontend, whose events must leave a mirror that is equal to the bucket.

The sender contract does it at each frontend, `make test-all`; `python -m tests.services.capture` keeps the bodies that
the frontend sends meanwhile, which `make test` replays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import botocore.exceptions  # type: ignore[import-untyped]  # ships no types
import httpx

from tests import services
from tests.services.server_process import until

LONGEST = f"{'/'.join(['é' * 100] * 5)}/{'z' * 19}"  # 1,024 bytes, of which no file's name has more than 255
HOSTILE = [
    "a.txt", "folder/with space/b  c.txt", "plus+sign+.txt", "percent%20literal%2Bx%.txt", "quotes\"'`and<&>.txt",
    "emoji-🎉-日本語-é.txt", "decomposed-e\u0301", "%2F", "k" * 200, "semi;colon=x&y", "a/.uploads", "x.versions/v_1",
    "_leading", "line\nbreak", " spaces ", "two//slashes", "in/.uploads/x", "in.versions/x", "--all", LONGEST,
]  # fmt: skip
REFUSES = {"garage": (LONGEST,), "minio": ("two//slashes",)}  # keys; Garage's database has none of over 511 bytes
Operation = Callable[["Buckets"], str]
PART = 5 << 20  # bytes, the least that S3 takes as a part
AGAIN = 5  # objects of a bucket at most that are put again
LIFECYCLE = 120  # seconds until what has expired is gone


class Store(Protocol):
    """A real store, as far as the operations need one."""

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str: ...

    @property
    def access_key(self) -> str: ...

    @property
    def secret_key(self) -> str: ...

    def boto3(self) -> Any: ...

    def notify_of(self, bucket: str) -> None: ...

    def restart(self) -> None: ...


@dataclass
class Buckets:
    """The buckets of a sender. `many` is how often an operation is repeated, each time with other keys."""

    sender: Store
    s3: Any
    many: int
    wait: Callable[[], None]  # until what was done so far has arrived

    def bucket(self, *, versioned: bool = False) -> str:
        """Make a bucket whose events are sent."""
        bucket = f"b-{uuid4().hex[:12]}"
        self.s3.create_bucket(Bucket=bucket)
        if versioned:
            self.keep_versions(bucket)
        self.sender.notify_of(bucket)
        return bucket

    def keep_versions(self, bucket: str, status: str = "Enabled") -> None:
        self.s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": status})

    def put(self, bucket: str, key: str, content: str | bytes = b"x") -> str:
        """Put an object, and return its version."""
        version = self.s3.put_object(Bucket=bucket, Key=key, Body=content).get("VersionId", "")
        assert isinstance(version, str)
        return version

    def delete(self, bucket: str, key: str, **version: str) -> str:
        """Delete an object or one version of it, and return the marker's version."""
        marker = self.s3.delete_object(Bucket=bucket, Key=key, **version).get("VersionId", "")
        assert isinstance(marker, str)
        return marker

    def multipart(self, bucket: str, key: str) -> tuple[str, list[dict[str, Any]]]:
        """Upload two parts, and return the upload with what would complete it."""
        upload = self.s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
        parts = []
        for number, content in enumerate((bytes(PART), b"end"), 1):
            part = {"Bucket": bucket, "Key": key, "UploadId": upload, "PartNumber": number}
            parts.append({"PartNumber": number, "ETag": self.s3.upload_part(**part, Body=content)["ETag"]})
        return upload, parts

    def complete(self, bucket: str, key: str) -> None:
        upload, parts = self.multipart(bucket, key)
        self.s3.complete_multipart_upload(Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts})

    def file(self, method: str, bucket: str, path: str, content: bytes | None = None, **params: str) -> None:
        """Change a file of a bucket where SeaweedFS keeps it, beside the S3 API."""
        assert isinstance(self.sender, services.SeaweedFS)
        url = f"http://{services.LOOPBACK}:{self.sender.filer_port}/buckets/{bucket}/{path}"
        files = None if content is None else {"file": content}
        answer = httpx.request(method, url, params=params, files=files, trust_env=False)
        assert answer.is_success, f"{answer.status_code} {answer.text}"

    def cannot(self, operation: Operation) -> str:
        """Why the sender cannot do it; "" where it can."""
        return CANNOT.get((self.sender.name, operation.__name__), "")

    def listed(self, bucket: str) -> dict[str, dict[str, Any]]:
        """The newest version of each object, by key, as the bucket lists it."""
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return {one["Key"]: one for page in pages for one in page.get("Contents", ())}


def hostile_keys(at: Buckets) -> str:
    bucket = at.bucket()
    for key in HOSTILE:
        if key not in REFUSES.get(at.sender.name, ()):
            at.put(bucket, key)
    return bucket


def overwrite(at: Buckets) -> str:
    bucket = at.bucket()
    for number in range(at.many):
        for content in ("one", "two", "three"):
            at.put(bucket, f"k{number}", f"{content} {number}")
    return bucket


def overwrite_in_other_ways(at: Buckets) -> str:
    bucket = at.bucket()
    at.put(bucket, "from", "content")
    for key in ("parts", "copy", "put"):
        at.put(bucket, key, "first")
        at.complete(bucket, key)
    at.s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "from"})
    at.put(bucket, "put", "last")
    return bucket


def delete(at: Buckets) -> str:
    bucket = at.bucket()
    for number in range(at.many):
        at.put(bucket, f"k{number}")
        at.delete(bucket, f"k{number}")
        if number % 2:
            at.put(bucket, f"k{number}", f"again {number}")
        at.delete(bucket, f"never-there-{number}")
    return bucket


def delete_many(at: Buckets) -> str:
    bucket = at.bucket()
    keys = [f"a+b %2F/k{number}" for number in range(at.many)]
    for key in keys:
        at.put(bucket, key)
    at.s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys[::2]]})
    at.put(bucket, keys[0], "again")
    return bucket


def copy(at: Buckets) -> str:
    bucket = at.bucket()
    at.put(bucket, "from", "content")
    for key in ("to", "to+there/with space"):
        at.s3.copy_object(Bucket=bucket, Key=key, CopySource={"Bucket": bucket, "Key": "from"})
    return bucket


def copy_onto_itself(at: Buckets) -> str:
    """New metadata, and after it new content."""
    bucket = at.bucket()
    for key in ("same", "other"):
        at.put(bucket, key, "content")
        itself = {"CopySource": {"Bucket": bucket, "Key": key}, "MetadataDirective": "REPLACE"}
        at.s3.copy_object(Bucket=bucket, Key=key, **itself, Metadata={"colour": "red"}, ContentType="text/plain")
    at.put(bucket, "other", "changed")
    return bucket


def multipart(at: Buckets) -> str:
    bucket = at.bucket()
    at.complete(bucket, "parts")
    return bucket


def complete_again(at: Buckets) -> str:
    """A client completes an upload once more, when something else was put already."""
    bucket = at.bucket()
    upload, parts = at.multipart(bucket, "parts")
    done = {"Bucket": bucket, "Key": "parts", "UploadId": upload, "MultipartUpload": {"Parts": parts}}
    at.s3.complete_multipart_upload(**done)
    at.put(bucket, "parts", "changed")
    with contextlib.suppress(botocore.exceptions.ClientError):
        at.s3.complete_multipart_upload(**done)
    return bucket


def multipart_versions(at: Buckets) -> str:
    bucket = at.bucket(versioned=True)
    at.put(bucket, "parts", "first")
    at.complete(bucket, "parts")
    at.put(bucket, "hidden", "first")
    at.complete(bucket, "hidden")
    at.delete(bucket, "hidden")
    return bucket


def abort(at: Buckets) -> str:
    """Abort an upload of what exists, and of what does not."""
    bucket = at.bucket()
    at.put(bucket, "kept")
    for key in ("kept", "never"):
        upload, _ = at.multipart(bucket, key)
        at.s3.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload)
    return bucket


def form_post(at: Buckets) -> str:
    bucket = at.bucket()
    form = at.s3.generate_presigned_post(bucket, "posted + form")
    answer = httpx.post(form["url"], data=form["fields"], files={"file": b"posted"}, trust_env=False)
    assert answer.is_success, f"{answer.status_code} {answer.text}"
    return bucket


def tagging(at: Buckets) -> str:
    bucket = at.bucket()
    at.put(bucket, "tagged")
    at.s3.put_object_tagging(Bucket=bucket, Key="tagged", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    at.s3.delete_object_tagging(Bucket=bucket, Key="tagged")
    return bucket


def folders(at: Buckets) -> str:
    """Keys that end with a slash, and what is below them."""
    bucket = at.bucket()
    for folder in ("empty/", "full/", "emptied/", "deleted/"):
        at.put(bucket, folder, b"")
    for key in ("full/one", "emptied/one", "deleted/one", "without/one", "without/two/three"):
        at.put(bucket, key)
    for key in ("emptied/one", "deleted/", "without/two/three"):
        at.delete(bucket, key)
    return bucket


def below_a_key(at: Buckets) -> str:
    """Keys that begin with the key of another object and a slash, written before and after it."""
    bucket = at.bucket()
    for key in ("first", "first/one", "last/one", "last", "slash/", "slash"):
        at.put(bucket, key, f"one {key}")
    for key in ("hidden", "hidden/one", "alone", "alone/one"):
        at.put(bucket, key, f"one {key}")
    for key in ("first", "last", "last/one"):
        at.put(bucket, key, f"two {key}")
    for key in ("hidden", "alone/one", "alone"):
        at.delete(bucket, key)
    return bucket


def versions(at: Buckets) -> str:
    bucket = at.bucket(versioned=True)
    oldest, newest = {}, {}
    for key in ("kept", "older", "newest", "hidden", "shown"):
        oldest[key] = at.put(bucket, key, f"one {key}")
        newest[key] = at.put(bucket, key, f"two {key}")
    at.delete(bucket, "newest", VersionId=newest["newest"])
    at.delete(bucket, "hidden")
    at.delete(bucket, "older", VersionId=oldest["older"])
    marker = at.delete(bucket, "shown")
    at.delete(bucket, "shown", VersionId=marker)
    return bucket


def markers(at: Buckets) -> str:
    """Markers on markers, an object on a marker, and everything deleted for good."""
    bucket = at.bucket(versioned=True)
    for key in ("twice", "again", "gone"):
        at.put(bucket, key, f"one {key}")
        at.delete(bucket, key)
    at.delete(bucket, "twice")
    at.put(bucket, "again", "two")
    found = at.s3.list_object_versions(Bucket=bucket, Prefix="gone")
    for one in [*found.get("Versions", ()), *found.get("DeleteMarkers", ())]:
        at.delete(bucket, "gone", VersionId=one["VersionId"])
    return bucket


def null_versions(at: Buckets) -> str:
    """Objects from before their bucket had versions, and from after they were suspended."""
    bucket = at.bucket()
    for key in ("before", "replaced", "hidden", "suspended", "back"):
        at.put(bucket, key, f"before {key}")
    at.wait()  # such an object is known to a mirror only if its event is recorded before that of its first version
    at.keep_versions(bucket)
    version = {key: at.put(bucket, key, f"version of {key}") for key in ("replaced", "suspended", "back")}
    at.delete(bucket, "hidden")
    at.delete(bucket, "back", VersionId=version["back"])
    at.keep_versions(bucket, "Suspended")
    at.put(bucket, "suspended", "after")
    at.put(bucket, "after", "after")
    return bucket


def delete_many_versions(at: Buckets) -> str:
    bucket = at.bucket(versioned=True)
    version = {}
    for key in ("hidden", "newest", "kept"):
        at.put(bucket, key, f"one {key}")
        version[key] = at.put(bucket, key, f"two {key}")
    things = [{"Key": "hidden"}, {"Key": "newest", "VersionId": version["newest"]}]
    at.s3.delete_objects(Bucket=bucket, Delete={"Objects": things})
    return bucket


def expire(at: Buckets) -> str:
    """A lifecycle removes an object; that of SeaweedFS counts in days, but its files may have minutes to live."""
    bucket = at.bucket()
    at.put(bucket, "kept/one")
    if isinstance(at.sender, services.SeaweedFS):
        at.file("POST", bucket, "expires/one", b"x", ttl="1m")
        until(lambda: "expires/one" not in at.listed(bucket), LIFECYCLE, what="the file expires")
    else:
        at.put(bucket, "expires/one")
        _expire(at, bucket)
    return bucket


def expire_versions(at: Buckets) -> str:
    """A lifecycle hides an object."""
    bucket = at.bucket(versioned=True)
    at.put(bucket, "kept/one")
    for content in ("one", "two"):
        at.put(bucket, "expires/one", content)
    _expire(at, bucket)
    return bucket


def _expire(at: Buckets, bucket: str) -> None:
    rule = {"ID": "expire", "Filter": {"Prefix": "expires/"}, "Status": "Enabled", "Expiration": {"Days": 1}}
    at.s3.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
    until(lambda: "expires/one" not in at.listed(bucket), LIFECYCLE, what="the object expires")


def rename(at: Buckets) -> str:
    bucket = at.bucket()
    at.put(bucket, "old", "moved")
    at.put(bucket, "taken", "replaced")
    at.put(bucket, "back", "there and back")
    for source, place in (("old", "new"), ("new", "taken"), ("back", "forth"), ("forth", "back")):
        at.file("POST", bucket, place, **{"mv.from": f"/buckets/{bucket}/{source}"})
    at.put(bucket, "old", "new content")
    return bucket


def rename_folder(at: Buckets) -> str:
    bucket = at.bucket()
    for number in range(at.many):
        at.put(bucket, f"from/k{number}", f"content {number}")
    at.put(bucket, "from/below/one")
    at.put(bucket, "stays")
    at.file("POST", bucket, "to", **{"mv.from": f"/buckets/{bucket}/from"})
    at.put(bucket, "from/k0", "new content")
    return bucket


def delete_folder(at: Buckets) -> str:
    bucket = at.bucket()
    for key in ("gone/one", "gone/two", "gone/below/three", "stays"):
        at.put(bucket, key)
    at.file("DELETE", bucket, "gone", recursive="true")
    return bucket


def append(at: Buckets) -> str:
    """A file that is written part by part, which a mount does too."""
    bucket = at.bucket()
    for number, content in enumerate((b"one", b"two", bytes(100_000))):
        at.file("POST", bucket, "appended", content, **({"op": "append"} if number else {}))
    at.file("POST", bucket, "begun", b"one", op="append")
    return bucket


def rename_versions(at: Buckets) -> str:
    """A folder whose files have versions, one of them hidden by a marker."""
    bucket = at.bucket(versioned=True)
    for key in ("from/kept", "from/hidden", "from/removed"):
        for content in ("one", "two", "three"):
            newest = at.put(bucket, key, f"{content} {key}")
    at.delete(bucket, "from/hidden")
    at.delete(bucket, "from/removed", VersionId=newest)
    at.file("POST", bucket, "to", **{"mv.from": f"/buckets/{bucket}/from"})
    at.put(bucket, "from/kept", "new content")
    return bucket


def restart(at: Buckets) -> str:
    """The sender is stopped and started between two changes of its objects."""
    bucket = at.bucket()
    for key in ("overwritten", "deleted"):
        at.put(bucket, key, "before")
    at.wait()
    at.sender.restart()
    at.put(bucket, "overwritten", "after")
    at.delete(bucket, "deleted")
    return bucket


def at_once(at: Buckets) -> str:
    """Several clients change the same keys."""
    bucket = at.bucket()

    def change(number: int) -> None:
        key = f"k{number % 4}"
        with contextlib.suppress(botocore.exceptions.ClientError):  # what is refused changes nothing
            at.delete(bucket, key) if number % 3 == 2 else at.put(bucket, key, str(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(change, range(at.many * 4)))
    return bucket


OPERATIONS: tuple[Operation, ...] = (
    hostile_keys, overwrite, overwrite_in_other_ways, delete, delete_many, copy, copy_onto_itself, multipart,
    complete_again, multipart_versions, abort, form_post, tagging, folders, below_a_key,
    versions, markers, null_versions, delete_many_versions, expire, expire_versions,
    rename, rename_folder, rename_versions, delete_folder, append, at_once, restart,
)  # fmt: skip


def again(at: Buckets, bucket: str) -> None:
    """Put some of its objects anew, which is the next that happens to them."""
    for key in sorted(at.listed(bucket))[:AGAIN]:
        at.put(bucket, key, "" if key.endswith("/") else f"again {key}")


class Loss(NamedTuple):
    """What a sender's events do not tell, whoever receives them, and how the mirror therefore ends.

    `drift` is what a reconciliation finds, by key: missing, stale or orphaned, and the size where only that is stale.
    Of these it leaves the rows of `unlisted` objects, which the storage has, although it does not list them.
    """

    reason: str
    drift: Mapping[str, str]
    unlisted: Collection[str] = ()

    @property
    def left(self) -> Mapping[str, str]:
        """The drift that is left by a repair."""
        return {key: self.drift[key] for key in self.unlisted}


_ABORTS = "RGW 16.2 aborts in DeleteObjects when a notification matches"
_NO_FILES = "S3 has no files to rename or append to, and no folders to delete"
_NO_VERSIONS = "it keeps no versions"
_OF_VERSIONS = (
    "versions", "markers", "null_versions", "multipart_versions", "delete_many_versions", "expire_versions",
)  # fmt: skip
_OF_FILES = ("rename", "rename_folder", "rename_versions", "delete_folder", "append")
CANNOT: Mapping[tuple[str, str], str] = {
    ("ceph", "delete_many"): _ABORTS,
    ("ceph", "delete_many_versions"): _ABORTS,
    ("seaweedfs", "expire_versions"): "its lifecycle counts in days",
    ("versity", "below_a_key"): "a file of its folder cannot be a folder as well",
    ("versity", "expire"): "it has no lifecycle",
    ("versity", "expire_versions"): "it has no lifecycle",
    ("garage", "expire"): "its lifecycle counts in days",
    ("garage", "tagging"): "it keeps no tags",
    ("minio", "expire"): "its lifecycle counts in days",
    ("minio", "expire_versions"): "its lifecycle counts in days",
    **{(name, operation): _NO_FILES for name in ("ceph", "garage", "minio", "versity") for operation in _OF_FILES},
    **{("garage", operation): _NO_VERSIONS for operation in _OF_VERSIONS},
}
_NO_SIZE = "the event of a copy or of a multipart upload has size 0"
_NO_VERSION = "an event of a put or of a removal has no version id, so each removal removes the row"
_NO_LIFECYCLE = "RGW 16.2 has no events of a lifecycle"
LOSES: Mapping[tuple[str, str], Loss] = {
    ("ceph", "tagging"): Loss(
        "RGW 16.2 lists an object with an empty ETag after its tags were changed; the mirror has it",
        {"tagged": "stale"},
    ),
    ("ceph", "multipart_versions"): Loss(
        "the event of a completed upload lacks its version id, which a reconciliation finds stale", {}
    ),
    ("ceph", "versions"): Loss(
        "the event of a delete marker lacks its version id, so its removal restores nothing", {"shown": "missing"}
    ),
    ("ceph", "expire"): Loss(_NO_LIFECYCLE, {"expires/one": "orphaned"}),
    ("ceph", "expire_versions"): Loss(_NO_LIFECYCLE, {"expires/one": "orphaned"}),
    ("seaweedfs", "hostile_keys"): Loss(
        "a folder .uploads or one that ends with .versions is not listed, and a file v_… in the latter is a version",
        {"x": "missing", "x.versions/v_1": "orphaned", "in.versions/x": "orphaned", "in/.uploads/x": "orphaned"},
        unlisted=("x.versions/v_1", "in.versions/x", "in/.uploads/x"),
    ),
    ("seaweedfs", "expire"): Loss("a file whose time to live is over has no message", {"expires/one": "orphaned"}),
    ("seaweedfs-4.15", "below_a_key"): Loss(
        "a folder's key is gone once the key without slash is put", {"slash/": "orphaned"}
    ),
    ("seaweedfs-4.15", "null_versions"): Loss(
        "it lists what is from before the versions as the newest", {"hidden": "missing", "replaced": "stale"}
    ),
    ("seaweedfs-4.15", "rename"): Loss(
        "a file that is renamed there and back has the same message as when it was written", {"back": "missing"}
    ),
    ("seaweedfs-4.15", "rename_versions"): Loss(
        "versions of one second come in any order", {"to/kept": "stale", "to/hidden": "orphaned", "to/removed": "stale"}
    ),
    ("versity", "hostile_keys"): Loss(
        "its event has the key as it was sent, the folder of its files the path that this is",
        {"two//slashes": "orphaned", "two/slashes": "missing"},
    ),
    ("versity", "overwrite_in_other_ways"): Loss(_NO_SIZE, {"parts": "size", "copy": "size"}),
    ("versity", "copy"): Loss(_NO_SIZE, {"to": "size", "to+there/with space": "size"}),
    ("versity", "copy_onto_itself"): Loss(_NO_SIZE, {"same": "size"}),
    ("versity", "multipart"): Loss(_NO_SIZE, {"parts": "size"}),
    ("versity", "complete_again"): Loss(
        "it answers 200 for what it has completed already, changes nothing, and sends the event once more",
        {"parts": "stale"},
    ),
    ("versity", "multipart_versions"): Loss(_NO_SIZE, {"parts": "size"}),
    ("versity", "form_post"): Loss("its event has no key", {"posted + form": "missing"}),
    ("versity", "versions"): Loss(_NO_VERSION, {"older": "missing", "newest": "missing", "shown": "missing"}),
    ("versity", "null_versions"): Loss(_NO_VERSION, {"back": "missing"}),
    ("versity", "delete_many_versions"): Loss(
        "only DeleteObjects names a version, and nothing says whether that was the newest", {"newest": "stale"}
    ),
}


def drift(rows: Mapping[str, tuple[str, int]], listing: Mapping[str, tuple[str, int]]) -> dict[str, str]:
    """How rows differ from objects, each an ETag and a size, by key, in the words of `Loss.drift`."""
    kinds = {}
    for key in rows.keys() | listing.keys():
        row, thing = rows.get(key), listing.get(key)
        if row is None or thing is None:
            kinds[key] = "missing" if row is None else "orphaned"
        elif row != thing:
            kinds[key] = "size" if row[0] == thing[0] else "stale"
    return kinds
