"""Record what a source has pulled: the events, the positions after them, and the messages that had none, in one commit.

A message counts as taken only by this commit, so nothing is lost whatever process is killed, and what is read again is
in the log already.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import orjson
import sqlalchemy as sa

from app.events.messages import ReadMessage
from app.events.parsing import HEADERS
from app.outbox import tables
from app.outbox.delivery.leases import at_least
from app.outbox.delivery.reasons import clean_reason
from app.outbox.engine.clock import DatabaseClock
from app.outbox.engine.database import Database, describe_error
from app.outbox.engine.db_errors import may_be_a_value
from app.outbox.log.append import Log
from app.outbox.log.batch import QueueFull, Receipt
from app.outbox.log.recorder import check_writable
from app.outbox.sources.leases import SourceLease, fence, store_positions

_MAX_HEADERS_BYTES = 60_000  # MySQL's TEXT has 65,535
_S = tables.sources.c


class TargetFull(Exception):
    """No more is recorded: a target with `queue_full=reject` has no room. The message names it.

    `never` is set if it would have none with an empty queue either.
    """

    def __init__(self, full: QueueFull) -> None:
        self.never = bool(full.too_small)
        named = ", ".join(map(str, full.too_small or full.targets))
        super().__init__(
            f"it has more events than the queue_limit of {named}, which is set to reject"
            if self.never
            else f"the queue of {named} is full and set to reject"
        )


class ShelfFull(Exception):
    """No more is recorded: as many rejected messages are kept as may be, or one of them cannot be stored."""


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
                    left.append([_reject(some[0], describe_error(error))])
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
                _keep(connection, lease.stored.row_id, rejected, now, most, most_bytes)

        events = [event for read in messages for event in read.events]
        if events:
            receipt = self._log.append_beside(events, beside)
            if isinstance(receipt, QueueFull):
                raise TargetFull(receipt)
        else:
            receipt = Receipt()
            with self._database.writing() as connection:
                beside(connection, receipt)
        lease.positions |= positions
        return receipt


def _reject(read: ReadMessage, refusal: str) -> ReadMessage:
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


def _keep(
    connection: sa.Connection, source_id: int, rejected: Sequence[ReadMessage], now: int, most: int, most_bytes: int
) -> None:
    r = tables.rejected_messages.c
    kept = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(r.size), 0)).where(r.source_id == source_id)
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


def _headers_text(headers: Mapping[str, str]) -> str:
    """Return headers as JSON; of those that are too long only what reading the message needs, if that is not."""
    needed = {name: headers[name] for name in HEADERS if name in headers}
    texts = (orjson.dumps(dict(kept)) for kept in (headers, needed, {}))
    return next(text for text in texts if len(text) <= _MAX_HEADERS_BYTES).decode()
