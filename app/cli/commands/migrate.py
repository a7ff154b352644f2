"""`bucketwire migrate` and `new-epoch`: what is done to the outbox database at an upgrade, and after a restore."""

import click

from app.cli_common.context import ServiceContext, pass_context
from app.folders import make_private
from app.outbox import log_head, migration, schema_version
from app.outbox.engine.many_rows import write_alone


@click.command()
@click.option("--down", metavar="REVISION", help="Downgrade to a revision instead; `base` removes every table.")
@pass_context(ServiceContext)
def migrate(context: ServiceContext, down: str | None) -> None:
    """Create or upgrade the tables of the outbox. Safe to run again and on several machines at once."""
    if warning := make_private(context.settings.folder):
        click.echo(warning, err=True)
    if down:
        migration.downgrade(context.bare_database, down)
    else:
        migration.migrate(context.bare_database, partitions=context.settings.partitions)
    state = schema_version.check(context.bare_database)
    text = state.note.removeprefix("is ") or f"at revision {state.revision}"
    context.done(f"the outbox is {text}" if state.revision else "the outbox is empty", revision=state.revision)


@click.command()
@pass_context(ServiceContext)
def new_epoch(context: ServiceContext) -> None:
    """Begin a new epoch of the event log, after the outbox database was restored or failed over to a lagging replica.

    Deliveries that began before are repeated instead of settled, and every process reads targets and rules again. A
    new epoch is harmless when none was needed.
    """
    write_alone(context.database, lambda connection: log_head.begin_epoch(connection, "by command"))
    context.done("a new epoch of the event log has begun")
