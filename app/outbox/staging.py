"""Keep requests in a folder while the database is away, and feed them to the log in order when it is back.

One file for each request, or for several that came together; its name is a number that only grows, shared by every API
process of the machine. A file is there as a whole or not at all, and on the disk, before its requests are answered; it
goes after the commit that recorded its events. A crash between the two feeds it again, and the events' ids make that a
repetition.
"""

import errno
import fcntl
import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from app.events.model import Event
from app.outbox.append import Log
from app.outbox.database import REFUSED, Database, DatabaseUnavailable, said

log = logging.getLogger("bucketwire.staging")

_FORMAT = "bucketwire-staged-1"
_FIELDS = ("id", "name", "bucket", "key", "version", "sequencer", "time", "record")
_NAME = re.compile(r"\d{20}\.events")
_FILES, _EVENTS, _BYTES = 500, 5000, 1 << 24  # of one commit; a file is never divided
_PAUSE = 0.5  # seconds between two looks at the folder, and between two tries of a database that is away


class Damaged(ValueError):
    """A staged file does not hold what was written to it."""


@dataclass(frozen=True, slots=True)
class _Staged:
    """A file as it was read."""

    path: Path
    size: int
    events: Sequence[Event]


class _Waiting(Future[None]):
    """A request that waits for its events to be on the disk."""

    def __init__(self, events: Sequence[Event]) -> None:
        super().__init__()
        self.events = events


class Staging:
    """The folder. Any number of threads and processes of one machine may use it at once; a network file system may not.

    Raises `OSError` where the folder cannot be made, read or written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._turn, self._writing = threading.Condition(), False
        self._waiting: list[_Waiting] = []
        self._numbered = 0  # the process that has looked at the names in the folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._exclusive("number.lock"):
            pass

    def append(self, events: Sequence[Event]) -> None:
        """Keep one request's events; returns when they are on the disk. Raises `OSError`, and then nothing is kept.

        Requests that come while a file is being written go into the next one together.
        """
        mine = _Waiting(events)
        with self._turn:
            self._waiting.append(mine)
            self._turn.wait_for(lambda: mine.done() or not self._writing)
            if not mine.done():
                self._writing = True
                group, self._waiting = self._waiting, []
        if not mine.done():
            self._write_all(group)
            with self._turn:
                self._writing = False
                self._turn.notify_all()
        mine.result()

    def _write_all(self, group: Sequence[_Waiting]) -> None:
        try:
            self._write([event for waiting in group for event in waiting.events])
        except BaseException as error:  # noqa: BLE001 - each request raises it
            for waiting in group:
                waiting.set_exception(error)
        else:
            for waiting in group:
                waiting.set_result(None)

    def _write(self, events: Sequence[Event]) -> None:
        number = self._number()
        draft, place = self.folder / f"{number:020d}.draft", self.folder / f"{number:020d}.events"
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(encoded(events))
                file.flush()
                os.fsync(file.fileno())
            draft.rename(place)
            _sync(self.folder)
        except BaseException:
            # Also a file in its place goes again: its requests are about to be refused.
            for path in (draft, place):
                with suppress(OSError):
                    path.unlink()
            raise

    def pending(self) -> bool:
        """Whether anything waits here; then whatever comes has to wait behind it."""
        with os.scandir(self.folder) as entries:
            return any(_NAME.fullmatch(entry.name) for entry in entries)

    def files(self) -> list[Path]:
        """The files that wait, in their order."""
        return sorted(path for path in self.folder.iterdir() if _NAME.fullmatch(path.name))

    def damaged(self) -> int:
        """How many files were set aside because they could not be read or recorded."""
        return sum(1 for _ in self.folder.glob("*.bad"))

    def set_aside(self, path: Path, reason: str) -> None:
        """Take a file out of the line for good; a person has to look at it."""
        path.rename(path.with_suffix(".bad"))
        log.error("%s is set aside as .bad, its events are not recorded: %s", path, reason)

    @contextmanager
    def feeding(self) -> Iterator[bool]:
        """True for the one process that may feed now, False for the others."""
        with (self.folder / "feeder.lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def _number(self) -> int:
        with self._exclusive("number.lock") as descriptor:
            number = int(os.pread(descriptor, 20, 0) or b"0")
            if self._numbered != os.getpid():
                # A power cut may have taken the number back, but not the files that were numbered by it.
                names = [path.name[:20] for path in self.folder.iterdir()]
                number = max([number, *(int(name) for name in names if name.isdecimal())])
                self._numbered = os.getpid()
            os.pwrite(descriptor, f"{number + 1:020d}".encode(), 0)
            return number + 1

    @contextmanager
    def _exclusive(self, name: str) -> Iterator[int]:
        descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)


class Feeder:
    """Feeds the folder to the log. Every API process has one; at any time one of them works."""

    def __init__(self, staging: Staging, database: Database) -> None:
        self.staging = staging
        self._log = Log(database)
        self._lock = threading.Lock()
        self._pid = 0

    def started(self) -> None:
        """Have a thread in this process that feeds whenever there is something to feed; it ends with the process."""
        if self._pid != os.getpid():
            with self._lock:
                if self._pid != os.getpid():
                    threading.Thread(target=self._run, name="feeder", daemon=True).start()
                    self._pid = os.getpid()

    def feed(self) -> int:
        """Record what waits, in its order, and say how many files that were. Raises `DatabaseUnavailable`."""
        total = 0
        with self.staging.feeding() as mine:
            while mine and (paths := self.staging.files()):
                for batch in self._batches(paths):
                    self._feed(batch)
                total += len(paths)
        return total

    def _run(self) -> None:
        away = False
        while True:
            try:
                fed = self.feed() if self.staging.pending() else 0
            except DatabaseUnavailable:
                away = True
            except Exception:  # a thread that ends would leave everything where it is
                log.exception("what is staged in %s cannot be fed, trying again", self.staging.folder)
            else:
                if fed:
                    log.info("fed %d staged file(s)%s", fed, ", the database is back" if away else "")
                    away = False
            time.sleep(_PAUSE)

    def _batches(self, paths: Iterable[Path]) -> Iterator[list[_Staged]]:
        batch: list[_Staged] = []
        events = size = 0
        for path in paths:
            staged = self._read(path)
            if staged is None:
                continue
            batch.append(staged)
            events += len(staged.events)
            size += staged.size
            if len(batch) >= _FILES or events >= _EVENTS or size >= _BYTES:
                yield batch
                batch, events, size = [], 0, 0
        if batch:
            yield batch

    def _read(self, path: Path) -> _Staged | None:
        try:
            content = path.read_bytes()
            return _Staged(path, len(content), decoded(content))
        except FileNotFoundError:
            return None  # somebody took it away
        except (Damaged, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.EIO:
                raise
            self.staging.set_aside(path, str(error))
            return None

    def _feed(self, batch: Sequence[_Staged]) -> None:
        try:
            self._record(batch)
        except REFUSED:
            # One of them holds a value that the database refuses: the others must not suffer for it.
            for staged in batch:
                try:
                    self._record([staged])
                except REFUSED as error:
                    self.staging.set_aside(staged.path, said(error))

    def _record(self, batch: Sequence[_Staged]) -> None:
        # They were answered with 202 before anybody could say that a queue is full.
        self._log.append([staged.events for staged in batch], promised=True)
        for staged in batch:
            staged.path.unlink()


def encoded(events: Sequence[Event]) -> bytes:
    """Events as a file holds them: a line with their number and the digest of the rest, then JSON."""
    held: dict[str, Any] = {"fields": _FIELDS, "rows": [[getattr(event, name) for name in _FIELDS] for event in events]}
    if any(event.trace for event in events):
        # Beside the rows, where a version that knows no traces passes over them: it may feed what a later one kept.
        held["traces"] = [event.trace for event in events]
    body = orjson.dumps(held)
    return f"{_FORMAT} {len(events)} {hashlib.sha256(body).hexdigest()}\n".encode() + body


def decoded(content: bytes) -> Sequence[Event]:
    """The events of a file. Raises `Damaged`."""
    head, _, body = content.partition(b"\n")
    words = head.decode(errors="replace").split(" ")
    if len(words) != 3 or words[0] != _FORMAT:
        raise Damaged(f"it does not begin with {_FORMAT}")
    if words[2] != hashlib.sha256(body).hexdigest():
        raise Damaged("it is cut off or was changed: its digest does not fit")
    try:
        held = orjson.loads(body)
        events = [Event(**dict(zip(held["fields"], row, strict=True))) for row in held["rows"]]
        if "traces" not in held:
            return events
        return [event._replace(trace=trace) for event, trace in zip(events, held["traces"], strict=True)]
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"another version of bucketwire wrote it: {error}") from None


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
