"""The API as it would be without the group commit: the thread of each request commits. Only bench.ingest runs it."""

import os
import threading
from collections.abc import Sequence
from dataclasses import replace

from app.api import create_app
from app.api.services import install
from app.config.settings import Settings
from app.events.model import Event
from app.outbox.engine.database import Database
from app.outbox.log.append import Log, QueueFull, Receipt
from app.outbox.log.group_commit import GroupCommit


class OneCommitEach(GroupCommit):
    """A log for each thread, a transaction for each request."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._own = threading.local()
        self._opened = database

    def append(self, events: Sequence[Event], timeout: float = 30.0) -> Receipt | QueueFull:
        """Record them at once; the database's own limits take the place of the timeout."""
        del timeout
        if not hasattr(self._own, "log"):
            self._own.log = Log(self._opened)
        [answer] = self._own.log.append([events])
        return answer


app = create_app(Settings.from_environ(os.environ))
_made = app.extensions["bucketwire"]
install(app, replace(_made, commits=OneCommitEach(_made.database)))
