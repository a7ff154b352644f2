from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.events.order import (
    Absent,
    Entry,
    Fold,
    Holding,
    KeyState,
    Layer,
    Present,
    Unknown,
    VersionState,
    comparable,
    following,
    from_time,
    states_content,
    version_of,
)
from tests.support import full_fold
from tests.support.captured import record
from tests.support.properties import thorough
from tests.support.version_history import current

PUT = "s3:ObjectCreated:Put"
MARKER = "s3:ObjectRemoved:DeleteMarkerCreated"
DELETE = "s3:ObjectRemoved:Delete"
ALL = "s3:ObjectRemoved:DeleteAllVersions"
GET = "s3:ObjectAccessed:Get"


def fixture_entry(number: int) -> Entry:
    found = record(number)
    thing = found["s3"]["object"]
    return Entry(number, found["eventName"], thing.get("versionId", ""), thing["sequencer"])


def as_logged(entry: Entry) -> Entry:
    """The outbox keeps a sequencer only where it supersedes."""
    kept = comparable(entry.sequencer) if states_content(entry.name, entry.version) else ""
    return replace(entry, sequencer=kept)


# Fixture lines of one key, and what the bucket held after each.
CAPTURED = {
    "r.txt": {
        61: Present(61),  # v1
        62: Present(62),  # v2
        63: Absent(),  # marker
        64: Absent(),  # deleted again: the same marker is named again
        65: Absent(),  # v1 is read by its version
        66: Present(62),  # the marker is removed
        67: Present(62),  # v1 is removed
        69: Present(62),  # v2 is tagged
        71: Absent(),  # v2 is removed
    },
    "v.bin": {70: Present(70), 72: Absent()},
    "null.txt": {79: Present(79), 80: Absent()},  # versioning suspended
    "many.txt": {
        81: Present(81),
        82: Present(82),
        83: Present(83),
        84: Present(83),
        85: Present(82),  # the newest is removed first
        86: Present(81),
        87: Absent(),
    },
    "unversioned": {3: Present(3), 5: Present(3), 15: Present(3)},
}


@pytest.mark.parametrize("key", CAPTURED)
@pytest.mark.parametrize("logged", [False, True], ids=["as sent", "as logged"])
def test_after_each_captured_event_the_mirror_holds_what_minio_held(key: str, logged: bool) -> None:
    history: list[Entry] = []
    for number, expected in CAPTURED[key].items():
        entry = fixture_entry(number)
        history.append(as_logged(entry) if logged else entry)
        assert current(history) == expected, f"after line {number}"


@pytest.mark.parametrize("key", CAPTURED)
def test_captured_events_may_come_in_any_order(key: str) -> None:
    history = [fixture_entry(number) for number in CAPTURED[key]]
    expected = CAPTURED[key][max(CAPTURED[key])]
    for chance in range(50):
        order = random.Random(chance).sample(history, len(history))
        arrived = [replace(entry, seq=seq) for seq, entry in enumerate(order)]
        found = current(arrived)
        if isinstance(expected, Present):
            assert isinstance(found, Present)
            assert order[found.seq].version == next(e.version for e in history if e.seq == expected.seq)
        else:
            assert found == expected


def entries(*steps: tuple[str, str, str]) -> list[Entry]:
    return [Entry(seq, name, version, sequencer) for seq, (name, version, sequencer) in enumerate(steps)]


NAMES = {
    "put": PUT,
    "copy": "s3:ObjectCreated:Copy",
    "tag": "s3:ObjectCreated:PutTagging",
    "get": GET,
    "noop": "s3:ObjectRemoved:NoOP",
    "marker": MARKER,
    "delete": DELETE,
    "all": ALL,
    "expire": "s3:LifecycleExpiration:Delete",
    "expire-marked": "s3:LifecycleExpiration:DeleteMarkerCreated",
    "expire-markers": "s3:LifecycleDelMarkerExpiration:Delete",
}


def spelt(history: str) -> list[Entry]:
    """`put v1 A1, marker m -`: name, version and sequencer of each event in the order of arrival, `-` for none."""
    steps = [step.split() for step in history.split(", ") if step]
    return entries(*((NAMES[name], version.strip("-"), sequencer.strip("-")) for name, version, sequencer in steps))


@pytest.mark.parametrize(
    ("why", "history", "expected"),
    [
        ("nothing is known", "", Unknown()),
        ("reading tells nothing", "get v1 A1", Unknown()),
        ("a version that was never seen to come is gone: there may be others", "delete v1 A9", Unknown()),
        ("the same of the null version", "delete null A9", Unknown()),
        ("an old version goes, the newest stays", "put v2 A2, delete v1 A9", Present(0)),
        ("all that is known is gone, but so is more", "put v2 A2, delete v2 -, delete v1 -", Unknown()),
        ("all that came is gone", "put v2 A2, delete v2 A3", Absent()),
        ("the removal is heard before the creation", "delete v2 A3, put v2 A2", Absent()),
        ("a marker covers what is not known", "marker m A5", Absent()),
        ("the marker is gone from something unseen", "marker m A5, marker m A6", Unknown()),
        ("undelete heard before delete", "put v1 A1, marker m A6, marker m A5", Present(0)),
        ("a marker removed by Delete, as AWS says it", "put v1 A1, marker m A5, delete m A6", Present(0)),
        ("two markers, one removed", "put v1 A1, marker m A2, marker n A3, marker n A4", Absent()),
        ("an object on a marker", "put v1 A1, marker m A2, put v2 A3", Present(2)),
        ("that object removed", "put v1 A1, marker m A2, put v2 A3, delete v2 -", Absent()),
        ("a late marker", "put v1 A1, put v2 A3, marker m A2", Present(1)),
        ("a late creation", "put v2 A3, put v1 A1", Present(0)),
        ("the null version is replaced", "put null A1, put null A2", Present(1)),
        ("the null version is replaced, heard late", "put null A2, put null A1", Present(0)),
        ("no version is the null version", "put - A1, put null A2", Present(1)),
        ("null goes, a version stays", "put v1 A1, put null A2, delete null A3", Present(0)),
        ("null came again", "put null A1, delete null A2, put null A3", Present(2)),
        ("a null marker covers", "put v1 A1, marker null A2", Absent()),
        ("and is replaced", "put v1 A1, marker null A2, put null A3", Present(2)),
        ("and is uncovered again", "marker null A2, put v2 A3, delete v2 -", Absent()),
        ("an unversioned object goes", "put - A1, delete - A2", Absent()),
        ("its removal is heard late", "put - A3, delete - A2", Present(0)),
        ("a removal may carry the object's own sequencer", "delete - A1, put - A1", Absent()),
        ("padding on the right does not make newer", "delete - A10, put - A1", Absent()),
        ("all versions go, by the newest's sequencer", "all v2 A2, put v1 A1, put v2 A2", Absent()),
        ("a new object after all went", "put v1 A1, all v1 A1, put v3 A3", Present(2)),
        ("a lifecycle removed a marker and all", "put v1 A1, expire-markers m A2", Absent()),
        ("a noncurrent version expires", "put v2 A2, expire v1 A9", Present(0)),
        ("AWS's lifecycle makes a marker", "put v2 A2, expire-marked m A9", Absent()),
        ("Ceph's marker names the version beneath", "put v1 A1, marker v1 A2", Absent()),
        ("again", "put v1 A1, marker v1 A2, marker v1 A3", Absent()),
        ("and an object on it", "put v1 A1, marker v1 A2, put v2 A3", Present(2)),
        ("without sequencers, the log's order", "put v1 -, marker m -", Absent()),
        ("the other way", "marker m -, put v1 -", Present(1)),
        ("one without sequencer is as new as it came", "put - A5, delete - -, put - A3", Absent()),
        ("a repeat without sequencer is no undelete", "put v1 A1, marker m A2, marker m -", Absent()),
        ("tags, locks and NoOP", "put v1 A1, tag v1 A9, noop v1 AA", Present(0)),
        ("a copy onto itself is a version", "put v1 A1, copy v2 A2", Present(1)),
        ("the same version told twice", "put v1 A1, put v1 A1", Present(1)),
        ("of equal sequencers the later arrival counts", "put v1 A1, marker m A1, put v2 A1", Present(2)),
        ("a marker that came last", "put v1 A1, put v2 A1, marker m A1", Absent()),
        ("a constant, and the marker is removed", "put v1 A1, marker m A1, delete m A1", Present(0)),
        ("a constant, and the newest is removed", "put v1 A1, put v2 A1, delete v2 A1", Present(0)),
        ("a constant, with versioning suspended", "put null A1, marker null A1, put null A1", Present(2)),
        ("a removal that came before what it removes", "delete v1 A1, put v1 A1", Absent()),
    ],
)
def test_what_lies_on_top(why: str, history: str, expected: Holding) -> None:
    assert current(spelt(history)) == expected, why


@dataclass
class Bucket:
    """One key of a bucket as S3 keeps it, telling its events as MinIO does (§1.3 and fixture lines 61-87)."""

    stack: list[tuple[str, str, str]] = field(default_factory=list)  # kind, version, sequencer; newest last
    told: list[tuple[str, str, str]] = field(default_factory=list)
    clock: int = 0x18E9E833E5D35CED

    def _now(self) -> str:
        self.clock += 0x1001
        return f"{self.clock:016X}"

    def _tell(self, name: str, version: str, sequencer: str) -> None:
        self.told.append((name, version, sequencer))

    def put(self) -> None:
        now = self._now()
        self.stack.append(("object", f"v{now}", now))
        self._tell(PUT, f"v{now}", now)

    def put_null(self) -> None:
        now = self._now()
        self.stack = [*(layer for layer in self.stack if layer[1] != "null"), ("object", "null", now)]
        self._tell(PUT, "null", now)

    def delete(self) -> None:
        if self.stack and self.stack[-1][0] == "marker" and self.stack[-1][1] != "null":
            _, version, sequencer = self.stack[-1]
            self._tell(MARKER, version, sequencer)
            return
        now = self._now()
        self.stack.append(("marker", f"m{now}", now))
        self._tell(MARKER, f"m{now}", now)

    def delete_null(self) -> None:
        now = self._now()
        self.stack = [*(layer for layer in self.stack if layer[1] != "null"), ("marker", "null", now)]
        self._tell(MARKER, "null", now)

    def delete_version(self, which: int) -> None:
        if not self.stack:
            return
        kind, version, sequencer = self.stack[which % len(self.stack)]
        if (kind, version) == ("marker", "null"):
            return  # MinIO tells of this in the words of its making: no reader can know
        self.stack.remove((kind, version, sequencer))
        self._tell(MARKER if kind == "marker" else DELETE, version, self._now())

    def expire_all(self) -> None:
        if self.stack:
            _, version, sequencer = self.stack[-1]
            self.stack.clear()
            self._tell(ALL, version, sequencer)

    def read(self, which: int) -> None:
        objects = [layer for layer in self.stack if layer[0] == "object"]
        if objects:
            _, version, sequencer = objects[which % len(objects)]
            self._tell(GET, version, sequencer)
            self._tell("s3:ObjectCreated:PutTagging", version, sequencer)

    def holds(self) -> str | None:
        return self.stack[-1][1] if self.stack and self.stack[-1][0] == "object" else None


OPERATIONS = st.lists(
    st.one_of(
        st.sampled_from(["put", "put", "put_null", "delete", "delete_null", "expire_all"]).map(lambda name: (name, ())),
        st.tuples(st.sampled_from(["delete_version", "delete_version", "read"]), st.integers(0, 5).map(lambda n: (n,))),
    ),
    max_size=14,
)


def lived(operations: Iterable[tuple[str, tuple[int, ...]]]) -> Bucket:
    bucket = Bucket()
    for name, arguments in operations:
        getattr(bucket, name)(*arguments)
    return bucket


def version_held(history: Sequence[Entry]) -> str | None:
    """The version on top, None if there is none; that it must be known is the caller's business."""
    found = current(history)
    return history[found.seq].version if isinstance(found, Present) else None


@thorough(400)
@given(OPERATIONS)
def test_the_mirror_of_any_life_of_a_key_is_what_the_bucket_holds(
    operations: list[tuple[str, tuple[int, ...]]],
) -> None:
    bucket = lived(operations)
    history = entries(*bucket.told)
    assert version_held(history) == bucket.holds()
    assert version_held([as_logged(entry) for entry in history]) == bucket.holds()
    if any(entry.name == PUT for entry in history):
        assert not isinstance(current(history), Unknown)


@thorough(400)
@given(OPERATIONS, st.randoms(use_true_random=False), st.booleans())
def test_late_and_repeated_events_change_nothing(
    operations: list[tuple[str, tuple[int, ...]]], chance: random.Random, logged: bool
) -> None:
    bucket = lived(operations)
    told = bucket.told + [each for each in bucket.told if chance.random() < 0.2]
    chance.shuffle(told)
    history = entries(*told)
    if logged:
        history = [as_logged(entry) for entry in history]
    assert version_held(history) == bucket.holds()


ANY = st.lists(
    st.tuples(
        st.sampled_from([PUT, MARKER, DELETE, ALL, GET, "s3:LifecycleExpiration:Delete"]),
        st.sampled_from(["", "null", "v1", "v2", "v3"]),
    ),
    max_size=8,
)


@thorough(400)
@given(ANY, st.randoms(use_true_random=False))
def test_the_order_of_arrival_never_matters_where_sequencers_tell(
    steps: list[tuple[str, str]], chance: random.Random
) -> None:
    told = [(name, version, f"{0xA000 + number:X}") for number, (name, version) in enumerate(steps)]
    shuffled = chance.sample(told, len(told))
    one, other = current(entries(*told)), current(entries(*shuffled))
    assert type(one) is type(other)
    if isinstance(one, Present) and isinstance(other, Present):
        assert told[one.seq] == shuffled[other.seq]


@dataclass
class Kept:
    """What a table would hold of a key: the key's state, and that of each version with its layer."""

    key: KeyState = field(default_factory=KeyState)
    versions: dict[str, VersionState] = field(default_factory=dict)

    def fold(self, batch: Sequence[Entry]) -> None:
        """Read only what the batch names, fold, and write back only what changed."""
        named = {version_of(entry) for entry in batch}
        fold = Fold(replace(self.key), {name: state for name, state in self.versions.items() if name in named})
        fold.add(batch)
        self.key = fold.key
        self.versions |= {name: fold.versions[name] for name in fold.changed}

    def holding(self) -> Holding:
        layers = [state.layer(version) for version, state in self.versions.items()]
        cover = None if self.key.cover is None else Layer(self.key.cover, is_object=False)
        return self.key.holding(max(filter(None, [*layers, cover]), key=lambda layer: layer.place, default=None))


WORDS = st.tuples(
    st.sampled_from([*NAMES.values(), "s3:ObjectLifecycle:Expiration:Current", "s3:ObjectRemoved:Delete"]),
    st.sampled_from(["", "null", "v1", "v2", "v3", "v4"]),
    st.sampled_from(["", "A1", "A10", "A2", "A3", "A4", "A5", "B", "B1"]),
)


@thorough(600)
@given(st.lists(WORDS, max_size=16), st.lists(st.integers(1, 5), max_size=16), st.booleans())
def test_folding_batch_by_batch_knows_at_each_moment_what_the_whole_history_says(
    words: list[tuple[str, str, str]], cuts: list[int], logged: bool
) -> None:
    history = entries(*words)
    if logged:
        history = [as_logged(entry) for entry in history]
    kept, done = Kept(), 0
    for size in [*cuts, len(history)]:
        batch = history[max(0, done - 2) : done + size]  # the last ones come again, as after a crash
        kept.fold(batch)
        done = min(len(history), done + size)
        assert kept.holding() == full_fold.current(history[:done])


@thorough(400)
@given(OPERATIONS, st.randoms(use_true_random=False), st.integers(1, 6))
def test_the_fold_of_a_life_in_any_order_with_repeats_is_that_of_its_whole_history(
    operations: list[tuple[str, tuple[int, ...]]], chance: random.Random, size: int
) -> None:
    told = lived(operations).told
    told = [*told, *(each for each in told if chance.random() < 0.3)]
    chance.shuffle(told)
    history = [as_logged(entry) for entry in entries(*told)]
    kept = Kept()
    for start in range(0, len(history), size):
        kept.fold(history[start : start + size])
    assert kept.holding() == full_fold.current(history)


def test_what_was_trimmed_beneath_makes_an_empty_key_unknown() -> None:
    fold = Fold(KeyState(trimmed=True))
    fold.add([Entry(1, PUT, "v9", "A9"), Entry(2, DELETE, "v9", "")])
    assert fold.key.holding(fold.top()) == Unknown()


EXPIRED = "s3:LifecycleExpiration:Delete"


@pytest.mark.parametrize(
    ("history", "holding"),
    [
        # The newest version expires, in Ceph by a marker on top of it.
        ([(PUT, "v1", "A1"), (PUT, "v2", "A2"), (EXPIRED, "v2", "")], Absent()),
        ([(PUT, "v1", "A1"), (PUT, "v2", "A2"), (EXPIRED, "v2", ""), (PUT, "v3", "A4")], Present(4)),
        # An old version expires: it is removed, and what is newer stays.
        ([(PUT, "v1", "A1"), (PUT, "v2", "A2"), (EXPIRED, "v1", "")], Present(2)),
        ([(PUT, "v1", "A1"), (PUT, "v2", "A2"), (EXPIRED, "v1", ""), (DELETE, "v2", "")], Absent()),
        # A version of which nothing is known is not newer than one that is known.
        ([(PUT, "v2", "A2"), (EXPIRED, "v0", "")], Present(1)),
    ],
)
def test_what_ceph_expires_hides_what_is_older_and_nothing_newer(
    history: list[tuple[str, str, str]], holding: Holding
) -> None:
    fold = Fold()
    fold.add([Entry(seq, *words, words[0] == EXPIRED) for seq, words in enumerate(history, 1)])
    assert fold.key.holding(fold.top()) == holding


SECOND, CREATED, REMOVED = (from_time(1_760_002_245_000_000_000 + more) for more in (0, 244_123_456, 9_244_123_456))
ABOVE = following(comparable(from_time(1_760_002_245_100_000_000)))  # a version beneath


@pytest.mark.parametrize("listed", [SECOND, from_time(1_760_002_245_244_000_000), ABOVE])
def test_a_marker_that_a_listing_found_is_there_when_its_own_event_comes_late(listed: str) -> None:
    entries = [Entry(1, PUT, "v1", from_time(1_760_002_244_000_000_000))]
    for number, sequencer in enumerate([listed, CREATED, listed, CREATED], 2):
        entries.append(Entry(number, MARKER, "v2", sequencer))
        assert current(entries) == Absent()
    assert current([*entries, Entry(9, MARKER, "v2", REMOVED)]) == Present(1)
    assert current([*entries[:2], Entry(9, MARKER, "v2", REMOVED)]) == Present(1)  # what made it was never reported
