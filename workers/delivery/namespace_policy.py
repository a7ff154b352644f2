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

from app.events.effects import ContentChange, content_change
from app.events.model import Effect, Event
from app.events.version_history import Absent, Holding, Present
from app.outbox.delivery.logged_events import LoggedEvent, LogPosition
from workers.targets.payloads import compatible_effect


class Known(Protocol):
    """What the outbox knows about the objects of events."""

    def holdings(self, events: Iterable[LoggedEvent]) -> Mapping[tuple[str, str], Holding]:
        """Return what the bucket holds under the keys of some events, as (bucket, key) to holding."""

    def records(self, places: Iterable[LogPosition]) -> Mapping[LogPosition, str]:
        """Return the records of some events as JSON text, without those that are no longer stored."""


class Policy(Enum):
    """How a target uses events."""

    LOG = "log"  # every event is sent as it is: queues, webhooks, access tables
    COMPATIBLE = "compatible"
    MIRROR = "mirror"


class SkipReason(Enum):
    """Why an event is settled without being sent."""

    SUPERSEDED = "a newer event of its object is known"
    NOTHING_TO_DO = "it does not change what the bucket holds"


Decision = Event | SkipReason


def decide(events: Sequence[LoggedEvent], policy: Policy, known: Known) -> list[Decision]:
    """Return, for each event, what to send to the target, or why nothing is sent."""
    if policy is Policy.LOG:
        return [logged.event for logged in events]
    if policy is Policy.COMPATIBLE:
        return [_having(logged.event, compatible_effect(logged.event)) for logged in events]
    versioned = [logged for logged in events if _needs_history(logged.event)]
    holdings = known.holdings(versioned) if versioned else {}
    decided = [
        _versioned(logged, holdings[logged.event.bucket, logged.event.key])
        if _needs_history(logged.event)
        else _unversioned(logged)
        for logged in events
    ]
    wanted = [
        (logged.partition, seq.survivor) for logged, seq in zip(events, decided, strict=True) if isinstance(seq, _Row)
    ]
    if not wanted:
        return [verdict for verdict in decided if not isinstance(verdict, _Row)]
    found = known.records(wanted)
    return [_restored(logged, verdict, found) for logged, verdict in zip(events, decided, strict=True)]


@dataclass(frozen=True, slots=True)
class _Row:
    """The row becomes that of another, surviving event."""

    survivor: int  # its seq


def _needs_history(event: Event) -> bool:
    return event.version != "" and content_change(event.name) is not ContentChange.NOTHING


def _creates(event: Event) -> bool:
    return content_change(event.name) is ContentChange.CREATED


def _unversioned(logged: LoggedEvent) -> Decision:
    event = logged.event
    if content_change(event.name) is ContentChange.NOTHING:
        return SkipReason.NOTHING_TO_DO
    if event.sequencer and event.sequencer < (logged.newest or ""):
        return SkipReason.SUPERSEDED
    return _having(event, Effect.UPSERT if _creates(event) else Effect.REMOVE)


def _versioned(logged: LoggedEvent, holding: Holding) -> Decision | _Row:
    event = logged.event
    if isinstance(holding, Present):
        if holding.seq == logged.seq:
            return _having(event, Effect.UPSERT)
        return SkipReason.SUPERSEDED if _creates(event) else _Row(holding.seq)
    if _creates(event):
        return SkipReason.SUPERSEDED
    return _having(event, Effect.REMOVE if isinstance(holding, Absent) else Effect.REMOVE_VERSION)


def _restored(logged: LoggedEvent, verdict: Decision | _Row, found: Mapping[LogPosition, str]) -> Decision:
    if not isinstance(verdict, _Row):
        return verdict
    record = found.get((logged.partition, verdict.survivor))
    if record is None:  # no longer stored; at least the row must not show a version that is gone
        return _having(logged.event, Effect.REMOVE_VERSION)
    return _having(logged.event, Effect.UPSERT, record)


def _having(event: Event, effect: Effect, record: str | None = None) -> Event:
    # An explicit constructor call: dataclasses.replace costs more than the rest of the decision.
    return Event(
        event.id, event.name, event.bucket, event.key, event.version, event.sequencer, event.time,
        event.record if record is None else record, effect,
    )  # fmt: skip
