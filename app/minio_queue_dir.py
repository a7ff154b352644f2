"""Read the undelivered events in the `queue_dir` of a MinIO (reference §5), without changing anything there.

`<queue_dir>/minio-<type>-<name>/<uuid>.event` contains one record as JSON; `<count>:<uuid>.event.snappy` contains
several, one per line, as one S2 block. MinIO treats every file there as an event, and an unreadable file blocks its
target; here such a file is reported and skipped. S2 extends Snappy by copies that repeat the offset of the previous
copy, which Snappy libraries refuse.
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


_LITERAL, _COPY1, _COPY2, _COPY4 = range(4)


class BadBlock(ValueError):
    """The bytes are not an S2 block, or not a complete one."""


def unpack(block: bytes, limit: int = 256 << 20) -> bytes:
    """Unpack a block of at most `limit` unpacked bytes. Raises `BadBlock`. A Snappy block is also an S2 block."""
    try:
        return _unpack(block, limit)
    except IndexError:
        raise BadBlock("it is truncated") from None


def _unpack(block: bytes, limit: int) -> bytes:
    size, at = _uvarint(block)
    if size > limit:
        raise BadBlock(f"it declares {size} unpacked bytes; at most {limit} are allowed")
    out = bytearray()
    offset = 0
    while at < len(block):
        tag = block[at]
        at += 1
        if tag & 3 == _LITERAL:
            length, at = _literal(block, at, tag >> 2)
            if at + length > len(block):
                raise BadBlock("it is truncated")
            out += block[at : at + length]
            at += length
        else:
            length, offset, at = _copy(block, at, tag, offset)
            if not 0 < offset <= len(out):
                raise BadBlock("it copies from before its beginning")
            _repeat(out, offset, length)
        if len(out) > size:
            raise BadBlock("it contains more bytes than it declares")
    if len(out) != size:
        raise BadBlock("it contains fewer bytes than it declares")
    return bytes(out)


def _uvarint(block: bytes) -> tuple[int, int]:
    value = shift = at = 0
    while block[at] & 0x80:
        value |= (block[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if at > 4:
            raise BadBlock("it does not begin with its length")
    return value | block[at] << shift, at + 1


def _literal(block: bytes, at: int, code: int) -> tuple[int, int]:
    """Return the length of a literal and the position where it begins."""
    if code < 60:
        return code + 1, at
    width = code - 59
    if at + width > len(block):
        raise BadBlock("it is truncated")
    return int.from_bytes(block[at : at + width], "little") + 1, at + width


def _copy(block: bytes, at: int, tag: int, last: int) -> tuple[int, int, int]:
    """Return the length and offset of a copy, and the position of the next element.

    An offset of 0 means the offset of the previous copy.
    """
    if tag & 3 == _COPY1:
        code, offset = tag >> 2 & 7, (tag & 0xE0) << 3 | block[at]
        at += 1
        if offset:
            return code + 4, offset, at
        width = max(0, code - 4)  # bytes that hold the additional length of a longer repeat
        more = sum(block[at + index] << 8 * index for index in range(width))
        return (code if not width else more + (4, 256, 65536)[width - 1]) + 4, last, at + width
    width = 2 if tag & 3 == _COPY2 else 4
    offset = sum(block[at + index] << 8 * index for index in range(width))
    return (tag >> 2) + 1, offset, at + width


def _repeat(out: bytearray, offset: int, length: int) -> None:
    """Append `length` bytes from `offset` bytes back; if `offset` is less than `length`, they repeat."""
    start = len(out) - offset
    copied = out[start : start + length]
    while len(copied) < length:
        copied += copied[: length - len(copied)]
    out += copied
