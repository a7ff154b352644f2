"""Draw what is done in a run: which faults, at which moments, and what an operator changes meanwhile.

Everything is drawn before the run begins, so that a seed means the same plan however the run goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from tests.support.pulled_traffic import QUEUES

T = TypeVar("T")
KILL, STOP = "kill", "stop"
# What the network before a target does, in place of the target; one that delays keeps back what a single connection
# says next, while all others pass, and passes it on at the end.
HANG, DRIP, DELAY = "hang", "drip", "delay"
NETWORK = (HANG, DRIP, DELAY)
INTERIM = "interim answers of"  # which come before the answer, at random
REFUSE, FAIL_OVER, FILL = "refuse", "fail over to", "fill"
FORGET, HOLD, POST = "forget", "hold open", "post"
PULLER = "source's worker"  # where events also come by sources, besides the queues
QUEUE = "target's queue"  # which RabbitMQ has with other properties than the service declares
STANDBY = "a lagging standby"  # of the outbox's PostgreSQL
FORGETFUL = frozenset(queue.part for queue in QUEUES.values() if not queue.keeps)  # stopped, and never killed
MEMORY = "broker's memory"  # which is at its limit: it takes no message, and answers
CONNECTIONS = "database's connections"  # which the network forgets, so that neither end learns that they are gone
SNAPSHOT = "a snapshot"  # of the outbox, as a dump reads
BODIES = "bodies that grow"  # which are small when they are posted, and have to be refused
# What happens to no process, and never beside another fault.
SINGLE = {
    STANDBY: FAIL_OVER,
    QUEUE: REFUSE,
    MEMORY: FILL,
    CONNECTIONS: FORGET,
    SNAPSHOT: HOLD,
    BODIES: POST,
}
SNAPSHOT_WEIGHT = 6
SILENCE = 5.0  # seconds after which a network has forgotten connections
WORKER = ("worker", "worker's parent", "worker's child")
API = ("API", "API's child")
PARTS = (
    *API,
    "beat",
    "drain",
    *WORKER,
    "broker",
    "database",
    "Redis target",
    "PostgreSQL target",
    "webhook target",
)
TARGETS = PARTS[-3:]
OPERATIONS = ("pause", "replay", "dead letters", "rules", "re-create", "settings")
# What an operator does beside some. A failover also loses what is changed meanwhile: of a replay nothing is left to be
# repaired. Interim answers are about whose answer is whose, so that answers have to differ.
_GIVEN = {FAIL_OVER: "replay", INTERIM: "dead letters"}
EVERY_DOUBLE = 3  # each third round has two faults at once


@dataclass(frozen=True)
class Fault:
    """One fault: `at` and `lasts` are shares of three leases, `pick` says which of several children it is.

    One with `seconds` lasts so long instead.
    """

    action: str
    part: str
    pick: float = 0.0
    at: float = 0.0
    lasts: float = 0.0
    seconds: float | None = None

    def __str__(self) -> str:
        return f"{self.action} {self.part}"


@dataclass(frozen=True)
class Round:
    """The faults of one round, what is done meanwhile, and when in the flow of events all of it begins (0 to 1)."""

    faults: tuple[Fault, ...]
    operation: str
    seed: float  # of the operation's own choices
    posts: float
    deliveries: float

    @property
    def weight(self) -> int:
        """How many times the events of another round this one has: a snapshot is old by what is written meanwhile."""
        return SNAPSHOT_WEIGHT if self.faults[0].part == SNAPSHOT else 1

    @property
    def is_late(self) -> bool:
        """Whether a request may come to a target late: kept back by the network, or on a connection of a Redis.

        One that stood still reads some kilobytes of each connection in turns, also of those that were given up.
        """
        return any(fault.action == DELAY or str(fault) == f"{STOP} Redis target" for fault in self.faults)

    def __str__(self) -> str:
        return " + ".join(map(str, self.faults))


def draw(
    seed: str, rounds: int, parts: Sequence[str] = PARTS, only: Sequence[str] = (), snapshot: float = 600
) -> list[Round]:
    """So many rounds over these parts: each single fault and each operation as often as another.

    `only` names single faults ("stop worker's child"): then there are no others, and no two at once. `snapshot` is for
    how many seconds one is held open.
    """
    rng, lengths = Random(seed), {CONNECTIONS: SILENCE, SNAPSHOT: snapshot}
    singles = _cycled(rng, [each for each in single_faults(parts) if not only or " ".join(each) in only])
    operations = _cycled(rng, OPERATIONS)
    drawn = []
    for number in range(1, rounds + 1):
        single = only or number % EVERY_DOUBLE
        faults = (_fault(rng, *next(singles), lengths),) if single else _two_at_once(rng, parts)
        operation = _GIVEN.get(faults[0].action) or next(operations)
        drawn.append(Round(faults, operation, rng.random(), rng.random(), rng.random()))
    return drawn


def single_faults(parts: Sequence[str] = PARTS) -> list[tuple[str, str]]:
    """Each action and the part that it meets."""
    processes = [part for part in parts if part not in SINGLE]
    return [
        *((action, part) for action in (KILL, STOP) for part in processes if _action(action, part) == action),
        *((action, part) for action in NETWORK for part in TARGETS if part in parts),
        *((INTERIM, part) for part in parts if part == "webhook target"),
        *((SINGLE[part], part) for part in parts if part in SINGLE),
    ]


def parts_of(outbox: str, broker: str, sources: Sequence[str] = ()) -> tuple[str, ...]:
    """What there is to hurt: SQLite has no server, only PostgreSQL a standby, and only RabbitMQ's queues properties.

    A queue that remembers by itself what was taken does not have what a failover loses, and its sender does not know.
    """
    parts = [part for part in PARTS if not (outbox == "sqlite" and part == "database")]
    parts += [PULLER, *(QUEUES[source].part for source in sources)] if sources else []
    parts += [STANDBY] if outbox == "postgresql" and all(QUEUES[source].repeats for source in sources) else []
    parts += [] if outbox == "sqlite" else [CONNECTIONS, SNAPSHOT]
    parts += [QUEUE] if broker == "rabbitmq" else []
    return (*parts, MEMORY, BODIES)


def _cycled(rng: Random, items: Sequence[T]) -> Iterator[T]:
    while True:
        yield from rng.sample(list(items), len(items))


def _fault(rng: Random, action: str, part: str, lengths: Mapping[str, float]) -> Fault:
    return Fault(action, part, rng.random(), lasts=0.0 if action == KILL else 1.0, seconds=lengths.get(part))


def _two_at_once(rng: Random, parts: Sequence[str]) -> tuple[Fault, Fault]:
    """A second fault before the first is over: never in the same process, of which there may be only one."""
    processes = [part for part in parts if part not in SINGLE]
    first = rng.choice(processes)
    second = rng.choice([part for part in processes if not _same_process(first, part)])
    drawn = rng.choice([(STOP, KILL), (STOP, STOP), (KILL, KILL)])
    actions = [_action(action, part) for action, part in zip(drawn, (first, second), strict=True)]
    one = Fault(actions[0], first, rng.random(), at=0.0, lasts=_lasts(rng, actions[0]))
    two = Fault(actions[1], second, rng.random(), at=rng.random() * max(one.lasts, 0.1), lasts=_lasts(rng, actions[1]))
    return one, two


def _action(action: str, part: str) -> str:
    return STOP if part in FORGETFUL else action


def _lasts(rng: Random, action: str) -> float:
    """A stop lasts three leases; a killed server or role is away for up to one."""
    return 1.0 if action == STOP else rng.random() / 3


def _same_process(one: str, other: str) -> bool:
    # There are two workers, and two faults of one round meet different ones.
    return (one == other and one not in WORKER) or (one in API and other in API)
