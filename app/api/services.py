"""The objects that the routes work with: created once per process, available to every request."""

from dataclasses import dataclass
from pathlib import Path

from flask import Flask, current_app

from app.config.errors import BadSettings, Problem
from app.config.secrets import Sealer
from app.config.settings import Settings
from app.events.parsing import Limits
from app.events.stored_size import UNLIMITED
from app.outbox.delivery.dead_letters import DeadLetters
from app.outbox.delivery.ready_targets import ReadyTargets
from app.outbox.delivery.replays import Replays
from app.outbox.engine.database import Database
from app.outbox.log.group_commit import GroupCommit
from app.outbox.log.spool import Spool
from app.outbox.log.spool_feeder import SpoolFeeder
from app.outbox.registry import Registry, open_sealer
from app.outbox.sessions import Sessions
from app.outbox.tokens import Tokens
from app.wakeups import WakeUps

_NAME = "bucketwire"


@dataclass(frozen=True, slots=True)
class Services:
    """The outbox as one API process has it open. There is a feeder only if there is a spool folder."""

    settings: Settings
    database: Database
    sealer: Sealer
    registry: Registry
    tokens: Tokens
    sessions: Sessions
    commits: GroupCommit
    dead_letters: DeadLetters
    replays: Replays
    feeder: SpoolFeeder | None
    loopback: bool  # whether only this machine can reach the API
    wakeups: WakeUps

    @property
    def largest_event(self) -> int | None:
        """The most bytes of an event that the database accepts; the last known value, None if it is unknown."""
        largest = self.database.largest_event
        return self.feeder.spool.largest_event() if largest is None and self.feeder is not None else largest

    @property
    def limits(self) -> Limits:
        """The limits of a body of events, from the settings and from what the database accepts."""
        return Limits(records=self.settings.record_limit, event_bytes=self.largest_event or UNLIMITED)


def open_services(settings: Settings) -> Services:
    """Open everything in the settings, without connecting yet.

    Raises `BadSettings` if the spool folder is unusable.
    """
    database = Database(settings.database_url, patience=settings.database_timeout)
    spool = _open_spool(settings.spool_dir) if settings.spool_dir else None
    memory = spool.folder / "tokens.json" if spool else None
    sealer = open_sealer(settings)
    registry = Registry(database, sealer)
    wakeups = WakeUps(settings.broker_url, ReadyTargets(database, registry, settings))
    return Services(
        settings=settings,
        database=database,
        sealer=sealer,
        registry=registry,
        tokens=Tokens(database, settings.api_tokens, memory=memory),
        sessions=Sessions(database),
        commits=GroupCommit(database),
        dead_letters=DeadLetters(database),
        replays=Replays(database),
        feeder=SpoolFeeder(spool, database, wakeups.request) if spool else None,
        loopback=settings.loopback,
        wakeups=wakeups,
    )


def _open_spool(folder: str) -> Spool:
    try:
        return Spool(Path(folder))
    except OSError as error:
        reason, hint = f"cannot be used: {error.strerror}", "name a folder on a local disk that the API may write"
        raise BadSettings([Problem("BUCKETWIRE_SPOOL_DIR", folder, reason, hint)]) from None


def install(app: Flask, made: Services) -> None:
    """Make the services available to the app's routes."""
    app.extensions[_NAME] = made


def services() -> Services:
    """Return the services of the app that handles this request."""
    found: Services = current_app.extensions[_NAME]
    return found
