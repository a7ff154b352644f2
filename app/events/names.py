"""The event names of events and rules, and how an event of each changes the bucket's content.

The names are MinIO's (§1.1, §1.2), Ceph's (§12), those of AWS (§13), and our own. They are matched exactly and
case-sensitively (as MinIO: §1.1). Families are open: an event with an unknown name belongs to the family whose prefix
it has. One that belongs to none is accepted too; only a rule for `EVERY` matches it.

An event's object was created, marked as deleted, removed, or nothing of that. The supersede rule, the mirror policy and
the reconciliation all use this one table of changes, so that they cannot differ.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType

EVERY = "*"  # in a rule: every event, known or not


def _family(prefix: str, *members: str) -> tuple[str, ...]:
    return tuple(f"{prefix}:{member}" for member in members)


_ACCESSED = _family("s3:ObjectAccessed", "Get", "Head", "GetRetention", "GetLegalHold", "Attributes")
_CREATED = _family(
    "s3:ObjectCreated",
    "CompleteMultipartUpload",
    "Copy",
    "Post",
    "Put",
    "PutRetention",
    "PutLegalHold",
    "PutTagging",
    "DeleteTagging",
)
_REMOVED = _family("s3:ObjectRemoved", "Delete", "DeleteMarkerCreated", "NoOP", "DeleteAllVersions")
_REPLICATION = _family(
    "s3:Replication",
    "OperationFailedReplication",
    "OperationCompletedReplication",
    "OperationMissedThreshold",
    "OperationReplicatedAfterThreshold",
    "OperationNotTracked",
)
_RESTORE = _family("s3:ObjectRestore", "Post", "Completed")
_TRANSITION = _family("s3:ObjectTransition", "Failed", "Complete")
_SCANNER = _family("s3:Scanner", "ManyVersions", "LargeVersions", "BigPrefix")

# The events of MinIO. `:*` is part of the literal name of bucket events (§1.1); MinIO's guides write them without it.
MINIO: frozenset[str] = frozenset(
    (
        *_ACCESSED,
        *_CREATED,
        *_REMOVED,
        *_REPLICATION,
        *_RESTORE,
        *_TRANSITION,
        *_SCANNER,
        "s3:LifecycleDelMarkerExpiration:Delete",
        "s3:BucketCreated:*",
        "s3:BucketRemoved:*",
    )
)

_LIFECYCLES = ("Expiration", "Transition")
# Ceph's documentation and its code spell some names differently, and its notifications accept two names of a family.
_EXPIRATION = _family(
    "s3:ObjectLifecycle:Expiration",
    "Current",
    "NonCurrent",
    "Noncurrent",
    "DeleteMarker",
    "AbortMultipartUpload",
    "AbortMPU",
)
_LIFECYCLE_TRANSITION = _family("s3:ObjectLifecycle:Transition", "Current", "NonCurrent", "Noncurrent")
_SYNCED = tuple(
    name
    for prefix in ("s3:ObjectSynced", "s3:Replication")
    for name in _family(prefix, "Create", "Delete", "DeletionMarkerCreated")
)
CEPH: frozenset[str] = frozenset((*_EXPIRATION, *_LIFECYCLE_TRANSITION, *_SYNCED))

_EXPIRED = _family("s3:LifecycleExpiration", "Delete", "DeleteMarkerCreated")
_TAGGING = _family("s3:ObjectTagging", "Put", "Delete")
_ACL = _family("s3:ObjectAcl", "Put")
_ANNOTATION = _family("s3:ObjectAnnotation", "Put", "Delete")
AWS: frozenset[str] = frozenset(
    (
        *_EXPIRED,
        *_TAGGING,
        *_ACL,
        *_ANNOTATION,
        "s3:ObjectRestore:Delete",
        "s3:LifecycleTransition",
        "s3:IntelligentTiering",
        "s3:ReducedRedundancyLostObject",
    )
)

# The events about the service itself: `service_events`.
SERVICE: frozenset[str] = frozenset(
    _family(
        "bucketwire",
        "TargetUnavailable",
        "TargetAvailable",
        "TargetFailing",
        "TargetRecovered",
        "EventsDead",
        "BacklogHigh",
        "BacklogNormal",
        "DriftFound",
        "DrainResumed",
        "SourceUnavailable",
        "SourceAvailable",
        "MessagesLost",
    )
)

KNOWN: frozenset[str] = MINIO | CEPH | AWS | SERVICE | {"s3:BucketCreated", "s3:BucketRemoved"}

# As in MinIO (§1.2). In addition: the Scanner family, for which MinIO has no name, the families of Ceph and AWS, Ceph's
# replicated objects, and AWS's third restore name. `s3:LifecycleDelMarkerExpiration:Delete` belongs to none of them.
AGGREGATES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "s3:ObjectAccessed:*": frozenset(_ACCESSED),
        "s3:ObjectCreated:*": frozenset(_CREATED),
        "s3:ObjectRemoved:*": frozenset(_REMOVED),
        "s3:Replication:*": frozenset((*_REPLICATION, *_SYNCED)),
        "s3:ObjectRestore:*": frozenset((*_RESTORE, "s3:ObjectRestore:Delete")),
        "s3:ObjectTransition:*": frozenset(_TRANSITION),
        "s3:Scanner:*": frozenset(_SCANNER),
        "s3:ObjectLifecycle:*": frozenset((*_EXPIRATION, *_LIFECYCLE_TRANSITION)),
        "s3:ObjectLifecycle:Expiration:*": frozenset(_EXPIRATION),
        "s3:ObjectLifecycle:Transition:*": frozenset(_LIFECYCLE_TRANSITION),
        "s3:ObjectSynced:*": frozenset(_SYNCED),
        "s3:LifecycleExpiration:*": frozenset(_EXPIRED),
        "s3:ObjectTagging:*": frozenset(_TAGGING),
        "s3:ObjectAcl:*": frozenset(_ACL),
        "s3:ObjectAnnotation:*": frozenset(_ANNOTATION),
        "bucketwire:*": SERVICE,
    }
)

_CLOSED = frozenset(("bucketwire:*",))  # families of our own, which no sender extends
_PREFIXES: Mapping[str, str] = MappingProxyType(  # of each open family; the narrowest of nested families first
    {family[:-1]: family for family in sorted(AGGREGATES.keys() - _CLOSED, key=len, reverse=True)}
)
# `s3:Replication:*` has the members of Ceph's `s3:ObjectSynced` too.
_NESTED: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        family: frozenset(other for other in _PREFIXES.values() if other.startswith(family[:-1]))
        | (frozenset(("s3:ObjectSynced:*",)) if family == "s3:Replication:*" else frozenset())
        for family in _PREFIXES.values()
    }
)

# Names of one event: a rule for either gets both. The last one has a name that no event has once it is recorded.
_BOTH_SPELLINGS = {
    spelling: frozenset(spellings)
    for spellings in (
        *((name, f"{name}:*") for name in ("s3:BucketCreated", "s3:BucketRemoved")),
        *((f"s3:ObjectLifecycle:{kind}:NonCurrent", f"s3:ObjectLifecycle:{kind}:Noncurrent") for kind in _LIFECYCLES),
        ("s3:ObjectLifecycle:Expiration:AbortMultipartUpload", "s3:ObjectLifecycle:Expiration:AbortMPU"),
        *zip(_SYNCED[:3], _SYNCED[3:], strict=True),
    )
    for spelling in spellings
} | {"s3:ObjectRemoved:DeleteObjects": frozenset(("s3:ObjectRemoved:Delete",))}

# The words of `mc event add --event` (§1.2).
SHORTHANDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "put": ("s3:ObjectCreated:*",),
        "delete": ("s3:ObjectRemoved:*",),
        "get": ("s3:ObjectAccessed:*",),
        "replica": ("s3:Replication:*",),
        "ilm": ("s3:ObjectRestore:*", "s3:ObjectTransition:*"),
        "scanner": ("s3:Scanner:ManyVersions", "s3:Scanner:BigPrefix"),
    }
)


class UnknownEventName(ValueError):
    """No event and no family of events has this name; the message suggests the nearest name."""

    def __init__(self, name: str, nearest: str | None) -> None:
        self.name = name
        self.nearest = nearest
        hint = f"; did you mean {nearest}?" if nearest else "; write `*` for every event"
        super().__init__(f"{_shorten(name)} is not an event name{hint}")


def is_known(name: str) -> bool:
    """Return whether this is a known name of an event; aggregates and `EVERY` are not names of events."""
    return name in KNOWN


def expand(name: str) -> frozenset[str]:
    """Return the event names that a rule's name includes: itself, or the members of an aggregate.

    `EVERY` returns itself, because it includes unknown names. Either spelling of an event returns both. `mc`'s words
    are not names: see `shorthand`. Raises `UnknownEventName`.
    """
    if name == EVERY:
        return frozenset((EVERY,))
    members = AGGREGATES.get(name) or _BOTH_SPELLINGS.get(name)
    if members is not None:
        return members
    if name in KNOWN:
        return frozenset((name,))
    raise UnknownEventName(name, nearest(name))


def family_of(name: str) -> str:
    """Return the family of an event's name, known or not: the narrowest aggregate that it begins like; "" for none.

    What resends events may name one by its family alone, which is then its own.
    """
    return next((family for prefix, family in _PREFIXES.items() if name.startswith(prefix) and name != prefix), "")


def families(name: str) -> frozenset[str]:
    """Return the families whose unknown members a rule's name includes: an aggregate and those in it; none for others.

    Together with `expand`, which returns the known members, it says all that the name includes.
    """
    return _NESTED.get(name, frozenset())


def shorthand(word: str) -> tuple[str, ...]:
    """Return the names for a word of `mc event add`; any other text is returned unchecked."""
    return SHORTHANDS.get(word, (word,))


def nearest(name: str) -> str | None:
    """Return the name or aggregate that was probably meant, or None. `s3:` may be missing, the case may be wrong.

    For what is like a word of `mc event add`, which has no colon, it is the word with its names: where only names are
    accepted, these can be written.
    """
    if name == "s3:*":
        return EVERY
    import difflib  # noqa: PLC0415 - only for a mistake

    # Truncated, because the comparison takes quadratic time and the text is not trusted.
    folded = name[:64].casefold()
    if ":" not in folded and (words := difflib.get_close_matches(folded, SHORTHANDS, n=1, cutoff=0.6)):
        return f"{words[0]} ({', '.join(SHORTHANDS[words[0]])})"
    folded = folded if folded.startswith("s3:") else f"s3:{folded}"
    choices = {choice.casefold(): choice for choice in sorted(KNOWN | AGGREGATES.keys())}
    matches = difflib.get_close_matches(folded, choices, n=1, cutoff=0.6)
    return choices[matches[0]] if matches else None


def _shorten(name: str) -> str:
    return repr(name) if len(name) <= 80 else f"{name[:77]!r}…"


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


def names_with(*changes: ContentChange) -> list[str]:
    """Return the known names of the events with one of these changes, sorted."""
    return sorted(name for name, change in _CONTENT_CHANGES.items() if change in changes)


def selectors_with(*changes: ContentChange) -> list[str]:
    """Return the names of the events with one of these changes, and the aggregates of families whose unknown members
    may have one, for `app.outbox.log.reading.is_named`.
    """
    return names_with(*changes) + [family for family, change in OPEN_FAMILIES.items() if _may_be(change, changes)]


def _may_be(change: ContentChange, changes: tuple[ContentChange, ...]) -> bool:
    return change in changes or (change is ContentChange.REMOVED and ContentChange.DELETE_MARKER in changes)


def is_concrete(version: str) -> bool:
    """Return whether this is a version id that is never reused, unlike the null version."""
    return version not in {"", NULL}
