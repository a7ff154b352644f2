"""Know whether the task broker and the outbox database can be reached, and log each change once."""

import logging

from app.broker import BrokerState
from app.outbox.engine.database import describe_error

log = logging.getLogger("bucketwire.worker")


class OutboxState:
    """What a worker process saw of the outbox database last; its jobs share it."""

    def __init__(self) -> None:
        self._is_unavailable = False

    def unavailable(self, error: Exception) -> None:
        """Note a job that failed because of the database."""
        if not self._is_unavailable:
            log.warning("the outbox database is unavailable: %s", describe_error(error))
        self._is_unavailable = True

    def available(self) -> None:
        """Note a job that reached the database."""
        if self._is_unavailable:
            log.info("the outbox database is available again")
        self._is_unavailable = False


# All that use the broker share it.
broker_state = BrokerState(log, "no work is begun until it works again")
