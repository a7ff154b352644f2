"""What an event says of the bucket's content: something came, a delete marker came, something went, or nothing.

The one table that supersede rule, mirror and reconcile read, so that they cannot differ.
"""

import enum


class ContentChange(enum.Enum):
    """What became of the object."""

    NOTHING = "nothing"  # access, tags, locks, transitions, replication: the content is as it was
    CREATED = "created"  # the version is there, and is the newest
    DELETE_MARKER = "marked"  # a delete marker came on top; MinIO says the same of a marker's own removal (§1.1)
    REMOVED = "removed"  # the version is gone; without a version, or in the null version's place, the object
    ALL_DELETED = "emptied"  # every version is gone


NULL = "null"  # S3's name for the version of an object that was written without versioning

_CONTENT_CHANGES = {
    "s3:ObjectCreated:Put": ContentChange.CREATED,
    "s3:ObjectCreated:Post": ContentChange.CREATED,
    "s3:ObjectCreated:Copy": ContentChange.CREATED,
    "s3:ObjectCreated:CompleteMultipartUpload": ContentChange.CREATED,
    "s3:ObjectSynced:Create": ContentChange.CREATED,
    "s3:ObjectRemoved:DeleteMarkerCreated": ContentChange.DELETE_MARKER,
    "s3:LifecycleExpiration:DeleteMarkerCreated": ContentChange.DELETE_MARKER,
    "s3:ObjectSynced:DeletionMarkerCreated": ContentChange.DELETE_MARKER,
    # In a versioned bucket this puts a marker on top, in any other the object goes: a marker without a version.
    "s3:ObjectLifecycle:Expiration:Current": ContentChange.DELETE_MARKER,
    "s3:ObjectRemoved:Delete": ContentChange.REMOVED,
    "s3:LifecycleExpiration:Delete": ContentChange.REMOVED,
    "s3:ObjectSynced:Delete": ContentChange.REMOVED,
    "s3:ObjectLifecycle:Expiration:NonCurrent": ContentChange.REMOVED,
    "s3:ObjectRemoved:DeleteAllVersions": ContentChange.ALL_DELETED,
    "s3:LifecycleDelMarkerExpiration:Delete": ContentChange.ALL_DELETED,
    # Only a marker with no version beneath it expires, so nothing is left.
    "s3:ObjectLifecycle:Expiration:DeleteMarker": ContentChange.ALL_DELETED,
}


def content_change(name: str) -> ContentChange:
    """What an event of this name says of its object; of an unknown name, nothing."""
    return _CONTENT_CHANGES.get(name, ContentChange.NOTHING)


def names(*wanted: ContentChange) -> list[str]:
    """The names of the events that say one of these, sorted."""
    return sorted(name for name, said in _CONTENT_CHANGES.items() if said in wanted)


def is_concrete(version: str) -> bool:
    """Whether the version is one of several that an object may have, and its name never used again."""
    return version not in {"", NULL}
