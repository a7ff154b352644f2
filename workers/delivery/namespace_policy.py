"""Decide, for each policy, what an event does to a namespace row, before the target receives the event.

* `compatible`: exactly as MinIO (§1.11).
* `mirror`: the row shows what the bucket holds. An event older than the newest known event of its object is superseded.
  For versioned keys the policy uses all versions that the object's events reported: a delete marker removes the row,
  removing the delete marker restores the newest surviving version, and deleting an old version changes nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from app.events.frontends.registry import hides_older
from app.events.model import Effect, Event
from app.events.names import ContentChange, content_change
from app.events.order import Absent, Holding, Present
from app.outbox.delivery.logged_events import LoggedEvent, LogPosition
from workers.targets.payloads import compatible_effect


class Known(Protocol):
    """What the outbox knows about the objects of events."""

    def holdings(self, events: Iterable[LoggedEvent]) -> Mapping[tuple[str, str], Holding]:
        """Return what the bucket holds under the keys of some events, as (bucket, key) to holding."""

    def records(self, positions: Iterable[LogPosition]) -> Sequence[str | None]:
        """Return the records of the first of these events as JSON text: as many as a batch may have, at least one.

        None stands for a record that is no longer stored.
        """


class Policy(Enum):
    """How a target uses events."""

    LOG = "log"  # every event is sent as it is: queues, webhooks, access tables
    COMPATIBLE = "compatible"
    MIRROR = "mirror"


class SkipReason(Enum):
    """Why an event is not sent; the first two settle it."""

    SUPERSEDED = "a newer event of its object is known"
    UNCHANGED = "it does not change what the bucket holds"
    BEHIND_PARKED = "an earlier event of its object is parked"
    NO_ROOM = "the records that its batch needs would be too long together"


Decision = Event | SkipReason


def decide(events: Sequence[LoggedEvent], policy: Policy, known: Known) -> list[Decision]:
    """Return, for each event, what to send to the target, or why nothing is sent."""
    if policy is Policy.LOG:
        return [logged.event for logged in events]
    if policy is Policy.COMPATIBLE:
        return [_with_effect(logged.event, compatible_effect(logged.event)) for logged in events]
    verdicts = _verdicts(events, known)
    rows = [
        (logged.partition, verdict.survivor)
        for logged, verdict in zip(events, verdicts, strict=True)
        if isinstance(verdict, _Row)
    ]
    if not rows:
        return [verdict for verdict in verdicts if not isinstance(verdict, _Row)]
    records = list(known.records(rows))
    decisions: list[Decision] = []
    has_room = True  # after an event that has none nothing is sent: it may be of the same object
    for logged, verdict in zip(events, verdicts, strict=True):
        decision = verdict
        if isinstance(decision, _Row):
            has_room &= bool(records)
            decision = _restored(logged, records.pop(0)) if has_room else SkipReason.NO_ROOM
        decisions.append(decision if has_room or isinstance(decision, SkipReason) else SkipReason.NO_ROOM)
    return decisions


def decide_others(
    events: Sequence[LoggedEvent], skipped: Mapping[LogPosition, SkipReason], policy: Policy, known: Known
) -> Sequence[Decision]:
    """Return the decisions for events of which some are `skipped` already, by their place in the log."""
    if not skipped:
        return decide(events, policy, known)
    others = iter(decide([one for one in events if (one.partition, one.seq) not in skipped], policy, known))
    return [skipped.get((one.partition, one.seq)) or next(others) for one in events]


def newest_sent(events: Sequence[LoggedEvent], policy: Policy, known: Known) -> LoggedEvent | None:
    """Return the last of these events, all of one object, that would be sent now."""
    if policy is not Policy.MIRROR:
        return events[-1] if events else None
    paired = [*zip(events, _verdicts(events, known), strict=True)]
    return next((logged for logged, verdict in reversed(paired) if not isinstance(verdict, SkipReason)), None)


@dataclass(frozen=True, slots=True)
class _Row:
    """The row becomes that of another, surviving event."""

    survivor: int  # its seq


def _verdicts(events: Sequence[LoggedEvent], known: Known) -> list[Decision | _Row]:
    versioned = [logged for logged in events if _needs_history(logged.event)]
    holdings = known.holdings(versioned) if versioned else {}
    return [
        _versioned(logged, holdings[logged.event.bucket, logged.event.key])
        if _needs_history(logged.event)
        else _unversioned(logged)
        for logged in events
    ]


def _needs_history(event: Event) -> bool:
    return event.version != "" and content_change(event.name) is not ContentChange.NOTHING


def _creates(event: Event) -> bool:
    return content_change(event.name) is ContentChange.CREATED


def _unversioned(logged: LoggedEvent) -> Decision:
    event = logged.event
    if content_change(event.name) is ContentChange.NOTHING:
        return SkipReason.UNCHANGED
    if event.sequencer and event.sequencer < (logged.newest or ""):
        return SkipReason.SUPERSEDED
    return _with_effect(event, Effect.UPSERT if _creates(event) else Effect.REMOVE)


def _versioned(logged: LoggedEvent, holding: Holding) -> Decision | _Row:
    event = logged.event
    if isinstance(holding, Present):
        if holding.seq == logged.seq:
            return _with_effect(event, Effect.UPSERT)
        return SkipReason.SUPERSEDED if _creates(event) else _Row(holding.seq)
    if _creates(event) and not (isinstance(holding, Absent) and hides_older(event.name, event.record)):
        return SkipReason.SUPERSEDED  # else what it hides may still be the row
    return _with_effect(event, Effect.REMOVE if isinstance(holding, Absent) else Effect.REMOVE_VERSION)


def _restored(logged: LoggedEvent, record: str | None) -> Event:
    if record is None:  # no longer stored; at least the row must not show a version that is gone
        return _with_effect(logged.event, Effect.REMOVE_VERSION)
    return _with_effect(logged.event, Effect.UPSERT, record)


def _with_effect(event: Event, effect: Effect, record: str | None = None) -> Event:
    # An explicit constructor call: dataclasses.replace costs more than the rest of the decision.
    return Event(
        event.id, event.name, event.bucket, event.key, event.version, event.sequencer, event.time,
        event.record if record is None else record, effect,
    )  # fmt: skip
