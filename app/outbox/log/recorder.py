"""Record requests together, or one by one if the database refuses them, so that a refused request fails alone."""

from collections.abc import Iterator, Sequence
from functools import partial
from uuid import uuid4

from app.config.arn import TargetId
from app.events.model import Event
from app.outbox import log_head, tables
from app.outbox.engine.database import Database, describe_error, now_ms
from app.outbox.engine.db_errors import Unstorable, may_be_a_value
from app.outbox.log.append import Guard, Log
from app.outbox.log.batch import QueueFull, Receipt
from app.outbox.log.routing import Matches
from app.outbox.policies import APPEND

Answer = Receipt | QueueFull | Exception


class Recorder:
    """Append to the log. Create one object for each process, and use it from one thread at a time."""

    def __init__(
        self,
        database: Database,
        *,
        only_target: TargetId | None = None,
        guard: Guard | None = None,
        action: str = "",
    ) -> None:
        """`only_target`, `guard` and `action` are those of `Log.append`, for every request."""
        self.log = Log(database)
        self._database = database
        self._append = partial(self.log.append, only_target=only_target, guard=guard, action=action)

    def record(
        self, requests: Sequence[Sequence[Event]], *, matches: Matches | None = None, promised: bool = False
    ) -> Iterator[Answer]:
        """Record requests and yield an answer for each, in order; the options are those of `Log.append`.

        An exception as an answer means that, as far as is known, nothing of its request was recorded. It is
        `Unstorable` if the database accepts other events but not these. Any other error means that the database accepts
        no events now, and all later answers are that error too. After an error of the whole group, each request is
        recorded only when the caller asks for its answer.
        """
        if len(requests) > 1:
            try:
                answers = self._append(requests, matches=matches, promised=promised)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
                if not may_be_a_value(error):
                    yield from [error] * len(requests)
                    return
            else:
                yield from answers
                return
        unavailable: Exception | None = None
        for events in requests:
            if unavailable is None:
                try:
                    yield self._alone(events, matches, promised=promised)
                    continue
                except Exception as error:  # noqa: BLE001 - as above
                    unavailable = error
            yield unavailable

    def record_most(
        self, events: Sequence[Event], *, promised: bool = False
    ) -> tuple[list[Receipt | QueueFull], list[tuple[Event, str]]]:
        """Record one request's events, in order, and return the receipts and the refused events with their reasons.

        The events are recorded together. If they are refused, each half is tried, with a receipt of its own. Raises
        what `Log.append` raises if the database accepts no events now.
        """
        [answer] = self.record([events], promised=promised)
        if not isinstance(answer, Exception):
            return [answer], []
        if not isinstance(answer, Unstorable):
            raise answer
        if len(events) == 1:
            return [], [(events[0], str(answer))]
        middle = len(events) // 2
        receipts, refused = self.record_most(events[:middle], promised=promised)
        others, more = self.record_most(events[middle:], promised=promised)
        return receipts + others, refused + more

    def _alone(self, events: Sequence[Event], matches: Matches | None, *, promised: bool) -> Answer:
        """Record one request. Raises errors which mean that the database accepts no events at all."""
        for _ in range(APPEND.max_tries):
            try:
                return self._append([events], matches=matches, promised=promised)[0]
            except Exception as error:
                if not may_be_a_value(error):
                    raise
                check_writable(self._database)
                refused = error
        unstorable = Unstorable(describe_error(refused))
        unstorable.__cause__ = refused
        return unstorable


def check_writable(database: Database) -> None:
    """Insert a small event, delete it and commit. Raises the database's error if it accepts no events now.

    It writes to every table that recording an event writes to, because a permission, a table or a disk may be missing
    for one of them only. No reader sees the event; its seq stays unused.
    """
    e, b, t = tables.events.c, tables.buckets.c, tables.targets.c
    unique = uuid4().hex
    with database.writing() as connection:
        seq = log_head.reserve(connection, 1).last_seq
        connection.execute(
            tables.events.insert().values(
                partition=0, seq=seq, id=unique, key_hash=0, received_at=now_ms(), name="s3:TestEvent",
                bucket="bucketwire-test", key="writable", version="", sequencer="", time=0, targets="", record="{}",
                trace="",
            )
        )  # fmt: skip
        connection.execute(tables.events.delete().where(e.partition == 0, e.seq == seq))
        connection.execute(tables.buckets.insert().values(name=unique, created_at=0))
        connection.execute(tables.buckets.delete().where(b.name == unique))
        connection.execute(tables.targets.update().values(recorded=t.recorded))
