"""Isolate targets whose queries fail, so that other targets are not affected."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from app.outbox import log_head
from app.outbox.delivery.policies import ISOLATION
from app.outbox.engine.database import Database, DatabaseUnavailable, describe_error

log = logging.getLogger("bucketwire.outbox")


class TargetIsolation:
    """Run work on the outbox for several targets. Not safe to use from two threads at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._failed: dict[int, float] = {}  # by target, when it is tried again, by time.monotonic()

    def run(self, target_ids: Iterable[int], work: Callable[[Sequence[int]], None]) -> None:
        """Call `work` with all targets together; if that fails, with each one alone.

        A target for which it fails alone, while the database answers other queries, is skipped for ten times as long as
        the failure took. Raises `DatabaseUnavailable` if the database answers no queries. `work` may be called twice
        for a target, so it must be idempotent.
        """
        targets = list(target_ids)
        together = [target for target in targets if target not in self._failed]
        alone = [target for target in targets if target in self._failed]
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
            wait = max(ISOLATION.min_pause_seconds, ISOLATION.pause_factor * (time.monotonic() - began))
            self._failed[target] = time.monotonic() + wait
            log.warning(
                "a query for the target with the row id %d failed, so no worker is woken for it for %.0f s; other"
                " targets are served: %s", target, wait, describe_error(error),
            )  # fmt: skip
        else:
            self._failed.pop(target, None)

    def _check(self) -> None:
        """Raise the database's error if it does not answer at all."""
        with self._database.reading() as connection:
            log_head.read(connection)
