"""Keep a listing, or keys in order, in a file without a name, so that memory does not grow with them."""

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing

import orjson
import zstandard

from app.listings.differences import Content, Listed


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
