"""One round: events flow, faults come and go, an operator changes something, and all of it has to be delivered."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.database import Database, DatabaseUnavailable, now_ms
from tests.chaos.faults import MEANWHILE, Effect, carry_out, effects, timeline
from tests.chaos.operations import Operator
from tests.chaos.plan import Round
from tests.chaos.verification import Figures, Verification
from tests.services import speed, until
from tests.support.backlog import waiting
from tests.support.fault_injection import Servers, Victim, Watch, target_settings
from tests.support.service_processes import System
from tests.support.traffic import Traffic

RESUME_WITHIN = 60  # seconds from the end of the last fault until events come in and go out again, everywhere
INTAKE_WITHIN = 20  # seconds from the end of the last fault until a post is accepted
AT_FIRST, DURING = 0.4, 0.5  # shares of a round's events; few come after the faults: they would hide what went back
SETTLE_WITHIN = 600  # seconds until everything of a round has to be delivered
_LINE = "{:<48}{:<14}{:>8}{:>6}{:>12}{:>10}{:>13}{:>11}{:>8}{:>10}{:>18}{:>9}{:>9}{:>11}"
_COLUMNS = (
    *("lost", "unexpected", "repeated", "out of order", "went back", "mirror", "counters", "lost by failover"),
    *("intake", "at work", "caught up"),
)
HEADINGS = _LINE.format("fault", "meanwhile", "events", *_COLUMNS)


@dataclass
class Row:
    """What one round came to. Seconds are from the end of its last fault; `problem` is what did not come in time."""

    faults: str
    operation: str
    events: int = 0
    figures: Figures = field(default_factory=Figures)
    intake: float | None = None  # until a post was accepted
    resumed: float | None = None
    recovered: float | None = None
    problem: str = ""
    stuck: bool = False  # not everything was delivered or could be read, so no other round can follow

    @property
    def sound(self) -> bool:
        """Everything is as promised."""
        return self.figures.sound and not self.problem

    def __str__(self) -> str:
        found = self.figures
        counts = astuple(found)
        seconds = ("" if each is None else f"{each:.1f} s" for each in (self.intake, self.resumed, self.recovered))
        line = _LINE.format(self.faults, self.operation, self.events, *counts, *seconds)
        return f"{line}{'' if self.sound else '  <-- WRONG'}{f': {self.problem}' if self.problem else ''}"


@dataclass
class Chaos:
    """A running service and what is done to it."""

    whole: System
    servers: Servers
    flow: Traffic
    operator: Operator
    verification: Verification

    def carry_out(self, plan: Round, share: int, lease: float) -> Row:
        """Do what one round's plan says, with `share` events of each poster, and verify everything at its end."""
        speed.measure_again()  # others may use the machine by now
        row, taken = Row(str(plan), plan.operation), self.flow.taken
        incident = Victim(str(plan), lambda: None)
        try:
            with Watch(self.flow, SETTLE_WITHIN, frozenset(target_settings(self.servers))).running() as watch:
                row.intake = self._hurt(plan, share, lease, watch, incident)
                self._settle()
            limit = INTAKE_WITHIN * speed.slowness()
            assert row.intake is None or row.intake < limit, f"no post was accepted within {limit:.0f} s"
        except Exception as error:  # noqa: BLE001 - too late, a server that does not start, or a defect of these tests
            row.problem = f"{describe(error)}; {waiting(self.whole)}"
            row.stuck = not self._settles_after_all()
        row.events = self.flow.taken - taken
        row.resumed, row.recovered = max(incident.resumed, default=None), max(incident.recovered, default=None)
        return self._compared(row, delayed=plan.is_late)

    def after_the_stop(self) -> Row:
        """Verify everything once more when the service has stopped: each process has written what it had in hand."""
        return self._compared(Row("service stopped", ""))

    def _compared(self, row: Row, *, delayed: bool = False) -> Row:
        try:
            row.figures = self.verification.look(delayed=delayed)
            if row.figures.went_back:
                row.problem = f"{row.problem}; went back: {self.verification.examples}".removeprefix("; ")
        except Exception as error:  # noqa: BLE001 - what cannot be read cannot be compared
            row.problem, row.stuck = f"{row.problem}; not compared: {describe(error)}".removeprefix("; "), True
        return row

    def _hurt(self, plan: Round, share: int, lease: float, watch: Watch, incident: Victim) -> float | None:
        """Let the faults begin with posts and deliveries on their way, and return when all goes on again.

        Return after how many seconds a post was accepted, where events are posted.
        """
        before, deliveries, first = self.flow.taken, sum(watch.look()), int(share * AT_FIRST)
        drops = [int(share * DURING / MEANWHILE)] * MEANWHILE
        rest = share - first - sum(drops)
        self.flow.allow_more(first)
        posts, posters = int(plan.posts * first), len(self.flow.posters)
        until(lambda: self.flow.taken >= before + posts * posters, RESUME_WITHIN, what="posts before the fault")
        enough = deliveries + int(plan.deliveries * posts * posters)
        until(lambda: sum(watch.settled) >= enough or watch.idle(), RESUME_WITHIN, what="deliveries before the fault")
        at_end: list[tuple[int, Sequence[int], float]] = []

        def last_is_over() -> None:
            at_end.append((self.flow.taken, watch.known, time.monotonic()))
            watch.killed(incident)
            self.flow.allow_more(rest + sum(drops))

        carried = effects(plan.faults, self.whole, self.servers)
        with ThreadPoolExecutor(1) as pool:
            operation = pool.submit(self.operator.act, plan.operation, plan.seed)
            try:
                steps = timeline(plan.faults, carried, 3 * lease)
                carry_out(steps, lambda: self.flow.allow_more(drops.pop()), last_is_over)
                for each in carried:
                    each.wait()
            finally:
                end_all(carried)
            [(taken, settled, over)] = at_end
            operation.result()
        try:
            until(lambda: watch.moves(taken, settled), RESUME_WITHIN, what="progress at every target")
        except AssertionError as error:
            raise AssertionError(f"{describe(error)}: {watch.still(taken, settled)}") from None
        incident.resumed.append(time.monotonic() - over)
        accepted = self.flow.accepted_after(over)
        return None if accepted is None else accepted - over

    def _settle(self) -> None:
        """Return when everything is delivered, with dead letters, and what late requests may have overwritten."""
        until(lambda: self.flow.all_taken, SETTLE_WITHIN, what="the last event taken")
        while True:
            until(self._quiet, SETTLE_WITHIN, what="everything delivered")
            if not self.operator.replay_dead_letters() + hasten_redeliveries(self.whole.database):
                return

    def _quiet(self) -> bool:
        try:  # before the counters, which have what was redelivered meanwhile
            if redeliveries(self.whole.database, due=True):
                return False
        except DatabaseUnavailable:
            return False
        counters = self.flow.counters()
        return bool(counters) and all(entry.pending == entry.parked == 0 for entry in counters)

    def _settles_after_all(self) -> bool:
        """Whether the next round finds everything delivered: one that was only slow is not the last."""
        try:
            self._settle()
        except Exception:  # noqa: BLE001 - the round has a problem already
            return False
        return True


def hasten_redeliveries(database: Database) -> int:
    """Have all redeliveries due now, in place of 16 minutes after a request without an answer; how many there were.

    Call it when no request can arrive any more: what was held back has been let go.
    """
    waiting = redeliveries(database, due=False)
    if waiting:
        with database.writing() as connection:
            connection.execute(tables.redeliveries.update().values(due=0, until=0))
    return waiting


def redeliveries(database: Database, *, due: bool) -> int:
    """How many objects wait for being redelivered, or only of those that are due."""
    r = tables.redeliveries.c
    waiting = sa.select(sa.func.count()).where(r.target_id.in_(sa.select(tables.targets.c.id)))
    with database.reading() as connection:
        return int(connection.execute(waiting.where(r.due <= now_ms()) if due else waiting).scalar_one())


def describe(error: Exception) -> str:
    """An error in one line."""
    [first, *_] = str(error).splitlines() or [""]
    return first if isinstance(error, AssertionError) else f"{type(error).__name__}: {first}"


def end_all(carried: Sequence[Effect]) -> None:
    """Bring back what is still away after something went wrong."""
    for each in carried:
        with contextlib.suppress(RuntimeError, AssertionError):  # a server that was never taken, or does not start
            each.end()
            each.wait()
