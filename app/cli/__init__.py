"""`bucketwire …`: everything that an operator does.

Exit codes: 0 done, 1 a problem, 2 wrong usage, 130 interrupted.
"""

import importlib
import keyword
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NoReturn

import click

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "up": "app.cli.up",
        "api": "app.cli.run",
        "worker": "app.cli.run",
        "beat": "app.cli.run",
        "flower": "app.cli.run",
        "migrate": "app.cli.schema",
        "event": "app.cli.rules",
        "target": "app.cli.targets",
        "config": "app.cli.config",
        "apply": "app.cli.declare",
        "token": "app.cli.tokens",
        "status": "app.cli.books",
        "doctor": "app.cli.doctor",
        "dead": "app.cli.dead",
        "replay": "app.cli.replays",
        "reconcile": "app.cli.reconcile",
        "backfill": "app.cli.reconcile",
        "scan": "app.cli.reconcile",
        "journal": "app.cli.reconcile",
        "events": "app.cli.history",
        "watch": "app.cli.watch",
        "sample": "app.cli.sample",
        "import": "app.cli.takeover",
        "completion": "app.cli.completion",
    }
)


class Commands(click.Group):
    """The commands by name; a command's file is imported when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Every command, in the order in which one meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """The command of that name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name])
        found: click.Command = getattr(module, f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name)
        return found


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="bucketwire")
def bucketwire() -> None:
    """Deliver S3 bucket notifications, in order and without loss.

    Settings come from the environment (BUCKETWIRE_…, MINIO_NOTIFY_…); with none at all, `bucketwire up` runs everything
    in the folder var/.

    Exit codes: 0 done, 1 a problem (standard error says which and what to do), 2 wrong usage, 130 interrupted.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and end the process with its exit code; BUCKETWIRE_DEBUG=1 shows where an error came from."""
    carry_out(bucketwire, arguments)


def carry_out(
    command: click.Command,
    arguments: Sequence[str] | None = None,
    words: Callable[[Exception], str | None] = lambda _: None,
    later: type[Exception] | tuple[type[Exception], ...] = (),
) -> NoReturn:
    """As `main`, for any command; `words` has a sentence for errors that only the command knows, None for others.

    After one of the errors `later` the same may succeed another time: then the exit code is 75, as for sendmail.
    """
    try:
        code = command.main(arguments, prog_name="bucketwire", standalone_mode=False)
    except click.exceptions.Exit as asked:
        code = asked.exit_code
    except click.UsageError as wrong:
        wrong.show()
        code = 2
    except (KeyboardInterrupt, click.Abort):
        code = 130
    except BrokenPipeError:
        # Whoever read the output has enough, as `head` has; nothing more must be written at the end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:
        if os.environ.get("BUCKETWIRE_DEBUG", "") not in ("", "0"):
            raise
        from app.cli.problems import in_words  # noqa: PLC0415 - its imports are slow and rarely needed

        click.echo(f"bucketwire: {words(error) or in_words(error)}", err=True)
        code = os.EX_TEMPFAIL if isinstance(error, later) else 1
    sys.exit(code if isinstance(code, int) else 0)
