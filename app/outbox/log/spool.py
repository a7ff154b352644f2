"""Store requests in a folder while the database is unavailable; `app.outbox.log.spool_feeder` records them later.

Each file has one request, or several that came together: a line with the number of events and a digest, then JSON. Its
name is a number from an increasing sequence that all API processes of the machine share. Files are written atomically
and synced to disk before their requests are answered, and deleted after the commit that recorded their events. After a
crash between the two, a file is fed again, and the ids of its events identify them as repeated.
"""

import fcntl
import hashlib
import logging
import os
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from app.events.model import Event
from app.outbox.policies import SPOOL
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
