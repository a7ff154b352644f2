"""`bucketwire rule …`: the rules that route events to targets, in the syntax of `mc event`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from app.cli.context import Client, CommandContext, target_path, with_api
from app.cli.groups import McGroup
from app.cli_common import CommandError
from app.cli_common.output import Columns
from app.cli_common.param_types import BUCKET, PAIR, SIZE, TARGET, complete_event, complete_events, split_words
from app.config.arn import TargetId
from app.config.errors import nearest_name
from app.events.names import EVERY, SHORTHANDS, shorthand
from app.quantities import count_noun
from app.resources.declaration import short_target
from app.resources.rule import MAX_REMOVED, Rule
from app.rules.filters import parse_filters
from app.rules.model import EVERY_BUCKET

_Command = TypeVar("_Command", bound=Callable[..., Any])
_DEFAULT = "put,delete,get"
_EVENTS_HELP = (
    f"{', '.join(SHORTHANDS)}, event names such as s3:ObjectCreated:Put, or * for every event; comma-separated."
)


def event_option(
    text: str = "put, delete, get, …, or event names, comma-separated.", **attributes: Any
) -> Callable[[_Command], _Command]:
    """Return the option for the words that `names` reads; `text` is its help."""
    return click.option("--event", "--events", "event_words", shell_complete=complete_events, help=text, **attributes)


@click.group(cls=McGroup)
def rule() -> None:
    """Add, list, remove and try the rules that route events to targets.

    As in `mc event`, list and remove are ls and rm, and a bucket may be written ALIAS/BUCKET; the alias is ignored.
    """


@rule.command()
@click.argument("bucket", type=BUCKET)
@click.argument("target", metavar="ARN", type=TARGET)
@event_option(_EVENTS_HELP, default=_DEFAULT, show_default=True)
@click.option("--prefix", default="", help="Only objects whose key has this prefix.")
@click.option("--suffix", default="", help="Only objects whose key has this suffix.")
@click.option("--regex", default="", help="Only objects whose whole key matches this regular expression (RE2).")
@click.option("--metadata", metavar="NAME=VALUE", type=PAIR, multiple=True, help="Only objects with this metadata.")
@click.option("--tag", "tags", metavar="NAME=VALUE", type=PAIR, multiple=True, help="Only objects with this tag.")
@click.option("--min-size", metavar="SIZE", type=SIZE, help="Only objects of this size or more, such as 1MiB.")
@click.option("--max-size", metavar="SIZE", type=SIZE, help="Only objects of this size or less.")
@click.option("--ignore-existing", "-p", "_existing", is_flag=True, help="For mc's sake: a rule is never added twice.")
@with_api
def add(
    context: CommandContext, bucket: str, target: TargetId, event_words: str, prefix: str, suffix: str, regex: str,
    metadata: tuple[tuple[str, str], ...], tags: tuple[tuple[str, str], ...], min_size: int | None,
    max_size: int | None, _existing: bool,
) -> None:  # fmt: skip
    """Send events of BUCKET, or of every bucket if it is '*', to the target ARN. Adding it again changes nothing.

    A filter on metadata, tags or size does not match events that do not carry them, such as removals.
    """
    filters = {
        "regex": regex, "metadata": _pairs("--metadata", metadata), "tags": _pairs("--tag", tags),
        "min_size": min_size, "max_size": max_size,
    }  # fmt: skip
    body = {
        "bucket": bucket, "events": names(event_words), "target": str(target), "prefix": prefix, "suffix": suffix,
        **{name: value for name, value in filters.items() if value not in ("", {}, None)},
    }  # fmt: skip
    rule = context.api.change("POST", "/v1/rules", body)
    context.done(f"rule {rule['number']}: {target} gets {_describe_rule(rule)}", **rule)


@rule.command()
@click.argument("bucket", type=BUCKET, required=False)
@click.argument("target", metavar="[ARN]", type=TARGET, required=False)
@with_api
def ls(context: CommandContext, bucket: str | None, target: TargetId | None) -> None:
    """List the rules: all of them, those of BUCKET, or those of BUCKET for ARN."""
    rules = _find_rules(context.api, bucket, target)
    columns = rule_columns(rules)
    context.rows(rules, columns, "no rules; add one: `bucketwire rule add BUCKET ARN`")


@rule.command()
@click.argument("bucket", type=BUCKET, required=False)
@click.argument("target", metavar="[ARN]", type=TARGET, required=False)
@click.option("--id", "number", type=int, help="Remove the rule with this number instead.")
@event_option("Only a rule for exactly these events.")
@click.option("--prefix", help="Only a rule with this prefix.")
@click.option("--suffix", help="Only a rule with this suffix.")
@click.option("--force", is_flag=True, help="Remove all rules of BUCKET.")
@with_api
def rm(
    context: CommandContext, bucket: str | None, target: TargetId | None, number: int | None, event_words: str | None,
    prefix: str | None, suffix: str | None, force: bool,
) -> None:  # fmt: skip
    """Remove rules: those of BUCKET for ARN, one by --id, or all of BUCKET with --force.

    Events that were recorded before are still delivered by the removed rules.
    """
    if (bucket is None) == (number is None):
        raise click.UsageError("select rules: BUCKET ARN, BUCKET --force, or --id NUMBER")
    if bucket is not None and target is None and not force:
        raise click.UsageError(f"this would remove every rule of {bucket}: name the ARN, or add --force")
    events = None if event_words is None else set(names(event_words))
    selected = [
        rule["number"]
        for rule in _find_rules(context.api, bucket, target)
        if number in (None, rule["number"])
        and events in (None, set(rule["events"]))
        and prefix in (None, rule["prefix"])
        and suffix in (None, rule["suffix"])
    ]
    if not selected:
        known = [] if bucket is None else [rule["bucket"] for rule in context.api.get("/v1/rules")["rules"]]
        close = nearest_name(bucket, known) if bucket not in known else ""
        hint = f"did you mean those of {close}?" if close else "`bucketwire rule ls` lists the rules"
        raise CommandError(f"there is no such rule; {hint}")
    removed: list[int] = []
    for first in range(0, len(selected), MAX_REMOVED):
        some = {"numbers": selected[first : first + MAX_REMOVED]}
        removed += context.api.change("POST", "/v1/rules/remove", some)["removed"]
    context.done(f"removed {count_noun(len(removed), 'rule')}", removed=removed)


@rule.command(name="match")
@click.argument("bucket", type=BUCKET)
@click.argument("key")
@click.option(
    "--event",
    default="s3:ObjectCreated:Put",
    shell_complete=complete_event,
    show_default=True,
    help="The event's name.",
)
@click.option("--metadata", metavar="NAME=VALUE", type=PAIR, multiple=True, help="The object has this metadata.")
@click.option("--tag", "tags", metavar="NAME=VALUE", type=PAIR, multiple=True, help="The object has this tag.")
@click.option("--size", metavar="SIZE", type=SIZE, help="The object's size, such as 1MiB.")
@with_api
def match_(
    context: CommandContext, bucket: str, key: str, event: str, metadata: tuple[tuple[str, str], ...],
    tags: tuple[tuple[str, str], ...], size: int | None,
) -> None:  # fmt: skip
    """Try which rules match an event of an object, and which targets get it. Nothing is recorded."""
    body = {
        "bucket": bucket, "key": key, "event": event, "metadata": _pairs("--metadata", metadata),
        "tags": _pairs("--tag", tags), "size": size,
    }  # fmt: skip
    match = context.api.change("POST", "/v1/rules/match", body)
    if context.as_json:
        context.json(match)
        return
    context.rows(match["rules"], rule_columns(match["rules"]), "no rule matches it")
    if match["rules"]:
        targets = [f"{short_target(target)} ({target['state']})" for target in match["targets"]]
        click.echo(f"goes to {', '.join(targets) or 'no target: those of these rules are disabled'}")


def names(text: str) -> tuple[str, ...]:
    """Parse mc's words and event names into event names and aggregates, each once."""
    return tuple(dict.fromkeys(name for word in split_words(text) for name in shorthand(word)))


def rule_columns(rules: Sequence[Mapping[str, Any]], without: str = "") -> Columns:
    """Return the columns of a table of rules, without that of a member; with further filters if a rule has any."""
    columns = {header: member for header, member in Rule.columns.items() if member != without}
    return columns | ({"filters": _filters} if any(map(_filters, rules)) else {})


def _filters(rule: Mapping[str, Any]) -> list[str]:
    """Return the filters beside prefix and suffix, in words."""
    return parse_filters(rule).words


def _pairs(option: str, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    if len(dict(pairs)) < len(pairs):
        raise click.UsageError(f"{option} names an entry twice; no object has two of one name")
    return dict(pairs)


def _find_rules(api: Client, bucket: str | None, target: TargetId | None) -> list[dict[str, Any]]:
    arn = None if target is None else api.get(target_path(target))["arn"]  # refused for a mistyped one
    return [rule for rule in api.get("/v1/rules", bucket=bucket)["rules"] if arn in (None, rule["target"])]


def _describe_rule(rule: Mapping[str, Any]) -> str:
    events = "every event" if rule["events"] == [EVERY] else ", ".join(rule["events"])
    bucket = "every bucket" if rule["bucket"] == EVERY_BUCKET else rule["bucket"]
    filters = [f" with {name} {rule[name]}" for name in ("prefix", "suffix") if rule[name]]
    filters += [f" with {words}" for words in _filters(rule)]
    return f"{events} of {bucket}{''.join(filters)}"
