"""Run two operations of the outbox against each other, in every order of their statements.

Each operation runs in a thread of its own over a `Database` of its own, and stops before every SQL statement and before
every COMMIT that publishes something. A scheduler lets one of the two go on at a time. One that waits for a lock of the
other is seen in the database's own list of lock waits, and the other goes on.

Orders that differ only in neighbours that cannot influence each other (reads, or statements about different tables)
have the same result, so one of them is run. All databases read committed data: a plain SELECT is influenced by a COMMIT
only, never by a statement that is not committed yet.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.database import Database
from tests.services import speed

_PATIENCE = 30.0  # seconds; longer than any lock wait of the product
_TABLE = re.compile(rf"(?<![.\w])({'|'.join(tables.metadata.tables)})\b")
_PARENTS = {
    name: frozenset(key.column.table.name for key in table.foreign_keys)
    for name, table in tables.metadata.tables.items()
}


@dataclass(frozen=True, slots=True)
class Step:
    """A statement or a COMMIT: the tables that it reads, and those that it writes, locks or publishes.

    One that is `both` is a transaction of its own.
    """

    text: str
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    commit: bool = False
    both: bool = False

    def conflicts(self, other: "Step") -> bool:
        """Whether the order of the two can matter."""
        if self.both or other.both:
            return bool(self.writes & (other.reads | other.writes) or other.writes & self.reads)
        if self.commit and other.commit:
            return False
        if self.commit or other.commit:
            commit, statement = (self, other) if self.commit else (other, self)
            return bool(commit.writes & (statement.reads | statement.writes))
        if not (self.writes and other.writes):
            return False
        return bool(self.writes & (other.reads | other.writes) or other.writes & self.reads)


@cache
def parsed(statement: str) -> Step:
    """What a statement touches."""
    text = " ".join(statement.split())
    if "append_events(" in text:
        return Step(text, writes=frozenset(("log_head", "targets", "events")))
    tables = _TABLE.findall(text)
    verb = text.split(" ", 1)[0].upper()
    if verb == "INSERT":
        return Step(text, _PARENTS[tables[0]], frozenset(tables[:1]))
    if verb in ("UPDATE", "DELETE"):
        return Step(text, frozenset(tables[1:]), frozenset(tables[:1]))
    if " FOR UPDATE" in text.upper():
        return Step(text, frozenset(tables), frozenset(tables))
    return Step(text, frozenset(tables))


class Side:
    """One of the two: a thread's worth of statements, gated while an operation runs."""

    def __init__(self, name: str, database: Database) -> None:
        self.name, self.database = name, database
        self._changed = threading.Condition()
        self._running = self._granted = False
        self._written: frozenset[str] = frozenset()
        self._thread: threading.Thread | None = None
        self.next: Step | None = None
        self.backend = 0
        self.failure: BaseException | None = None
        self.refused: list[str] = []  # errors of the database, also those that the operation overcame
        self._in_one_trip = database.in_one_trip
        database.in_one_trip = self._stop_before_trip  # type: ignore[method-assign]
        for engine in {database.engine, database._reader}:
            sa.event.listen(engine, "checkout", self._checked_out)
            sa.event.listen(engine, "before_cursor_execute", self._before_statement)
            sa.event.listen(engine, "commit", self._before_commit)
            sa.event.listen(engine, "handle_error", self._refused)

    def start(self, operation: Callable[[], None]) -> None:
        """Run an operation up to its first statement."""
        self.next = self.failure = None
        self.refused.clear()
        self._running, self._granted, self._written = True, False, frozenset()

        def run() -> None:
            try:
                operation()
            except BaseException as error:  # noqa: BLE001 - the explorer judges it
                self.failure = error
            with self._changed:
                self._running = False
                self._changed.notify_all()

        self._thread = threading.Thread(target=run, name=self.name, daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether the operation has ended."""
        return not self._running

    def proceed(self) -> None:
        """Let it execute the statement that it stopped before."""
        with self._changed:
            self.next, self._granted = None, True
            self._changed.notify_all()

    def arrives(self, seconds: float) -> bool:
        """Whether it comes to its next statement, or its end, within some time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.next is not None or not self._running, seconds)

    def join(self) -> None:
        """Wait for the thread of an operation that is over."""
        if self._thread is not None:
            self._thread.join(_PATIENCE)

    def _stop_before_trip(self, statement: str, *arguments: Any) -> int:
        if threading.current_thread() is self._thread:
            self._stop(replace(parsed(statement), both=True))
        return self._in_one_trip(statement, *arguments)

    def _checked_out(self, driver: Any, *_: object) -> None:
        if threading.current_thread() is self._thread:
            self.backend = driver.thread_id() if hasattr(driver, "thread_id") else driver.info.backend_pid

    def _before_statement(self, connection: sa.Connection, _cursor: object, statement: str, *_: object) -> None:
        if threading.current_thread() is self._thread:
            self._checked_out(connection.connection.driver_connection)
            step = parsed(statement)
            self._written |= step.writes
            self._stop(step)

    def _before_commit(self, connection: sa.Connection) -> None:
        if threading.current_thread() is self._thread and self._written:
            self._checked_out(connection.connection.driver_connection)
            step = Step("COMMIT", writes=self._written, commit=True)
            self._written = frozenset()
            self._stop(step)

    def _refused(self, context: sa.engine.ExceptionContext) -> None:
        if threading.current_thread() is self._thread:
            self._written = frozenset()
            self.refused.append(" ".join(str(context.original_exception).split()))

    def _stop(self, step: Step) -> None:
        with self._changed:
            self.next = step
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._granted)
            self._granted = False


class LockWaits:
    """Which connections wait for a lock, as the database itself knows it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __call__(self) -> set[int]:
        """Their backend or thread numbers."""
        if self._database.dialect == "postgresql":
            with self._database.reading() as connection:
                return set(connection.exec_driver_sql("SELECT pid FROM pg_locks WHERE NOT granted").scalars())
        with self._database.reading() as connection:
            [[_, _, status]] = connection.exec_driver_sql("SHOW ENGINE INNODB STATUS").all()
        waiting = [part for part in status.split("---TRANSACTION") if "LOCK WAIT" in part]
        return {int(number) for part in waiting for number in re.findall(r"thread id (\d+)", part)[:1]}


Done = list[tuple[int, Step]]  # what a run executed, in its order: which side, and the step
Operations = Callable[[], Sequence[Callable[[], None]]]  # makes the two operations of a run, on an outbox put back


class Share(NamedTuple):
    """Of the places at which an operation may be interrupted one in so many; of another part others."""

    of: int
    part: int = 0


ALL = Share(1)


class Explorer:
    """Runs two operations against each other in different orders. After each run the caller may look at the outbox."""

    def __init__(self, sides: Sequence[Side], lock_waits: LockWaits) -> None:
        self._sides, self._lock_waits = sides, lock_waits

    def interrupted_once(self, operations: Operations, share: Share = ALL) -> Iterator[Done]:
        """Each operation runs up to one of its steps, then the whole other one, then its rest.

        Where the other one waits for a lock, the first goes on until it has the lock. Of interruptions that cannot
        differ in their result one is run. Of less than all, one operation is interrupted, at one place in so many.
        """
        for number in range(2) if share.of == 1 else (share.part % 2,):
            whole = self._run(operations(), lambda ready, number=number: number if number in ready else 1 - number)
            yield whole
            first, second = ([step for side, step in whole if side == other] for other in (number, 1 - number))
            places = _places(first, second)
            if not places:
                return  # whichever comes first
            if not any(step.commit for step in first[places[-1] :]):
                places.pop()  # its rest, without locks and without influence, may as well come before the other one
            meanwhile = second
            for place in places[share.part // 2 % share.of :: share.of]:
                last = first[place - 1]
                # Else the other one comes as far as in the interruption before, to the same lock.
                if last.commit or last.both or any(last.conflicts(step) for step in meanwhile):
                    done = self._run(operations(), _Interruption(number, place))
                    yield done
                    meanwhile = _meanwhile(done, number, place) if share.of == 1 else second

    def every_order(self, operations: Operations) -> Iterator[Done]:
        """Every order, but of those that cannot differ in their result only one."""
        tree = _Tree()
        while tree.unfinished:
            tree.depth, tree.asleep = 0, set()
            yield self._run(operations(), tree)
            tree.backtrack()

    def _run(self, operations: Sequence[Callable[[], None]], choose: Callable[[dict[int, Step]], int]) -> Done:
        done: Done = []
        for side, operation in zip(self._sides, operations, strict=True):
            side.start(operation)
        self._await_sides()
        while not all(side.over for side in self._sides):
            ready = {number: side.next for number, side in enumerate(self._sides) if side.next is not None}
            chosen = choose(ready)
            done.append((chosen, ready[chosen]))
            self._sides[chosen].proceed()
            self._await_sides()
        for side in self._sides:
            side.join()
        return done

    def _await_sides(self) -> None:
        """Until each side has stopped, is over, or waits for a lock while the other can go on."""
        ends, pause = speed.deadline(_PATIENCE), 0.01
        while moving := [side for side in self._sides if not side.arrives(pause)]:
            waiting = self._lock_waits()
            if all(side.backend in waiting for side in moving) and any(side.next is not None for side in self._sides):
                return
            if time.monotonic() > ends:
                raise TimeoutError(f"{[side.name for side in moving]} neither stopped nor waited for a lock")
            pause = min(2 * pause, 0.05)  # on a busy machine it is at work that long


def _places(first: Sequence[Step], second: Sequence[Step]) -> list[int]:
    """After how many steps of the first it makes a difference that the second comes there, and not one step sooner."""
    return [place for place, last in enumerate(first, 1) if any(last.conflicts(step) for step in second)]


def _meanwhile(done: Done, number: int, place: int) -> list[Step]:
    """What the other side began between a side's step of this place and its next one."""
    taken = [position for position, (side, _) in enumerate(done) if side == number]
    return [step for _, step in done[taken[place - 1] + 1 : taken[place] if place < len(taken) else None]]


@dataclass(slots=True)
class _Interruption:
    """One side up to a place, then the other."""

    first: int
    place: int

    def __call__(self, ready: dict[int, Step]) -> int:
        wanted = self.first if self.place > 0 else 1 - self.first
        chosen = wanted if wanted in ready else 1 - wanted
        self.place -= chosen == self.first
        return chosen


@dataclass(slots=True)
class _Choice:
    """A moment of a run at which one of the sides that could go on was chosen."""

    steps: dict[int, Step]
    asleep: set[int]  # to choose it here leads to nothing that was not run before
    chosen: int
    tried: set[int] = field(default_factory=set)

    @property
    def left(self) -> set[int]:
        return self.steps.keys() - self.asleep - self.tried - {self.chosen}


@dataclass(slots=True)
class _Tree:
    """A depth-first search with sleep sets (Godefroid, Partial-Order Methods, 1996)."""

    path: list[_Choice] = field(default_factory=list)
    depth: int = 0
    asleep: set[int] = field(default_factory=set)
    unfinished: bool = True

    def __call__(self, ready: dict[int, Step]) -> int:
        if self.depth < len(self.path) and self.path[self.depth].chosen in ready:
            choice = self.path[self.depth]
        elif awake := ready.keys() - self.asleep:
            del self.path[self.depth :]
            choice = _Choice(ready, set(self.asleep), min(awake))
            self.path.append(choice)
        else:  # the rest of this run is that of another one: only come to an end
            del self.path[self.depth :]
            self.asleep = {0, 1}
            return min(ready)
        self.depth += 1
        step = ready[choice.chosen]
        # A side that waited for no lock when the choice was made may wait for one now: then it is not asleep.
        others = ((choice.asleep | choice.tried) & ready.keys()) - {choice.chosen}
        self.asleep = {number for number in others if not ready[number].conflicts(step)}
        return choice.chosen

    def backtrack(self) -> None:
        """Make the last choice that is open another one."""
        while self.path and not self.path[-1].left:
            self.path.pop()
        self.unfinished = bool(self.path)
        if self.path:
            last = self.path[-1]
            last.tried.add(last.chosen)
            last.chosen = min(last.left)
