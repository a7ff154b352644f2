"""`bucketwire process …`: the processes of the service by their heartbeats."""

import click

from app.cli.client import named_path
from app.cli.context import CommandContext, with_api
from app.cli.groups import Group
from app.resources.service import Process

_NONE = "no process is there; start all of them: `bucketwire up`"


@click.group(cls=Group)
def process() -> None:
    """List the service's processes, and forget those that fell silent."""


@process.command()
@with_api
def ls(context: CommandContext) -> None:
    """List API, beat and workers: version, what each serves and does, last heartbeat; also those that are missed."""
    context.rows(context.api.get("/v1/processes")["processes"], Process.columns, _NONE)


@process.command()
@click.argument("host")
@with_api
def forget(context: CommandContext, host: str) -> None:
    """Forget the processes of a host that fell silent, because it was removed, and an API that ended.

    They are missed no more. One that is there after all is listed again with its next heartbeat.
    """
    path = named_path("/v1/processes", host, f"no process of {host!r} is silent; `bucketwire process ls` lists them")
    context.api.change("DELETE", path)
    context.done(f"forgot the silent processes of {host}", host=host)
