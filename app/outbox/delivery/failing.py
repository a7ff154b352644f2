"""Find the targets of which every attempt since their last success has failed.

A settlement with failed attempts and no confirmed event (`transitions.settlement`) adds to its cursors how many
failed in a row, with the mark that the target has at that moment: the times of its last confirmations and its revision,
added up. Each success, new settings and a resume make it another one, so what was counted before is void, without
writing it; marks are compared with each other, and no time with a clock. Refusals as unavailable are no attempts
(`StoredTarget.state` is then `unavailable`), and an event that needs no sending is no success.
"""

from collections.abc import Sequence
from dataclasses import replace

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.column_values import WHOLE_LOG
from app.outbox.policies import FAILING
from app.outbox.targets import Failing, StoredTarget

_C, _T, _A = tables.cursors.c, tables.targets.c, tables.attempts.c
_FAILED_RING = 1  # of the record of attempts


def read_mark(connection: sa.Connection, target_id: int) -> int:
    """Return the present mark of a target; 0 if it was removed."""
    return int(connection.execute(sa.select(_mark()).where(_T.id == target_id)).scalar() or 0)


def read_failing(connection: sa.Connection, target_id: int | None = None) -> dict[int, Failing]:
    """Return the failing targets, or the one if it is failing, by row id.

    It reads the cursors with failures, all of the targets that have some, and the last reasons of some targets.
    """
    rows = sa.select(
        _C.target_id,
        _C.failed_mark,
        sa.func.sum(_C.failed_in_row).label("attempts"),
        sa.func.min(_C.failed_since).label("since"),
    ).where(_C.failed_in_row > 0, *(() if target_id is None else (_C.target_id == target_id,)))
    grouped = rows.group_by(_C.target_id, _C.failed_mark).having(sa.func.sum(_C.failed_in_row) >= FAILING.min_attempts)
    failed = grouped.subquery()
    query = (
        sa.select(_T.id, failed.c.attempts, failed.c.since)
        .join_from(failed, tables.targets, _T.id == failed.c.target_id)
        .where(failed.c.failed_mark == _mark())
    )
    by_target = {row.id: Failing(int(row.attempts), row.since) for row in connection.execute(query)}
    reasons = {row_id: _last_reason(connection, row_id) for row_id in list(by_target)[: FAILING.max_reasons]}
    return {row_id: replace(one, reason=reasons.get(row_id, "")) for row_id, one in by_target.items()}


def with_failing(connection: sa.Connection, targets: Sequence[StoredTarget]) -> list[StoredTarget]:
    """Return the targets, those that are failing with what is known of that."""
    failing = read_failing(connection, targets[0].row_id if len(targets) == 1 else None)
    return [replace(stored, failing=failing.get(stored.row_id)) for stored in targets]


def _last_reason(connection: sa.Connection, target_id: int) -> str:
    """Return why the last recorded attempt has failed, "" if none is yet: workers record some seconds later."""
    of_target = (_A.target_id == target_id, _A.ring == _FAILED_RING)
    newest = sa.select(_A.reason).where(*of_target).order_by(_A.id.desc()).limit(1)
    return connection.execute(newest).scalar() or ""


def _mark() -> sa.ColumnElement[int]:
    """Build what the mark of the target of an enclosing query is made of.

    Not of the delivered events: a mirror counts those among them that change nothing, which are not sent.
    """
    all_of_it = tables.cursors.alias("all_of_it")
    confirmed = sa.select(sa.func.sum(all_of_it.c.delivered_at)).where(
        all_of_it.c.target_id == _T.id, all_of_it.c.replay_id == WHOLE_LOG
    )
    return sa.func.coalesce(confirmed.scalar_subquery(), 0) + _T.revision
