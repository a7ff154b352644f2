"""What stands at each target, read by that target's own client, and whether it is all there and in order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

import orjson

from tests import services

Record = Mapping[str, Any]


def path(record: Record) -> str:
    """Bucket, `/` and key of what a record is about."""
    s3 = record["s3"]
    return f"{s3['bucket']['name']}/{unquote_plus(s3['object']['key'])}"


def text(record: Record) -> bytes:
    """The record as text that does not depend on the order of its members: a jsonb column has an order of its own."""
    return orjson.dumps(record, option=orjson.OPT_SORT_KEYS)


def posted(receiver: services.Receiver) -> list[Record]:
    """The records that a webhook receiver was sent, as they came."""
    return [orjson.loads(body)["Records"][0] for body in receiver.bodies()]


def listed(server: services.Redis, key: str) -> list[Record]:
    """The records in a Redis list, oldest first."""
    with server.client() as client:
        return [orjson.loads(entry)[0]["Event"][0] for entry in client.lrange(key, 0, -1)]


def hashed(server: services.Redis, key: str) -> dict[str, Record]:
    """The rows of a Redis hash."""
    with server.client() as client:
        return {name.decode(): orjson.loads(row)["Records"][0] for name, row in client.hgetall(key).items()}


def create_log(server: services.Postgres, database: str, table: str) -> None:
    """A table of format access with one more column, which tells the order in which rows were written."""
    with server.connection(database) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} (event_time timestamptz NOT NULL, event_data jsonb, written bigserial)")


def appended(server: services.Postgres, database: str, table: str) -> list[Record]:
    """The records in such a table, in the order in which they were written."""
    with server.connection(database) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT event_data FROM {table} ORDER BY written")
        return [data["Records"][0] for (data,) in cursor.fetchall()]


def rows(server: services.Postgres, database: str, table: str) -> dict[str, Record]:
    """The rows of a PostgreSQL table of format namespace."""
    with server.connection(database) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT key, value FROM {table}")
        return {key: value["Records"][0] for key, value in cursor.fetchall()}


@dataclass
class Expected:
    """The events that have to arrive, for each object in the order in which they were recorded."""

    lines: dict[str, dict[bytes, int]] = field(default_factory=lambda: defaultdict(dict))

    @classmethod
    def of(cls, recorded: Iterable[Record]) -> Expected:
        """What these records, in this order, make expected."""
        expected = cls()
        expected.add(recorded)
        return expected

    def add(self, recorded: Iterable[Record]) -> None:
        """Expect these after those before them."""
        for record in recorded:
            line = self.lines[path(record)]
            line[text(record)] = len(line)

    @property
    def count(self) -> int:
        """How many events there are."""
        return sum(map(len, self.lines.values()))

    def check(self, got: Sequence[Record], where: str) -> int:
        """AssertionError unless all of it arrived, nothing else did, and per object in order; says how many repeats.

        In order means: whatever arrives follows directly on one that had arrived before, or repeats an earlier one.
        """
        reached: Counter[str] = Counter()
        for record in got:
            line = self.lines.get(path(record), {})
            place = line.get(text(record))
            assert place is not None, f"{where}: unexpected {record}"
            assert place <= reached[path(record)], f"{where}: {path(record)!r} skipped an event before {record}"
            reached[path(record)] = max(reached[path(record)], place + 1)
        missing = {name: (reached[name], len(line)) for name, line in self.lines.items() if reached[name] < len(line)}
        assert not missing, f"{where}: lost at {len(missing)} objects (arrived, recorded): {missing}"
        return len(got) - self.count


def length(server: services.Redis, key: str) -> int:
    with server.client() as client:
        return int(client.llen(key))
