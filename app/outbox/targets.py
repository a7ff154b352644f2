"""Read the configured targets; `app.outbox.registry` changes them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.errors import suggest_name
from app.outbox import tables
from app.outbox.declared_rows import EnvironmentRow, converted, read_row, some_names
from app.outbox.engine.database import Database

# Whether a target was opened with its present settings (`app.outbox.delivery.availability`).
OPENING_DUE, OPENED, OPENING_FAILED = "due", "opened", "failed"


class UnknownTarget(LookupError):
    """No target of that type and name is configured; the message names the nearest of `known`."""

    def __init__(self, target: TargetId, known: Iterable[TargetId] = ()) -> None:
        super().__init__(f"there is no target {target}; {suggest_name(target, known, 'bucketwire target ls')}")
        self.target = target


@dataclass(frozen=True, slots=True)
class Failing:
    """All attempts at a target since its last success have failed: how many, since when (ms), and the last reason."""

    attempts: int
    since: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StoredTarget(EnvironmentRow):
    """A row of the table of targets; `values` are its settings as texts, with sealed secrets.

    `failing` is there if the reader has looked (`app.outbox.delivery.availability`), which workers do not.
    """

    row_id: int
    target: TargetId
    values: Mapping[str, str]
    origin: str
    problem: str
    enabled: bool
    paused: bool
    breaker: str
    failures: int
    resume_at: int
    reason: str
    opening: str = OPENING_DUE
    opening_reason: str = ""
    opening_at: int = 0
    opening_due_at: int = 0
    opening_tries: int = 0
    revision: int = 0
    failing: Failing | None = None
    discarded_at: int | None = None
    acknowledged: int = 0

    @property
    def identity(self) -> TargetId:
        """Type and name."""
        return self.target

    @property
    def state(self) -> str:
        """The target's state: `running`, `failing`, `unavailable`, `paused`, `disabled` or `broken`."""
        if self.problem:
            return "broken"
        if not self.enabled:
            return "disabled"
        if self.paused:
            return "paused"
        if self.breaker != "closed":
            return "unavailable"
        return "running" if self.failing is None else "failing"

    @property
    def paused_itself(self) -> bool:
        """Whether its own answer has paused it: an operator who pauses it closes the circuit breaker."""
        return self.state == "paused" and self.breaker != "closed"

    @property
    def state_reason(self) -> str:
        """Why the target is in its state; empty for `running`."""
        if self.state == "failing" and self.failing is not None:
            last = f"; the last: {self.failing.reason}" if self.failing.reason else ""
            return f"all {self.failing.attempts} attempts since its last success failed{last}"
        return self.problem or ("" if self.state == "running" else self.reason)


def stored_target(row: Any) -> StoredTarget:
    """Convert a row with every column of the table of targets."""
    return converted(row, StoredTarget, target=TargetId(row.type, row.name))


def find_target(connection: sa.Connection, target: TargetId) -> StoredTarget:
    """Return one target. Raises `UnknownTarget`."""
    row = read_row(connection, tables.targets, target)
    if row is None:
        raise UnknownTarget(target, [TargetId(*name) for name in some_names(connection, tables.targets)])
    return stored_target(row)


def enabled_targets(database: Database) -> list[TargetId]:
    """Return the enabled targets, including paused ones: a worker may have to serve them."""
    t = tables.targets.c
    with database.reading() as connection:
        return [TargetId(row.type, row.name) for row in connection.execute(sa.select(t.type, t.name).where(t.enabled))]
