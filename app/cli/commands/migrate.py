"""`bucketwire migrate`: bring the outbox database to this version's schema."""

import click

from app.cli.context import CommandContext, with_context
from app.outbox.engine import migration, schema_version


@click.command()
@click.option("--down", metavar="REVISION", help="Step back to a revision instead; `base` empties the database.")
@with_context
def migrate(context: CommandContext, down: str | None) -> None:
    """Make or upgrade the tables of the outbox. Safe to run again and from several machines."""
    context.settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if down:
        migration.downgrade(context.bare_database, down)
    else:
        migration.migrate(context.bare_database, partitions=context.settings.partitions)
    found = schema_version.current(context.bare_database)
    context.done(f"the outbox stands at revision {found}" if found else "the outbox is empty", revision=found)
