"""Read the undelivered events in the `queue_dir` of a MinIO (reference §5), without changing anything there.

`<queue_dir>/minio-<type>-<name>/<uuid>.event` contains one record as JSON; `<count>:<uuid>.event.snappy` contains
several, one per line, as one S2 block. MinIO treats every file there as an event, and an unreadable file blocks its
target; here such a file is reported and skipped.
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
    """A file, its events, and a sentence for each problem; `empty`: it contains no event."""

    path: Path
    events: tuple[Event, ...] = ()
    problems: tuple[str, ...] = ()
    empty: bool = False


def files(folder: Path) -> list[Path]:
    """List the files in a `queue_dir`, or in the folder of one of its targets, oldest file first.

    Raises `OSError`. Folders with other names are ignored.
    """
    folders = [folder, *(child for child in folder.iterdir() if _FOLDER.fullmatch(child.name) and child.is_dir())]
    entries = []
    for parent in folders:
        for path in parent.iterdir():
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue  # MinIO has delivered it meanwhile
            if not stat.S_ISDIR(status.st_mode):
                entries.append((status.st_mtime_ns, str(path), path))
    return [path for _, _, path in sorted(entries)]


def read(paths: list[Path], tenant: str = "") -> Iterator[QueueFile]:
    """Read each file. Never raises for a file; a file that no longer exists was delivered by MinIO.

    Its buckets are recorded as those of `tenant` (`app.events.buckets`).
    """
    for path in paths:
        try:
            content = _read_file(path)
            if not content.strip():
                yield QueueFile(path, empty=True)
                continue
            packed = path.name.endswith(".snappy")
            yield _parse_file(path, unpack(content, _LARGEST) if packed else content, tenant)
        except FileNotFoundError:
            continue
        except BadBlock as error:
            yield QueueFile(path, problems=(f"is not a complete S2 or Snappy block: {error}",))
        except BadEvents as error:
            yield QueueFile(path, problems=(error.problem,))
        except OSError as error:
            yield QueueFile(path, problems=(f"cannot be read: {error.strerror or error}",))


def _read_file(path: Path) -> bytes:
    # Reading a pipe might never end, and a link might lead elsewhere.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is not a regular file")
        if status.st_size > _LARGEST:
            raise OSError(0, f"it has more than {_LARGEST} bytes")
        return file.read()


def _parse_file(path: Path, content: bytes, tenant: str) -> QueueFile:
    lines = [line for line in content.split(b"\n") if line.strip()]
    # Wrap each line as MinIO would post it, so that it gets the same id as the same event from a webhook.
    body = b"\n".join(b'{"Records":[' + line + b"]}" for line in lines)
    parsed = parse(body, _LINES, now_ms=int(time.time() * 1000), limits=_LIMITS, partial=True, tenant=tenant)
    problems = [refusal.problem for refusal in parsed.refused]
    if parsed.more_refused:
        problems.append(f"{parsed.more_refused} more of its records cannot be recorded")
    if parsed.ignored:
        problems.append(f"{parsed.ignored} of its records do not concern an object")
    count = path.name.partition(":")[0]
    if count.isdecimal() and path.name.endswith(".snappy") and int(count) != len(lines):
        problems.append(f"its name announces {count} events, but it contains {len(lines)}")
    return QueueFile(path, tuple(parsed.events), tuple(problems), empty=not (parsed.events or problems))
