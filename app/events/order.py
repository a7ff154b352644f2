"""Order the events of an object, and derive what the bucket holds under a key from its known events.

Each frontend makes a hexadecimal value of whatever its events tell of their order. §1.7 compares such values as text,
padded on the right with zeros. Without the zeros at its end a value is comparable, which is the form that the outbox
stores. Values made of a time begin with its nanoseconds since 1970 in 16 digits, as MinIO's sequencers do. So events of
different frontends for one key, and repairs, are ordered by time. "" orders nothing: such an event is as new as its
arrival.

For the `mirror` policy of versioned keys every version and every delete marker is a layer, ordered by its sequencer,
and the topmost layer is the current content. Events are folded one by one into a state per version, so the cost of an
event does not depend on how many came before it. Because removals name their version, late and repeated events are
harmless. All functions are pure.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.events import minio_json
from app.events.errors import BadRecord, excerpt
from app.events.names import NULL, ContentChange, content_change, is_concrete

_HEX = re.compile("[0-9A-F]+")
_FRACTION = re.compile(r"\.([0-9]{1,9})")
MAX_SEQUENCER_CHARACTERS = 64  # characters, as the outbox's column
_DIGITS = 16  # of nanoseconds since 1970, until the year 2554
_NANOSECONDS = 10**9
_WIDTHS = (20, 36, 64)  # of values that follow another one: a time, a time and a counter, anything


def comparable(sequencer: str) -> str:
    """Return a value in its comparable form; "" if it is not hexadecimal. It is idempotent."""
    upper = sequencer.upper()
    return upper.rstrip("0") if _HEX.fullmatch(upper) else ""


def from_time(nanoseconds: int, rest: str = "") -> str:
    """Return the value of a time (since 1970); `rest`, in hexadecimal, orders what has the same time.

    A time after 2554 is the last of that year, and the value has at most 64 digits, which the outbox can store.
    """
    return f"{min(nanoseconds, 16**_DIGITS - 1):0{_DIGITS}X}{rest}"[:MAX_SEQUENCER_CHARACTERS]


def following(value: str) -> str:
    """Return a value just above a comparable one, and below every later time."""
    width = next(width for width in _WIDTHS if len(value) <= width)
    last = "F" * width
    return last if value == last else f"{int(value.ljust(width, '0'), 16) + 1:0{width}X}"


def is_time_of(value: str, other: str) -> bool:
    """Return whether a comparable value was made of a listing's time, and the other one may be the whole of that time.

    Such a time has milliseconds or seconds, and a place that is just above another one has more digits than a time.
    """
    if not value or not other:
        return False
    begin, time = (int(one[:_DIGITS].ljust(_DIGITS, "0"), 16) for one in (value, other))
    if len(value) > _DIGITS:
        begin -= begin % _NANOSECONDS
    width = next((width for width in (_NANOSECONDS, 10**6) if begin % width == 0), 0)
    return begin <= time < begin + width


def nanoseconds(moment: object) -> int | None:
    """Parse an RFC 3339 time with up to 9 decimals to nanoseconds since 1970; None if it is none."""
    if not isinstance(moment, str):
        return None
    milliseconds = minio_json.milliseconds(moment)
    if milliseconds is None:
        return None
    fraction = _FRACTION.search(moment)
    return milliseconds // 1000 * _NANOSECONDS + (int(fraction[1].ljust(9, "0")) if fraction else 0)


def sequencer_of(record: Mapping[str, Any]) -> str:
    """Return the record's sequencer, "" without one. Raises `BadRecord` if it is no text, or too long.

    A number counts as none: VK Cloud sends seconds, NooBaa a count, and neither orders the events of a key.
    """
    try:
        sequencer = record["s3"]["object"]["sequencer"]
    except (KeyError, TypeError):
        return ""
    if sequencer is None or type(sequencer) is int:
        return ""
    if type(sequencer) is not str or len(sequencer) > MAX_SEQUENCER_CHARACTERS or "\0" in sequencer:
        limit = f" of at most {MAX_SEQUENCER_CHARACTERS} characters, none of them U+0000" if sequencer else ""
        raise BadRecord("s3.object.sequencer", f"is {excerpt(sequencer)}; it must be text, or left out{limit}")
    return sequencer


def states_content(name: str, version: str) -> bool:
    """Return whether the event determines the key's current content, so that it supersedes older events.

    Access, tags and locks do not, nor does the removal of a concrete version, which need not be the newest.
    """
    change = content_change(name)
    if change is ContentChange.REMOVED:
        return not is_concrete(version)
    return change is not ContentChange.NOTHING


@dataclass(frozen=True, slots=True)
class Entry:
    """One event of the key's history; `seq` is its position in the log, `sequencer` is as sent or comparable.

    `hides_older` is whether what is older than its version is hidden once that was removed (`frontends.registry`).
    """

    seq: int
    name: str
    version: str
    sequencer: str
    hides_older: bool = False


@dataclass(frozen=True, slots=True)
class Present:
    """The bucket contains the object that the entry with this seq created."""

    seq: int


@dataclass(frozen=True, slots=True)
class Absent:
    """The bucket contains nothing under the key, or a delete marker."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The events that would decide it are not in the history."""


Holding = Present | Absent | Unknown
Place = tuple[str, int, int]  # sequencer, rank, seq: the position of an entry in the key's history


@dataclass(frozen=True, slots=True)
class Layer:
    """An object, or the absence of one, on top of older layers."""

    place: Place
    is_object: bool


@dataclass(frozen=True, slots=True)
class VersionState:
    """The folded events of one version. Each field only grows, so repeated events change nothing."""

    created: Place | None = None  # of its newest creation
    removed: Place | None = None  # of its newest removal
    marked_first: Place | None = None
    marked_last: Place | None = None
    marked_sequencer: str = ""  # the sequencer of an event that named it as a marker
    undeleted: bool = False  # named as a marker with two sequencers: the marker itself was removed (§1.1)

    def layer(self, version: str) -> Layer | None:
        """Return the version's current layer; None if it was removed or never created.

        The removal of a concrete version removes its layer, whenever it is recorded, because a version id is never
        reused. The null version exists once, as object or marker, so its newest event decides.
        """
        if version == NULL:
            newest = max(filter(None, (self.created, self.removed, self.marked_last)), default=None)
            return None if newest is None or newest == self.removed else Layer(newest, newest == self.created)
        if self.removed is not None:
            return None
        if self.created is not None:
            return Layer(self.created, is_object=True)
        if self.marked_first is not None and not self.undeleted:
            return Layer(self.marked_first, is_object=False)
        return None

    def unexplained(self, version: str) -> bool:
        """Return whether the version was removed but its creation is not known."""
        creation_known = self.created is not None or (version != NULL and self.marked_first is not None)
        return self.removed is not None and not creation_known

    def after(self, change: ContentChange, place: Place, sequencer: str) -> "VersionState":
        """Return the state after one more event."""
        if change is ContentChange.CREATED:
            return replace(self, created=_later(self.created, place))
        if change is ContentChange.REMOVED:
            return replace(self, removed=_later(self.removed, place))
        known = self.marked_sequencer or sequencer
        is_repeat = is_time_of(known, sequencer) or is_time_of(sequencer, known)
        return replace(
            self,
            marked_first=place if self.marked_first is None else min(self.marked_first, place),
            marked_last=_later(self.marked_last, place),
            marked_sequencer=sequencer if is_time_of(known, sequencer) else known,
            undeleted=self.undeleted or not (sequencer in {"", known} or is_repeat),
        )


@dataclass(slots=True)
class KeyState:
    """The folded events of one key, apart from the states of its versions."""

    folded: int = -1  # every event of the key up to this seq is folded
    latest: str = ""  # the greatest sequencer
    cover: Place | None = None  # everything older than this is permanently removed or covered
    created: bool = False  # the creation of some version is known
    unexplained: int = 0  # removed versions whose creation is not known
    trimmed: bool = False  # the oldest layers are no longer known

    def holding(self, top: Layer | None) -> Holding:
        """Return the bucket's content, from the topmost of all layers and the cover.

        If no layer is left, it is `Unknown` if the creation of a removed version is not known: there may be others.
        """
        if top is not None:
            return Present(top.place[2]) if top.is_object else Absent()
        explained = self.created and not self.unexplained and not self.trimmed
        return Absent() if explained else Unknown()


class Fold:
    """Fold events of one key, in order of seq, into its state.

    `versions` has the states of the versions that the events name; other versions are not needed. Events that are
    already folded are skipped. `moved` is whether any event was new; `changed` names the versions whose state changed.

    * A creation is a layer; creating a version again, or the null version, replaces its layer.
    * A marker is a layer without object. If its version is named again with a newer sequencer, the marker itself was
      removed (as MinIO: §1.1); with the same sequencer it is a repeat (§1.7), as is one that a listing found, with the
      listing's time of it.
    * A version that Ceph's lifecycle expires hides everything older: it was removed, or got a marker on top. So does a
      removed one in Cloud Storage, where no version ever becomes the newest again.
    * A removal without version, the removal of all versions, and a marker without its own version (Ceph names the
      version beneath, §12.2) cover everything older.
    """

    def __init__(self, key: KeyState | None = None, versions: Mapping[str, VersionState] | None = None) -> None:
        self.key = KeyState() if key is None else key
        self.versions = dict(versions or {})
        self.changed: set[str] = set()
        self.moved = False

    def add(self, entries: Iterable[Entry]) -> None:
        """Fold more events."""
        for entry in entries:
            change = content_change(entry.name)
            if change is not ContentChange.NOTHING and entry.seq > self.key.folded:
                self._add(entry, change)

    def _add(self, entry: Entry, change: ContentChange) -> None:
        key = self.key
        sequencer = comparable(entry.sequencer)
        key.folded = entry.seq
        self.moved = True
        key.latest = max(key.latest, sequencer)
        place = (sequencer or key.latest, _rank(change, sequencer), entry.seq)
        version = version_of(entry)
        if not version or change is ContentChange.ALL_DELETED:
            key.cover = _later(key.cover, place)
            return
        before = self.versions.get(version, VersionState())
        after = before.after(change, place, sequencer)
        if is_concrete(version) and after.created is not None and after.marked_last is not None:
            key.cover = _later(key.cover, after.marked_last)
        if entry.hides_older and is_concrete(version) and after.created is not None and after.removed is not None:
            key.cover = _later(key.cover, after.created)
        key.created |= after.created is not None
        key.unexplained += after.unexplained(version) - before.unexplained(version)
        if after != before:
            self.versions[version] = after
            self.changed.add(version)

    def top(self) -> Layer | None:
        """Return the topmost of the cover and the layers of `versions`."""
        layers = [state.layer(version) for version, state in self.versions.items()]
        if self.key.cover is not None:
            layers.append(Layer(self.key.cover, is_object=False))
        return max((layer for layer in layers if layer is not None), key=lambda layer: layer.place, default=None)


def version_of(entry: Entry) -> str:
    """Return the version that an event concerns: the null version for a creation without version, "" for the key."""
    return entry.version or (NULL if content_change(entry.name) is ContentChange.CREATED else "")


def _later(first: Place | None, second: Place) -> Place:
    return second if first is None else max(first, second)


def _rank(change: ContentChange, sequencer: str) -> int:
    """Return the order of events with equal sequencers: a removal may carry the created object's sequencer.

    A marker is a version of its own. It and an object with equal sequencers, whose sender may have but one, are ordered
    by seq, as are events without a sequencer.
    """
    if not sequencer:
        return 2
    return 0 if change in (ContentChange.CREATED, ContentChange.DELETE_MARKER) else 1
