"""The service as the environment configures it, opened, and imported, as far as a command needs it."""

import os
from collections.abc import Callable
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar

import click

from app.cli_common import CommandError
from app.cli_common.output import Output
from app.config.settings import Settings

if TYPE_CHECKING:
    from app.outbox.engine.database import Database
    from app.outbox.registry import Registry

R = TypeVar("R")


class ServiceContext(Output):
    """Settings, outbox database and registry of this service, each opened at its first use."""

    @cached_property
    def settings(self) -> Settings:
        """The service's settings. Raises `BadSettings`."""
        return Settings.from_environ(os.environ)

    @cached_property
    def database(self) -> "Database":
        """The outbox. Raises `CommandError` if it has to be migrated first, `SchemaRefused` if this code is too old."""
        from app.outbox import schema_version  # noqa: PLC0415 - slow: only if needed

        path = self.bare_database.url.database
        if self.bare_database.dialect == "sqlite" and not (path and os.path.exists(path)):  # noqa: PTH110 - a text
            raise CommandError(f"there is no outbox yet at {path}; create it: `bucketwire up` or `bucketwire migrate`")
        self.schema = schema_version.check(self.bare_database)
        if self.schema.problem:
            error = schema_version.SchemaRefused if self.schema.is_refused else CommandError
            raise error(f"the outbox database {self.schema}")
        return self.bare_database

    @cached_property
    def bare_database(self) -> "Database":
        """The outbox database in whatever state it is."""
        from app.outbox.engine.database import Database  # noqa: PLC0415 - slow: only if needed

        return Database(self.settings.database_url, pool_size=1, patience=None)  # migrations, counts

    @cached_property
    def registry(self) -> "Registry":
        """Targets and rules in the outbox."""
        from app.outbox.registry import open_registry  # noqa: PLC0415 - slow: only if needed

        return open_registry(self.database, self.settings)

    def close(self) -> None:
        """Close the database if it was opened."""
        if "bare_database" in self.__dict__:
            self.bare_database.close()


def attribute_changes(click_context: click.Context) -> None:
    """Attribute what the command changes in the outbox to the user of this process, until the command ends."""
    from app.outbox import audit  # noqa: PLC0415 - slow: only if needed

    # The command's name only: its arguments may be secrets.
    click_context.with_resource(audit.acting(audit.operating_system_actor(click_context.command_path)))


def pass_context(
    context_type: Callable[..., ServiceContext],
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Return a decorator that adds the option `--json` and passes a context as the first argument, closed at the end.

    It has to be the innermost decorator.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
        @click.pass_context
        def command(click_context: click.Context, /, *arguments: Any, as_json: bool, **options: Any) -> R:
            context = context_type(as_json=as_json)
            click_context.call_on_close(context.close)
            attribute_changes(click_context)
            return function(context, *arguments, **options)

        return update_wrapper(command, function)

    return decorate
