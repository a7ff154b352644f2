"""Store how many requests the API has answered, by route and status, and which it has refused, by reason and minute.

Each API process counts in memory and adds what it has counted from time to time, so a process that is killed loses the
last seconds, and a commit whose outcome is unknown may be counted twice: the numbers are for people. Times are those of
the database's clock.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.clock import database_now, elapsed
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import write_alone
from app.outbox.policies import FUTURE_TIMES, REFUSALS
from app.resources.refusal import INTAKE_ROUTE

_MINUTE = 60_000  # ms
_TRIES = 3  # to store; each fails only because another process has just inserted a row that is missing


class AnswerKind(NamedTuple):
    """A route (method and template of the path), the status of the answer, and why the request was refused."""

    route: str
    status: int
    reason: str = ""


class RefusalKind(NamedTuple):
    """By which surface and why requests were refused, and whose they were, "" for nobody known."""

    surface: str
    reason: str
    actor: str


@dataclass(slots=True)
class Refused:
    """Requests that were refused for the same reason; times are those of `clock.elapsed()`."""

    first: float
    last: float
    number: int = 0
    status: int = 0
    address: str = ""
    fact: str = ""


@dataclass(frozen=True, slots=True)
class RecentRefusal:
    """Refusals of a kind in the last minutes; times are ms, `fact` and `address` are those of the last one."""

    kind: RefusalKind
    status: int
    number: int
    first_at: int
    last_at: int
    address: str
    fact: str


def record(
    database: Database,
    answers: Mapping[AnswerKind, int],
    refused: Mapping[RefusalKind, Refused],
    also: Callable[[sa.Connection], None] = lambda _: None,
) -> None:
    """Add what was counted, and what `also` writes, in one transaction. Raises `DatabaseUnavailable`."""

    def write(connection: sa.Connection) -> None:
        now = database_now(connection)
        for answer in sorted(answers):
            _add_answers(connection, answer, answers[answer], now)
        for kind in sorted(refused):
            _add_refused(connection, kind, refused[kind], now)
        also(connection)

    for _ in range(_TRIES - 1):
        with suppress(sa.exc.IntegrityError):
            return write_alone(database, write)
    return write_alone(database, write)


def _add_answers(connection: sa.Connection, answer: AnswerKind, number: int, now: int) -> None:
    c = tables.request_counts.c
    same = (c.route == answer.route, c.status == answer.status, c.reason == answer.reason)
    added = {"number": c.number + number, "last_at": now}
    if not connection.execute(tables.request_counts.update().where(*same).values(added)).rowcount:
        connection.execute(tables.request_counts.insert().values(**answer._asdict(), number=number, last_at=now))


def _add_refused(connection: sa.Connection, kind: RefusalKind, refused: Refused, now: int) -> None:
    r, age = tables.refusals.c, elapsed()
    first_at, last_at = (now - int((age - at) * 1000) for at in (refused.first, refused.last))
    minute = last_at - last_at % _MINUTE
    same = (r.minute == minute, r.surface == kind.surface, r.reason == kind.reason, r.actor == kind.actor)
    last = {"last_at": last_at, "status": refused.status, "address": refused.address, "fact": refused.fact}
    added = {"number": r.number + refused.number, **last}
    if not connection.execute(tables.refusals.update().where(*same).values(added)).rowcount:
        row = {"minute": minute, **kind._asdict(), "number": refused.number, "first_at": first_at, **last}
        connection.execute(tables.refusals.insert().values(**row))


def read_counts(connection: sa.Connection) -> dict[AnswerKind, int]:
    """Return how many requests were answered, in total."""
    c = tables.request_counts.c
    rows = connection.execute(sa.select(c.route, c.status, c.reason, c.number))
    return {AnswerKind(row.route, row.status, row.reason): row.number for row in rows}


def read_recorded_at(connection: sa.Connection) -> int:
    """Return when events that were posted were last recorded (ms), 0 for never."""
    c = tables.request_counts.c
    of_intake = (c.route == INTAKE_ROUTE, c.status < 300)
    return int(connection.execute(sa.select(sa.func.max(c.last_at)).where(*of_intake)).scalar() or 0)


def read_recent(connection: sa.Connection, now: int) -> Sequence[RecentRefusal]:
    """Return what was refused in the last minutes, by kind; what was refused last comes first."""
    r, since = tables.refusals.c, now - REFUSALS.window_ms
    latest = now + FUTURE_TIMES.tolerance_ms  # a clock that was ahead may have written what comes after
    of_minutes = (r.minute >= since - since % _MINUTE, r.last_at > since, r.last_at <= latest)
    recent = sa.select(tables.refusals).where(*of_minutes)
    found: dict[RefusalKind, RecentRefusal] = {}
    for row in connection.execute(recent.order_by(r.minute.desc()).limit(REFUSALS.max_rows)):
        kind = RefusalKind(row.surface, row.reason, row.actor)
        newer = found.get(kind)
        if newer is None:
            found[kind] = RecentRefusal(kind, row.status, row.number, row.first_at, row.last_at, row.address, row.fact)
        else:
            found[kind] = RecentRefusal(
                kind, newer.status, newer.number + row.number, row.first_at, newer.last_at, newer.address, newer.fact
            )
    return sorted(found.values(), key=lambda refusal: -refusal.last_at)


def forget(database: Database, now: int) -> None:
    """Remove what was refused long ago, some minutes at a time."""
    r = tables.refusals.c
    is_old = sa.or_(r.minute < now - REFUSALS.kept_ms, r.minute > now + FUTURE_TIMES.tolerance_ms)
    old = sa.select(r.minute).where(is_old).distinct().limit(REFUSALS.batch_minutes)
    while True:
        with database.reading() as connection:
            minutes = connection.execute(old).scalars().all()
        if not minutes:
            return
        with database.committing() as connection:
            connection.execute(tables.refusals.delete().where(r.minute.in_(minutes)))
