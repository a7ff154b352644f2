"""`bucketwire config …`: targets as lines of `notify_<type>[:<name>] key=value …`, as MinIO's `mc admin config`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import click
import orjson

from app.cli.problems import CannotDo
from app.cli.shell import Shell, printable, with_shell
from app.config.arn import TargetId
from app.config.declaration import (
    BadSettings,
    from_config_json,
    load,
    merged,
    parse_line,
    parse_lines,
    redacted,
    to_line,
)
from app.config.problems import Problem
from app.outbox.registry import ReadOnlyTarget, UnknownTarget


@dataclass(frozen=True, slots=True)
class Change:
    """What a target's settings were and what they are to be, as texts, secrets open."""

    target: TargetId
    before: Mapping[str, str]
    after: Mapping[str, str]


@click.group()
def config() -> None:
    """Set and show targets in MinIO's words, many at a time."""


@config.command(name="set")
@click.argument("line", nargs=-1)
@click.option("--file", "source", type=click.File("r"), help="Read lines from a file instead; - is standard input.")
@click.option("--dry-run", is_flag=True, help="Check, show what would change, and change nothing.")
@with_shell
def set_(shell: Shell, line: tuple[str, ...], source: IO[str] | None, dry_run: bool) -> None:
    """Set targets: notify_TYPE[:NAME] KEY=VALUE ...

    Keys that are left out stay as they are. Everything is checked before anything is changed.
    """
    if bool(line) == bool(source):
        raise click.UsageError("give a line or --file")
    found = parse_lines(source.read()) if source else [_one(line)]
    put_all(shell, [change(shell, target, values) for target, values in found], dry_run=dry_run)


@config.command()
@click.argument("section", required=False)
@with_shell
def get(shell: Shell, section: str | None) -> None:
    """Show targets as lines, secrets left out: all, those of notify_TYPE, or notify_TYPE:NAME."""
    lines = _lines(shell, section, secrets=False)
    if shell.as_json:
        shell.json(lines)
    else:
        for each in lines:
            click.echo(printable(each))


@config.command()
@click.option("--secrets", is_flag=True, help="With the secrets, so that it can be set elsewhere.")
@with_shell
def export(shell: Shell, secrets: bool) -> None:
    """Write all targets as lines that `config set --file` reads."""
    lines = _lines(shell, None, secrets=secrets)
    if shell.as_json:
        shell.json(lines)
    else:
        for each in lines:
            click.echo(each)


@config.command()
@click.argument("section")
@click.option("--force", is_flag=True, help="Also with its rules, its undelivered events and its dead letters.")
@with_shell
def reset(shell: Shell, section: str, force: bool) -> None:
    """Remove the target notify_TYPE[:NAME]."""
    target, _ = parse_line(section)
    shell.registry.remove(target, force=force)
    shell.done(f"removed {target}", removed=str(target))


@config.command(name="import")
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Check, show what would change, and change nothing.")
@with_shell
def import_(shell: Shell, path: Path, dry_run: bool) -> None:
    """Take the targets over from a config.json that MinIO had until 2019."""
    try:
        document = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise CannotDo(f"{path} is no JSON: {error}") from None
    found = from_config_json(document)
    if found.problems:
        raise BadSettings(found.problems)
    put_all(shell, [change(shell, target, values) for target, values in found.targets.items()], dry_run=dry_run)


def change(shell: Shell, target: TargetId, values: Mapping[str, str]) -> Change:
    """The change that setting `values` makes to a target, checked. Raises `BadSettings` or `ReadOnlyTarget`."""
    try:
        stored = shell.registry.target(target)
    except UnknownTarget:
        before: dict[str, str] = {}
    else:
        if stored.origin == "environment" and stored.enabled:
            raise ReadOnlyTarget(f"{target} is set by MINIO_NOTIFY_… variables; change it there")
        before = shell.registry.texts(stored)
    try:
        after = merged(target.type, before, values)
        load(target.type, after)
    except BadSettings as error:
        raise error.about(str(target)) from None
    return Change(target, before, after)


def put_all(shell: Shell, changes: Iterable[Change], *, dry_run: bool) -> None:
    """Make changes that were checked, or only show them."""
    differences = []
    for each in changes:
        lines = difference(each)
        differences.append((str(each.target), not each.before, lines))
        if lines and not dry_run:
            shell.registry.put(each.target, each.after)
    if shell.as_json:
        shown = [{"target": target, "new": new, "changes": lines} for target, new, lines in differences]
        shell.json({"dry_run": dry_run, "targets": shown})
        return
    for target, new, lines in differences:
        click.echo(f"{target}: {'new' if new else 'changed' if lines else 'as it was'}")
        for line in lines:
            click.echo(f"  {printable(line)}")
    if dry_run:
        click.echo("nothing was changed: --dry-run")


def difference(change: Change) -> list[str]:
    """One line for each key that changes: `-` what it was, `+` what it is to be; secrets only say that they change."""
    before, after = redacted(change.target.type, change.before), redacted(change.target.type, change.after)
    lines = []
    for key in sorted(change.before.keys() | change.after.keys()):
        if change.before.get(key) == change.after.get(key):
            continue
        lines += [f"- {key}={before[key]}"] if key in before else []
        lines += [f"+ {key}={after[key]}"] if key in after else []
    return lines


def _one(words: tuple[str, ...]) -> tuple[TargetId, dict[str, str]]:
    """A target and its texts from a whole line, or from a line that the shell has cut into words already."""
    target, values = parse_line(words[0])
    for word in words[1:]:
        key, divider, value = word.partition("=")
        if not divider:
            raise BadSettings([Problem("line", "", f"{key!r} is no key=value", "quote values that hold blanks")])
        values[key] = value
    return target, values


def _lines(shell: Shell, section: str | None, *, secrets: bool) -> list[str]:
    stored = shell.registry.targets()
    if section is not None:
        wanted, _ = parse_line(section)
        stored = [each for each in stored if each.target.type == wanted.type]
        if ":" in section:
            stored = [each for each in stored if each.target == wanted]
        if not stored:
            raise CannotDo(f"there is no target {section}; `bucketwire target ls` shows those there are")
    return [to_line(each.target, shell.registry.texts(each), redact=not secrets) for each in stored]
