"""`bucketwire …`: the commands for operators.

Exit codes: 0 done, 1 a problem, 2 wrong usage, 130 interrupted.
"""

import importlib
import keyword
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem

from app.cli.groups import Group, write_commands
from app.cli_common.run import run_command


class Lazy(NamedTuple):
    """A command: the module that has it, and its first sentence, so that `--help` imports no command."""

    module: str
    summary: str


SECTIONS: Mapping[str, Mapping[str, Lazy]] = MappingProxyType(
    {
        "Rules": {
            "rule": Lazy("rules", "Add, list, remove and try the rules that route events to targets."),
        },
        "Targets and sources": {
            "target": Lazy("targets", "List, show, set, test, remove, pause and resume targets."),
            "source": Lazy("sources", "List, show, set, test, remove, pause and resume sources, given as type:name."),
            "bucket": Lazy("declaration", "Say where buckets are, for the jobs that list them."),
            "config": Lazy("config", "Set and show targets in MinIO's syntax, several at a time."),
            "apply": Lazy(
                "declaration", "Apply the targets, sources, buckets and rules of a file, all of it or nothing."
            ),
            "import": Lazy("import_minio", "Import rules and events of another notifier."),
            "sample": Lazy("watch", "Show the last events of the sample target."),
        },
        "Events and failures": {
            "event": Lazy("events", "Show the events of an object and where they are."),
            "watch": Lazy("watch", "Print the events of BUCKET, or of every bucket, as they are recorded."),
            "dead-letter": Lazy("undelivered", "Show, replay or delete dead letters."),
            "retry": Lazy("undelivered", "Show retried events, have them tried now, or give them up."),
            "replay": Lazy("undelivered", "Deliver a target's retained events again, in order and with the same ids."),
        },
        "Mirrors": {
            "reconcile": Lazy("mirrors", "Compare targets with buckets, and repair the drift."),
            "backfill": Lazy("mirrors", "Send a target an event for every existing object of a bucket."),
            "scan": Lazy("mirrors", "Send events for objects with many or large versions and for large folders."),
            "tables": Lazy("mirrors", "Add new events to Iceberg tables."),
        },
        "Service": {
            "up": Lazy("up", "Run the whole service."),
            "api": Lazy("processes", "Run the API, served by gunicorn, on BUCKETWIRE_LISTEN."),
            "worker": Lazy("processes", "Run a worker."),
            "beat": Lazy("processes", "Run the beat scheduler, which triggers the drain."),
            "flower": Lazy("processes", "Run Flower, which shows workers and tasks."),
            "migrate": Lazy("migrate", "Create or upgrade the tables of the outbox."),
            "new-epoch": Lazy("migrate", "Begin a new epoch of the event log, after the outbox database was restored."),
            "status": Lazy("service", "Show what needs attention, and the state and the counters of every target."),
            "process": Lazy("service", "List the service's processes, and forget those that fell silent."),
            "doctor": Lazy("doctor", "Check settings, database, broker, drain, targets, counters and tokens."),
            "token": Lazy("tokens", "Create, list and revoke bearer tokens of the API."),
            "audit": Lazy("service", "Show the changes of targets, rules, tokens, replays and dead letters."),
            "mcp": Lazy("mcp", "Serve the Model Context Protocol on stdin and stdout, read-only."),
            "completion": Lazy("completion", "Print the completion script of a shell."),
        },
    }
)
COMMANDS: Mapping[str, Lazy] = MappingProxyType(
    {name: command for section in SECTIONS.values() for name, command in section.items()}
)
_OF_MC = MappingProxyType({"events": "event"})  # `mc event` was `mc events` until 2018


class Commands(Group):
    """The commands by name; a command's module is imported only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """List every command in the order of `SECTIONS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Return the command of this name, or None."""
        name = _OF_MC.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return None
        attribute = f"{name}_" if keyword.iskeyword(name) else name.replace("-", "_")
        module = importlib.import_module(f"app.cli.commands.{COMMANDS[name].module}")
        command: click.Command = getattr(module, attribute)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command, without importing one."""
        named = [
            CompletionItem(name, help=command.summary)
            for name, command in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """Write the sections of commands, without importing one."""
        for title, commands in SECTIONS.items():
            write_commands(formatter, title, ((name, command.summary) for name, command in commands.items()))


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
