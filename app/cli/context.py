"""What commands have in common: the service as it is configured, and answers for people or for programs."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar

import click
import orjson
import rich.box
import rich.console
import rich.progress
import rich.table
import rich.text

from app import logs
from app.cli.errors import CommandError
from app.config.settings import Settings
from app.manifest.document import Manifest
from app.manifest.plan import apply, make_plan, plan_json
from app.outbox.delivery.dead_letters import DeadLetters
from app.outbox.delivery.object_history import RecordedEvent, object_history
from app.outbox.delivery.replays import Replays
from app.outbox.engine.database import Database
from app.outbox.engine.schema_version import current, head, is_later
from app.outbox.registry import Registry, open_registry

if TYPE_CHECKING:
    from app.cli.api_client import ApiClient
    from app.cli.api_client_log import RemoteDeadLetters, RemoteReplays

R = TypeVar("R")
T = TypeVar("T")
Row = Mapping[str, Any]

_WIDTH_OF_FILES = 250
printable = logs.printable  # what commands print may come from anywhere, as what is logged


class CommandContext:
    """The service that the environment describes, opened as far as a command needs it."""

    def __init__(self, *, as_json: bool = False, url: str = "", token: str = "") -> None:
        self.as_json = as_json
        self._url, self._token = url, token

    @cached_property
    def settings(self) -> Settings:
        """The service's settings. Raises `BadSettings`."""
        return Settings.from_environ(os.environ)

    @cached_property
    def database(self) -> Database:
        """The outbox, at the schema of this code. Raises `CommandError` where it is not, or is not there at all."""
        path = self.bare_database.url.database
        if self.bare_database.dialect == "sqlite" and not (path and os.path.exists(path)):  # noqa: PTH110 - a text
            raise CommandError(f"there is no outbox yet at {path}; `bucketwire up` or `bucketwire migrate` makes it")
        found, needed = current(self.bare_database), head()
        if found is not None and is_later(found):
            said = f"the outbox database stands at revision {found}, which this version, of {needed}, does not know"
            raise CommandError(f"{said}; use the version that migrated it")
        if found != needed:
            stands = f"stands at revision {found}" if found else "has no tables yet"
            raise CommandError(f"the outbox database {stands}, this version needs {needed}; run `bucketwire migrate`")
        return self.bare_database

    @cached_property
    def bare_database(self) -> Database:
        """The outbox database in whatever state it is."""
        return Database(self.settings.database_url, pool_size=1, patience=None)  # migrations, counts

    @cached_property
    def registry(self) -> Registry:
        """Targets and rules in the outbox."""
        return open_registry(self.database, self.settings)

    @cached_property
    def remote(self) -> "ApiClient | None":
        """The service at `--url`, where one was given. Raises `CommandError`."""
        if not self._url:
            return None
        from app.cli.api_client import ApiClient  # noqa: PLC0415 - loads httpx, which commands on the database need not wait for

        return ApiClient(self._url, self._token)

    @property
    def chosen(self) -> "Registry | ApiClient":
        """Targets and rules, at `--url` or in the outbox."""
        return self.remote or self.registry

    @property
    def dead_letters(self) -> "DeadLetters | RemoteDeadLetters":
        """The dead letters, at `--url` or in the outbox."""
        if self.remote is None:
            return DeadLetters(self.database)
        from app.cli.api_client_log import RemoteDeadLetters  # noqa: PLC0415 - as `remote`

        return RemoteDeadLetters(self.remote)

    @property
    def replays(self) -> "Replays | RemoteReplays":
        """The replays, at `--url` or in the outbox."""
        if self.remote is None:
            return Replays(self.database)
        from app.cli.api_client_log import RemoteReplays  # noqa: PLC0415 - as `remote`

        return RemoteReplays(self.remote)

    def history(self, bucket: str, key: str, limit: int) -> list[RecordedEvent]:
        """An object's last events, oldest first, at `--url` or in the outbox."""
        if self.remote is None:
            return object_history(self.database, bucket, key, limit=limit)
        from app.cli import api_client_log  # noqa: PLC0415 - as `remote`

        return api_client_log.object_history(self.remote, bucket, key, limit=limit)

    @property
    def region(self) -> str:
        """The region in ARNs."""
        return self.remote.region if self.remote else self.settings.region

    def apply(
        self, document: Manifest, *, dry_run: bool = False, prune: bool = False, force: bool = False
    ) -> dict[str, Any]:
        """Make targets and rules as declared, or only plan it; the plan. Raises `BadSettings` or `TargetInUse`."""
        if self.remote:
            return self.remote.apply(document, dry_run=dry_run, prune=prune, force=force)
        if dry_run:
            return plan_json(make_plan(self.registry, document, prune=prune))
        return plan_json(apply(self.registry, document, prune=prune, force=force))

    def rows(self, rows: Iterable[Row], columns: Mapping[str, str], nothing: str = "") -> None:
        """Answer with rows: a JSON array of all their members, or a table of `columns` (header to member)."""
        found = list(rows)
        if self.as_json:
            self.json(found)
        elif not found:
            click.echo(nothing or "nothing")
        else:
            table = rich.table.Table(box=rich.box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
            for header, member in columns.items():
                numeric = all(isinstance(row[member], int) for row in found)
                table.add_column(header, justify="right" if numeric else "left", overflow="fold")
            for row in found:
                table.add_row(*(rich.text.Text(format_cell(row[member])) for member in columns.values()))
            console().print(table)

    def json(self, value: object) -> None:
        """Answer a program."""
        click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())

    def done(self, sentence: str, **facts: object) -> None:
        """Answer that something was done: a sentence for people, `facts` for programs."""
        if self.as_json:
            self.json(facts)
        else:
            click.echo(printable(sentence))

    def close(self) -> None:
        """Let go of the database or the connection."""
        if self.__dict__.get("remote"):
            self.__dict__["remote"].close()
        if "bare_database" in self.__dict__:
            self.bare_database.close()


def with_context(function: Callable[..., R]) -> Callable[..., R]:
    """A command that gets a `CommandContext` first and has the option `--json`."""

    @click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
    @click.pass_context
    def command(click_context: click.Context, /, *arguments: Any, as_json: bool, **options: Any) -> R:
        context = CommandContext(as_json=as_json)
        click_context.call_on_close(context.close)
        return function(context, *arguments, **options)

    return update_wrapper(command, function)


def with_context_or_url(function: Callable[..., R]) -> Callable[..., R]:
    """As `with_context`, for a command that also works on a service elsewhere, by the options `--url` and `--token`."""

    @click.option("--url", envvar="BUCKETWIRE_URL", default="", help="Ask the API there, not the database here.")
    @click.option("--token", envvar="BUCKETWIRE_TOKEN", default="", help="For --url; better as BUCKETWIRE_TOKEN.")
    @click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
    @click.pass_context
    def command(
        click_context: click.Context, /, *arguments: Any, as_json: bool, url: str, token: str, **options: Any
    ) -> R:
        context = CommandContext(as_json=as_json, url=url, token=token)
        click_context.call_on_close(context.close)
        return function(context, *arguments, **options)

    return update_wrapper(command, function)


def console() -> rich.console.Console:
    """Where tables go; in a file or a pipe they are not folded to a terminal's width."""
    plain = rich.console.Console(soft_wrap=False, highlight=False, emoji=False, markup=False)
    if not plain.is_terminal:
        plain.width = _WIDTH_OF_FILES
    return plain


def progress(context: CommandContext, what: str, things: Iterable[T], total: int) -> Iterator[T]:
    """The things, while a bar tells a person on a terminal how many have been seen; programs see none."""
    with bar(context) as made:
        yield from made.track(things, total, description=what)


def bar(context: CommandContext) -> rich.progress.Progress:
    """A bar for long work, on standard error; nothing is seen of it with --json or where that is no terminal."""
    there = rich.console.Console(stderr=True)
    return rich.progress.Progress(console=there, disable=context.as_json or not there.is_terminal, transient=True)


def format_cell(value: object) -> str:
    """A table's cell."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ", ".join(map(format_cell, value))
        case _:
            return printable(str(value))


def columns(*names: str) -> Mapping[str, str]:
    """Columns that are called as their members are."""
    return {name.replace("_", " "): name for name in names}


def count_noun(number: int, noun: str) -> str:
    """`1 event`, `2 events`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
