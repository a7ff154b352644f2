"""The baseline of bench.ingest: the API without group commit, one transaction per request."""

import os
import threading
from collections.abc import Sequence

from app.api.services import Services
from app.config.settings import Settings
from app.events.model import Event
from app.outbox.engine.database import Database
from app.outbox.log.append import Log, QueueFull, Receipt
from app.outbox.log.group_commit import GroupCommit
from app.server.application import create_app


class SingleCommit(GroupCommit):
    """Append each request in a transaction of its own, with one log per thread."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._local = threading.local()
        self._database = database

    def append(self, events: Sequence[Event], timeout: float = 30.0) -> Receipt | QueueFull:
        """Record the events at once; the database's own timeouts apply instead of `timeout`."""
        del timeout
        if not hasattr(self._local, "log"):
            self._local.log = Log(self._database)
        log: Log = self._local.log
        [receipt] = log.append([events])
        return receipt


app = create_app(Settings.from_environ(os.environ))
_services: Services = app.extensions["bucketwire"]
_services.commits = SingleCommit(_services.database)
