"""Keep requests in a folder while the database is away; `app.outbox.log.spool_feeder` records them when it is back.

One file for each request, or for several that came together; its name is a number that only grows, shared by every API
process of the machine. A file is there as a whole or not at all, and on the disk, before its requests are answered; it
goes after the commit that recorded its events. A crash between the two feeds it again, and the events' ids make that a
repetition.
"""

import fcntl
import logging
import os
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

from app.events.model import Event
from app.outbox.log.spool_format import encoded

log = logging.getLogger("bucketwire.spool")

FILE_BYTES = 1 << 24  # of the records in a file, unless one request has more
_NAME = re.compile(r"\d{20}\.events")
_LIMIT = "largest-event"


class _Waiting(Future[None]):
    """A request that waits for its events to be on the disk."""

    def __init__(self, events: Sequence[Event]) -> None:
        super().__init__()
        self.events = events
        self.size = sum(len(event.record) for event in events)


class Spool:
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

    def quarantine_file(self, path: Path, reason: str) -> None:
        """Take a file out of the line for good; a person has to look at it.

        The reason is in a file beside it, unless the disk is full: the files behind it have to go on all the same.
        """
        with suppress(OSError):
            self._put(path.with_suffix(".reason"), f"{reason}\n".encode())
        path.rename(path.with_suffix(".bad"))
        _sync(self.folder)
        log.error("%s is set aside as .bad, its events are not recorded: %s", path, reason)

    def quarantine(self, path: Path, refused: Sequence[tuple[Event, str]]) -> None:
        """Put these events of a file, each with its reason, in the place of the file; its others are recorded.

        Where the disk is full the whole file is set aside instead. Where none is refused, the file just goes: what the
        database does not take at once it may take in parts.
        """
        if not refused:
            path.unlink()
            return
        bad = path.with_suffix(".bad")
        try:
            self._put(bad, encoded([event for event, _ in refused]))
            self._put(path.with_suffix(".reason"), "".join(f"{event.id} {why}\n" for event, why in refused).encode())
            path.unlink()
        except OSError:
            path.replace(bad)
        _sync(self.folder)
        log.error(
            "%s is set aside as .bad: the database refuses %d of its events: %s", path, len(refused), refused[0][1]
        )

    def _put(self, place: Path, content: bytes) -> None:
        """Write a file that is there as a whole or not at all. One of the same name was written before a crash."""
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
        """The limit that was remembered last, None for none; also by an earlier process."""
        try:
            return int((self.folder / _LIMIT).read_text())
        except (OSError, ValueError):
            return None

    def remember_largest_event(self, size: int) -> None:
        """Keep the most bytes of an event that the database takes, for when it cannot be asked. Raises `OSError`."""
        if self.largest_event() != size:
            with self._exclusive("number.lock"):
                self._put(self.folder / _LIMIT, str(size).encode())

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


def _portions(group: Sequence[_Waiting]) -> Iterator[list[_Waiting]]:
    """The requests of a group in files of a size that one commit takes; a request is never divided."""
    portion: list[_Waiting] = []
    size = 0
    for waiting in group:
        if portion and size + waiting.size > FILE_BYTES:
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
