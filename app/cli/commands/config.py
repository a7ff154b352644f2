"""`bucketwire config …`: targets as lines of `notify_<type>[:<name>] key=value …`, as MinIO's `mc admin config`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import click
import orjson

from app.cli.context import CommandContext, with_context, with_context_or_url
from app.cli_common.errors import CommandError
from app.cli_common.output import printable
from app.config.arn import TargetId
from app.config.errors import Problem
from app.config.target_settings import BadSettings, from_config_json, merged, parse_line, parse_lines, to_line
from app.config.targets.base import without_effect
from app.manifest.document import Manifest
from app.outbox.registry import ReadOnlyTarget, UnknownTarget


@click.group()
def config() -> None:
    """Set and show targets in MinIO's words, many at a time."""


@config.command(name="set")
@click.argument("line", nargs=-1)
@click.option("--file", "source", type=click.File("r"), help="Read lines from a file instead; - is standard input.")
@click.option("--dry-run", is_flag=True, help="Check, show what would change, and change nothing.")
@with_context_or_url
def set_(context: CommandContext, line: tuple[str, ...], source: IO[str] | None, dry_run: bool) -> None:
    """Set targets: notify_TYPE[:NAME] KEY=VALUE ...

    Keys that are left out stay as they are. Everything is checked before anything is changed.
    """
    if bool(line) == bool(source):
        raise click.UsageError("give a line or --file")
    wanted: dict[TargetId, dict[str, str]] = {}
    for target, values in parse_lines(source.read()) if source else [_one(line)]:
        wanted[target] = wanted.get(target, {}) | values
    put_all(context, [change(context, target, values) for target, values in wanted.items()], dry_run=dry_run)


@config.command()
@click.argument("section", required=False)
@with_context_or_url
def get(context: CommandContext, section: str | None) -> None:
    """Show targets as lines, secrets left out: all, those of notify_TYPE, or notify_TYPE:NAME."""
    lines = _lines(context, section, secrets=False)
    if context.as_json:
        context.json(lines)
    else:
        for each in lines:
            click.echo(printable(each))


@config.command()
@click.option("--secrets", is_flag=True, help="With the secrets, so that it can be set elsewhere.")
@with_context_or_url
def export(context: CommandContext, secrets: bool) -> None:
    """Write all targets as lines that `config set --file` reads."""
    if secrets and context.remote:
        raise click.UsageError("secrets are not told over the API; run this where the database is")
    lines = _lines(context, None, secrets=secrets)
    if context.as_json:
        context.json(lines)
    else:
        for each in lines:
            click.echo(each)


@config.command()
@click.argument("section")
@click.option("--force", is_flag=True, help="Also with its rules, its undelivered events and its dead letters.")
@with_context_or_url
def reset(context: CommandContext, section: str, force: bool) -> None:
    """Remove the target notify_TYPE[:NAME]."""
    target, _ = parse_line(section)
    lost = context.chosen.remove(target, force=force)
    said = " with what it had: ".join(filter(None, (f"removed {target}", ", ".join(lost))))
    context.done(said, removed=str(target), lost=lost)


@config.command(name="import")
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Check, show what would change, and change nothing.")
@with_context_or_url
def import_(context: CommandContext, path: Path, dry_run: bool) -> None:
    """Take the targets over from a config.json that MinIO had until 2019."""
    try:
        document = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise CommandError(f"{path} is no JSON: {error}") from None
    found = from_config_json(document)
    if found.problems:
        raise BadSettings(found.problems)
    put_all(context, [change(context, target, values) for target, values in found.targets.items()], dry_run=dry_run)


@config.command()
@with_context
def reseal(context: CommandContext) -> None:
    """Seal stored secrets again, with the first key of BUCKETWIRE_SECRET_KEYS.

    Nothing stored needs the other keys afterwards: the last step of putting a new key in the place of an old one.
    """
    count = context.registry.reseal()
    context.done(f"sealed the secrets of {count} targets again", targets=count)


def change(context: CommandContext, target: TargetId, values: Mapping[str, str]) -> tuple[TargetId, dict[str, str]]:
    """The target and all its texts once `values` are set. Raises `BadSettings` or `ReadOnlyTarget`."""
    try:
        stored = context.chosen.target(target)
    except UnknownTarget:
        before: dict[str, str] = {}
    else:
        if stored.origin == "environment" and stored.enabled:
            raise ReadOnlyTarget(f"{target} is set by MINIO_NOTIFY_… variables; change it there")
        before = context.chosen.texts(stored)
    try:
        return target, merged(target.type, before, values)
    except BadSettings as error:
        raise error.about(str(target)) from None


def put_all(context: CommandContext, changes: Iterable[tuple[TargetId, Mapping[str, str]]], *, dry_run: bool) -> None:
    """Set targets to these texts, all at once, or only show what that would change. Raises `BadSettings`."""
    made = dict(changes)
    plan = context.apply(Manifest(made), dry_run=dry_run)
    for target, values in made.items():
        for sentence in without_effect(values):
            click.echo(f"{target}: {printable(sentence)}", err=True)
    if context.as_json:
        context.json({"dry_run": dry_run, "targets": plan["targets"]})
        return
    show_targets(plan)
    if dry_run:
        click.echo("nothing was changed: --dry-run")


def show_targets(plan: Mapping[str, Any]) -> None:
    """Tell a person what becomes of each target."""
    for each in plan["targets"]:
        click.echo(f"{each['target']}: {'new' if each['new'] else 'changed' if each['changes'] else 'as it was'}")
        for line in each["changes"]:
            click.echo(f"  {printable(line)}")


def _one(words: tuple[str, ...]) -> tuple[TargetId, dict[str, str]]:
    """A target and its texts from a whole line, or from a line that the shell has cut into words already."""
    target, values = parse_line(words[0])
    for word in words[1:]:
        key, divider, value = word.partition("=")
        if not divider:
            raise BadSettings([Problem("line", "", f"{key!r} is no key=value", "quote values that hold blanks")])
        values[key] = value
    return target, values


def _lines(context: CommandContext, section: str | None, *, secrets: bool) -> list[str]:
    stored = context.chosen.targets()
    if section is not None:
        wanted, _ = parse_line(section)
        stored = [each for each in stored if each.target.type == wanted.type]
        if ":" in section:
            stored = [each for each in stored if each.target == wanted]
        if not stored:
            raise CommandError(f"there is no target {section}; `bucketwire target ls` shows those there are")
    return [to_line(each.target, context.chosen.texts(each), redact=not secrets) for each in stored]
