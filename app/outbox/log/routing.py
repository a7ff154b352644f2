"""Route events to targets by a compiled snapshot of the rules and targets."""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import sqlalchemy as sa

from app.config.arn import TargetId
from app.events.model import Event
from app.outbox import tables
from app.outbox.column_values import NO_LIMIT
from app.outbox.declared import rule_from_row
from app.rules.filters import not_waiting
from app.rules.matching import Matcher, compile_rules
from app.rules.model import Rule


class MatchingTooSlow(Exception):
    """To compare the events of one request with the rules takes too long."""


Targets = tuple[int, ...]  # ids


@dataclass(frozen=True, slots=True)
class Routing:
    """A snapshot of rules and targets; it is outdated if `version` differs from that of the log's head.

    A target that is not in `limits` may have any number of undelivered events.
    """

    version: int
    ids: Mapping[int, TargetId]
    limits: Mapping[int, int]
    rejecting: frozenset[int]
    matcher: Matcher[int]

    @classmethod
    def empty(cls) -> "Routing":
        """Return the snapshot before the first read; its version is never that of a head."""
        return cls(-1, {}, {}, frozenset(), compile_rules(()))

    def targets(self, event: Event) -> Targets:
        """Return the ids of the targets whose rules match this event, each once."""
        return self.matcher.targets(event.bucket, event.name, event.key, event.record)

    def match(self, events: Sequence[Event], seconds: float = math.inf) -> "Matches":
        """Match the events now, in this thread.

        Raises `MatchingTooSlow` if it takes that many seconds and there are more events, and `MatchingBusy` if an event
        costs much while another thread has such a one; without a limit it waits for that.
        """
        deadline = time.monotonic() + seconds
        targets: dict[str, Targets] = {}
        with not_waiting if math.isfinite(seconds) else nullcontext():
            for event in events:
                if targets and time.monotonic() > deadline:
                    raise MatchingTooSlow(f"after {len(targets)} of {len(events)} events")
                targets[event.id] = self.targets(event)
        return Matches(self, targets)

    def only(self, target: TargetId) -> "Routing":
        """Return a snapshot in which every event goes to this target, which rejects if its queue is full."""
        rule = Rule(bucket="*", events=("*",), target=target)
        rows = [row_id for row_id, known in self.ids.items() if known == target]
        return replace(self, rejecting=frozenset(rows), matcher=compile_rules([(rule, row_id) for row_id in rows]))


class Matches(NamedTuple):
    """The targets of events, by event id, as a snapshot has them."""

    routing: Routing
    targets: Mapping[str, Targets]


def load_routing(connection: sa.Connection, version: int) -> Routing:
    """Read the rules and the enabled targets. Events for paused or broken targets are recorded too, and wait."""
    t, r = tables.targets.c, tables.rules.c
    rows = connection.execute(sa.select(t.id, t.type, t.name, t.queue_limit, t.rejects).where(t.enabled)).all()
    ids = {row.id: TargetId(row.type, row.name) for row in rows}
    rules = [
        (rule_from_row(row, ids[row.target_id]), row.target_id)
        for row in connection.execute(sa.select(tables.rules).order_by(r.id))
        if row.target_id in ids
    ]
    return Routing(
        version=version,
        ids=ids,
        limits={row.id: row.queue_limit for row in rows if row.queue_limit < NO_LIMIT},
        rejecting=frozenset(row.id for row in rows if row.rejects),
        matcher=compile_rules(rules),
    )
