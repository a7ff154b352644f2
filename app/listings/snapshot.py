"""Write and read what is known of a bucket, in chunks, and keep a listing of it in a file while both are compared.

A chunk has entries in the order of their keys, as compressed JSON. A file of a listing, or of keys in order, has no
name; so memory does not grow with them.
"""

import sqlite3
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from operator import attrgetter

import orjson
import zstandard

from app.listings.differences import Content, Entry, Listed, Pending

CHUNK_ENTRIES = 1000  # about 30 KB; what is rewritten when one of them changes


def encode(entries: Iterable[Entry]) -> bytes:
    """Return the entries as a chunk."""
    plain = [[one.key, one.version, one.known, one.pending] for one in entries]
    return zstandard.compress(orjson.dumps(plain, default=list))


def decode(chunk: bytes) -> list[Entry]:
    """Return the entries of a chunk."""
    read = orjson.loads(zstandard.decompress(chunk))
    return [Entry(key, version, _content(known), _pending(pending)) for key, version, known, pending in read]


def pieces(entries: Sequence[Entry]) -> Iterable[Sequence[Entry]]:
    """Yield entries in chunks of a good size; entries of one key stay together."""
    start = 0
    for index in range(1, len(entries) + 1):
        is_last = index == len(entries)
        if is_last or (index - start >= CHUNK_ENTRIES and entries[index].key != entries[index - 1].key):
            yield entries[start:index]
            start = index


def cut(entries: Sequence[Entry], bounds: Iterable[str]) -> Sequence[Sequence[Entry]]:
    """Return entries, in the order of their keys, in pieces that each end before one of some keys; none is empty."""
    places = [bisect_left(entries, bound, key=attrgetter("key")) for bound in sorted(bounds)]
    ends = [*places, len(entries)]
    return [entries[begin:end] for begin, end in zip([0, *places], ends, strict=True) if begin < end]


def _content(plain: Sequence[object] | None) -> Content | None:
    return None if plain is None else Content(*plain)  # type: ignore[arg-type]  # as `encode` has written it


def _pending(plain: Sequence[object] | None) -> Pending | None:
    if plain is None:
        return None
    content, *times = plain
    return Pending(_content(content), *times)  # type: ignore[arg-type]  # as above


class ListingSpool:
    """A listing as it was read, which can be read as often as needed."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="bucketwire-listing-")  # noqa: SIM115 - closed by `close`
        self._writer = zstandard.ZstdCompressor(level=1).stream_writer(self._file, closefd=False)
        self.entries = 0

    def add(self, listed: Iterable[Listed]) -> None:
        """Write the next entries."""
        for one in listed:
            self._writer.write(orjson.dumps([one.key, one.version, list(one.content), one.is_latest]) + b"\n")
            self.entries += 1

    def finish(self) -> None:
        """Write no more."""
        self._writer.flush(zstandard.FLUSH_FRAME)

    def read(self) -> Iterator[Listed]:
        """Yield the entries in the order in which they were written."""
        self._file.seek(0)
        with zstandard.ZstdDecompressor().stream_reader(self._file, closefd=False, read_across_frames=True) as reader:
            rest = b""
            while chunk := reader.read(1 << 16):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    key, version, content, is_latest = orjson.loads(line)
                    yield Listed(key, version, Content(*content), is_latest)

    def close(self) -> None:
        """Delete the file."""
        self._file.close()


class KeySpool:
    """Keys, in S3's order, each once."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect("", isolation_level=None)  # "": a file of its own, which nobody else sees
        self._connection.execute("PRAGMA cache_size = -2000")
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("CREATE TABLE keys (key BLOB PRIMARY KEY) WITHOUT ROWID")

    def add(self, keys: Iterable[str]) -> None:
        """Add keys in any order, also again."""
        rows = [(key.encode(),) for key in keys]
        self._connection.execute("BEGIN")
        self._connection.executemany("INSERT OR IGNORE INTO keys VALUES (?)", rows)
        self._connection.execute("COMMIT")

    def read(self) -> Iterator[str]:
        """Yield the keys in order."""
        with closing(self._connection.cursor()) as cursor:
            for (key,) in cursor.execute("SELECT key FROM keys ORDER BY key"):
                yield key.decode()

    def close(self) -> None:
        """Delete the file."""
        self._connection.close()
