"""`bucketwire config …`: targets as lines of `notify_<type>[:<name>] key=value …`, as in `mc admin config`."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import click
import orjson

from app.cli.context import CommandContext, target_path, with_api
from app.cli.groups import Group
from app.cli_common import CommandError
from app.cli_common.context import ServiceContext, pass_context
from app.cli_common.output import Output, printable
from app.config.api_settings import ABOUT, SECTION, ApiSettings, api_texts
from app.config.arn import SourceId, TargetId
from app.config.bucket_settings import BucketId
from app.config.declared_types import section_type, sections
from app.config.errors import Problem, did_you_mean, suggest_name
from app.config.fields.fields import fields_of
from app.config.formats.notify_lines import (
    api_helps,
    describe_section,
    is_api_line,
    key_helps,
    parse_api_line,
    take_api_lines,
)
from app.config.target_settings import BadSettings, from_config_json, joined, parse_line, parse_lines, to_line
from app.quantities import count_noun

_API = f"/v1/settings/{SECTION}"
_ORIGINS = {"environment": "  # by MINIO_API_SYNC_EVENTS", "stored": "", "default": "  # the default"}


@click.group(cls=Group)
def config() -> None:
    """Set and show targets in MinIO's syntax, several at a time.

    As in `mc admin config`, set, get and reset may have an ALIAS first; it is ignored.
    """


@config.command(name="set")
@click.argument("line", metavar="[ALIAS] [LINE]...", nargs=-1)
@click.option("--file", "source", type=click.File("r"), help="Read lines from a file instead; - is standard input.")
@click.option("--dry-run", is_flag=True, help="Check, show what would change, and change nothing.")
@with_api
def set_(context: CommandContext, line: tuple[str, ...], source: IO[str] | None, dry_run: bool) -> None:
    """Set targets: notify_TYPE[:NAME] KEY=VALUE ..., or the sync mode of all: api sync_events=on

    Keys that are left out keep their values. Everything is checked before anything is changed.
    """
    if bool(line) == bool(source):
        raise click.UsageError("give a line or --file")
    words = _without_alias(line)
    if not source and not words:
        raise click.UsageError("give a line after the alias")
    if source:
        api, others = take_api_lines(_text_of(source))
        targets = joined(parse_lines(others))
    elif is_api_line(words[0]):
        api, targets = parse_api_line(" ".join(words)), {}
    else:
        api, targets = {}, joined([_parse_words(words)])
    set_keys(context, targets, api=api, dry_run=dry_run)


@config.command()
@click.argument("words", metavar="[ALIAS] [SECTION]", nargs=-1)
@with_api
def get(context: CommandContext, words: tuple[str, ...]) -> None:
    """Show targets as lines, secrets redacted: all, those of notify_TYPE, or notify_TYPE:NAME; or api."""
    section, *others = _without_alias(words) or ("",)
    if others:
        raise click.UsageError("give one section")
    if section == SECTION:
        settings = context.api.get(_API)
        line = f"{SECTION} sync_events={settings['sync_events']['value']}"
        if context.as_json:
            context.json(settings)
        else:
            click.echo(line + _ORIGINS[settings["sync_events"]["origin"]])
        return
    targets = _targets(context, section)
    if context.as_json:
        context.json(targets)
    else:
        for target in targets:
            click.echo(printable(to_line(_id(target), target["settings"], redact=True)))


@config.command()
@click.option("--secrets", is_flag=True, help="Include the secrets, to set the targets elsewhere.")
@with_api
def export(context: CommandContext, secrets: bool) -> None:
    """Write all targets as lines that `config set --file` reads; sources and rules are not among them."""
    if secrets and context.url:
        raise click.UsageError(
            "secrets cannot be read through the API; run this on the service's machine, without --url"
        )
    settings = context.api.get(_API)["sync_events"]
    lines = [] if settings["origin"] == "default" else [f"{SECTION} sync_events={settings['value']}"]
    if secrets:
        lines += _lines_with_secrets()
    else:
        lines += [to_line(_id(target), target["settings"], redact=True) for target in _targets(context, "")]
    if context.as_json:
        context.json(lines)
    else:
        for line in lines:
            click.echo(line)


@config.command(name="help")
@click.argument("section", required=False)
@click.argument("key", required=False)
@click.option("--env", "variables", is_flag=True, help="Show environment variables instead of keys.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def help_(section: str | None, key: str | None, variables: bool, as_json: bool) -> None:
    """Show the sections, or the keys of notify_TYPE or api; a mandatory key is marked by *."""
    if not section:
        rows = [{"section": SECTION, "about": ABOUT}]
        rows += [{"section": name, "about": describe_section(cls)} for name, cls in sections().items()]
        Output(as_json=as_json).rows(rows, {"section": "section", "meaning": "about"})
        return
    if section == SECTION:
        keys = api_helps(variables=variables)
    else:
        keys = key_helps(section_type(section.partition(":")[0]), variables=variables)
    if key and key not in keys:
        raise BadSettings([Problem(key, "", "is not a known setting", did_you_mean(key, list(keys)))])
    rows = [
        {"key": each.name + "*" * each.mandatory, "type": each.kind, "about": each.about}
        for name, each in keys.items()
        if not key or key == name
    ]
    Output(as_json=as_json).rows(rows, {"key": "key", "type": "type", "meaning": "about"})


@config.command()
@click.argument("words", metavar="[ALIAS] SECTION [KEY]...", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Also delete its rules, undelivered events and dead letters.")
@with_api
def reset(context: CommandContext, words: tuple[str, ...], force: bool) -> None:
    """Remove the target notify_TYPE[:NAME], or set KEYs of it to their defaults."""
    section, *keys = _without_alias(words) or ("",)
    if section == SECTION:
        set_keys(context, {}, api=api_texts(dict.fromkeys(keys or fields_of(ApiSettings), "")), dry_run=False)
        return
    target, _ = parse_line(section)
    if keys:
        set_keys(context, {target: dict.fromkeys(keys, "")}, dry_run=False)
    else:
        remove_target(context, target, force=force)


@config.command(name="import")
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Check, show what would change, and change nothing.")
@with_api
def import_(context: CommandContext, path: Path, dry_run: bool) -> None:
    """Import the targets of a config.json, which MinIO had until 2019."""
    try:
        document = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise CommandError(f"{path} is not JSON: {error}") from None
    parsed = from_config_json(document)
    if parsed.problems:
        raise BadSettings(parsed.problems)
    for note in parsed.notes:
        click.echo(printable(note), err=True)
    set_keys(context, parsed.targets, dry_run=dry_run)


@config.command()
@pass_context(ServiceContext)
def reseal(context: ServiceContext) -> None:
    """Encrypt stored secrets again, with the first key of BUCKETWIRE_SECRET_KEYS.

    Afterwards the other keys are no longer needed: this is the last step of a key rotation.
    """
    numbers = context.registry.reseal()
    counts = [count_noun(numbers[f"{noun}s"], noun) for noun in ("target", "source", "bucket")]
    context.done(f"encrypted the secrets of {counts[0]}, {counts[1]} and {counts[2]} again", **numbers)


def set_keys(
    context: CommandContext,
    targets: Mapping[TargetId, Mapping[str, str]] = MappingProxyType({}),
    *,
    sources: Mapping[SourceId, Mapping[str, str]] = MappingProxyType({}),
    buckets: Mapping[BucketId, Mapping[str, str]] = MappingProxyType({}),
    api: Mapping[str, str] | None = None,
    dry_run: bool,
    lenient: bool = True,
) -> None:
    """Set keys of targets, sources, buckets and the section `api`, all or none, or only show the changes.

    Keys that are left out keep their values, empty ones get their defaults. With `lenient`, settings without effect are
    warnings, as in MinIO's forms.
    """
    body: dict[str, Any] = {"targets": {str(target): values for target, values in targets.items()}, "api": api or {}}
    if sources:
        body["sources"] = {str(source): values for source, values in sources.items()}
    if buckets:
        body["buckets"] = {bucket.name: values for bucket, values in buckets.items()}
    plan = context.api.change("PATCH", "/v1/declaration", body, dry_run=dry_run, lenient=lenient)
    if api and context.api.get(_API)["sync_events"]["origin"] == "environment":
        click.echo(f"{fields_of(ApiSettings)['sync_events'].env} is set and takes precedence", err=True)
    if context.as_json:
        show_warnings(plan)
        context.json(plan)
        return
    show_settings(plan)
    show_api(plan, declared=bool(api))
    if dry_run:
        click.echo("nothing was changed: --dry-run")


def remove_target(context: CommandContext, target: TargetId, *, force: bool) -> None:
    """Remove a target and print what was lost with it."""
    answer = context.api.change("DELETE", target_path(target), force=force)
    lost = [", deleted with it: " + ", ".join(answer["lost"])] if answer["lost"] else []
    context.done("".join([f"removed {target}", *lost]), **answer)


def show_warnings(plan: Mapping[str, Any]) -> None:
    """Print, on standard error, which settings have no effect."""
    for name, planned in planned_settings(plan):
        for sentence in planned["warnings"]:
            click.echo(f"{name}: {printable(sentence)}", err=True)


def show_settings(plan: Mapping[str, Any]) -> None:
    """Print the changes of each target, source and bucket, and their warnings on standard error."""
    show_warnings(plan)
    for name, planned in planned_settings(plan):
        state = "new" if planned["new"] else "changed" if planned["changes"] else "unchanged"
        click.echo(f"{name}: {state}")
        for line in planned["changes"]:
            click.echo(f"  {printable(line)}")


def planned_settings(plan: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return what a plan has of each target, source and bucket, with their names."""
    targets = [(planned["target"], planned) for planned in plan["targets"]]
    sources = [(planned["source"], planned) for planned in plan["sources"]]
    return targets + sources + [(f"bucket:{planned['bucket']}", planned) for planned in plan["buckets"]]


def show_api(plan: Mapping[str, Any], *, declared: bool) -> None:
    """Print the changes of the section `api`, if any of its keys is declared."""
    if declared:
        click.echo(f"{SECTION}: {'changed' if plan['api'] else 'unchanged'}")
        for line in plan["api"]:
            click.echo(f"  {line}")


def _text_of(source: IO[str]) -> str:
    try:
        return source.read()
    except UnicodeDecodeError as error:
        raise CommandError(f"{source.name} is not text; write it as UTF-8: {error}") from None


def _without_alias(words: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out the first word if it is the alias that `mc admin config` needs there: `ALIAS notify_…`, or `ALIAS/`."""
    if not words or _begins_section(words[0]):
        return words
    return words[1:] if words[0].endswith("/") or (len(words) > 1 and _begins_section(words[1])) else words


def _begins_section(word: str) -> bool:
    return word.startswith("notify_") or is_api_line(word)


def _parse_words(words: tuple[str, ...]) -> tuple[TargetId, dict[str, str]]:
    """Parse a target and its texts from a line, whole or split into words by the shell."""
    target, values = parse_line(words[0])
    for word in words[1:]:
        key, separator, value = word.partition("=")
        if not separator:
            raise BadSettings([Problem("line", "", f"{key!r} is not key=value", "quote values that contain spaces")])
        values[key] = value
    return target, values


def _targets(context: CommandContext, section: str) -> list[dict[str, Any]]:
    """Return the targets of a section, `notify_TYPE` or `notify_TYPE:NAME`, all for an empty one."""
    targets: list[dict[str, Any]] = context.api.get("/v1/targets", brief=True)["targets"]
    if not section:
        return targets
    wanted, _ = parse_line(section)
    chosen = [target for target in targets if target["type"] == wanted.type]
    if ":" in section:
        chosen = [target for target in chosen if _id(target) == wanted]
    if not chosen:
        hint = suggest_name(wanted if ":" in section else "", map(_id, targets), "bucketwire target ls")
        raise CommandError(f"there is no target {section}; {hint}")
    return chosen


def _lines_with_secrets() -> list[str]:
    with closing(ServiceContext()) as service:
        registry = service.registry
        return [to_line(row.target, registry.texts(row), redact=False) for row in registry.targets()]


def _id(target: Mapping[str, Any]) -> TargetId:
    return TargetId(target["type"], target["name"])
