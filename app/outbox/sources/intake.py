"""Record what a source has pulled: the events, the positions after them, and the messages that were rejected.

All this is one commit. A message counts as taken only by this commit, so nothing is lost whatever process is killed,
and what is read again is in the log already. Rejected messages are kept to be read, retried and deleted.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
import sqlalchemy as sa

from app.config.errors import REDACTED
from app.events.frontends import Frontend
from app.events.limits import Limits
from app.events.parsing import HEADERS, KEY_HEADER, Message, ReadMessage, read_message
from app.outbox import audit, tables
from app.outbox.column_values import clean_reason
from app.outbox.delivery.leases import at_least
from app.outbox.engine.clock import DatabaseClock
from app.outbox.engine.database import Database, describe_error
from app.outbox.engine.db_errors import may_be_a_value
from app.outbox.engine.many_rows import repeated_after_deadlock, write_alone
from app.outbox.errors import StillRejected, UnknownMessage
from app.outbox.log.append import Log, QueueFull, Receipt
from app.outbox.log.group_commit import check_writable
from app.outbox.log.reading import Reserve, reserve_nothing
from app.outbox.sources.rows import SourceLease, StoredSource, fence, store_positions

_S = tables.sources.c


class TargetFull(Exception):
    """No more is recorded: a target with `queue_full=reject` has no room. The message names it.

    `never` is set if it would have none with an empty queue either.
    """

    def __init__(self, full: QueueFull) -> None:
        self.never = bool(full.too_small)
        named = ", ".join(map(str, [one.target for one in full.too_small] or full.targets))
        super().__init__(
            f"it has more events than the queue_limit of {named}, which is set to reject"
            if self.never
            else f"the queue of {named} is full and set to reject"
        )


class SourceIntake:
    """Record for the sources of one process. Use it from one thread at a time."""

    def __init__(self, database: Database, clock: DatabaseClock, lease_ms: int) -> None:
        self._database = database
        self._clock = clock
        self._log = Log(database)
        self._lease_ms = lease_ms

    def record(
        self, lease: SourceLease, messages: Sequence[ReadMessage], *, most: int, most_bytes: int
    ) -> Iterator[tuple[int, Receipt]]:
        """Record messages in order; yield after each commit how many it recorded, and what became of their events.

        It is one commit. One that the database refuses, or for which there is no room, is tried in halves, so that one
        message holds up no other; one that the database refuses alone, or that has more events than a target ever
        takes, is rejected. `most` rejected messages are kept, with `most_bytes`; one that the database refuses even so
        is kept without its body. Raises `TargetFull`, `ShelfFull`, `LeaseLost`, or `DatabaseUnavailable`; then the
        messages that were not yielded have to be recorded later, or pulled again.
        """
        left = [messages]
        while left:
            some = left.pop()
            try:
                receipt = self._commit(lease, some, most, most_bytes)
            except (TargetFull, ShelfFull) as error:
                if len(some) == 1:
                    if not getattr(error, "never", False):
                        raise
                    left.append([replace(some[0], events=(), problem=str(error))])
                    continue
            except Exception as error:
                if not may_be_a_value(error):
                    raise
                check_writable(self._database)
                if len(some) == 1:
                    left.append([as_rejected(some[0], describe_error(error))])
                    continue
            else:
                yield len(some), receipt
                continue
            middle = len(some) // 2
            left += [some[middle:], some[:middle]]

    def _commit(self, lease: SourceLease, messages: Sequence[ReadMessage], most: int, most_bytes: int) -> Receipt:
        now = self._clock()
        positions = {read.message.share: read.message.position for read in messages if read.message.share}
        rejected = [read for read in messages if read.problem]

        def beside(connection: sa.Connection, receipt: Receipt) -> None:
            fence(
                connection,
                lease,
                leased_until=at_least(_S.leased_until, now + self._lease_ms),
                messages=_S.messages + sum(not read.message.is_gap for read in messages),
                recorded=_S.recorded + receipt.recorded,
                repeated=_S.repeated + receipt.repeated,
                rejected=_S.rejected + len(rejected),
                pulled_at=now,
                failures=0,
                error="",
            )
            store_positions(connection, lease, positions)
            if rejected:
                keep(connection, lease.stored.row_id, rejected, now, most, most_bytes)

        events = [event for read in messages for event in read.events]
        if events:
            [receipt] = self._log.append([events], beside=beside)
            if isinstance(receipt, QueueFull):
                raise TargetFull(receipt)
        else:
            receipt = Receipt()
            write_alone(self._database, lambda connection: beside(connection, receipt))
        lease.positions |= positions
        return receipt


_R = tables.rejected_messages.c
_MAX_HEADERS_BYTES = 60_000  # MySQL's TEXT has 65,535
# In events of Baidu AI Cloud BOS, also within a text of JSON: they are for whoever gets the event, and open the bucket.
_CREDENTIALS = re.compile(rb'((?<!\\)(\\*)"(?:secretAccessKey|sessionToken)\2"\s*:\s*\2")(?:[^"\\]|\\+[^"\\])+')
_LAST = 2**63 - 1  # the greatest number that the table can have
_FACTS = (_R.id, _R.share, _R.position, _R.at, _R.reason, _R.size)


class ShelfFull(Exception):
    """No more is recorded: as many rejected messages are kept as may be, or one of them cannot be stored."""


@dataclass(frozen=True, slots=True)
class RejectedMessage:
    """What is known of a rejected message, without its body."""

    number: int
    share: str
    position: str
    at: int
    reason: str
    size: int


class RejectedMessages:
    """The rejected messages of each source."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(self, stored: StoredSource, *, limit: int, after: int = 0) -> list[RejectedMessage]:
        """Return up to `limit` messages, the oldest first, after the one of this number."""
        query = sa.select(*_FACTS).where(_R.source_id == stored.row_id, _R.id > after).order_by(_R.id).limit(limit)
        with self._database.reading() as connection:
            return [RejectedMessage(*row) for row in connection.execute(query)]

    def counts(self) -> dict[int, int]:
        """Return how many messages are kept of each source, by row id; those without any are left out."""
        with self._database.reading() as connection:
            return read_kept(connection)

    def message(self, stored: StoredSource, number: int, reserve: Reserve = reserve_nothing) -> Message:
        """Return a message as it was pulled; `reserve` is told of its bytes before. Raises `UnknownMessage`."""
        size = sa.select(_R.size).where(_R.id == min(number, _LAST), _R.source_id == stored.row_id)
        with self._database.reading() as connection:
            reserve(connection.execute(size).scalar() or 0)
            return _message(connection, stored, number)

    @repeated_after_deadlock
    def delete(self, stored: StoredSource, numbers: Sequence[int] | None) -> int:
        """Delete messages, None for all of the source, and return how many there were."""
        chosen = (_R.source_id == stored.row_id, *([] if numbers is None else [_R.id.in_(numbers)]))
        with self._database.writing() as connection:
            deleted = connection.execute(tables.rejected_messages.delete().where(*chosen)).rowcount
            if deleted:
                audit.record(connection, "source.delete_rejected", f"source:{stored.source}", {"messages": deleted})
        return deleted

    def retry(
        self,
        stored: StoredSource,
        number: int,
        limits: Limits,
        sender: Frontend | None,
        tenant: str = "",
        reserve: Reserve = reserve_nothing,
    ) -> Receipt | QueueFull:
        """Record a message's events now and delete it, in one transaction; `reserve` is as in `message`.

        Raises `UnknownMessage`, `StillRejected`, and what `Log.append` raises.
        """
        message = self.message(stored, number, reserve)
        if not message.body:
            place = message.position
            where = f"the queue may still have it at position {place}" if place else "the queue has it no more"
            raise StillRejected(f"its body is not kept; {where}")
        read = read_message(message, limits, sender, str(stored.source), tenant)
        if read.problem:
            raise StillRejected(read.problem)

        def beside(connection: sa.Connection, receipt: Receipt) -> None:
            chosen = (_R.id == number, _R.source_id == stored.row_id)
            if not connection.execute(tables.rejected_messages.delete().where(*chosen)).rowcount:
                raise UnknownMessage(number)
            facts: dict[str, Any] = {"message": number, "recorded": receipt.recorded}
            audit.record(connection, "source.retry_rejected", f"source:{stored.source}", facts)

        if read.events:
            [answer] = Log(self._database).append([read.events], beside=beside)
            return answer
        write_alone(self._database, lambda connection: beside(connection, Receipt()))
        return Receipt()


def as_rejected(read: ReadMessage, refusal: str) -> ReadMessage:
    """Return what is kept of a message that the database refuses: all, or else without what may be too large for it."""
    if not read.problem:
        return replace(read, events=(), problem=f"the outbox database refuses it: {refusal}")
    if not read.message.body:
        raise ShelfFull(f"a rejected message cannot be stored: {refusal}")
    size = len(read.message.body)
    problem = (
        f"{read.problem}; its body of {size:,} bytes is not kept, because the database refuses that too: {refusal}"
    )
    return ReadMessage(replace(read.message, body=b"", headers={}), problem=problem)


def keep(
    connection: sa.Connection, source_id: int, rejected: Sequence[ReadMessage], now: int, most: int, most_bytes: int
) -> None:
    """Store rejected messages of a source, without credentials in them.

    Raises `ShelfFull` if it had more than `most`, or than `most_bytes` then.
    """
    rejected = [replace(read, message=replace(read.message, body=_hidden(read.message.body))) for read in rejected]
    kept = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(_R.size), 0)).where(_R.source_id == source_id)
    count, size = connection.execute(kept).one()
    size = int(size) + sum(len(read.message.body) for read in rejected)
    if count + len(rejected) > most or size > most_bytes:
        raise ShelfFull(
            f"{count} rejected messages are kept, and more would exceed rejected_limit={most} or"
            f" rejected_size={most_bytes}; the next one: {rejected[0].problem}"
        )
    rows = [
        {
            "source_id": source_id, "share": read.message.share, "position": read.message.position, "at": now,
            "sent_at": read.message.sent_at, "headers": _headers_text(read.message.headers),
            "reason": clean_reason(read.problem), "size": len(read.message.body), "body": read.message.body,
        }
        for read in rejected
    ]  # fmt: skip
    connection.execute(tables.rejected_messages.insert(), rows)


def _hidden(body: bytes) -> bytes:
    return _CREDENTIALS.sub(rb"\1" + REDACTED.encode(), body)


def _headers_text(headers: Mapping[str, str]) -> str:
    """Return headers as JSON; of those that are too long only what reading the message needs, if that is not."""
    needed = {name: headers[name] for name in (*HEADERS, KEY_HEADER) if name in headers}
    texts = (orjson.dumps(dict(kept)) for kept in (headers, needed, {}))
    return next(text for text in texts if len(text) <= _MAX_HEADERS_BYTES).decode()


def read_kept(connection: sa.Connection) -> dict[int, int]:
    """Return how many messages are kept of each source, by row id; those without any are left out."""
    query = sa.select(_R.source_id, sa.func.count()).group_by(_R.source_id)
    return {int(row[0]): int(row[1]) for row in connection.execute(query)}


def _message(connection: sa.Connection, stored: StoredSource, number: int) -> Message:
    query = sa.select(_R.body, _R.share, _R.position, _R.headers, _R.sent_at)
    row = connection.execute(query.where(_R.id == min(number, _LAST), _R.source_id == stored.row_id)).first()
    if row is None:
        raise UnknownMessage(number)
    return Message(bytes(row.body), row.share, row.position, None, orjson.loads(row.headers), row.sent_at)
