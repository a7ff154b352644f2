"""Generate the reference page of the command line: `python -m app.cli.reference_page > docs/reference/cli.md`."""

import inspect
from collections.abc import Iterator

import click

from app.cli import bucketwire

_HEAD = """# The command line

Generated from the commands by `python -m app.cli.reference_page`; a test compares them. `bucketwire <command> --help`
prints the same text.

Settings come from the environment. Commands use the outbox database directly, so they need no API and no token; they
need the same `BUCKETWIRE_DATABASE_URL` (or data folder) as the service. With `--json` a command prints JSON. On a
terminal, long commands show a progress bar.

`apply`, `config`, `dead-letter`, `event`, `events`, `replay`, `status` and `target` (except `target test`) also work on
a remote service through its API: set its URL with `--url` or `BUCKETWIRE_URL`, and a token with the required scope
(`read` to show, `admin` to change) in `BUCKETWIRE_TOKEN`. Secrets cannot be read that way, and references (`env:`,
`file:`) are resolved by the remote service.

| exit code | |
|---|---|
| 0 | done |
| 1 | an error: standard error says what is wrong and what to do; `doctor` found a problem; `import` skipped something |
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
