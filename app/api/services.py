"""What the routes work with: made once for each process, found by every request."""

from dataclasses import dataclass
from pathlib import Path

from flask import Flask, current_app

from app.config.errors import BadSettings, Problem
from app.config.settings import Settings
from app.events.parsing import Limits
from app.events.stored_size import UNLIMITED
from app.outbox.delivery.dead_letters import DeadLetters
from app.outbox.delivery.replays import Replays
from app.outbox.engine.database import Database
from app.outbox.log.group_commit import GroupCommit
from app.outbox.log.spool import Spool
from app.outbox.log.spool_feeder import SpoolFeeder
from app.outbox.registry import Registry, open_registry
from app.outbox.tokens import Tokens

_NAME = "bucketwire"


@dataclass(frozen=True, slots=True)
class Services:
    """The outbox as one process of the API has it open. There is a feeder if there is a spool folder."""

    settings: Settings
    database: Database
    registry: Registry
    tokens: Tokens
    commits: GroupCommit
    dead_letters: DeadLetters
    replays: Replays
    feeder: SpoolFeeder | None

    @property
    def largest_event(self) -> int | None:
        """The most bytes of an event that the database takes, or took when it was last asked; None: never asked."""
        largest = self.database.largest_event
        return self.feeder.spool.largest_event() if largest is None and self.feeder is not None else largest

    @property
    def limits(self) -> Limits:
        """What a body of events may hold, by the settings and by what the database takes."""
        return Limits(records=self.settings.record_limit, event_bytes=self.largest_event or UNLIMITED)


def open_services(settings: Settings) -> Services:
    """Open everything that these settings name; connects to nothing yet.

    Raises `BadSettings` where the spool folder cannot be used.
    """
    database = Database(settings.database_url, patience=settings.database_timeout)
    spool = _open_spool(settings.spool_dir) if settings.spool_dir else None
    memory = spool.folder / "tokens.json" if spool else None
    return Services(
        settings=settings,
        database=database,
        registry=open_registry(database, settings),
        tokens=Tokens(database, settings.api_tokens, memory=memory),
        commits=GroupCommit(database),
        dead_letters=DeadLetters(database),
        replays=Replays(database),
        feeder=SpoolFeeder(spool, database) if spool else None,
    )


def _open_spool(folder: str) -> Spool:
    try:
        return Spool(Path(folder))
    except OSError as error:
        reason, hint = f"cannot be used: {error.strerror}", "name a folder on a local disk that the API may write"
        raise BadSettings([Problem("BUCKETWIRE_SPOOL_DIR", folder, reason, hint)]) from None


def install(app: Flask, made: Services) -> None:
    """Give the app its parts."""
    app.extensions[_NAME] = made


def services() -> Services:
    """The parts of the app that serves this request."""
    found: Services = current_app.extensions[_NAME]
    return found
