"""Open targets that were set, as a delivery would: what that creates is there before the first event."""

import contextlib
import logging
import time
from collections.abc import Callable

from app.broker import POLICY
from app.config.arn import TargetId
from app.config.errors import BadSettings
from app.config.settings import Settings
from app.config.targets.base import TargetSettings
from app.logs import printable
from app.outbox.delivery.availability import Opening, offer_openings, postpone_opening, record_opening
from app.outbox.engine.database import Database
from app.outbox.registry import Registry
from app.outbox.targets import OPENED, StoredTarget
from workers.idle_processes import processes
from workers.pool_shares import PoolShares
from workers.targets import create, link_local
from workers.targets.base import TargetUnavailable
from workers.telemetry.redaction import RedactingTarget

log = logging.getLogger("bucketwire.worker")

_SEARCH_INTERVAL_SECONDS = 1.0  # between two searches for targets to open
_OPENABLE = ("running", "unavailable")  # the states of a target that may be contacted


class TargetOpener:
    """Offers and opens targets. Its methods raise `DatabaseUnavailable`; then the drain offers a target again."""

    def __init__(
        self, database: Database, registry: Registry, settings: Settings, clock: Callable[[], int], shares: PoolShares
    ) -> None:
        self._database = database
        self._shares = shares
        self._registry = registry
        self._settings = settings
        self._clock = clock
        self._offered = -_SEARCH_INTERVAL_SECONDS

    def offer(self, publish: Callable[[Opening], None], queued: Callable[[TargetId], int]) -> None:
        """Publish the openings that are due, at most once a second; `queued` counts the messages in a queue."""
        if time.monotonic() - self._offered < _SEARCH_INTERVAL_SECONDS:
            return
        self._offered = time.monotonic()
        for opening in offer_openings(self._database, self._clock()):
            # Where many messages wait, nobody takes them, or deliveries will show whether the target can be opened.
            if queued(opening.target) < POLICY.max_target_messages:
                publish(opening)

    def open(self, opening: Opening) -> str:
        """Open a target, close it again, and record the result; return it as one line. Raises `UnknownTarget`.

        Only the newest offer counts, because one that waited for long was followed by others. An opening may take as
        long as a server that does not answer, so it is postponed where deliveries would wait for it. Nothing is shared
        with deliveries: each process that delivers to the target opens it for itself.
        """
        stored = self._registry.target(opening.target)
        newest = (stored.revision, stored.opening_due_at) == (opening.revision, opening.next_at)
        if not newest or stored.opening == OPENED or stored.state not in _OPENABLE:
            return "nothing to open"
        share = self._shares.of(stored)
        with processes.serving(stored.row_id, share) as may_serve:
            if not may_serve or not processes.take_turn():
                postpone_opening(self._database, stored.row_id, opening, self._clock())
                return "postponed: no process is free"
            return self._open(stored, is_limited=share.limited)

    def _open(self, stored: StoredTarget, *, is_limited: bool) -> str:
        began = time.monotonic()
        try:
            settings = self._registry.settings(stored).served(allow_private=self._settings.allow_private)
        except BadSettings as error:
            problem = str(error)
        else:
            problem = problem_of_opening(stored.target.type, settings, is_limited=is_limited)
        finally:
            processes.end_turn(time.monotonic() - began)
        if not record_opening(self._database, stored.row_id, stored.revision, self._clock(), problem):
            return "opened by another worker, or set again meanwhile"
        self._log(stored, problem, time.monotonic() - began)
        return f"failed: {problem}" if problem else "opened"

    def answered(self, stored: StoredTarget) -> None:
        """Record that the target has answered a delivery with these settings, so that it need not be opened."""
        if stored.opening != OPENED:
            record_opening(self._database, stored.row_id, stored.revision, self._clock())

    def _log(self, stored: StoredTarget, problem: str, seconds: float) -> None:
        arn = stored.target.arn(self._settings.region)
        if not problem:
            log.info("%s opened in %.1f s", arn, seconds, extra={"target": arn})
        elif problem != stored.opening_reason:  # else it is the same as at the last try
            reason = printable(problem)
            log.warning("%s cannot be opened: %s", arn, reason, extra={"target": arn, "reason": reason})


def problem_of_opening(type_name: str, settings: TargetSettings, *, is_limited: bool = False) -> str:
    """Open the target and close it; return why it could not be opened, without secrets, or an empty text.

    One that a limited token may set is not opened at a link-local address.

    It takes as long as the adapter's own timeouts allow.
    """
    target = None
    try:
        target = RedactingTarget(create(type_name, settings), settings)
        with processes.calling(), link_local.refusing(when=is_limited):
            target.open()
    except TargetUnavailable as error:
        return error.reason or "unavailable"
    except Exception as error:
        # A defect of an adapter; its message may contain anything.
        log.exception("%s: unexpected, while it was opened", type_name)
        return f"unexpected {type(error).__name__}"
    finally:
        if target is not None:
            with contextlib.suppress(Exception):  # the result of opening it stands
                target.close()
    return ""
