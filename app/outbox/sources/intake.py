"""Record what a source has pulled: the events, the positions after them, and the messages that had none, in one commit.

A message counts as taken only by this commit, so nothing is lost whatever process is killed, and what is read again is
in the log already.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import sqlalchemy as sa

from app.events.parsing import ReadMessage
from app.outbox import tables
from app.outbox.delivery.leases import at_least
from app.outbox.engine.clock import DatabaseClock
from app.outbox.engine.database import Database, describe_error
from app.outbox.engine.db_errors import may_be_a_value
from app.outbox.engine.locks import write_alone
from app.outbox.log.append import Log, QueueFull, Receipt
from app.outbox.log.group_commit import check_writable
from app.outbox.sources.leases import SourceLease, fence, store_positions
from app.outbox.sources.rejected import ShelfFull, as_rejected, keep

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
