"""The reference page of the command line, made from the commands: `python -m app.cli.reference_page >
docs/reference/cli.md`.
"""

import inspect
from collections.abc import Iterator

import click

from app.cli import bucketwire

_HEAD = """# The command line

Made from the commands by `python -m app.cli.reference_page`; a test keeps it true. `bucketwire <command> --help`
says the same.

Settings come from the environment. Commands work on the outbox database directly, so they need no API and no token;
they need `BUCKETWIRE_DATABASE_URL` (or the service's folder) as the service has it. With `--json` a command answers a
program, without it a person. A bar shows how far a long reading has come, on a terminal only.

`apply`, `config`, `dead-letter`, `event`, `events`, `replay`, `status` and `target` (except `target test`) also work on
a remote service, over its API: `--url` or `BUCKETWIRE_URL` is its address, `BUCKETWIRE_TOKEN` a token with the required
scope (`read` to list, `admin` to change). Secrets cannot be read that way, and references (`env:`, `file:`) are
resolved there.

| exit code | |
|---|---|
| 0 | done |
| 1 | a problem: standard error says which, and what to do; `doctor` found one; `import` left something to look at |
| 2 | wrong usage |
| 130 | interrupted |

`bucketwire completion bash|zsh|fish` prints what a shell needs to complete commands and options.
"""


def page() -> str:
    """The whole page, Markdown."""
    root = click.Context(bucketwire, info_name="bucketwire")
    return _HEAD + "".join(_described(root, bucketwire))


def _described(context: click.Context, group: click.Group) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        level = 2 if context.parent is None else 3
        yield f"\n{'#' * level} {inner.command_path}\n\n{_text(command)}\n"
        if not isinstance(command, click.Group) or command.invoke_without_command:
            usage = " ".join(command.collect_usage_pieces(inner))
            yield f"\n```\n{inner.command_path} {usage}\n```\n"
            rows = [record for each in command.get_params(inner) if (record := each.get_help_record(inner))]
            rows = [(names, text) for names, text in rows if not names.endswith("--help")]
            if rows:
                yield "\n| option | |\n|---|---|\n"
                yield from (f"| `{_cell(names)}` | {_cell(text)} |\n" for names, text in rows)
        if isinstance(command, click.Group):
            yield from _described(inner, command)


def _text(command: click.Command) -> str:
    text = inspect.cleandoc(command.help or "")
    before, mark, kept = text.partition("\b\n")
    return f"{before}```\n{kept}\n```" if mark else before


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


if __name__ == "__main__":
    click.echo(page(), nl=False)
