"""`bucketwire migrate`: bring the outbox database to this version's schema."""

import click

from app.cli.shell import Shell, with_shell
from app.outbox.engine import migration, schema_version


@click.command()
@click.option("--down", metavar="REVISION", help="Step back to a revision instead; `base` empties the database.")
@with_shell
def migrate(shell: Shell, down: str | None) -> None:
    """Make or upgrade the tables of the outbox. Safe to run again and from several machines."""
    shell.settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if down:
        migration.downgrade(shell.bare_database, down)
    else:
        migration.migrate(shell.bare_database, partitions=shell.settings.partitions)
    found = schema_version.current(shell.bare_database)
    shell.done(f"the outbox stands at revision {found}" if found else "the outbox is empty", revision=found)
