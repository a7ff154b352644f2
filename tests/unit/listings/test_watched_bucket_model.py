"""A model bucket whose store reports some of its changes: listings find the others, once each, and no others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.events import minio_json
from app.events.names import ContentChange, content_change
from app.events.order import Entry as LogEntry
from app.events.order import Fold, comparable, from_time
from app.listings.comparison import Ahead, Group, by_key
from app.listings.differences import (
    LISTED_AT,
    Content,
    Decided,
    Entry,
    Listed,
    LoggedEvent,
    Run,
    decide,
    differs,
    outdates,
    unchanged,
)

PUT, DELETE, MARKED = "s3:ObjectCreated:Put", "s3:ObjectRemoved:Delete", "s3:ObjectRemoved:DeleteMarkerCreated"
GRACE = 60_000
AT_THE_END = 99  # a run is killed when it has compared everything, and has not noted it
START = 1_760_000_000_000
MARGIN, STALE = 4 * 3_600_000, 2 * 3_600_000  # of an inventory: what is allowed, and what it really lacks
MAX_WRONG = 3_600_000  # of the clock of a store whose inventories are read
RETENTION, PAUSE = 3 * MARGIN, 9 * MARGIN  # of events that no listing needs, and after which the log keeps no others
KEYS = ["a", "b", "ü", "\U0001f600"]


@dataclass(frozen=True)
class Made:
    """An event: a real one, with the number of the change that it reports, or one that a listing has found."""

    id: str
    name: str
    key: str
    version: str
    sequencer: str
    time: int
    etag: str | None
    operation: int | None = None
    listed_at: str = ""  # of one that was found


@dataclass
class Store:
    """A bucket; each key has layers, the newest last: (version, content, operation)."""

    rng: Random
    versioned: bool
    share: float  # of the changes that are reported
    fractions: bool  # whether a listing's times have some
    behind: int = 0  # ms by which its clock is behind that of the service, or ahead if negative
    now: int = START  # by the clock of the service
    layers: dict[str, list[tuple[str, Content, int]]] = field(default_factory=dict)
    unsent: list[tuple[int, Made]] = field(default_factory=list)  # with the time at which it arrives
    unreported: set[int] = field(default_factory=set)
    removed: dict[tuple[str, str], int] = field(default_factory=dict)  # key and version to the last operation
    latest: int = GRACE // 2  # ms after which an event has arrived
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    past: list[tuple[int, str, list[Listed]]] = field(default_factory=list)  # what a key had from a time on

    @property
    def clock(self) -> int:
        return self.now - self.behind

    def change(self) -> None:
        self.now += self.rng.choice([1, 7, 900, 5_000, 40_000])
        key = self.rng.choice(KEYS)
        layers = self.layers.setdefault(key, [])
        number = next(self.numbers)
        if not layers or self.rng.random() < 0.5:
            self._put(key, layers, number)
        elif not self.versioned:
            layers.clear()
            self.removed[key, ""] = number
            self._report(number, DELETE, key, "")
        elif self.rng.random() < 0.5:
            version = f"v{number}"
            layers.append((version, Content("", 0, self.clock, is_marker=True), number))
            self._report(number, MARKED, key, version)
        else:
            version, _, _ = layers.pop(self.rng.randrange(len(layers)))
            self.removed[key, version] = number
            self._report(number, DELETE, key, version)
        self.past.append((self.now, key, self.list_key(key)))

    def inventory(self) -> list[Listed]:
        """What an inventory of this moment has: each key as it was then, or some time before."""
        listed = []
        for key in sorted(KEYS):
            moment = self.now - self.rng.choice([0, 0, self.rng.randrange(STALE)])
            states = [state for at, of, state in self.past if of == key and at <= moment]
            listed += states[-1] if states else []
        return listed

    def _put(self, key: str, layers: list[tuple[str, Content, int]], number: int) -> None:
        version = f"v{number}" if self.versioned else ""
        etag = f"{self.rng.randrange(3)}"  # few, so that contents come again
        if not self.versioned:
            layers.clear()
        layers.append((version, Content(etag, 1, self.clock), number))
        self._report(number, PUT, key, version, etag)

    def _report(self, number: int, name: str, key: str, version: str, etag: str | None = None) -> None:
        if self.rng.random() >= self.share:
            self.unreported.add(number)
            return
        sequencer = from_time(self.clock * 1_000_000 + self.rng.randrange(1_000_000))
        made = Made(f"real {number}", name, key, version, sequencer, self.clock, etag, number)
        for _ in range(self.rng.choice([1, 1, 2])):
            self.unsent.append((self.now + self.rng.choice([0, 0, 10, 20_000, self.latest]), made))

    def arriving(self) -> list[Made]:
        """The events that have arrived by now, in any order."""
        there = [made for at, made in self.unsent if at <= self.now]
        self.unsent = [(at, made) for at, made in self.unsent if at > self.now]
        self.rng.shuffle(there)
        return there

    def made_by(self, key: str) -> dict[str, int]:
        """The operation that each version of a key, or its absence, is due to."""
        gone = {version: number for (of, version), number in self.removed.items() if of == key}
        return gone | {version: number for version, _, number in self.layers.get(key, [])}

    def list_key(self, key: str) -> list[Listed]:
        """What a listing says of a key, the newest first."""
        layers = self.layers.get(key, [])
        shown = [
            Listed(
                key, version, content if self.fractions else content._replace(modified=content.modified // 1000 * 1000),
                is_latest=at == len(layers) - 1,
            )
            for at, (version, content, _) in enumerate(layers)
        ]  # fmt: skip
        return shown[::-1]


@dataclass
class Service:
    """The log, and what is known of the bucket."""

    log: list[Made] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    repeated: int = 0
    known: dict[str, list[Entry]] = field(default_factory=dict)
    seq: int = 0  # of the last complete run
    complete: bool = False
    times: list[int] = field(default_factory=list)  # at which events were recorded
    known_at: int = 0  # by the store's clock, from when on what is known may lack changes
    forgotten: set[int] = field(default_factory=set)  # seqs that have left the log
    lost: set[int] = field(default_factory=set)  # of these, those that a listing may need
    lapsed_at: int = 0  # the end of the last pause since the last run, in which the log lost what the next one needs

    def record(self, events: list[Made], now: int) -> None:
        for made in events:
            self.repeated += made.id in self.ids
            if made.id not in self.ids:
                self.ids.add(made.id)
                self.log.append(made)
                self.times.append(now)

    def logged(self, key: str) -> list[LoggedEvent]:
        return [one for one in self._recorded(key) if one.entry.seq not in self.forgotten]

    def _recorded(self, key: str) -> list[LoggedEvent]:
        return [
            LoggedEvent(LogEntry(seq, made.name, made.version, made.sequencer), made.time, made.etag)
            for seq, made in enumerate(self.log, 1)
            if made.key == key
        ]

    def forget(self, now: int, *, is_paused: bool) -> None:
        """Have old events leave the log; unless it is paused for too long, those stay that the next listing needs."""
        old = {seq for seq, at in enumerate(self.times, 1) if at < now - RETENTION} - self.forgotten
        needed = {seq for seq in old if seq > self.seq}
        if is_paused:
            self.lost |= needed
            self.lapsed_at = now
        self.forgotten |= old - needed | self.lost
        # So may be what was reported before a listing whose differences wait for the end of the grace.
        waiting = {key for key, some in self.known.items() if any(one.pending for one in some)}
        self.lost |= {seq for seq in old & self.forgotten if self.log[seq - 1].key in waiting}

    def fold(self, key: str) -> Fold:
        """What whoever was sent all events knows of a key."""
        fold = Fold()
        fold.add(one.entry for one in self._recorded(key))
        return fold


@dataclass
class World:
    """Both, and the listings of a worker that may be killed."""

    store: Store
    initial: str
    service: Service = field(default_factory=Service)
    found: list[Made] = field(default_factory=list)
    seen: dict[tuple[str, str, str], set[int]] = field(default_factory=dict)  # time, key, version to operations
    overtaken: list[Made] = field(default_factory=list)  # of those, what follows what came during the listing
    left: dict[str, set[int]] = field(default_factory=dict)  # of what was found, what had left the log by then
    runs: int = 0
    pauses: float = 0.0  # how often nobody lists for long

    def receive(self) -> None:
        self.service.record(self.store.arriving(), self.store.now)

    def pause(self) -> None:
        """Nobody lists for a while, or for so long that the log keeps nothing for the next listing."""
        is_long = self.store.rng.random() < 0.5
        self.store.now += PAUSE if is_long else RETENTION // 2
        self.receive()
        self.service.forget(self.store.now, is_paused=is_long)

    def list_bucket(self, *, until_killed: int | None, busy: bool) -> None:
        """List, while the bucket changes if it is `busy`, and compare; a killed run has committed so many keys."""
        store, service, rng = self.store, self.service, self.store.rng
        began, seq = store.now, len(service.log)
        listed: list[Listed] = []
        for key in sorted(KEYS):
            if busy and rng.random() < 0.3:
                store.change()
                self.receive()
            listed += store.list_key(key)
            for version, number in store.made_by(key).items():
                self.seen.setdefault((minio_json.timestamp(began), key, version), set()).add(number)
        if busy:
            store.now += rng.choice([0, 3, 3_000])
            self.receive()
        first = not service.complete
        run = Run(
            "images", "bucket:x", began, store.now, seq, GRACE, versioned=store.versioned,
            remembers=first and self.initial == "remember", is_first=first, behind=max(0, store.behind),
        )  # fmt: skip
        if self._compare(listed, run, until_killed=until_killed, busy=busy):
            service.known_at = began - store.behind

    def read_inventory(self, *, until_killed: int | None, busy: bool) -> None:
        """Compare an inventory some time after its own, if it is newer than what is known."""
        store, service, rng = self.store, self.service, self.store.rng
        taken, listed = store.clock, store.inventory()
        for _ in range(rng.choice([0, 0, 1, 4]) if busy else 0):
            store.change()
            self.receive()
        if rng.random() < self.pauses:
            self.pause()
        store.now += GRACE + rng.choice([0, 0, MARGIN])
        self.receive()
        if taken - MARGIN <= service.known_at or taken - MARGIN < service.lapsed_at - RETENTION:
            return
        seq = max(service.seq, sum(at < taken - MARGIN for at in service.times))
        first = not service.complete
        run = Run(
            "images", "bucket:x", taken, taken + 5, seq, versioned=store.versioned,
            remembers=first and self.initial == "remember", is_first=first, behind=MARGIN,
        )  # fmt: skip
        if self._compare(listed, run, until_killed=until_killed, busy=busy):
            service.known_at = taken - MARGIN

    def _compare(self, listed: list[Listed], run: Run, *, until_killed: int | None, busy: bool) -> bool:
        """Compare and record; whether it came to its end."""
        store, service, rng, seq = self.store, self.service, self.store.rng, run.seq
        recent = [] if run.remembers else sorted({made.key for made in service.log[service.seq :]})
        entries = [entry for _, some in sorted(service.known.items()) for entry in some]
        for number, group in enumerate(by_key(entries, Ahead(listed), Ahead(recent), None)):
            if number == until_killed and rng.random() < 0.5:
                return False
            decided = self._decide(group, run)
            if busy and rng.random() < 0.3:  # the append waits for a target's queue, and the bucket changes
                for _ in range(rng.randrange(3)):
                    store.change()
                self.receive()
            if self._is_overtaken(decided, seq):
                decided = Decided(list(group.known))
            made = []
            for one in decided.events:
                record = orjson.loads(one.record)
                etag, listed_at = record["s3"]["object"].get("eTag"), record["responseElements"][LISTED_AT]
                made.append(
                    Made(one.id, one.name, one.key, one.version, one.sequencer, one.time, etag, listed_at=listed_at)
                )
            if number == until_killed:  # between the commits of a key that has very many versions
                made = made[: rng.randrange(len(made) + 1)]
            else:
                service.known[group.key] = decided.entries
            self.found += made
            self.left |= {one.id: set(service.forgotten) for one in made}
            self.overtaken += [one for one in made for later in service.log[seq:] if later.key == one.key]
            service.record(made, store.now)
            if number == until_killed:
                return False
        if until_killed == AT_THE_END:
            return False
        service.seq, service.complete, service.lapsed_at = seq, True, 0
        service.forget(store.now, is_paused=False)
        self.runs += 1
        return True

    def _decide(self, group: Group, run: Run) -> Decided:
        if group.is_recent or differs(group.known, group.listed):
            return decide(group.key, group.known, group.listed, self.service.logged(group.key), run)
        return unchanged(group.known, group.listed)

    def _is_overtaken(self, decided: Decided, seq: int) -> bool:
        """Whether the log has events of a key that came since the listing began, as the commit finds out."""
        return any(
            made.key == event.key and outdates(LogEntry(0, made.name, made.version, made.sequencer), {event.version})
            for made in self.service.log[seq:]
            for event in decided.events
        )


def live(
    seed: int, *, versioned: bool, share: float, initial: str = "events", fractions: bool = True, behind: int = 0,
    latest: int = GRACE // 2, inventories: float = 0.0, pauses: float = 0.0,
) -> World:  # fmt: skip
    """A bucket's life, after which everything has arrived and was listed often enough."""
    rng = Random(seed)
    inventories *= abs(behind) <= MAX_WRONG  # the others are refused
    world = World(Store(rng, versioned, share, fractions, behind, latest=latest), initial, pauses=pauses)
    for _ in range(rng.randrange(4)):
        world.store.change()
    for _ in range(rng.randrange(5, 40)):
        for _ in range(rng.choice([0, 1, 1, 2, 6])):
            world.store.change()
        world.store.now += rng.choice([0, 100, 30_000, GRACE, 3 * GRACE])
        world.receive()
        if rng.random() < pauses:
            world.pause()
        if rng.random() < 0.6:
            more: dict[str, Any] = {
                "until_killed": rng.choice([None, None, 0, 1, 2, 3, AT_THE_END]),
                "busy": rng.random() < 0.6,
            }
            if rng.random() < inventories:
                world.store.now += rng.choice([0, MARGIN, 2 * MARGIN])
                world.receive()
                world.read_inventory(**more)
            else:
                world.list_bucket(**more)
    world.pauses = 0.0
    for _ in range(4):
        world.store.now += max(latest, 2 * (MARGIN if inventories else GRACE))
        world.receive()
        list_once = world.read_inventory if inventories else world.list_bucket
        list_once(until_killed=None, busy=False)
    return world


def holding(world: World, key: str) -> str | None:
    """The ETag that a mirror has under a key, by the order of sequencers; None for no row."""
    top = world.service.fold(key).top()
    return world.service.log[top.place[2] - 1].etag if top is not None and top.is_object else None


def truth(world: World, key: str) -> str | None:
    layers = world.store.layers.get(key) or [("", Content("", 0, 0, is_marker=True), 0)]
    content = layers[-1][1]
    return None if content.is_marker else content.etag


SEEDS = st.integers(0, 2**32)
SHARES = st.sampled_from([0.0, 0.3, 0.8, 1.0])
CLOCKS = st.sampled_from([0, 0, 3_600_000, -3_600_000, 86_400_000, -86_400_000])
INVENTORIES = st.sampled_from([0.0, 0.5, 1.0])  # of the listings


@pytest.mark.parametrize("versioned", [False, True])
@given(
    seed=SEEDS, share=SHARES, fractions=st.booleans(), behind=CLOCKS, latest=st.sampled_from([GRACE // 2, 5 * GRACE]),
    inventories=INVENTORIES, pauses=st.sampled_from([0.0, 0.2]),
)  # fmt: skip
def test_a_mirror_equals_the_bucket_whatever_was_reported(
    versioned: bool, seed: int, share: float, fractions: bool, behind: int, latest: int, inventories: float,
    pauses: float,
) -> None:  # fmt: skip
    """Also if an event comes later than the grace, so that what it reports was found before.

    What was reported, has left the log before a listing, and was removed unreported until then, nobody can find.
    """
    world = live(
        seed, versioned=versioned, share=share, fractions=fractions, behind=behind, latest=latest,
        inventories=inventories, pauses=pauses,
    )  # fmt: skip
    for key in KEYS:
        fold = world.service.fold(key)
        top = fold.top()
        if top is None or top.place[2] not in world.service.lost:
            assert holding(world, key) == truth(world, key), key
        layers = world.store.layers.get(key, [])
        if versioned:
            shown = {version: state.layer(version) for version, state in fold.versions.items()}
            there = {version for version, layer in shown.items() if layer and layer.place[2] not in world.service.lost}
            listed = {version for version, _, _ in layers}
            assert there <= listed <= {version for version, layer in shown.items() if layer}


@pytest.mark.parametrize("versioned", [False, True])
@given(seed=SEEDS, share=SHARES, behind=CLOCKS, inventories=INVENTORIES)
def test_nothing_is_recorded_twice_and_what_is_reported_is_not_found(
    versioned: bool, seed: int, share: float, behind: int, inventories: float
) -> None:
    """Except what has left the log while an older event of the key, which came later, is still in it."""
    world = live(seed, versioned=versioned, share=share, behind=behind, inventories=inventories)
    assert len({made.id for made in world.found}) == len(world.found)
    if share == 1.0:
        left = {made.id: {world.service.log[seq - 1].key for seq in world.left[made.id]} for made in world.found}
        assert [made for made in world.found if made.key not in left[made.id]] == []
    real = {made.operation for made in world.service.log if made.operation}
    created = [made for made in world.found if content_change(made.name) is not ContentChange.REMOVED]
    reported = {
        (made.key, made.version, made.time): seq
        for seq, made in enumerate(world.service.log, 1)
        if made.operation and made.name != DELETE
    }
    for made in created:
        seq = reported.get((made.key, made.version, made.time))
        assert seq is None or seq in world.left[made.id], made
    assert max(Counter((made.key, made.version, made.time, made.name) for made in created).values(), default=1) == 1
    assert not real & world.store.unreported


@pytest.mark.parametrize("versioned", [False, True])
@given(seed=SEEDS, share=SHARES, fractions=st.booleans(), behind=CLOCKS)
def test_each_event_is_made_of_a_change_that_was_not_reported(
    versioned: bool, seed: int, share: float, fractions: bool, behind: int
) -> None:
    """A removal, too, and each change is found once."""
    world = live(seed, versioned=versioned, share=share, fractions=fractions, behind=behind)
    found = Counter[tuple[str, str, frozenset[int]]]()
    for made in world.found:
        operations = world.seen[made.listed_at, made.key, made.version]
        assert operations & world.store.unreported, made
        found[made.key, made.version, frozenset(operations)] += 1
    assert max(found.values(), default=1) == 1


@given(seed=SEEDS, share=SHARES, behind=CLOCKS)
def test_a_journal_leads_to_the_versions_of_each_key(seed: int, share: float, behind: int) -> None:
    """Whoever applies a key's events in their order has its versions, and knows the newest."""
    world = live(seed, versioned=True, share=share, behind=behind)
    for key in KEYS:
        there: dict[str, bool] = {}
        events = [made for made in world.service.log if made.key == key]
        for made in sorted(events, key=lambda one: comparable(one.sequencer)):
            if made.name == DELETE:
                there.pop(made.version, None)
            else:
                there[made.version] = made.name == MARKED
        layers = world.store.layers.get(key, [])
        assert there == {version: content.is_marker for version, content, _ in layers}
        assert [*there][-1:] == [version for version, _, _ in layers][-1:]


@given(seed=SEEDS, share=SHARES, behind=CLOCKS)
def test_a_journal_ends_with_the_state_of_each_key(seed: int, share: float, behind: int) -> None:
    """By the order in which events were recorded, if the store's arrive in theirs."""
    world = live(seed, versioned=False, share=share, behind=behind)
    assert world.overtaken == []
    for key in KEYS:
        events = [made for made in world.service.log if made.key == key]
        for at, made in enumerate(events):
            if made.operation is None and made.name == PUT:
                later = [one for one in events[:at] if one.operation and one.time > made.time]
                assert not later, "what was found does not follow what happened later"
        ordered = sorted(events, key=lambda one: (comparable(one.sequencer), one.name == DELETE))
        last = ordered[-1] if ordered else None
        assert (last.etag if last and last.name == PUT else None) == truth(world, key)


@given(seed=SEEDS)
def test_a_store_that_reports_nothing_is_followed_by_its_listings(seed: int) -> None:
    world = live(seed, versioned=False, share=0.0)
    for key in KEYS:
        events = [made for made in world.service.log if made.key == key]
        changes = [made.name for made in events]
        assert not [pair for pair in pairwise(changes) if pair == (DELETE, DELETE)]
        assert (events[-1].etag if events and events[-1].name == PUT else None) == truth(world, key)


@given(seed=SEEDS)
def test_a_first_run_that_remembers_makes_no_event_of_what_was_there(seed: int) -> None:
    world = World(Store(Random(seed), versioned=False, share=0.0, fractions=True), "remember")
    for _ in range(8):
        world.store.change()
    there = {key: truth(world, key) for key in KEYS}
    for _ in range(3):
        world.store.now += 2 * GRACE
        world.list_bucket(until_killed=None, busy=False)
    assert world.found == []
    while all(truth(world, key) == there[key] for key in KEYS):
        world.store.change()
    for _ in range(3):
        world.store.now += 2 * GRACE
        world.list_bucket(until_killed=None, busy=False)
    changed = {made.key for made in world.found}
    assert {key for key in KEYS if truth(world, key) != there[key]} <= changed
