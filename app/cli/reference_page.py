"""Generate the reference page of the command line: `python -m app.cli.reference_page > docs/reference/cli.md`."""

import inspect
from collections.abc import Iterator

import click

from app.cli import bucketwire

_HEAD = """# The command line

Generated from the commands by `python -m app.cli.reference_page`; a test compares them. `bucketwire <command> --help`
prints the same text.

Settings come from the environment. On a terminal, long commands show a progress bar.

A list is a table where it fits into the terminal's width, without the columns that are empty or 0 in every row;
otherwise each row is a block of lines. `status` leaves out further columns before that, and names them. In a pipe or a
file a row is one line with every column. `COLUMNS` sets the width, as `watch` does.

A command with `--url` is a client of the [HTTP API](api.md). Without a URL it runs the API's routes itself, on the
outbox database of this machine's settings: it needs no running API and no token, only the same
`BUCKETWIRE_DATABASE_URL` (or data folder) as the service, and the [audit log](api.md#audit-log) names the operating
system's user. With `--url` or `BUCKETWIRE_URL` it works on the service there, with a token of the required scope
(`read` to show, `admin` to change) in `BUCKETWIRE_TOKEN`. References (`env:`, `file:`) are then resolved by that
service. The other commands (`config reseal`, `config export --secrets`, `doctor`, `import minio --queue-dir`,
`migrate`, `new-epoch`, `sample`, `target test`, `watch`, and those that start processes) work on this machine only.

With `--json` a command prints what the API answers, with the API's members, ids, ARNs and times: a list is an array of
the API's objects, all pages of it up to `--limit`; a change is the route's answer.

| exit code | |
|---|---|
| 0 | done |
| 1 | an error: standard error says what to do; `doctor` or `status` found a problem; `import` skipped something |
| 2 | wrong usage |
| 130 | interrupted |

`bucketwire completion bash|zsh|fish` prints the completion script of a shell.
"""


def page() -> str:
    """Return the whole page in Markdown."""
    root = click.Context(bucketwire, info_name="bucketwire")
    return _HEAD + "".join(_describe_commands(root, bucketwire))


def _describe_commands(context: click.Context, group: click.Group) -> Iterator[str]:
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
            rows = [record for param in command.get_params(inner) if (record := param.get_help_record(inner))]
            rows = [(names, text) for names, text in rows if not names.endswith("--help")]
            if rows:
                yield "\n| option | |\n|---|---|\n"
                yield from (f"| `{_cell(names)}` | {_cell(text)} |\n" for names, text in rows)
        if isinstance(command, click.Group):
            yield from _describe_commands(inner, command)


def _text(command: click.Command) -> str:
    text = inspect.cleandoc(command.help or "")
    before, mark, kept = text.partition("\b\n")
    return f"{before}```\n{kept}\n```" if mark else before


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


if __name__ == "__main__":
    click.echo(page(), nl=False)
