"""Record the spooled requests, in order, when the database is available again."""

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.events.limits import MAX_EVENT_BYTES, is_too_long
from app.events.model import Event
from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.engine.db_errors import Unstorable
from app.outbox.engine.reachability import outbox_state
from app.outbox.log.recorder import Recorder
from app.outbox.log.spool import DamagedFile, Spool, decoded
from app.outbox.policies import SPOOL
from app.per_process import PerProcess
from app.quantities import count_noun

log = logging.getLogger("bucketwire.spool")

_TOO_LONG = f"its record has more than the {MAX_EVENT_BYTES} bytes that an event may have"

# Errors of a single file, as opposed to the folder or the process.
_OF_ONE_FILE = (errno.EIO, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENXIO)


@dataclass(frozen=True, slots=True)
class _SpoolFile:
    """The content of a spool file: the events to record, and those that are too long, with the reason."""

    path: Path
    size: int
    events: Sequence[Event]
    too_long: Sequence[tuple[Event, str]] = ()


class SpoolFeeder:
    """Feed the folder to the log. Every API process has a feeder, and only one of them works at a time.

    `recorded` is called after each commit. A file of more than `max_file_bytes` is not read: a version that had no
    limit for what it wrote has left it, and reading takes several times its size.
    """

    def __init__(
        self,
        spool: Spool,
        database: Database,
        recorded: Callable[[], None] = lambda: None,
        max_file_bytes: int = SPOOL.max_readable_bytes,
    ) -> None:
        self.spool = spool
        self._max_file_bytes = max_file_bytes
        self._recorded = recorded
        self._database = database
        self._recorder = Recorder(database)
        self._thread = PerProcess(self._start)

    def started(self) -> None:
        """Ensure that this process has a feeder thread, which feeds waiting files and ends with the process."""
        self._thread.get()

    def feed(self) -> int:
        """Record the waiting files in order, and return their number. Raises `DatabaseUnavailable`."""
        total = 0
        with self.spool.feeding() as mine:
            while mine and (paths := self.spool.files()):
                for batch in self._batches(paths):
                    self._feed(batch)
                    self._recorded()
                total += len(paths)
        return total

    def _start(self) -> None:
        threading.Thread(target=self._run, name="feeder", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                self._remember_limit()
                fed = self.feed() if self.spool.pending() else 0
            except DatabaseUnavailable as error:
                outbox_state.failed(error)
            except Exception:  # if the thread ended, nothing would be fed any more
                log.exception("the files spooled in %s cannot be recorded, trying again", self.spool.folder)
            else:
                if fed:
                    log.info("recorded %s", count_noun(fed, "spooled file"))
            time.sleep(SPOOL.pause_seconds)

    def _remember_limit(self) -> None:
        if self._database.largest_event is not None:
            with contextlib.suppress(OSError):  # the disk is full, and only feeding frees space
                self.spool.remember_largest_event(self._database.largest_event)

    def _batches(self, paths: Iterable[Path]) -> Iterator[list[_SpoolFile]]:
        batch: list[_SpoolFile] = []
        events = size = 0
        for path in paths:
            spooled = self._read(path)
            if spooled is None:
                continue
            if batch and size + spooled.size > SPOOL.max_file_bytes:
                yield batch
                batch, events, size = [], 0, 0
            batch.append(spooled)
            events += len(spooled.events)
            size += spooled.size
            if len(batch) >= SPOOL.batch_files or events >= SPOOL.batch_events:
                yield batch
                batch, events, size = [], 0, 0
        if batch:
            yield batch

    def _read(self, path: Path) -> _SpoolFile | None:
        try:
            size = path.stat().st_size
            if size > self._max_file_bytes:
                problem = f"it has {size} bytes, and at most {self._max_file_bytes} are read"
                self.spool.quarantine_file(path, problem)
                return None
            events = decoded(path.read_bytes())
            too_long = [(event, _TOO_LONG) for event in events if is_too_long(event.record)]
            if too_long:
                events = [event for event in events if not is_too_long(event.record)]
            return _SpoolFile(path, size, events, too_long)
        except FileNotFoundError:
            return None  # it was deleted manually
        except (DamagedFile, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _OF_ONE_FILE:
                raise
            self.spool.quarantine_file(path, str(error))
            return None

    def _feed(self, batch: Sequence[_SpoolFile]) -> None:
        # `promised`, because they were answered with 202 before a full queue could be detected. After a refusal, each
        # file is recorded only when its answer is asked for, so the rest of a refused file precedes the later files.
        answers = self._recorder.record([spooled.events for spooled in batch], promised=True)
        for spooled, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Unstorable):
                _, refused = self._recorder.record_most(spooled.events, promised=True)
                self.spool.quarantine(spooled.path, [*spooled.too_long, *refused])
            elif isinstance(answer, Exception):
                raise answer
            else:
                self.spool.quarantine(spooled.path, spooled.too_long)
