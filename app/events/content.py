"""What an event says of the bucket's content: something came, a delete marker came, something went, or nothing.

The one table that supersede rule, mirror and reconcile read, so that they cannot differ.
"""

import enum


class Says(enum.Enum):
    """What became of the object."""

    NOTHING = "nothing"  # access, tags, locks, transitions, replication: the content is as it was
    CREATED = "created"  # the version is there, and is the newest
    MARKED = "marked"  # a delete marker came on top; MinIO says the same of a marker's own removal (§1.1)
    REMOVED = "removed"  # the version is gone; without a version, or in the null version's place, the object
    EMPTIED = "emptied"  # every version is gone


NULL = "null"  # S3's name for the version of an object that was written without versioning

_SAYS = {
    "s3:ObjectCreated:Put": Says.CREATED,
    "s3:ObjectCreated:Post": Says.CREATED,
    "s3:ObjectCreated:Copy": Says.CREATED,
    "s3:ObjectCreated:CompleteMultipartUpload": Says.CREATED,
    "s3:ObjectSynced:Create": Says.CREATED,
    "s3:ObjectRemoved:DeleteMarkerCreated": Says.MARKED,
    "s3:LifecycleExpiration:DeleteMarkerCreated": Says.MARKED,
    "s3:ObjectSynced:DeletionMarkerCreated": Says.MARKED,
    # In a versioned bucket this puts a marker on top, in any other the object goes: a marker without a version.
    "s3:ObjectLifecycle:Expiration:Current": Says.MARKED,
    "s3:ObjectRemoved:Delete": Says.REMOVED,
    "s3:LifecycleExpiration:Delete": Says.REMOVED,
    "s3:ObjectSynced:Delete": Says.REMOVED,
    "s3:ObjectLifecycle:Expiration:NonCurrent": Says.REMOVED,
    "s3:ObjectRemoved:DeleteAllVersions": Says.EMPTIED,
    "s3:LifecycleDelMarkerExpiration:Delete": Says.EMPTIED,
    # Only a marker with no version beneath it expires, so nothing is left.
    "s3:ObjectLifecycle:Expiration:DeleteMarker": Says.EMPTIED,
}


def says(name: str) -> Says:
    """What an event of this name says of its object; of an unknown name, nothing."""
    return _SAYS.get(name, Says.NOTHING)


def names(*wanted: Says) -> list[str]:
    """The names of the events that say one of these, sorted."""
    return sorted(name for name, said in _SAYS.items() if said in wanted)


def is_concrete(version: str) -> bool:
    """Whether the version is one of several that an object may have, and its name never used again."""
    return version not in {"", NULL}
