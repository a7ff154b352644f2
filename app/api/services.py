"""The API's Flask app, and the objects that its routes work with: created once per process, available to every request.

The app is without what the API has no use for and each process or request would pay for: addresses made of rules, which
the API and the console write themselves, and coroutines.
"""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flask import Flask, current_app, g
from werkzeug.routing import Rule

from app.config.declared_types import SOURCE_TYPES, TYPES
from app.config.errors import BadSettings, Problem
from app.config.settings import Settings
from app.outbox.engine.database import Database
from app.outbox.policies import SPOOL
from app.outbox.registry import Registry, open_sealer

if TYPE_CHECKING:
    from app.api.request_body import Memory, Share
    from app.api.request_counts import RequestCounts
    from app.config.secrets import Sealer
    from app.events.parsing import Limits
    from app.outbox.admin.replays import Replays
    from app.outbox.admin.undelivered import DeadLetters
    from app.outbox.log.group_commit import GroupCommit
    from app.outbox.log.spool import SpoolFeeder
    from app.outbox.sources.intake import RejectedMessages
    from app.outbox.sources.registry import SourceRegistry
    from app.outbox.tokens import Sessions, Tokens
    from app.wakeups import WakeUps


_Builder = Callable[..., tuple[str, str]]
_NAME = "bucketwire"
_COPIES = 5  # of what is read from the database, until the answer is made
_FEW_BYTES, _FEW_ROWS = 1 << 18, 100  # that are read without a share
_ROW_BYTES = 40_000  # three copies of a small record, and of a history of attempts


class _Rule(Rule):
    """Compiles what `url_for` needs when it is asked for.

    Werkzeug writes and compiles two functions for each rule when the rule is added: for all routes that takes 80 ms,
    four times as long as all else of an app, in each of the API's processes.
    """

    def _compile_builder(self, append_unknown: bool = True) -> _Builder:
        compiled = super()._compile_builder

        def build(rule: Rule, /, **values: Any) -> tuple[str, str]:
            return compiled(append_unknown)(rule, **values)

        return build


class App(Flask):
    """A Flask app for the API's routes."""

    url_rule_class = _Rule

    def __init__(self) -> None:
        super().__init__("bucketwire", static_folder=None)

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function: none is a coroutine, and to look for that takes as long as the function, for most."""
        return func


class Services:
    """The outbox as one process has it open. A server opens every part at its start, a command those that it uses.

    A part is imported when it is opened: a command that shows targets needs neither the broker nor the event log.
    """

    def __init__(self, settings: Settings, database: Database, *, serves: bool = False) -> None:
        self.settings = settings
        self.database = database
        self._serves = serves  # a command leaves the spool folder, and what it remembers there, to the server
        self.loopback = settings.loopback  # whether only this machine can reach the API

    @cached_property
    def sealer(self) -> "Sealer":
        """What seals secrets and the console's cookies."""
        return open_sealer(self.settings)

    @cached_property
    def memory(self) -> "Memory":
        """The account of what requests hold in memory."""
        from app.api.request_body import Memory  # noqa: PLC0415 - see the class

        return Memory(self.settings.body_limit)

    @cached_property
    def registry(self) -> Registry:
        """Targets and rules."""
        return Registry(self.database, self.sealer)

    @cached_property
    def sources(self) -> "SourceRegistry":
        """Sources."""
        from app.outbox.sources.registry import SourceRegistry  # noqa: PLC0415 - see the class

        return SourceRegistry(self.database, self.sealer)

    @cached_property
    def rejected(self) -> "RejectedMessages":
        """What sources have rejected."""
        from app.outbox.sources.intake import RejectedMessages  # noqa: PLC0415 - see the class

        return RejectedMessages(self.database)

    @cached_property
    def tokens(self) -> "Tokens":
        """The bearer tokens."""
        from app.outbox.tokens import Tokens  # noqa: PLC0415 - see the class

        memory = self.feeder.spool.folder / "tokens.json" if self.feeder else None
        return Tokens(self.database, self.settings.api_tokens, memory=memory)

    @cached_property
    def request_counts(self) -> "RequestCounts":
        """What this process has counted of its requests."""
        from app.api.request_counts import RequestCounts  # noqa: PLC0415 - see the class

        return RequestCounts(self.database)

    @cached_property
    def sessions(self) -> "Sessions":
        """The console's sessions."""
        from app.outbox.tokens import Sessions  # noqa: PLC0415 - see the class

        return Sessions(self.database)

    @cached_property
    def commits(self) -> "GroupCommit":
        """What records events."""
        from app.outbox.log.group_commit import GroupCommit  # noqa: PLC0415 - see the class

        return GroupCommit(self.database)

    @cached_property
    def dead_letters(self) -> "DeadLetters":
        """The dead letters."""
        from app.outbox.admin.undelivered import DeadLetters  # noqa: PLC0415 - see the class

        return DeadLetters(self.database)

    @cached_property
    def replays(self) -> "Replays":
        """The replays."""
        from app.outbox.admin.replays import Replays  # noqa: PLC0415 - see the class

        return Replays(self.database)

    @cached_property
    def wakeups(self) -> "WakeUps":
        """What wakes the drain and the workers."""
        from app.outbox.delivery.ready_targets import ReadyTargets  # noqa: PLC0415 - see the class
        from app.wakeups import WakeUps  # noqa: PLC0415 - see the class

        return WakeUps(self.settings.broker_url, ReadyTargets(self.database, self.registry, self.settings))

    @cached_property
    def feeder(self) -> "SpoolFeeder | None":
        """What records the spooled events; None without a spool folder. Raises `BadSettings` if it is unusable."""
        if not (self._serves and self.settings.spool_dir):
            return None
        from app.outbox.log.spool import Spool, SpoolFeeder  # noqa: PLC0415 - see the class

        try:
            spool = Spool(Path(self.settings.spool_dir))
        except OSError as error:
            reason, hint = f"cannot be used: {error.strerror}", "name a folder on a local disk that the API may write"
            raise BadSettings([Problem("BUCKETWIRE_SPOOL_DIR", self.settings.spool_dir, reason, hint)]) from None
        most = max(SPOOL.max_readable_bytes, 4 * self.settings.body_limit)
        return SpoolFeeder(spool, self.database, self.wakeups.request, most)

    @property
    def largest_event(self) -> int | None:
        """The most bytes of an event that the database accepts; the last known value, None if it is unknown."""
        largest = self.database.largest_event
        return self.feeder.spool.largest_event() if largest is None and self.feeder is not None else largest

    @property
    def limits(self) -> "Limits":
        """The limits of a body of events, from the settings and from what the database accepts."""
        from app.events.limits import UNLIMITED  # noqa: PLC0415 - see the class
        from app.events.parsing import Limits  # noqa: PLC0415 - see the class

        return Limits(
            records=self.settings.record_limit,
            event_bytes=self.largest_event or UNLIMITED,
            written_bytes=self.settings.body_limit,
        )


def open_services(settings: Settings) -> Services:
    """Open everything in the settings, without connecting yet: no request has to, and no two threads open a part twice.

    Import the declarations of all types, too: those of a newer version may be in their place when a request comes.
    Raises `BadSettings` if the spool folder is unusable.
    """
    opened = Services(settings, Database(settings.database_url, patience=settings.database_timeout), serves=True)
    for part in (
        "memory",
        "feeder",
        "sealer",
        "registry",
        "tokens",
        "request_counts",
        "sessions",
        "commits",
        "dead_letters",
        "replays",
        "wakeups",
        "sources",
        "rejected",
    ):
        getattr(opened, part)
    for types in (TYPES, SOURCE_TYPES):
        dict(types)
    return opened


def install(app: Flask, made: Services) -> None:
    """Make the services available to the app's routes."""
    app.extensions[_NAME] = made

    @app.teardown_appcontext
    def _finish_work(_error: BaseException | None) -> None:
        end_reading()
        share = g.pop("work", None)
        if share is not None:
            made.memory.finish(share)


def services() -> Services:
    """Return the services of the app that handles this request."""
    return services_of(current_app)


def services_of(app: Flask) -> Services:
    """Return the services of an app."""
    found: Services = app.extensions[_NAME]
    return found


def work_share() -> "Share":
    """Return this request's share of the memory that the process works with; it ends when the answer is made."""
    if "work" not in g:
        g.work = services().memory.work.share()
    share: Share = g.work
    return share


def has_work_share() -> bool:
    """Return whether this request has a share, which a small one has not."""
    return "work" in g


def begin_reading() -> None:
    """Wait for this request's turn to unpack and parse a large body. Raises `ApiProblem` if that takes too long."""
    if "reading" not in g:
        turn = services().memory.reading.share()
        turn.resize(1)
        g.reading = turn


def end_reading() -> None:
    """Leave the turn to another request: the body has been parsed."""
    turn: Share | None = g.pop("reading", None)
    if turn is not None:
        turn.resize(0)


def reserve(size: int) -> None:
    """Have this request's share cover texts of so many bytes that are read from the database, beside what it has.

    They come as the driver's bytes, as texts and as the answer, and may be wide. Raises `ApiProblem` if there is no
    room.
    """
    if size > _FEW_BYTES:
        share = work_share()
        wanted = share.size + _COPIES * size
        share.resize(0)  # those that wait hold nothing, or all would wait for each other
        share.resize(wanted)


def reserve_rows(number: int) -> None:
    """Have this request's share cover so many rows of a list. Raises `ApiProblem` if there is no room."""
    if number > _FEW_ROWS:
        work_share().resize(number * _ROW_BYTES)
