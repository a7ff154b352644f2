"""Keep a target whose queries fail from costing the other targets theirs."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.database import Database, DatabaseUnavailable, describe_error

log = logging.getLogger("bucketwire.outbox")

_SHARE = 10  # a target whose queries took so long until they failed is left alone for so many times as long
_LEAST = 1.0  # seconds


class TargetIsolation:
    """Runs work on the outbox that concerns several targets. Not safe to use from two threads at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._failed: dict[int, float] = {}  # target to when it is tried again, by time.monotonic()

    def run(self, target_ids: Iterable[int], work: Callable[[Sequence[int]], None]) -> None:
        """Call `work` with all targets together; where that fails, with each alone.

        A target for which it fails alone, while the database answers others, is left out for ten times as long as
        the failure took. Raises `DatabaseUnavailable` where the database answers nobody. `work` may be called twice for
        a target, so it must be safe to repeat.
        """
        wanted = list(target_ids)
        together = [target for target in wanted if target not in self._failed]
        alone = [target for target in wanted if target in self._failed]
        if len(together) > 1:
            try:
                work(together)
            except DatabaseUnavailable:
                self._check()
            else:
                together = []
        for target in [*together, *alone]:
            self._run_alone(target, work)

    def _run_alone(self, target: int, work: Callable[[Sequence[int]], None]) -> None:
        began = time.monotonic()
        if self._failed.get(target, 0.0) > began:
            return
        try:
            work([target])
        except DatabaseUnavailable as error:
            self._check()
            wait = max(_LEAST, _SHARE * (time.monotonic() - began))
            self._failed[target] = time.monotonic() + wait
            log.warning(
                "a query for the target with the row id %d failed, so nothing is offered for it for %.0f s; other"
                " targets are served: %s", target, wait, describe_error(error),
            )  # fmt: skip
        else:
            self._failed.pop(target, None)

    def _check(self) -> None:
        """Raise what the database says where it does not answer at all."""
        with self._database.reading() as connection:
            connection.execute(sa.select(tables.log_head.c.last_seq)).scalar_one()
