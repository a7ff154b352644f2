"""Store requests in a folder while the database is unavailable, and record them in order when it is available again.

Each file has one request, or several that came together: a line with the number of events and a digest, then JSON. Its
name is a number from an increasing sequence that all API processes of the machine share. Files are written atomically
and synced to disk before their requests are answered, and deleted after the commit that recorded their events. After a
crash between the two, a file is fed again, and the ids of its events identify them as repeated.
"""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from app.events.limits import MAX_EVENT_BYTES, is_too_long
from app.events.model import Event
from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.engine.db_errors import Unstorable, outbox_state
from app.outbox.log.group_commit import Recorder
from app.outbox.policies import SPOOL
from app.per_process import PerProcess
from app.quantities import count_noun, format_seconds

_FORMAT = "bucketwire-spooled-1"
_FIELDS = ("id", "name", "bucket", "key", "version", "sequencer", "time", "record")
_TEXTS = tuple(name for name in _FIELDS if name != "time")


class WaitingFiles(NamedTuple):
    """How many files wait to be recorded, and when the oldest was written (ms by the host's clock), 0 for none."""

    number: int
    oldest_at: int

    def age(self, now: int) -> int:
        """Return the age of the oldest one (ms)."""
        return max(0, now - self.oldest_at) if self.number else 0


def waiting_files(folder: Path) -> WaitingFiles:
    """Look into a spool folder. Raises `OSError` if that is not possible."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if _NAME.fullmatch(entry.name)]
    while names:
        try:
            return WaitingFiles(len(names), int((folder / min(names)).stat().st_mtime * 1000))
        except FileNotFoundError:  # it has just been recorded
            names.remove(min(names))
    return WaitingFiles(0, 0)


def describe_waiting(waiting: WaitingFiles, now: int) -> str:
    """Say how many files wait to be recorded, and for how long."""
    oldest = format_seconds(waiting.age(now) / 1000)
    return f"{count_noun(waiting.number, 'spooled file')} of events not recorded yet, the oldest for {oldest}"


class DamagedFile(ValueError):
    """A spool file does not have the content that was written to it."""


def encoded(events: Sequence[Event]) -> bytes:
    """Encode events as the content of a file: a line with their number and the digest of the rest, then JSON."""
    document: dict[str, Any] = {
        "fields": _FIELDS,
        "rows": [[getattr(event, name) for name in _FIELDS] for event in events],
    }
    if any(event.trace for event in events):
        # Outside the rows, where a version that does not know them ignores them: it may feed files of a later version.
        document["traces"] = [event.trace for event in events]
    if any(event.origin for event in events):
        document["origins"] = [event.origin for event in events]
    body = orjson.dumps(document)
    return f"{_FORMAT} {len(events)} {hashlib.sha256(body).hexdigest()}\n".encode() + body


def decoded(content: bytes) -> Sequence[Event]:
    """Decode the events of a file. Raises `DamagedFile`."""
    head, _, body = content.partition(b"\n")
    fields = head.decode(errors="replace").split(" ")
    if len(fields) != 3 or fields[0] != _FORMAT:
        raise DamagedFile(f"it does not begin with {_FORMAT}")
    if fields[2] != hashlib.sha256(body).hexdigest():
        raise DamagedFile("it is cut off or was changed: its digest does not fit")
    try:
        document = orjson.loads(body)
        events = [Event(**dict(zip(document["fields"], row, strict=True))) for row in document["rows"]]
        if "traces" in document:
            events = [event._replace(trace=trace) for event, trace in zip(events, document["traces"], strict=True)]
        if "origins" in document:
            events = [event._replace(origin=origin) for event, origin in zip(events, document["origins"], strict=True)]
        for event in events:
            _check_types(event)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFile(f"another version of bucketwire wrote it: {error}") from None
    return events


def _check_types(event: Event) -> None:
    """Raise `TypeError` for wrong types, as in a file edited by hand: they must not fail during a commit."""
    if type(event.time) is not int:
        raise TypeError("time is no whole number")
    for name in (*_TEXTS, "trace", "origin"):
        if type(getattr(event, name)) is not str:
            raise TypeError(f"{name} is no text")


log = logging.getLogger("bucketwire.spool")

_NAME = re.compile(r"\d{20}\.events")
_LIMIT = "largest-event"
_QUARANTINE = "quarantine"  # a folder of its own: each request looks through the other one


class _Waiting(Future[None]):
    """A request that waits for its events to be on the disk."""

    def __init__(self, events: Sequence[Event]) -> None:
        super().__init__()
        self.events = events
        self.size = sum(len(event.record) for event in events)


class Spool:
    """The spool folder, shared by all threads and processes of one machine; not for network file systems.

    Raises `OSError` if the folder cannot be created, read or written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.quarantined = folder / _QUARANTINE
        self._turn, self._writing = threading.Condition(), False
        self._waiting: list[_Waiting] = []
        self._numbered = 0  # id of the process that has read the names in the folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.quarantined.mkdir(exist_ok=True, mode=0o700)
        with self._exclusive("number.lock"):
            pass

    def append(self, events: Sequence[Event]) -> None:
        """Store one request's events, and return when they are on disk. Raises `OSError`; then nothing is stored.

        Requests that arrive while a file is being written share the next file.
        """
        mine = _Waiting(events)
        with self._turn:
            self._waiting.append(mine)
            self._turn.wait_for(lambda: mine.done() or not self._writing)
            if not mine.done():
                self._writing = True
                group, self._waiting = self._waiting, []
        if not mine.done():
            for portion in _portions(group):
                self._write_all(portion)
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
            # Delete even a renamed file, because its requests will be refused.
            for path in (draft, place):
                with suppress(OSError):
                    path.unlink()
            raise

    def pending(self) -> bool:
        """Return whether any file waits; then new requests must wait behind it, to keep their order."""
        with os.scandir(self.folder) as entries:
            return any(_NAME.fullmatch(entry.name) for entry in entries)

    def files(self) -> list[Path]:
        """Return the waiting files, in the order in which they were written."""
        return sorted(path for path in self.folder.iterdir() if _NAME.fullmatch(path.name))

    def damaged(self) -> int:
        """Return the number of quarantined files, which could not be read or recorded."""
        with os.scandir(self.quarantined) as entries:
            return sum(entry.name.endswith(".bad") for entry in entries)

    def quarantine_file(self, path: Path, reason: str) -> None:
        """Quarantine a file permanently; an operator has to inspect it.

        The reason is written to a file beside it, unless the disk is full: the later files must be fed anyway.
        """
        bad = self.quarantined / path.with_suffix(".bad").name
        with suppress(OSError):
            self._put(bad.with_suffix(".reason"), f"{reason}\n".encode())
        path.rename(bad)
        self._sync_both()
        log.error("%s is quarantined as %s, its events are not recorded: %s", path, bad, reason)

    def quarantine(self, path: Path, refused: Sequence[tuple[Event, str]]) -> None:
        """Replace a file by a quarantined one with its refused events and their reasons; the others are recorded.

        If the disk is full, the whole file is quarantined instead. If no event is refused, the file is deleted: the
        database may accept in parts what it refused as a whole.
        """
        if not refused:
            path.unlink()
            return
        bad = self.quarantined / path.with_suffix(".bad").name
        try:
            self._put(bad, encoded([event for event, _ in refused]))
            self._put(bad.with_suffix(".reason"), "".join(f"{event.id} {why}\n" for event, why in refused).encode())
            _sync(self.quarantined)
            path.unlink()
        except OSError:
            path.replace(bad)
        self._sync_both()
        log.error(
            "%s is quarantined as %s: the database refuses %d of its events: %s",
            path,
            bad,
            len(refused),
            refused[0][1],
        )

    def _sync_both(self) -> None:
        _sync(self.quarantined)
        _sync(self.folder)

    def _put(self, place: Path, content: bytes) -> None:
        """Write a file atomically. It replaces an existing one, which was written before a crash."""
        draft = place.with_suffix(f"{place.suffix}.draft")
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.rename(place)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def largest_event(self) -> int | None:
        """Return the last remembered limit in bytes, also of an earlier process; None if there is none."""
        try:
            return int((self.folder / _LIMIT).read_text())
        except (OSError, ValueError):
            return None

    def remember_largest_event(self, size: int) -> None:
        """Store the database's limit of an event's bytes, for when it is unavailable. Raises `OSError`."""
        if self.largest_event() != size:
            with self._exclusive("number.lock"):
                self._put(self.folder / _LIMIT, str(size).encode())

    @contextmanager
    def feeding(self) -> Iterator[bool]:
        """Yield True in the one process that may feed during the block, False in the others."""
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
                # A power failure may have reset the number, but not the files that were named by it.
                names = [path.name[:20] for folder in (self.folder, self.quarantined) for path in folder.iterdir()]
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


def _portions(group: Sequence[_Waiting]) -> Iterator[list[_Waiting]]:
    """Split a group of requests into files that fit into one commit each; a request is never split."""
    portion: list[_Waiting] = []
    size = 0
    for waiting in group:
        if portion and size + waiting.size > SPOOL.max_file_bytes:
            yield portion
            portion, size = [], 0
        portion.append(waiting)
        size += waiting.size
    if portion:
        yield portion


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
