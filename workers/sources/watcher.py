"""List a bucket every so often, as long as its lease is held, and record what it has that no event explains.

The listing goes into a file first, and is compared with what is known from its beginning to its end; only then is
anything written, chunk by chunk, each with its events. So a listing that cannot be believed changes nothing.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, cast

from app.config.sources.base import SourceSettings
from app.config.sources.bucket import BucketSourceSettings
from app.events.minio_json import timestamp
from app.events.model import Event
from app.events.own_records import CLOCK_SKEW
from app.listings import snapshot
from app.listings.differences import Counts, Decided, Entry, Run, decide, differs, unchanged
from app.listings.errors import BadListing
from app.listings.limits import ALWAYS_ALLOWED, exceeds
from app.listings.merge import Ahead, Group, by_key
from app.listings.spool import KeySpool, ListingSpool
from app.outbox.sources.intake import TargetFull
from app.outbox.sources.leases import SourceLease
from app.outbox.sources.watched import Chunk, Replacement, Watched, WatchedBuckets
from app.quantities import count_noun
from workers.sources import create, policy
from workers.sources.base import SourceUnavailable
from workers.sources.source_thread import Outbox, SourceThread, Stopped

log = logging.getLogger("bucketwire.sources")


class _Paused(Exception):
    """The source waits for an operator; its lease is released."""


class Watcher(SourceThread):
    """List a bucket until the worker ends."""

    def __init__(self, outbox: Outbox, lease: SourceLease, ending: threading.Event) -> None:
        super().__init__(outbox, lease, ending)
        self._watched = WatchedBuckets(outbox.database, outbox.clock, outbox.lease_ms)
        self._most_events = policy.FOUND_EVENTS
        self._told_at = 0.0
        self._failed = lease.stored.failures > 0  # at the last listing, if that was another thread's
        self._has_begun = False  # a listing that has not ended

    @property
    def _retry_ms(self) -> int:
        """A listing that has begun is not repeated at once: it may be long, and each request may cost."""
        return policy.BAD_LISTING_MS if self._has_begun else policy.FIRST_RETRY_MS

    def _take(self, settings: SourceSettings) -> None:
        bucket = cast(BucketSourceSettings, settings)
        source = cast(Any, create(settings.type_name, settings))
        try:
            while not self._ending.is_set():
                state = self._watched.state(self.lease)
                self._wait_until(min(state.due_at, self._outbox.clock() + int(bucket.every * 1000)))
                if not self._ending.is_set():
                    source.open()
                    self._list(source, bucket, state)
        except BadListing as error:
            self._fail(self._hide(f"{source.where}: {error}"), least=policy.BAD_LISTING_MS)
        except TargetFull as error:
            self._fail(str(error), least=policy.BAD_LISTING_MS)
        except SourceUnavailable as error:
            self._fail(self._hide(str(error)), least=self._retry_ms)
        except _Paused as error:
            log.warning("source %s is paused: %s", self.lease.stored.source, error)
        finally:
            source.close()

    def _wait_until(self, due: int) -> None:
        while (left := due - self._outbox.clock()) > 0:
            self._tell()
            if self._ending.wait(min(left / 1000, policy.REPORT_SECONDS)):
                return

    def _tell(self) -> None:
        """Step, and note now and then that the source is served. Raises `LeaseLost`.

        One that has failed answers only when it is listed to its end, so that its alert stays.
        """
        self._step()
        if time.monotonic() >= self._told_at + policy.REPORT_SECONDS:
            self._told_at = time.monotonic()
            note = self._outbox.leases.renew if self._failed else self._outbox.leases.answered
            note(self.lease, self._outbox.clock())

    def _list(self, source: Any, settings: BucketSourceSettings, state: Watched) -> None:
        """List the bucket, compare the listing with what is known, and record the differences."""
        began, seq, store_time, requests = self._outbox.clock(), self._watched.last_seq(), 0, 0
        with closing(ListingSpool()) as listing, closing(KeySpool()) as recent:
            for page in source.pages():
                _check_age(state, page.store_time, self._outbox.clock())
                store_time = store_time or page.store_time
                requests += 1
                self._has_begun = True
                listing.add(page.entries)
                if listing.entries > policy.MAX_LISTED:
                    raise BadListing(f"it has more than {policy.MAX_LISTED:,} entries; watch it by several prefixes")
                self._tell()
                if self._ending.is_set():
                    return
            listing.finish()
            run = Run(
                settings.recorded_bucket,
                str(self.lease.stored.source),
                began,
                self._outbox.clock(),
                seq,
                int(settings.grace * 1000),
                versioned=source.versioned,
                remembers=not state.complete and settings.initial == "remember",
                is_first=not state.complete,
            )
            if not run.remembers:
                for keys in self._watched.keys_since(run.bucket, settings.prefix, state.seq):
                    recent.add(keys)
                    self._tell()
            compared = _Comparison(self, self._watched, run, listing, recent)
            counts = compared.count(self._most_events)
            self._check_removals(settings, state, counts, listing.entries)
            while compared.is_changed and not self._record(compared):
                self._most_events = max(1, self._most_events // 2)
            due_at = began + int(settings.every * 1000)
            store_time = min(store_time, run.ended)  # a clock that was ahead must not refuse what follows
            self._watched.finish(self.lease, run, counts, store_time=store_time, requests=requests, due_at=due_at)
            self._has_begun = False
            self._failed = False

    def _check_removals(self, settings: BucketSourceSettings, state: Watched, counts: Counts, entries: int) -> None:
        """Pause the source if the listing lacks too many objects. Raises `_Paused`."""
        # What only the log knew counts, too: the listing of another store lacks all of that.
        is_empty, lacking, there = not entries and counts.known > 0, counts.removed, counts.known + counts.unseen
        if not is_empty and not exceeds(lacking, there, settings.max_removals, ALWAYS_ALLOWED):
            return
        lacking = counts.known if is_empty else lacking
        if state.asked and lacking <= state.asked + ALWAYS_ALLOWED:
            return
        name = self.lease.stored.source
        found = "the listing is empty" if is_empty else f"the listing lacks {count_noun(lacking, 'object')}"
        reason = (
            f"{found} of {there:,} that are known, more than max_removals={settings.max_removals} allows;"
            f" nothing is recorded; if the objects were removed, `bucketwire source resume {name}` approves it"
        )
        self._watched.ask(self.lease, lacking, reason)
        raise _Paused(reason)

    def _record(self, compared: "_Comparison") -> bool:
        """Record what was found; return False if some target never takes so many events at once."""
        try:
            compared.record(self._most_events)
        except TargetFull as error:
            if not error.never or self._most_events == 1:
                raise
            return False
        return True

    def tell(self) -> None:
        """Note that the comparison goes on. Raises `LeaseLost`, `Stopped`."""
        self._tell()
        if self._ending.is_set():
            raise Stopped

    def replace(self, replacement: Replacement) -> None:
        """Replace chunks with the events of their keys, and wait as long as a target has no room for these."""
        pause = policy.FIRST_FULL_SECONDS
        while True:
            self._step()
            try:
                receipt = self._watched.replace(self.lease, replacement)
            except TargetFull as error:
                if error.never:
                    raise
                self._outbox.leases.wait(self.lease, self._outbox.clock(), str(error))
                if self._ending.wait(pause):
                    raise Stopped from None
                pause = min(2 * pause, policy.MAX_FULL_SECONDS)
            else:
                self._outbox.wake(receipt)
                return


class _Comparison:
    """Compare a listing with what is known, once to count and once to record; `is_changed` is known after the first."""

    def __init__(
        self, watcher: Watcher, watched: WatchedBuckets, run: Run, listing: ListingSpool, recent: KeySpool
    ) -> None:
        self._watcher, self._watched, self._run = watcher, watched, run
        self._listing, self._recent = listing, recent
        self.is_changed = False

    def count(self, most: int) -> Counts:
        """Return what recording would do, and do nothing."""
        counts = Counts()
        for part in self._parts(most):
            counts.add(part.counts)
            self.is_changed |= part.is_changed
        return counts

    def record(self, most: int) -> None:
        """Record it, at most so many events in one commit but for those of one key."""
        for part in self._parts(most):
            if part.is_changed:
                self._watcher.replace(part.replacement())

    def _parts(self, most: int) -> Iterator["_Part"]:
        lease = self._watcher.lease
        places: Sequence[Chunk | None] = self._watched.chunks(lease) or [None]
        numbers = iter(range(max((place.number for place in places if place), default=0) + 1, 2**62))
        listed, recent = Ahead(self._listing.read()), Ahead(self._recent.read())
        ends = [place.first if place else None for place in places[1:]]
        for place, until in zip(places, [*ends, None], strict=True):
            known = snapshot.decode(self._watched.body(lease, place.number)) if place else []
            part = _Part(place.number if place else None, known, numbers)
            for groups in _batches(by_key(known, listed, recent, until)):
                self._watcher.tell()
                for group, decided in self._decided(groups):
                    part.add(group, decided)
                    if part.is_full(most):
                        yield part
                        part = part.rest()
            yield part

    def _decided(self, groups: Sequence[Group]) -> Iterator[tuple[Group, Decided]]:
        run = self._run
        asked = [group.key for group in groups if group.is_recent or differs(group.known, group.listed)]
        logged = self._watched.logged(run.bucket, asked) if asked and not run.remembers else dict.fromkeys(asked, ())
        for group in groups:
            if group.key in logged:
                yield group, decide(group.key, group.known, group.listed, logged[group.key], run)
            else:
                yield group, unchanged(group.known, group.listed)


class _Part:
    """A part of a chunk: what was known of its keys, from `begin` on, and what is known of them from now on."""

    def __init__(self, number: int | None, known: Sequence[Entry], numbers: Iterator[int], begin: int = 0) -> None:
        self._number, self._known, self._numbers = number, known, numbers
        self._begin = self._end = begin
        self._entries: list[Entry] = []
        self._events: list[Event] = []
        self.counts = Counts()

    @property
    def is_changed(self) -> bool:
        """Whether anything has to be written."""
        return bool(self._events) or self._entries != self._known[self._begin : self._end]

    def is_full(self, most: int) -> bool:
        """Return whether it has as many events as one commit may have, or as many more entries as a chunk."""
        grown = len(self._entries) - (self._end - self._begin)
        return len(self._events) >= most or grown >= snapshot.CHUNK_ENTRIES

    def add(self, group: Group, decided: Decided) -> None:
        """Add what was decided of the next key."""
        self._end += len(group.known)
        self._entries += decided.entries
        self._events += decided.events
        self.counts.add(decided.counts)

    def replacement(self) -> Replacement:
        """Return what replaces the chunk: what is known now, and apart from it what has not been compared yet."""
        added = [(next(self._numbers), some[0].key, snapshot.encode(some)) for some in snapshot.pieces(self._entries)]
        removed = [] if self._number is None else [self._number]
        self._number = None
        if left := self._known[self._end :]:
            self._number = next(self._numbers)
            added.append((self._number, left[0].key, snapshot.encode(left)))
        return Replacement(removed, added, self._events)

    def rest(self) -> "_Part":
        """Return the part with the keys that follow, once this one is replaced."""
        return _Part(self._number, self._known, self._numbers, self._end)


def _batches(groups: Iterator[Group]) -> Iterator[list[Group]]:
    while some := list(islice(groups, policy.FOUND_KEYS)):
        yield some


def _check_age(state: Watched, store_time: int, now: int) -> None:
    """Raise `BadListing` if the store answers what was the state before that which is known: from a cache, say.

    Its clock has to have gone on, half as fast as the database's at least, so that one that was set back goes on again.
    """
    passed = max(0, now - state.began_at) // 2
    if store_time and state.store_time and store_time < state.store_time + passed - CLOCK_SKEW:
        raise BadListing(
            f"its answer is of {timestamp(store_time)}, before the listing that is known, of"
            f" {timestamp(state.store_time)}: a cache has answered, or the store's clock was set back"
        )
