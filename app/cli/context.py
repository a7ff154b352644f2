"""What commands have in common: access to the configured service, and output for people or for programs."""

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
printable = logs.printable  # what commands print may be a remote's text, as in logs


class CommandContext:
    """The service that the environment configures; each part is opened when a command needs it."""

    def __init__(self, *, as_json: bool = False, url: str = "", token: str = "") -> None:
        self.as_json = as_json
        self._url, self._token = url, token

    @cached_property
    def settings(self) -> Settings:
        """The service's settings. Raises `BadSettings`."""
        return Settings.from_environ(os.environ)

    @cached_property
    def database(self) -> Database:
        """The outbox database. Raises `CommandError` if it does not exist or has another schema revision."""
        path = self.bare_database.url.database
        if self.bare_database.dialect == "sqlite" and not (path and os.path.exists(path)):  # noqa: PTH110 - a text
            raise CommandError(f"there is no outbox yet at {path}; create it: `bucketwire up` or `bucketwire migrate`")
        found, needed = current(self.bare_database), head()
        if found is not None and is_later(found):
            problem = f"the outbox database is at revision {found}, which is newer than this version's {needed}"
            raise CommandError(f"{problem}; use the version that migrated it")
        if found != needed:
            state = f"is at revision {found}" if found else "has no tables yet"
            raise CommandError(f"the outbox database {state}, this version needs {needed}; run `bucketwire migrate`")
        return self.bare_database

    @cached_property
    def bare_database(self) -> Database:
        """The outbox database, whatever its schema revision."""
        return Database(self.settings.database_url, pool_size=1, patience=None)  # migrations, counts

    @cached_property
    def registry(self) -> Registry:
        """Targets and rules in the outbox."""
        return open_registry(self.database, self.settings)

    @cached_property
    def remote(self) -> "ApiClient | None":
        """The service at `--url`, None without one. Raises `CommandError`."""
        if not self._url:
            return None
        from app.cli.api_client import ApiClient  # noqa: PLC0415 - loads httpx, which commands on the database do not need

        return ApiClient(self._url, self._token)

    @property
    def chosen(self) -> "Registry | ApiClient":
        """The targets and rules, at `--url` or in the outbox."""
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
        """Return an object's last events, oldest first, at `--url` or in the outbox."""
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
        """Apply a document, or only plan it; return the plan. Raises `BadSettings` or `TargetInUse`."""
        if self.remote:
            return self.remote.apply(document, dry_run=dry_run, prune=prune, force=force)
        if dry_run:
            return plan_json(make_plan(self.registry, document, prune=prune))
        return plan_json(apply(self.registry, document, prune=prune, force=force))

    def rows(self, rows: Iterable[Row], columns: Mapping[str, str], nothing: str = "") -> None:
        """Print rows: a JSON array of all their members, or a table of `columns` (header to member)."""
        all_rows = list(rows)
        if self.as_json:
            self.json(all_rows)
        elif not all_rows:
            click.echo(nothing or "nothing")
        else:
            table = rich.table.Table(box=rich.box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
            for header, member in columns.items():
                numeric = all(isinstance(row[member], int) for row in all_rows)
                table.add_column(header, justify="right" if numeric else "left", overflow="fold")
            for row in all_rows:
                table.add_row(*(rich.text.Text(format_cell(row[member])) for member in columns.values()))
            console().print(table)

    def json(self, value: object) -> None:
        """Print a value as JSON."""
        click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())

    def done(self, sentence: str, **facts: object) -> None:
        """Print a result: a sentence for people, or `facts` as JSON for programs."""
        if self.as_json:
            self.json(facts)
        else:
            click.echo(printable(sentence))

    def close(self) -> None:
        """Close the database and the connection, if open."""
        if self.__dict__.get("remote"):
            self.__dict__["remote"].close()
        if "bare_database" in self.__dict__:
            self.bare_database.close()


def with_context(function: Callable[..., R]) -> Callable[..., R]:
    """Decorate a command: pass it a `CommandContext` first, and add the option `--json`."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.pass_context
    def command(click_context: click.Context, /, *arguments: Any, as_json: bool, **options: Any) -> R:
        context = CommandContext(as_json=as_json)
        click_context.call_on_close(context.close)
        return function(context, *arguments, **options)

    return update_wrapper(command, function)


def with_context_or_url(function: Callable[..., R]) -> Callable[..., R]:
    """Decorate as `with_context` does, and add `--url` and `--token` to use a remote service."""

    @click.option("--url", envvar="BUCKETWIRE_URL", default="", help="Use the API at this URL instead of the database.")
    @click.option(
        "--token", envvar="BUCKETWIRE_TOKEN", default="", help="Bearer token for --url; prefer BUCKETWIRE_TOKEN."
    )
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.pass_context
    def command(
        click_context: click.Context, /, *arguments: Any, as_json: bool, url: str, token: str, **options: Any
    ) -> R:
        context = CommandContext(as_json=as_json, url=url, token=token)
        click_context.call_on_close(context.close)
        return function(context, *arguments, **options)

    return update_wrapper(command, function)


def console() -> rich.console.Console:
    """Return the console for tables; in a file or a pipe they are not folded to a terminal's width."""
    plain = rich.console.Console(soft_wrap=False, highlight=False, emoji=False, markup=False)
    if not plain.is_terminal:
        plain.width = _WIDTH_OF_FILES
    return plain


def progress(context: CommandContext, what: str, items: Iterable[T], total: int) -> Iterator[T]:
    """Yield the items while a progress bar on the terminal counts them; programs get no bar."""
    with bar(context) as progress_bar:
        yield from progress_bar.track(items, total, description=what)


def bar(context: CommandContext) -> rich.progress.Progress:
    """Return a progress bar on standard error; it is hidden with --json or without a terminal."""
    stderr = rich.console.Console(stderr=True)
    return rich.progress.Progress(console=stderr, disable=context.as_json or not stderr.is_terminal, transient=True)


def format_cell(value: object) -> str:
    """Format a value for a table's cell."""
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
    """Return columns whose headers are the names of their members."""
    return {name.replace("_", " "): name for name in names}


def count_noun(number: int, noun: str) -> str:
    """Format a count, such as `1 event` or `2 events`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
