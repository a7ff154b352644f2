"""Pull from every source that nobody else pulls from: a thread for each, in a Celery worker of the role `sources`.

The leases decide who pulls, not the task broker: sources are served while it is away.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from app.config.settings import Settings
from app.events.limits import UNLIMITED, Limits
from app.outbox.delivery.leases import LeaseLost
from app.outbox.delivery.ready_targets import ReadyTargets
from app.outbox.engine.clock import DatabaseClock
from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.engine.db_errors import outbox_state
from app.outbox.log.append import Receipt
from app.outbox.registry import Registry, open_sealer
from app.outbox.sources.registry import SourceRegistry
from app.outbox.sources.rows import SourceLeases
from app.wakeups import WakeUps
from workers.sources import source_thread
from workers.sources.puller import Puller
from workers.sources.source_thread import Outbox, SourceThread
from workers.sources.watcher import Watcher

log = logging.getLogger("bucketwire.sources")


class SourceRunner(threading.Thread):
    """Claim sources and renew their leases until `stop` is called. Create it in the process that starts it.

    `report` learns each second whether it can.
    """

    def __init__(self, settings: Settings, report: Callable[[bool], None] = lambda _serves: None) -> None:
        super().__init__(name="sources", daemon=True)
        self._settings = settings
        self._report = report
        self._ending = threading.Event()
        self._database = Database(settings.database_url, patience=settings.database_timeout)
        sealer = open_sealer(settings)
        lease_ms = int(settings.lease_ttl * 1000)
        ready = ReadyTargets(self._database, Registry(self._database, sealer), settings)
        self._wakeups = WakeUps(settings.broker_url, ready)
        self._outbox = Outbox(
            database=self._database,
            leases=SourceLeases(self._database, lease_ms),
            registry=SourceRegistry(self._database, sealer),
            clock=DatabaseClock(self._database),
            lease_ms=lease_ms,
            retention_ms=int(settings.retention * 1000),
            limits=self._limits,
            wake=self._wake,
        )
        self._threads: dict[int, SourceThread] = {}
        self._renewed_at = 0.0

    def run(self) -> None:
        """Look for sources once a second, and end with all of its threads."""
        while not self._ending.is_set():
            serves = False
            try:
                self._serve()
                serves = True
            except DatabaseUnavailable as error:
                outbox_state.failed(error)
            except Exception:
                log.exception("sources cannot be looked for")
            self._report(serves)
            self._ending.wait(source_thread.SEARCH_SECONDS)
        self._report(False)
        deadline = time.monotonic() + source_thread.STOP_SECONDS
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        self._wakeups.close()
        self._database.close()

    def request_stop(self) -> None:
        """Have every source released after its present commit; `join` waits for it."""
        self._ending.set()

    def _serve(self) -> None:
        self._threads = {row_id: thread for row_id, thread in self._threads.items() if thread.is_alive()}
        self._renew()
        now = self._outbox.clock()
        for stored in self._outbox.leases.free(now):
            if stored.row_id not in self._threads and (lease := self._outbox.leases.claim(stored, now)) is not None:
                log.info("source %s: this worker takes events from it", stored.source)
                kind = Watcher if stored.lists else Puller
                self._threads[stored.row_id] = thread = kind(self._outbox, lease, self._ending)
                thread.start()

    def _renew(self) -> None:
        """Renew the leases of the threads that do not hang."""
        if time.monotonic() < self._renewed_at + self._settings.lease_ttl / 4:
            return
        self._renewed_at = time.monotonic()
        now = self._outbox.clock()
        for thread in self._threads.values():
            if time.monotonic() < thread.stepped_at + source_thread.MAX_STEP_SECONDS:
                with suppress(LeaseLost):  # the thread finds out by itself
                    self._outbox.leases.renew(thread.lease, now)

    def _limits(self) -> Limits:
        return Limits(records=self._settings.record_limit, event_bytes=self._database.largest_event or UNLIMITED)

    def _wake(self, receipt: Receipt) -> None:
        self._wakeups.request_delivery(receipt.due)
