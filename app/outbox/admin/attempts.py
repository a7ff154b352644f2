"""Keep a bounded record of the attempts at each target: what happened to an event, and when.

Workers record attempts some seconds after them, beside their deliveries (`workers.telemetry.attempt_recorder`): the
record is for people, and no delivery depends on it. A row of delivered events stands for a run of them: those of one
partition from `first_seq` to `last_seq` that go to the target, and of these only such as a replay selects if it
is a replay's. Of each target the last rows (`policies.ATTEMPTS`) are kept of delivered events, of failures and of
refusals as unavailable: neither many deliveries nor a long outage displace the failures.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.column_values import WHOLE_LOG, clean_reason
from app.outbox.policies import ATTEMPTS

DELIVERED, SUPERSEDED, UNCHANGED, FAILED, REJECTED, UNAVAILABLE = OUTCOMES = (
    "delivered", "superseded", "unchanged", "failed", "rejected", "unavailable",
)  # fmt: skip
_SETTLED = (DELIVERED, SUPERSEDED, UNCHANGED)
_RINGS = (0, 1, 2)  # settled events, failed attempts, refusals as unavailable


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt at one event, or at a run of events that had the same outcome in one call to the target.

    `at` is when it was settled (ms), `duration` how long the target took for the whole call (ms), `attempt` the number
    of an event's attempt if it counts as one, else 0. `superseded` and `unchanged` events were not sent. `exchange` is
    the request of the last event and its answer, as JSON (`app.resources.event.Exchange`), None if the target has no
    requests that can be shown, and in a timeline.
    """

    target_id: int
    partition: int
    first_seq: int
    last_seq: int
    at: int
    outcome: str
    events: int = 1
    duration: int = 0
    attempt: int = 0
    replay_id: int = WHOLE_LOG
    reason: str = ""
    exchange: str | None = None

    @property
    def is_settled(self) -> bool:
        """Whether its events need no further attempt."""
        return self.outcome in _SETTLED


def bounded(reason: str) -> str:
    """Return the reason as it is kept: storable, in one line of at most 500 characters."""
    return clean_reason(reason[: ATTEMPTS.max_reason_characters])


def record(connection: sa.Connection, attempts: Sequence[Attempt]) -> None:
    """Add attempts. The caller has them trimmed from time to time."""
    if attempts:
        connection.execute(tables.attempts.insert(), [{"ring": _ring(one), **_values(one)} for one in attempts])


def trim(connection: sa.Connection, target_id: int) -> None:
    """Delete the oldest attempts at a target, and the exchanges of older ones, beyond the bounds.

    It reads as many rows as are kept.
    """
    a = tables.attempts.c
    for ring in _RINGS:
        mine = (a.target_id == target_id, a.ring == ring)
        newest_gone = sa.select(a.id).where(*mine).order_by(a.id.desc()).offset(ATTEMPTS.max_rows).limit(1)
        last = connection.execute(newest_gone).scalar()
        if last is not None:
            connection.execute(tables.attempts.delete().where(*mine, a.id <= last))
    for ring in _RINGS[1:]:  # what is settled has none
        with_exchange = (a.target_id == target_id, a.ring == ring, a.exchange.is_not(None))
        # Added up here: in a window function over this index MySQL 8.0.12 reads the rows of other rings.
        sizes = sa.select(a.id, sa.func.length(a.exchange)).where(*with_exchange).order_by(a.id.desc())
        left = ATTEMPTS.max_exchange_characters
        last = next((row_id for row_id, size in connection.execute(sizes).all() if (left := left - size) < 0), None)
        if last is not None:
            connection.execute(tables.attempts.update().where(*with_exchange, a.id <= last).values(exchange=None))


def forget_removed(connection: sa.Connection) -> None:
    """Delete the attempts of targets that do not exist any more."""
    a = tables.attempts.c
    known = set(connection.execute(sa.select(tables.targets.c.id)).scalars())
    following = sa.select(sa.func.min(a.target_id)).where(a.target_id > sa.bindparam("last"))
    last: int | None = -1
    while (last := connection.execute(following, {"last": last}).scalar()) is not None:
        if last not in known:
            connection.execute(tables.attempts.delete().where(a.target_id == last))


class Timeline(NamedTuple):
    """The last attempts at an event at one target, oldest first.

    And the exchange of the last one that has one, as JSON or empty, with the time of that attempt (ms).
    """

    attempts: Sequence[Attempt] = ()
    exchange: str = ""
    exchange_at: int = 0


def timelines(connection: sa.Connection, event: Any) -> Mapping[TargetId, Timeline]:
    """Return what is recorded of the attempts at an event, a row of the log, at each of its targets.

    An attempt at a run of events has the exchange of the last one of them; one that succeeded has none. The cost is
    bounded by `policies.ATTEMPTS`, however large the log is.
    """
    a, t = tables.attempts.c, tables.targets.c
    of_target = (a.target_id == sa.bindparam("of_target"), a.partition == event.partition)
    query = (
        sa.select(*(column for column in a if column is not a.exchange), sa.null().label("exchange"))
        .where(*of_target, a.last_seq >= event.seq, a.first_seq <= event.seq)
        .order_by(a.at.desc(), a.id.desc())
        .limit(ATTEMPTS.max_read_attempts)
    )
    last_exchange = (
        sa.select(a.at, a.exchange)
        .where(*of_target, a.last_seq == event.seq, a.exchange.is_not(None))
        .order_by(a.id.desc())
        .limit(1)
    )
    ids = [int(part) for part in event.targets.split(",") if part]
    by_target = {}
    for row in connection.execute(sa.select(t.id, t.type, t.name).where(t.id.in_(ids))).all():
        attempts = [_attempt(one) for one in connection.execute(query, {"of_target": row.id})]
        last = connection.execute(last_exchange, {"of_target": row.id}).first()
        at, exchange = (0, "") if last is None else (last.at, last.exchange)
        by_target[TargetId(row.type, row.name)] = Timeline(attempts[::-1], exchange, at)
    replays = {attempt.replay_id for line in by_target.values() for attempt in line.attempts} - {WHOLE_LOG}
    selecting = _selecting(connection, event, replays) | {WHOLE_LOG} if replays else {WHOLE_LOG}

    def concerns_event(attempt: Attempt) -> bool:
        return attempt.first_seq == attempt.last_seq or attempt.replay_id in selecting

    return {
        target: line._replace(attempts=list(filter(concerns_event, line.attempts)))
        for target, line in by_target.items()
    }


def _selecting(connection: sa.Connection, event: Any, replay_ids: Iterable[int]) -> set[int]:
    """Return those of the replays that select the event."""
    r = tables.replays.c
    rows = connection.execute(sa.select(tables.replays).where(r.id.in_(sorted(replay_ids))))
    return {
        row.id
        for row in rows
        if row.since <= event.received_at < row.before
        and row.bucket in ("", event.bucket)
        and event.key.startswith(row.prefix)
        and (not (names := orjson.loads(row.events)) or event.name in names)
    }


def _ring(attempt: Attempt) -> int:
    return 0 if attempt.is_settled else 2 if attempt.outcome == UNAVAILABLE else 1


_NAMES = Attempt.__slots__
_of_row = attrgetter(*_NAMES)


def _values(attempt: Attempt) -> dict[str, Any]:
    return dict(zip(_NAMES, _of_row(attempt), strict=True))


def _attempt(row: Any) -> Attempt:
    return Attempt(*_of_row(row))
