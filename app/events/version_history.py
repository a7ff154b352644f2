"""What the bucket holds under one key, from the events that are known of it: the `mirror` policy on versioned keys.

Pure. Every version and every delete marker is a layer at the place that its sequencer gives it, and the layer on top
is what the bucket holds. The knowledge is folded event by event and kept per version, so that the cost of an event does
not depend on how many came before it; that removals name their version makes late and repeated events harmless.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from app.events.effects import NULL, ContentChange, content_change, is_concrete
from app.events.sequencer import comparable


@dataclass(frozen=True, slots=True)
class Entry:
    """One event of the key's history; `seq` is its place in the log, `sequencer` as sent or comparable."""

    seq: int
    name: str
    version: str
    sequencer: str


@dataclass(frozen=True, slots=True)
class Present:
    """The bucket holds the object that the entry with this seq created."""

    seq: int


@dataclass(frozen=True, slots=True)
class Absent:
    """The bucket holds nothing under the key, or a delete marker."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The events that would tell are not in the history."""


Holding = Present | Absent | Unknown
Place = tuple[str, int, int]  # sequencer, rank, seq: where in the key's life an entry belongs


@dataclass(frozen=True, slots=True)
class Layer:
    """Something that lies on what is older: an object, or the absence of one."""

    place: Place
    is_object: bool


@dataclass(frozen=True, slots=True)
class VersionState:
    """Everything that the events of one version amount to. Each field only grows, so repeats change nothing."""

    created: Place | None = None  # of its newest creation
    removed: Place | None = None  # of its newest removal
    marked_first: Place | None = None
    marked_last: Place | None = None
    marked_sequencer: str = ""  # one that a mention as a marker carried
    undeleted: bool = False  # mentioned as a marker with two sequencers: the marker was itself removed (§1.1)

    def layer(self, version: str) -> Layer | None:
        """The layer that the version is now; None if it is gone or was never more than a name.

        Removing a concrete version takes its layer away, whenever that is recorded: its name is never used again. Of
        the null version there is one at a time, object or marker, so the newest event of it counts.
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
        """Whether the version is gone but was never seen to come."""
        came = self.created is not None or (version != NULL and self.marked_first is not None)
        return self.removed is not None and not came

    def after(self, change: ContentChange, place: Place, sequencer: str) -> "VersionState":
        """What it amounts to with one event more."""
        if change is ContentChange.CREATED:
            return replace(self, created=_later(self.created, place))
        if change is ContentChange.REMOVED:
            return replace(self, removed=_later(self.removed, place))
        return replace(
            self,
            marked_first=place if self.marked_first is None else min(self.marked_first, place),
            marked_last=_later(self.marked_last, place),
            marked_sequencer=self.marked_sequencer or sequencer,
            undeleted=self.undeleted or sequencer not in {"", self.marked_sequencer or sequencer},
        )


@dataclass(slots=True)
class KeyState:
    """What the events of one key amount to, apart from those of its single versions."""

    folded: int = -1  # every event of the key up to this seq is folded
    latest: str = ""  # greatest sequencer of all
    cover: Place | None = None  # whatever is older than this is gone or covered for good
    created: bool = False  # some version was seen to come
    unexplained: int = 0  # versions that are gone and were never seen to come
    trimmed: bool = False  # the oldest layers are no longer known

    def holding(self, top: Layer | None) -> Holding:
        """What the bucket holds, by the topmost of all layers and the cover.

        Where nothing is left, the answer is `Unknown` if what is gone was never seen to come: there may be more.
        """
        if top is not None:
            return Present(top.place[2]) if top.is_object else Absent()
        explained = self.created and not self.unexplained and not self.trimmed
        return Absent() if explained else Unknown()


class Fold:
    """Fold events of one key, in order of seq, into what is known of it.

    `versions` holds the state of the versions that the events name; of others nothing needs to be known. Events that
    are folded already are passed over. `moved` is whether there were others; `changed` names the versions whose state
    is another than before.

    * A creation is a layer; creating a version again, or the null version, replaces its layer.
    * A marker is a layer without object. Its version named again with a newer sequencer means that the marker was
      itself removed (as MinIO: §1.1); with the same sequencer it is a repeat (§1.7).
    * A removal without version, all versions' removal, and a marker without a version of its own (Ceph names the
      version beneath, §12.2) cover all that was before.
    """

    def __init__(self, key: KeyState | None = None, versions: Mapping[str, VersionState] | None = None) -> None:
        self.key = KeyState() if key is None else key
        self.versions = dict(versions or {})
        self.changed: set[str] = set()
        self.moved = False

    def add(self, entries: Iterable[Entry]) -> None:
        """Fold these, too."""
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
        key.created |= after.created is not None
        key.unexplained += after.unexplained(version) - before.unexplained(version)
        if after != before:
            self.versions[version] = after
            self.changed.add(version)

    def top(self) -> Layer | None:
        """The topmost of the cover and the layers of `versions`."""
        layers = [state.layer(version) for version, state in self.versions.items()]
        if self.key.cover is not None:
            layers.append(Layer(self.key.cover, is_object=False))
        return max((layer for layer in layers if layer is not None), key=lambda layer: layer.place, default=None)


def version_of(entry: Entry) -> str:
    """The version that an event is about: an object without version is the null version; "" where it is the key."""
    return entry.version or (NULL if content_change(entry.name) is ContentChange.CREATED else "")


def _later(one: Place | None, other: Place) -> Place:
    return other if one is None else max(one, other)


def _rank(change: ContentChange, sequencer: str) -> int:
    """The order at one sequencer: what removes an object may carry the object's own, what has none came as it came."""
    if not sequencer:
        return 2
    return 0 if change is ContentChange.CREATED else 1
