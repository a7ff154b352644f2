"""Decide which differences between a bucket and what is known of it become events: pure functions, for one key a time.

What is known of a key are its `Entry`s, one for each version, or one without a version. A difference that the event
log explains makes no event: the log's events of the key lead to what the listing shows. Any other is noted with the
listing that found it, and becomes an event once a listing that began a grace period later finds it unexplained, so
that a sender has the time to report it. An event is made of a difference once, because the entry changes with it.

An object without a version is one state, of which the newest event decides. So nothing is decided about it while the
log has events of its key that were recorded after the listing began: the listing may be older than they are. A version
is never changed, so that only its own events decide about it.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from app.events import minio_json
from app.events.model import Event, by_listing
from app.events.names import NULL, is_concrete
from app.events.order import Entry as LogEntry
from app.events.order import Fold, Layer, comparable, from_time
from app.events.own_events import (
    CLOCK_SKEW,
    DELETE,
    MARKED,
    creation_name,
    object_members,
    own_record,
    place_of_time,
    sequencer,
    time_of_removal,
)

WATCH_SOURCE = "bucketwire:watch"  # the `eventSource` of what was found
FOUND_BY, LISTED_AT = "x-bucketwire-found-by", "x-bucketwire-listed-at"  # members that say how
_NANOSECONDS = 1_000_000  # in a millisecond
_SECOND = 1000  # ms


class Content(NamedTuple):
    """What is under a key, or is a version of it. `modified` is in milliseconds since 1970."""

    etag: str
    size: int
    modified: int
    is_marker: bool = False

    def is_same(self, other: "Content | None") -> bool:
        """Return whether both are the same; not every answer of a server has fractions of a second."""
        return (
            other is not None
            and (self.etag, self.size, self.is_marker) == (other.etag, other.size, other.is_marker)
            and self.modified // _SECOND == other.modified // _SECOND
        )


class Listed(NamedTuple):
    """An entry of a listing. `version` is "" if the bucket has none, and `null` for the version without an id."""

    key: str
    version: str
    content: Content
    is_latest: bool = True


class Pending(NamedTuple):
    """A difference that is not decided yet: what a listing has found, None for nothing.

    The listing `began` and `ended` then (ms), and the log had events up to `seq` when it began.
    """

    content: Content | None
    began: int
    ended: int
    seq: int


class Entry(NamedTuple):
    """What is known of a key or of one version of it; `known` is None if nothing was there."""

    key: str
    version: str
    known: Content | None
    pending: Pending | None = None


class LoggedEvent(NamedTuple):
    """An event of the log that changes its key's content.

    `etag` and `size` are None if its record has none; an event that no object is `compared_with` needs none.
    """

    entry: LogEntry
    time: int
    etag: str | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One comparison. The listing `began` and `ended` then (ms); the log had events up to `seq` when it began.

    The seq is of an `epoch` of the log: if another one begins meanwhile, the outbox is an older state of itself.

    With `remembers` everything is taken as it is. With `is_first` an object that is older than `grace` (ms) is not
    listed once more before it becomes an event. With `by_backfill` an object that a backfill has sent to some target is
    explained, too. `name` is that of what has listed, as TYPE:NAME. The store's clock is
    `behind` (ms): its later events have times from then on.
    """

    bucket: str
    name: str
    began: int
    ended: int
    seq: int
    grace: int = 0
    versioned: bool = False
    remembers: bool = False
    is_first: bool = False
    by_backfill: bool = False
    behind: int = 0
    epoch: str = ""

    def at_store(self, moment: int) -> int:
        """Return what the store's clock showed at a time (ms)."""
        return moment - self.behind


@dataclass(slots=True)
class Counts:
    """How many objects a listing has, and what became of the differences.

    Of those `removed`, `unseen` ones were never listed: only the log knew them. Of the `pending` ones, `going` are not
    listed any more.
    """

    objects: int = 0
    known: int = 0
    explained: int = 0
    pending: int = 0
    created: int = 0
    changed: int = 0
    removed: int = 0
    unseen: int = 0
    going: int = 0

    def add(self, other: "Counts") -> None:
        """Add the counts of others."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def less(self, other: "Counts") -> "Counts":
        """Return these counts less others."""
        return Counts(*(getattr(self, name) - getattr(other, name) for name in self.__slots__))


@dataclass(slots=True)
class Decided:
    """What is known of some keys from now on, and the events of what was found, each with its key's in order."""

    entries: list[Entry] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)


class _History:
    """Where the log's events of a key lead to, as a mirror would find."""

    def __init__(self, logged: Sequence[LoggedEvent]) -> None:
        self._events = {one.entry.seq: one for one in logged}
        self._last = {one.entry.version: one.entry.seq for one in logged}
        self._fold = Fold()
        self._fold.add(one.entry for one in logged)

    @property
    def latest(self) -> str:
        """The greatest sequencer."""
        return self._fold.key.latest

    def last_seq(self, version: str) -> int:
        """Return the seq of the last event that decides about a version: of one without an id, any of the key's."""
        return self._last.get(version, 0) if is_concrete(version) else max(self._events, default=0)

    def tells_of(self, version: str) -> bool:
        """Return whether any event decides about a version."""
        return _identity(version) in self._fold.versions or self._fold.key.cover is not None

    def is_over(self, version: str) -> bool:
        """Return whether a version was removed for good: no event makes it anew, whatever a listing shows."""
        state = self._fold.versions.get(version)
        return is_concrete(version) and state is not None and state.removed is not None

    def present(self) -> set[str]:
        """Return the versions that are there by the log: objects, and markers with an id."""
        layers = {version: self._layer(version) for version in self._fold.versions}
        return {each for each, layer in layers.items() if layer and (layer.is_object or is_concrete(each))}

    def sequencer_of(self, version: str) -> str:
        """Return the one of a version that is there, "" if it is not."""
        layer = self._layer(_identity(version))
        return layer.place[0] if layer else ""

    def made_null(self) -> int | None:
        """Return the seq of the event that made the object without a version, None if there is none."""
        layer = self._layer(NULL)
        return layer.place[2] if layer is not None and layer.is_object else None

    def leads_to(self, version: str, before: Content | None, now: Content | None) -> bool:
        """Return whether the log's events lead to what is `now` under a version, after what was there `before`."""
        version, cover = _identity(version), self._fold.key.cover
        layer, is_told = self._layer(version), version in self._fold.versions
        if now is None:
            if is_concrete(version) and not is_told:  # only the removal of all versions can explain it
                return cover is not None and before is not None and cover[0] > place_of_time(before.modified)
            return layer is None and (is_told or cover is not None)
        if layer is None or layer.is_object == now.is_marker:
            return False
        made = self._events.get(layer.place[2])
        return is_concrete(version) or now.is_marker or (made is not None and _makes(made, now))

    def _layer(self, version: str) -> Layer | None:
        state, cover = self._fold.versions.get(version), self._fold.key.cover
        layer = state.layer(version) if state else None
        return None if layer is None or (cover is not None and layer.place < cover) else layer


def _makes(made: LoggedEvent, now: Content) -> bool:
    is_same = made.etag in (None, now.etag) and made.size in (None, now.size)
    return is_same and made.time >= now.modified - CLOCK_SKEW


def compared_with(logged: Sequence[LoggedEvent]) -> int | None:
    """Return the index of the event whose ETag and size a listed object without a version has to have, None for none.

    The events are a key's, in the order of the log.
    """
    made = _History(logged).made_null()
    return None if made is None else next(at for at, one in enumerate(logged) if one.entry.seq == made)


def differs(known: Sequence[Entry], listed: Sequence[Listed]) -> bool:
    """Return whether a listing shows another state of a key than is known, or there is one that is not decided yet.

    A key of which the log has new events has to be decided about, too: they may lead to another state than both.
    """
    if len(known) != len(listed) or any(one.pending is not None for one in known):
        return True
    there = {_identity(one.version): one.content for one in listed}
    return not all(one.known is not None and one.known.is_same(there.get(_identity(one.version))) for one in known)


def differing_versions(known: Sequence[Entry], listed: Sequence[Listed]) -> set[str]:
    """Return the versions with an id that a listing shows otherwise than they are known, or that are not decided yet.

    Only their own events decide about them, however many newer ones their key has.
    """
    there = {one.version: one.content for one in listed}
    decided = {
        one.version
        for one in known
        if one.pending is None and one.known is not None and one.known.is_same(there.get(one.version))
    }
    named = {*there, *(one.version for one in known)} - decided
    return {version for version in named if is_concrete(version)}


def unchanged(known: Sequence[Entry], listed: Sequence[Listed]) -> Decided:
    """Return what there is of a key of which nothing has to be decided."""
    objects = sum(not one.content.is_marker for one in listed)
    return Decided(list(known), counts=Counts(objects=objects, known=len(known)))


def outdates(newer: LogEntry, found: Set[str]) -> bool:
    """Return whether what was found of some versions of a key may be known otherwise now.

    The key has the `newer` event since it was decided about. Another version's event changes nothing about a version.
    """
    return not is_concrete(newer.version) or newer.version in found or not found.isdisjoint(("", NULL))


def decide(
    key: str, known: Sequence[Entry], listed: Sequence[Listed], logged: Sequence[LoggedEvent], run: Run
) -> Decided:
    """Decide about one key: what is known of it, what the listing has of it, and what the log knows of it.

    It may be neither known nor listed: then the log may know an object that was removed before it was ever listed.
    """
    decided = Decided()
    decided.counts.objects = sum(not one.content.is_marker for one in listed)
    decided.counts.known = sum(one.known is not None for one in known)
    history = _History(logged)
    versions = _Versions(history, run)
    before = {_identity(one.version): one for one in known}
    now = {_identity(one.version) for one in listed}
    logged_only = () if run.remembers else sorted(history.present() - before.keys())
    for version in [*before, *logged_only]:
        if version not in now:
            entry = before.get(version) or Entry(key, version, None)
            # The object without a version is the version null as soon as there are versions.
            name = (NULL if run.versioned else "") if version == NULL else version
            versions.decide(entry._replace(version=name), None, decided)
    for one in _oldest_first(listed):
        entry = before.get(_identity(one.version)) or Entry(key, one.version, None)
        versions.decide(entry._replace(version=one.version), one.content, decided)
    pending = [one.pending for one in decided.entries if one.pending is not None]
    decided.counts.pending, decided.counts.going = len(pending), sum(one.content is None for one in pending)
    return decided


class _Versions:
    """Decide about the versions of one key, the oldest first; `_floor` is the place of the version beneath."""

    def __init__(self, history: _History, run: Run) -> None:
        self._history, self._run = history, run
        self._present = history.present()
        self._floor = ""

    def decide(self, entry: Entry, now: Content | None, decided: Decided) -> None:
        """Decide about a version, or about a key without versions."""
        place = self._history.sequencer_of(entry.version)
        if self._is_as_known(entry, now):
            entry = entry._replace(pending=None)
        elif self._run.remembers:
            entry = entry._replace(known=now, pending=None)
        elif self._history.leads_to(entry.version, entry.known, now):
            decided.counts.explained += 1
            entry = entry._replace(known=now, pending=None)
        elif self._history.last_seq(entry.version) <= self._run.seq and not self._history.is_over(entry.version):
            entry, found = self._unexplained(entry, now)
            if found is not None:
                event = self._event(*found)
                decided.events.append(event)
                place = event.sequencer
                _count(decided.counts, *found)
        if entry.known is not None or entry.pending is not None:
            decided.entries.append(entry)
        if now is not None:
            self._floor = max(self._floor, comparable(place))

    def _is_as_known(self, entry: Entry, now: Content | None) -> bool:
        """Return whether nothing has changed, and the log does not lead elsewhere: to what was gone unseen, or back."""
        if now is None:
            # What was noted of an object that only the log knew holds when the log has forgotten it.
            is_noted = entry.pending is not None and entry.pending.content is None
            is_forgotten = is_noted and not self._history.tells_of(entry.version)
            return entry.known is None and not is_forgotten and _identity(entry.version) not in self._present
        if entry.known is None or not entry.known.is_same(now):
            return False
        is_told = not is_concrete(entry.version) and self._history.tells_of(entry.version)
        return not is_told or self._history.leads_to(entry.version, entry.known, now)

    def _unexplained(self, entry: Entry, now: Content | None) -> tuple[Entry, tuple[Entry, Pending] | None]:
        """Return what becomes of a difference that no event explains, and what becomes an event, if anything does."""
        run, pending = self._run, entry.pending
        found = Pending(now, run.began, run.ended, run.seq)
        if pending is not None and self._history.leads_to(entry.version, entry.known, pending.content):
            entry, pending = entry._replace(known=pending.content), None  # reported meanwhile, and changed again
        if pending is None or self._history.last_seq(entry.version) > pending.seq:
            is_old = run.is_first and now is not None and now.modified + run.grace <= run.at_store(run.began)
            if run.grace and not is_old:
                return entry._replace(pending=found), None
            pending = found
        elif pending.ended + run.grace > run.began:
            return entry, None  # also if it has changed since: that has its own time afterwards
        after = entry._replace(known=pending.content, pending=None if _is_same(pending.content, now) else found)
        return after, (entry, pending)

    def _event(self, entry: Entry, found: Pending) -> Event:
        """Return the event of a difference; its id is a digest of what was seen after which event of the key."""
        content, before, run = found.content, entry.known, self._run
        if content is None:
            name, moment = DELETE, found.began
            # Above the event of what is gone, should it come late: its time may have fractions that a listing has not.
            row = from_time((before.modified // _SECOND + 1) * _SECOND * _NANOSECONDS) if before else ""
            place = sequencer(self._history.latest, row, time_of_removal(run.at_store(found.began)))
        else:
            name, moment = MARKED if content.is_marker else creation_name(content.etag), content.modified
            latest = "" if is_concrete(entry.version) else self._history.latest
            place = sequencer(max(latest, self._floor), "", moment)
        told = (content.etag, content.size) if content is not None and not content.is_marker else ()
        listed_at = minio_json.timestamp(found.began)
        record = own_record(
            WATCH_SOURCE, name, run.bucket, object_members(entry.key, entry.version, *told) | {"sequencer": place},
            moment, {FOUND_BY: run.name, LISTED_AT: listed_at},
        )  # fmt: skip
        seen = [
            run.bucket,
            entry.key,
            entry.version,
            _plain(before),
            _plain(content),
            self._history.last_seq(entry.version),
        ]
        return Event(
            minio_json.digest(seen), name, run.bucket, entry.key, entry.version, place, moment, minio_json.text(record),
            origin=by_listing(run.name, listed_at),
        )  # fmt: skip


def _count(counts: Counts, entry: Entry, found: Pending) -> None:
    if found.content is None:
        counts.removed += 1
        counts.unseen += entry.known is None
    elif entry.known is None:
        counts.created += 1
    else:
        counts.changed += 1


def _is_same(one: Content | None, other: Content | None) -> bool:
    return other is None if one is None else one.is_same(other)


def _plain(content: Content | None) -> list[Any] | None:
    return None if content is None else list(content)


def _identity(version: str) -> str:
    """Return by what an entry is known: when versioning begins, the object without a version is the version null."""
    return version or NULL


def _oldest_first(listed: Iterable[Listed]) -> list[Listed]:
    """Return a key's versions, the newest last; a server lists the newest first."""
    ordered = sorted(listed, key=lambda one: (one.is_latest, one.content.modified), reverse=True)
    ordered.reverse()
    return ordered
