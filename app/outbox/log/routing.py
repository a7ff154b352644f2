"""Route events to targets by a compiled snapshot of the rules and targets."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from app.config.arn import TargetId
from app.events.model import Event
from app.outbox import tables
from app.outbox.markers import NO_LIMIT
from app.outbox.rules import rule_from_row
from app.rules.matching import Matcher, compile_rules
from app.rules.model import Rule


class MatchingTooSlow(Exception):
    """To compare the events of one request with the rules takes too long."""


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
    _matched: dict[str, tuple[int, ...]] = field(default_factory=dict, compare=False)  # by event id

    @classmethod
    def empty(cls) -> "Routing":
        """Return the snapshot before the first read; its version is never that of a head."""
        return cls(-1, {}, {}, frozenset(), compile_rules(()))

    def targets(self, event: Event) -> tuple[int, ...]:
        """Return the ids of the targets whose rules match this event, each once."""
        matched = self._matched.get(event.id)
        if matched is not None:
            return matched
        return self.matcher.targets(event.bucket, event.name, event.key, event.record)

    @contextmanager
    def matching(self, events: Sequence[Event], seconds: float) -> Iterator[None]:
        """Match the events now, in this thread, so that `targets` need not do it during the block.

        Raises `MatchingTooSlow` if it takes that many seconds and there are more events.
        """
        deadline = time.monotonic() + seconds
        matched: dict[str, tuple[int, ...]] = {}
        for event in events:
            if matched and time.monotonic() > deadline:
                raise MatchingTooSlow(f"after {len(matched)} of {len(events)} events")
            matched[event.id] = self.targets(event)
        self._matched.update(matched)
        try:
            yield
        finally:
            for event_id, targets in matched.items():
                if self._matched.get(event_id) is targets:
                    self._matched.pop(event_id, None)

    def only(self, target: TargetId) -> "Routing":
        """Return a snapshot in which every event goes to this target, which rejects if its queue is full."""
        rule = Rule(bucket="*", events=("*",), target=target)
        rows = [row_id for row_id, known in self.ids.items() if known == target]
        return replace(
            self, _matched={}, rejecting=frozenset(rows), matcher=compile_rules([(rule, row_id) for row_id in rows])
        )


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
