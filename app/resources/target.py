"""Targets: their settings, states and counters, partitions, time series, and what is done with them."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import UNSET, UnsetType

from app.config.arn import TargetId
from app.config.declared_types import TYPES
from app.resources.declaration import (
    FLAG,
    MAX_NUMBER,
    TARGET,
    TEXT,
    TIME,
    Arn,
    Columns,
    Query,
    Resource,
    Time,
    about,
    number,
)

STATES = ("running", "failing", "paused", "disabled", "unavailable", "broken")
_URGENCY = ("broken", "unavailable", "failing", "paused", "running", "disabled")
OPENINGS = ("due", "opened", "failed")
LEASE_STATES = ("free", "leased", "revoked")
LEASE = "revoked: no worker may have it until the lease has expired"
STEPS = (10, 300)  # seconds between samples
MAX_WIDTH_SECONDS = 90 * 86400  # of samples that are merged into one
Seconds = float | None


def urgency(state: str) -> int:
    """Return the place of a target's state in a list in which those with problems come first."""
    return _URGENCY.index(state)


class Counters(Resource):
    """matched = recorded + discarded, and recorded is the sum of all but these two."""

    matched: int
    recorded: int
    delivered: int
    superseded: int
    pending: int
    parked: int
    dead: int
    purged: int
    discarded: int


class Opening(Resource):
    """Whether a worker could open the target with its present settings."""

    state: Annotated[str, about("the result of the last attempt", enum=list(OPENINGS))]
    at: Time
    reason: str


class Target(Resource):
    """A target."""

    columns: ClassVar[Columns] = {
        "target": lambda target: f"{target['type']}:{target['name']}", "ARN": "arn", "state": "state",
        "opening": lambda target: target["opening"]["state"], "from": "origin",
        "reason": lambda target: target["reason"] or target["opening"]["reason"],
    }  # fmt: skip

    arn: Arn
    type: Annotated[str, about("of the service that it is", enum=list(TYPES))]
    name: str
    state: Annotated[str, about("whether it is sent events", enum=list(STATES))]
    reason: str
    resume_at: Time
    failed_in_row: Annotated[int, about("of a failing target: attempts since its last success; else 0")]
    failing_since: Annotated[Time, about("when the first of them failed")]
    opening: Opening
    mode: Annotated[str, about("when a worker sends the next event", enum=["sync", "async"])]
    origin: Annotated[str, about("where it is defined", enum=["environment", "stored", "sample"])]
    settings: Annotated[Mapping[str, str], about("secrets are *redacted*")]
    events: Annotated[Counters | UnsetType, about("not in a brief list")] = UNSET
    oldest_age: Annotated[
        Seconds | UnsetType, about("seconds since its oldest undelivered event was recorded; null: there is none")
    ] = UNSET
    discarded_at: Annotated[Time, about("when an event was last discarded for it; null: never, or before 0.3")] = None
    acknowledged_discards: Annotated[int, about("of `discarded`, the first so many, of which an operator knows")] = 0


class Targets(Resource):
    """Every target."""

    targets: list[Target]


class BriefQuery(Query):
    """How much of each target to return."""

    brief: Annotated[
        bool,
        FLAG("leave out `events` and `oldest_age`, for which every partition of every target is looked at"),
    ] = False


class Partition(Resource):
    """What waits in a partition of a target."""

    partition: int
    position: Annotated[int, about("the sequence number up to which its events are settled or parked")]
    pending: Annotated[int, about("events after the position, as far as they were counted")]
    parked: Annotated[int, about("events that are retried, or wait behind one of their object")]
    parked_objects: Annotated[int, about("objects that have parked events")]
    more: Annotated[bool, about("there may be more of these than were counted")]
    lease: Annotated[str, about(LEASE, enum=list(LEASE_STATES))]
    holder: Annotated[str | None, about("the worker process that has leased it, as HOST:PID")]
    leased_until: Time


class Partitions(Resource):
    """The partitions of a target."""

    target: Arn
    partitions: list[Partition]


class RemoveQuery(Query):
    """How to remove a target."""

    force: Annotated[bool, FLAG("also delete its rules, undelivered events and dead letters")] = False


class Removed(Resource):
    """A target is removed."""

    lost: Annotated[list[str], about("what was deleted with it, such as `2 rules`")]


class Pause(Query):
    """Why a target or a source is paused."""

    reason: Annotated[str, TEXT("shown beside its state")] = ""


class Acknowledgement(Query):
    """Of which discarded events an operator knows."""

    discarded: Annotated[
        int, number(0, MAX_NUMBER)("the first so many: `events.discarded` of the target as it was seen")
    ]


class TargetTest(Resource):
    """The events of a test."""

    target: Arn
    ids: Annotated[list[str], about("of the test's events")]
    bucket: str
    key: str
    history: Annotated[str, about("the address of their delivery state")]


class TestStep(Resource):
    """A step of a test."""

    step: Annotated[str, about("such as resolve, connect, tls, login, deliver")]
    ok: bool
    seconds: Annotated[float, about("that it took")]
    message: Annotated[str, about("what was found, or why it failed; without secrets")]


class SettingsTest(Resource):
    """What came of a test of settings that are not stored."""

    target: Arn
    ok: Annotated[bool, about("whether the target accepted the event")]
    steps: Annotated[list[TestStep], about("in order; one that fails is the last")]


class Sample(Resource):
    """A target's counters in a step of time."""

    at: Annotated[Time, about("when the step begins")]
    recorded: int
    delivered: int
    superseded: int
    failed: Annotated[int, about("attempts that failed or were rejected; a total, as the others of events")]
    dead_lettered: int
    discarded: int
    backlog: Annotated[int, about("undelivered events without replayed ones; for step 300 the most")]
    oldest_age: Annotated[
        Seconds, about("seconds since the oldest undelivered event was recorded; 0: none, null: unknown")
    ]
    p50: Annotated[Seconds, about("seconds from recording to delivery of half of the step's deliveries")]
    p99: Annotated[Seconds, about("of 99 % of them; both at most 19 % too high; null: no deliveries")]


class Series(Resource):
    """The samples of a target."""

    target: Arn
    samples: list[Sample]


class AllSeries(Resource):
    """The samples of targets, the oldest first."""

    step: Annotated[int, about("seconds between the samples", enum=list(STEPS))]
    series: list[Series]


class SeriesQuery(Query):
    """Which samples to return."""

    target: Annotated[TargetId | None, TARGET] = None
    step: Annotated[int, number(1, MAX_NUMBER)("seconds between the samples", enum=list(STEPS))] = STEPS[0]
    width: Annotated[
        int,
        number(STEPS[0], MAX_WIDTH_SECONDS)(
            "seconds; of one target, samples of so long are merged: the last totals, the greatest backlog"
        ),
    ] = 0
    since: Annotated[int | None, TIME("at or after; an hour ago unless given")] = None
    before: Annotated[int, TIME("before")] = MAX_NUMBER
