"""List a bucket every so often, as long as its lease is held, and record what it has that no event explains.

The listing goes into a file first, and is compared with what is known from its beginning to its end; only then is
anything written, chunk by chunk, each with its events. So a listing that cannot be believed changes nothing.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast
from urllib.parse import urlsplit

from app import asked_servers
from app.config.sources.base import SourceSettings
from app.config.sources.bucket import BucketSourceSettings
from app.listings.comparison import Part, Replacement, compared
from app.listings.differences import Counts, Run
from app.listings.limits import BadListing, check_age, refused_removals
from app.listings.snapshot import KeySpool, ListingSpool
from app.outbox.processes import record_certificates_of_source
from app.outbox.sources.intake import TargetFull
from app.outbox.sources.rows import SourceLease
from app.outbox.sources.watched import Skipped, Watched, WatchedBuckets
from workers.sources import create, source_thread
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
        self._told_at = 0.0
        self._failed = lease.stored.failures > 0  # at the last listing, if that was another thread's
        self._has_begun = False  # a listing that has not ended
        self._source: Any = None
        self._counted_requests = 0

    @property
    def _retry_ms(self) -> int:
        """A listing that has begun is not repeated at once: it may be long, and each request may cost."""
        return source_thread.BAD_LISTING_MS if self._has_begun else source_thread.FIRST_RETRY_MS

    def _take(self, settings: SourceSettings) -> None:
        bucket = cast(BucketSourceSettings, settings)
        source = self._source = cast(Any, create(settings.type_name, settings))
        try:
            while not self._ending.is_set():
                due_at = self._watched.state(self.lease).due_at
                self._wait_until(min(due_at, self._outbox.clock() + int(bucket.every * 1000)))
                if not self._ending.is_set():
                    self._watched.begin(self.lease, bucket.recorded_bucket)
                    source.open()
                    self._list(source, bucket)
        except BadListing as error:
            self._fail(self._hide(f"{source.where}: {error}"), least=source_thread.BAD_LISTING_MS)
        except TargetFull as error:
            self._fail(str(error), least=source_thread.BAD_LISTING_MS)
        except SourceUnavailable as error:
            self._fail(self._hide(str(error)), least=self._retry_ms)
        except _Paused as error:
            log.warning("source %s is paused: %s", self.lease.stored.source, error)
        finally:
            self._settle(self._count_requests)
            source.close()

    def _count_requests(self) -> None:
        """Count the requests since the last time, also those of a listing that fails."""
        if more := self._source.requests - self._counted_requests:
            self._watched.count_requests(self.lease, more)
            self._counted_requests += more

    def _wait_until(self, due: int) -> None:
        while (left := due - self._outbox.clock()) > 0:
            self._tell()
            if self._ending.wait(min(left / 1000, source_thread.REPORT_SECONDS)):
                return

    def _tell(self) -> None:
        """Step, and note now and then that the source is served. Raises `LeaseLost`.

        One that has failed answers only when it is listed to its end, so that its alert stays.
        """
        self._step()
        if time.monotonic() >= self._told_at + source_thread.REPORT_SECONDS:
            self._told_at = time.monotonic()
            note = self._outbox.leases.renew if self._failed else self._outbox.leases.answered
            note(self.lease, self._outbox.clock())
            self._count_requests()

    def _list(self, source: Any, settings: BucketSourceSettings) -> None:
        """List the bucket, compare the listing with what is known, and record the differences."""
        log_state = self._watched.log_state()  # before anything is read that it has to agree with
        began, state = self._outbox.clock(), self._watched.state(self.lease)
        if by_backfill := not state.complete and settings.initial == "backfill":
            retention_ms = self._outbox.retention_ms
            self._watched.check_backfill(self.lease, settings.recorded_bucket, settings.prefix, retention_ms)
        store_time = behind = 0
        skipped = Skipped()
        with closing(ListingSpool()) as listing, closing(KeySpool()) as recent:
            for page in source.pages():
                check_age(page.store_time, state.store_time, self._outbox.clock() - state.began_at)
                store_time = store_time or page.store_time
                behind = max(0, self._outbox.clock() - page.store_time) if page.store_time else 0
                skipped.add(page.skipped)
                self._has_begun = True
                listing.add(page.entries)
                if listing.entries > source_thread.MAX_LISTED:
                    raise BadListing(
                        f"it has more than {source_thread.MAX_LISTED:,} entries; have Spark list it (spark)"
                    )
                self._tell()
                if self._ending.is_set():
                    return
            listing.finish()
            run = Run(
                settings.recorded_bucket,
                str(self.lease.stored.source),
                began,
                self._outbox.clock(),
                log_state.last_seq,
                int(settings.grace * 1000),
                versioned=source.versioned,
                remembers=not state.complete and settings.initial == "remember",
                is_first=not state.complete,
                by_backfill=by_backfill,
                behind=behind,
                epoch=log_state.epoch,
            )
            if not run.remembers:
                for keys in self._watched.keys_since(run.bucket, settings.prefix, state.seq):
                    recent.add(keys)
                    self._tell()
            compared = _Comparison(self, self._watched, run, listing, recent)
            counts = compared.count()
            self._check_removals(settings, state, counts, listing.entries)
            if compared.is_changed:
                compared.record()
            due_at = began + int(settings.every * 1000)
            store_time = min(store_time, run.ended)  # a clock that was ahead must not refuse what follows
            self._count_requests()
            self._watched.finish(self.lease, run, counts, store_time=store_time, due_at=due_at, skipped=skipped)
            self._has_begun = False
            self._failed = False
        self._record_certificate(settings)

    def _record_certificate(self, settings: BucketSourceSettings) -> None:
        endpoint, stored = urlsplit(settings.endpoint), self.lease.stored
        if endpoint.scheme == "https" and endpoint.hostname:
            with contextlib.suppress(Exception):  # the listing has succeeded, and is what matters
                valid = asked_servers.ask_certificate(endpoint.hostname, endpoint.port or 443)
                seen = {endpoint.hostname: valid}
                record_certificates_of_source(
                    self._outbox.database, stored.row_id, stored.revision, seen, self._outbox.clock()
                )

    def _check_removals(self, settings: BucketSourceSettings, state: Watched, counts: Counts, entries: int) -> None:
        """Pause the source if the listing lacks too many objects. Raises `_Paused`."""
        name = str(self.lease.stored.source)
        refused = refused_removals(counts, entries, percent=settings.max_removals, approved=state.asked, source=name)
        if refused is not None:
            self._watched.ask(self.lease, refused.lacking, refused.reason)
            raise _Paused(refused.reason)

    def tell(self) -> None:
        """Note that the comparison goes on. Raises `LeaseLost`, `Stopped`."""
        self._tell()
        if self._ending.is_set():
            raise Stopped

    def replace(self, replacement: Replacement, run: Run) -> None:
        """Replace chunks with the events of their keys, and wait as long as a target has no room for these."""
        pause = source_thread.FIRST_FULL_SECONDS
        while True:
            self._step()
            try:
                receipt = self._watched.replace(self.lease, replacement, run)
            except TargetFull as error:
                self._outbox.leases.wait(self.lease, self._outbox.clock(), str(error))
                if self._ending.wait(pause):
                    raise Stopped from None
                pause = min(2 * pause, source_thread.MAX_FULL_SECONDS)
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

    def count(self) -> Counts:
        """Return what recording would do, and do nothing."""
        counts = Counts()
        for part in self._parts():
            counts.add(part.counts)
            self.is_changed |= part.is_changed
        return counts

    def record(self) -> None:
        """Record it."""
        for part in self._parts():
            if part.is_changed:
                self._watcher.replace(part.replacement(), self._run)

    def _parts(self) -> Iterator[Part]:
        watched, lease, run = self._watched, self._watcher.lease, self._run
        chunks = watched.chunks(lease)
        return compared(
            chunks,
            read=lambda number: watched.body(lease, number),
            logged=lambda keys: watched.logged(run.bucket, keys, by_backfill=run.by_backfill),
            listed=self._listing.read(),
            recent=self._recent.read(),
            run=run,
            numbers=iter(range(max((chunk.number for chunk in chunks), default=0) + 1, 2**62)),
            most=source_thread.FOUND_EVENTS,
            tell=self._watcher.tell,
        )
