"""`bucketwire …`: the commands for operators.

Exit codes: 0 done, 1 a problem, 2 wrong usage, 130 interrupted.
"""

import importlib
import keyword
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import click

from app.cli_common.run import run_command

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "up": "app.cli.commands.up",
        "api": "app.cli.commands.processes",
        "worker": "app.cli.commands.processes",
        "beat": "app.cli.commands.processes",
        "flower": "app.cli.commands.processes",
        "migrate": "app.cli.commands.migrate",
        "new-epoch": "app.cli.commands.migrate",
        "event": "app.cli.commands.rules",
        "target": "app.cli.commands.targets",
        "source": "app.cli.commands.sources",
        "config": "app.cli.commands.config",
        "apply": "app.cli.commands.apply",
        "token": "app.cli.commands.tokens",
        "status": "app.cli.commands.status",
        "doctor": "app.cli.commands.doctor",
        "dead-letter": "app.cli.commands.dead_letters",
        "retry": "app.cli.commands.retries",
        "replay": "app.cli.commands.replays",
        "reconciliation": "app.cli.commands.reconciliations",
        "reconcile": "app.cli.commands.reconcile",
        "backfill": "app.cli.commands.reconcile",
        "scan": "app.cli.commands.reconcile",
        "tables": "app.cli.commands.reconcile",
        "events": "app.cli.commands.events",
        "audit": "app.cli.commands.audit",
        "watch": "app.cli.commands.watch",
        "sample": "app.cli.commands.sample",
        "import": "app.cli.commands.import_minio",
        "mcp": "app.cli.commands.mcp",
        "completion": "app.cli.commands.completion",
    }
)


class Commands(click.Group):
    """The commands by name; a command's module is imported only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """List every command in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Return the command of this name, or None."""
        if cmd_name not in COMMANDS:
            return None
        name = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name.replace("-", "_")
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name]), name)
        return command


def _print_version(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from app.release import describe  # noqa: PLC0415 - reading an installation's metadata is slow and rarely needed

        click.echo(describe())
        context.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
    help="Show the version and the commit, and exit.",
)  # fmt: skip
def bucketwire() -> None:
    """Deliver S3 bucket notifications, in order and without loss.

    Settings come from the environment (BUCKETWIRE_…, MINIO_NOTIFY_…); with none at all, `bucketwire up` runs everything
    in the folder var/.

    Exit codes: 0 done, 1 a problem (standard error says which and what to do), 2 wrong usage, 130 interrupted.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and exit with its exit code; with BUCKETWIRE_DEBUG=1 errors show a stack trace."""
    run_command(bucketwire, arguments, _describe)


def _describe(error: Exception) -> str:
    from app.cli.errors import describe_exception  # noqa: PLC0415 - its imports are slow and rarely needed

    return describe_exception(error)
