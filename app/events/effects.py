"""How an event changes the bucket's content: an object was created, marked as deleted, removed, or nothing.

The supersede rule, the mirror policy and the reconciliation all use this one table, so that they cannot differ.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType

from app.events.names import KNOWN, family_of


class ContentChange(enum.Enum):
    """The change of an object's content."""

    NOTHING = "nothing"  # access, tags, locks, transitions, replication: the content is unchanged
    CREATED = "created"  # the version exists and is the newest
    DELETE_MARKER = "marked"  # a delete marker is on top; MinIO sends the same event for a marker's own removal (§1.1)
    REMOVED = "removed"  # the version was removed; without a version, or for the null version, the object
    ALL_DELETED = "emptied"  # every version was removed


NULL = "null"  # S3's name for the version of an object that was written without versioning

_CONTENT_CHANGES = {
    "s3:ObjectCreated:Put": ContentChange.CREATED,
    "s3:ObjectCreated:Post": ContentChange.CREATED,
    "s3:ObjectCreated:Copy": ContentChange.CREATED,
    "s3:ObjectCreated:CompleteMultipartUpload": ContentChange.CREATED,
    "s3:ObjectSynced:Create": ContentChange.CREATED,
    "s3:Replication:Create": ContentChange.CREATED,
    "s3:ObjectRemoved:DeleteMarkerCreated": ContentChange.DELETE_MARKER,
    "s3:LifecycleExpiration:DeleteMarkerCreated": ContentChange.DELETE_MARKER,
    "s3:ObjectSynced:DeletionMarkerCreated": ContentChange.DELETE_MARKER,
    "s3:Replication:DeletionMarkerCreated": ContentChange.DELETE_MARKER,
    # In a versioned bucket this adds a marker; in any other it removes the object, like a marker without a version.
    "s3:ObjectLifecycle:Expiration:Current": ContentChange.DELETE_MARKER,
    "s3:ObjectRemoved:Delete": ContentChange.REMOVED,
    "s3:LifecycleExpiration:Delete": ContentChange.REMOVED,
    "s3:ObjectSynced:Delete": ContentChange.REMOVED,
    "s3:Replication:Delete": ContentChange.REMOVED,
    "s3:ObjectLifecycle:Expiration:NonCurrent": ContentChange.REMOVED,
    "s3:ObjectLifecycle:Expiration:Noncurrent": ContentChange.REMOVED,
    "s3:ObjectRemoved:DeleteAllVersions": ContentChange.ALL_DELETED,
    "s3:LifecycleDelMarkerExpiration:Delete": ContentChange.ALL_DELETED,
    # Only a marker without a version beneath it expires, so nothing is left.
    "s3:ObjectLifecycle:Expiration:DeleteMarker": ContentChange.ALL_DELETED,
}

# What an unknown member of a family changes; in the other families it changes nothing.
OPEN_FAMILIES: Mapping[str, ContentChange] = MappingProxyType(
    {
        "s3:ObjectCreated:*": ContentChange.CREATED,
        "s3:ObjectRemoved:*": ContentChange.REMOVED,
        "s3:LifecycleExpiration:*": ContentChange.REMOVED,
    }
)
MARKER = "Marker"  # in the name of an unknown removal: a delete marker was added


def content_change(name: str) -> ContentChange:
    """Return how an event of this name changes the object's content; an unknown name has the effect of its family."""
    change = _CONTENT_CHANGES.get(name)
    if change is not None:
        return change
    return ContentChange.NOTHING if name in KNOWN else _change_of_unknown(name)


def _change_of_unknown(name: str) -> ContentChange:
    change = OPEN_FAMILIES.get(family_of(name), ContentChange.NOTHING)
    return ContentChange.DELETE_MARKER if change is ContentChange.REMOVED and MARKER in name else change


def names(*changes: ContentChange) -> list[str]:
    """Return the known names of the events with one of these changes, sorted."""
    return sorted(name for name, change in _CONTENT_CHANGES.items() if change in changes)


def selectors(*changes: ContentChange) -> list[str]:
    """Return the names of the events with one of these changes, and the aggregates of families whose unknown members
    may have one, for `app.outbox.log.reading.is_named`.
    """
    return names(*changes) + [family for family, change in OPEN_FAMILIES.items() if _may_be(change, changes)]


def _may_be(change: ContentChange, changes: tuple[ContentChange, ...]) -> bool:
    return change in changes or (change is ContentChange.REMOVED and ContentChange.DELETE_MARKER in changes)


def is_concrete(version: str) -> bool:
    """Return whether this is a version id that is never reused, unlike the null version."""
    return version not in {"", NULL}
