"""The undelivered events in the `queue_dir` of a MinIO (reference §5), read without changing anything there.

`<queue_dir>/minio-<type>-<name>/<uuid>.event` holds one record as JSON, `<count>:<uuid>.event.snappy` several in
lines, as one S2 block. MinIO takes whatever lies there for an event, and one that it cannot read blocks its target;
here each such file is told of and passed over.
"""

import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.events.model import Event
from app.events.parsing import BadEvents, Limits, parse
from app.minio_import.s2 import BadBlock, unpack

_FOLDER = re.compile(r"minio-[a-z]+-.+")
_LARGEST = 256 << 20
_LINES = {"Content-Type": "application/x-ndjson"}
_LIMITS = Limits(records=1_000_000)


@dataclass(frozen=True, slots=True)
class QueueFile:
    """A file, the events it holds, and what cannot be taken of it, each a sentence; `empty`: it holds nothing."""

    path: Path
    events: tuple[Event, ...] = ()
    problems: tuple[str, ...] = ()
    empty: bool = False


def files(folder: Path) -> list[Path]:
    """What lies in a `queue_dir`, or in the folder of one of its targets, oldest file first.

    Raises `OSError`. Folders of other names are left alone.
    """
    places = [folder, *(each for each in folder.iterdir() if _FOLDER.fullmatch(each.name) and each.is_dir())]
    found = []
    for place in places:
        for path in place.iterdir():
            try:
                about = path.lstat()
            except FileNotFoundError:
                continue  # MinIO has delivered it just now
            if not stat.S_ISDIR(about.st_mode):
                found.append((about.st_mtime_ns, str(path), path))
    return [path for _, _, path in sorted(found)]


def read(paths: list[Path]) -> Iterator[QueueFile]:
    """What each file holds. Never raises for a file; one that is gone by now was delivered by MinIO."""
    for path in paths:
        try:
            content = _content(path)
            if not content.strip():
                yield QueueFile(path, empty=True)
                continue
            packed = path.name.endswith(".snappy")
            yield _parsed(path, unpack(content, _LARGEST) if packed else content)
        except FileNotFoundError:
            continue
        except BadBlock as error:
            yield QueueFile(path, problems=(f"is no whole S2 or Snappy block: {error}",))
        except BadEvents as error:
            yield QueueFile(path, problems=(error.problem,))
        except OSError as error:
            yield QueueFile(path, problems=(f"cannot be read: {error.strerror or error}",))


def _content(path: Path) -> bytes:
    # What is no plain file, such as a pipe, would never end or lead elsewhere.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(0, "it is no plain file")
        if about.st_size > _LARGEST:
            raise OSError(0, f"it has more than {_LARGEST} bytes")
        return file.read()


def _parsed(path: Path, content: bytes) -> QueueFile:
    lines = [line for line in content.split(b"\n") if line.strip()]
    # Each as MinIO would post it, so that it has the same id as the event that came by a webhook.
    body = b"\n".join(b'{"Records":[' + line + b"]}" for line in lines)
    parsed = parse(body, _LINES, now_ms=int(time.time() * 1000), limits=_LIMITS, partial=True)
    problems = [each.problem for each in parsed.refused]
    if parsed.more_refused:
        problems.append(f"{parsed.more_refused} more of its records cannot be taken")
    if parsed.ignored:
        problems.append(f"{parsed.ignored} of its records say nothing of an object")
    count = path.name.partition(":")[0]
    if count.isdecimal() and path.name.endswith(".snappy") and int(count) != len(lines):
        problems.append(f"its name says {count} events, it holds {len(lines)}")
    return QueueFile(path, tuple(parsed.events), tuple(problems), empty=not (parsed.events or problems))
