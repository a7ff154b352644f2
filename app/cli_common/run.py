"""Run a click command as a program: exit codes, and one sentence on standard error instead of a stack trace."""

import atexit
import gc
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import click


def run_command(
    command: click.Command,
    arguments: Sequence[str] | None = None,
    describe: Callable[[Exception], str | None] = lambda _: None,
    temporary: type[Exception] | tuple[type[Exception], ...] = (),
) -> NoReturn:
    """Run a command line and end the process with its exit code.

    Exit codes: 0 done, 1 a problem, 2 wrong usage, 75 (as for sendmail) after one of the errors `temporary`, after
    which the same command may succeed later, 130 interrupted. `describe` returns a sentence for errors that only the
    command knows, None for others. BUCKETWIRE_DEBUG=1 shows the stack trace.
    """
    # Otherwise Python looks for garbage among all objects before it ends, which takes up to half a second.
    atexit.register(gc.freeze)
    try:
        code = command.main(arguments, prog_name="bucketwire", standalone_mode=False)
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.UsageError as error:
        error.show()
        code = 2
    except (KeyboardInterrupt, click.Abort):
        code = 130
    except BrokenPipeError:
        # The reader of the output has closed it, as `head` does; nothing more must be written at the exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:
        if os.environ.get("BUCKETWIRE_DEBUG", "") not in ("", "0"):
            raise
        from app.cli_common.describe_errors import describe_exception  # noqa: PLC0415 - its imports are slow and rarely needed

        click.echo(f"bucketwire: {describe(error) or describe_exception(error)}", err=True)
        code = os.EX_TEMPFAIL if isinstance(error, temporary) else 1
    sys.exit(code if isinstance(code, int) else 0)
