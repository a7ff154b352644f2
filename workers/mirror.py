"""What an event does to a namespace row, for each policy: decided here, before a target sees the event.

* `compatible`: as MinIO (§1.11), to the letter.
* `mirror`: the row says what the bucket holds. An event older than what the log knows of its object is superseded;
  on versioned keys the object's whole history in the log is folded, so that a delete marker removes the row, its
  removal brings the newest surviving version back, and deleting an old version changes nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from app.events import sequencer
from app.events.mirror import Absent, Entry, Present, current
from app.events.model import Effect, Event
from app.outbox.store import Logged, Place
from workers.formats import compatible_effect

Histories = Callable[[Iterable[int]], Mapping[tuple[str, str], Sequence[Entry]]]
Records = Callable[[Iterable[Place]], Mapping[Place, str]]


class Policy(Enum):
    """How a target uses events."""

    LOG = "log"  # every event travels as it is: queues, webhooks, access tables
    COMPATIBLE = "compatible"
    MIRROR = "mirror"


class Unsent(Enum):
    """Why an event is settled without being sent."""

    SUPERSEDED = "a newer event of its object is known"
    NOTHING_TO_DO = "it does not change what the bucket holds"


Verdict = Event | Unsent


def verdicts(events: Sequence[Logged], policy: Policy, histories: Histories, records: Records) -> list[Verdict]:
    """For each event, what to send to the target, or why nothing is sent."""
    if policy is Policy.LOG:
        return [logged.event for logged in events]
    if policy is Policy.COMPATIBLE:
        return [replace(logged.event, effect=compatible_effect(logged.event)) for logged in events]
    versioned = {logged.key_hash for logged in events if _needs_history(logged.event)}
    known = histories(versioned) if versioned else {}
    decided = [
        _versioned(logged, known[logged.event.bucket, logged.event.key])
        if _needs_history(logged.event)
        else _unversioned(logged)
        for logged in events
    ]
    wanted = [(logged.lane, seq.survivor) for logged, seq in zip(events, decided, strict=True) if isinstance(seq, _Row)]
    found = records(wanted) if wanted else {}
    return [_restored(logged, verdict, found) for logged, verdict in zip(events, decided, strict=True)]


@dataclass(frozen=True, slots=True)
class _Row:
    """The row becomes that of another, surviving event."""

    survivor: int  # its seq


def _needs_history(event: Event) -> bool:
    return event.version != "" and (_creates(event) or event.name.startswith(("s3:ObjectRemoved:", "s3:Lifecycle")))


def _creates(event: Event) -> bool:
    return event.name.startswith("s3:ObjectCreated:") and sequencer.states_content(event.name, event.version)


def _unversioned(logged: Logged) -> Verdict:
    event = logged.event
    if not sequencer.states_content(event.name, event.version):
        return Unsent.NOTHING_TO_DO
    if event.sequencer and event.sequencer < logged.newest:
        return Unsent.SUPERSEDED
    return replace(event, effect=Effect.UPSERT if _creates(event) else Effect.REMOVE)


def _versioned(logged: Logged, history: Sequence[Entry]) -> Verdict | _Row:
    event = logged.event
    if event.name == "s3:ObjectRemoved:NoOP":
        return Unsent.NOTHING_TO_DO
    holding = current(history)
    if isinstance(holding, Present):
        if holding.seq == logged.seq:
            return replace(event, effect=Effect.UPSERT)
        return Unsent.SUPERSEDED if _creates(event) else _Row(holding.seq)
    if _creates(event):
        return Unsent.SUPERSEDED
    return replace(event, effect=Effect.REMOVE if isinstance(holding, Absent) else Effect.REMOVE_VERSION)


def _restored(logged: Logged, verdict: Verdict | _Row, found: Mapping[Place, str]) -> Verdict:
    if not isinstance(verdict, _Row):
        return verdict
    record = found.get((logged.lane, verdict.survivor))
    if record is None:  # purged between two reads; what the row holds is no older
        return Unsent.NOTHING_TO_DO
    return replace(logged.event, record=record, effect=Effect.UPSERT)
