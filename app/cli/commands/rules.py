"""`bucketwire event …`: which events go to which target, in the words of `mc event`."""

from typing import Any

import click

from app.cli.context import CommandContext, with_context_or_url
from app.cli_common.errors import CommandError
from app.cli_common.output import count_noun
from app.cli_common.param_types import TARGET, split_words
from app.config.arn import TargetId
from app.events.names import EVERY, SHORTHANDS, shorthand
from app.outbox.registry import StoredRule, UnknownTarget
from app.rules.model import EVERY_BUCKET, Rule, check, event_names

_DEFAULT = "put,delete,get"
_EVENTS_HELP = f"{', '.join(SHORTHANDS)}, event names such as s3:ObjectCreated:Put, or * for every event; by commas."


@click.group()
def event() -> None:
    """Add, list and remove the rules by which events go to targets."""


@event.command()
@click.argument("bucket")
@click.argument("target", metavar="ARN", type=TARGET)
@click.option("--event", "given", default=_DEFAULT, show_default=True, help=_EVENTS_HELP)
@click.option("--prefix", default="", help="Only objects whose key begins so.")
@click.option("--suffix", default="", help="Only objects whose key ends so.")
@with_context_or_url
def add(context: CommandContext, bucket: str, target: TargetId, given: str, prefix: str, suffix: str) -> None:
    """Send events of BUCKET, or of every bucket if it is '*', to the target ARN. The same rule twice is one rule."""
    rule = Rule(bucket=bucket, events=names(given), target=target, prefix=prefix, suffix=suffix)
    check([rule])
    number = context.chosen.add_rule(rule)
    context.done(f"rule {number}: {target} gets {_words(rule)}", **_row(context, StoredRule(number, rule)))


@event.command()
@click.argument("bucket", required=False)
@click.argument("target", metavar="[ARN]", type=TARGET, required=False)
@with_context_or_url
def ls(context: CommandContext, bucket: str | None, target: TargetId | None) -> None:
    """List the rules: all of them, those of BUCKET, or those of BUCKET for ARN."""
    rows = [_row(context, stored) for stored in _found(context, bucket, target)]
    columns = {
        "rule": "number",
        "bucket": "bucket",
        "ARN": "arn",
        "events": "events",
        "prefix": "prefix",
        "suffix": "suffix",
    }
    context.rows(rows, columns, "no rules; `bucketwire event add BUCKET ARN` makes one")


@event.command()
@click.argument("bucket", required=False)
@click.argument("target", metavar="[ARN]", type=TARGET, required=False)
@click.option("--id", "number", type=int, help="The rule of this number instead.")
@click.option("--event", "given", help="Only a rule for exactly these events.")
@click.option("--prefix", help="Only a rule with this prefix.")
@click.option("--suffix", help="Only a rule with this suffix.")
@click.option("--force", is_flag=True, help="All rules of BUCKET.")
@with_context_or_url
def rm(
    context: CommandContext, bucket: str | None, target: TargetId | None, number: int | None, given: str | None,
    prefix: str | None, suffix: str | None, force: bool,
) -> None:  # fmt: skip
    """Remove rules: those of BUCKET for ARN, one by --id, or all of BUCKET with --force.

    Events that were recorded before still go where the rules said.
    """
    if (bucket is None) == (number is None):
        raise click.UsageError("say which: BUCKET ARN, BUCKET --force, or --id NUMBER")
    if bucket is not None and target is None and not force:
        raise click.UsageError(f"this would remove every rule of {bucket}: name the ARN, or add --force")
    found = [
        stored
        for stored in _found(context, bucket, target)
        if number in (None, stored.row_id)
        and (given is None or set(stored.rule.events) == set(names(given)))
        and prefix in (None, stored.rule.prefix)
        and suffix in (None, stored.rule.suffix)
    ]
    if not found:
        raise CommandError("there is no such rule; `bucketwire event ls` shows those there are")
    removed = context.chosen.remove_rules([stored.row_id for stored in found])
    context.done(f"removed {count_noun(removed, 'rule')}", removed=[stored.row_id for stored in found])


def names(text: str) -> tuple[str, ...]:
    """Event names and aggregates from mc's words and from names themselves, each once."""
    return tuple(dict.fromkeys(name for word in split_words(text) for name in shorthand(word)))


def plain_names(text: str) -> tuple[str, ...]:
    """The names of single events that the words stand for; none for every event."""
    given = names(text)
    if EVERY in given:
        return ()
    return tuple(dict.fromkeys(name for each in given for name in sorted(event_names(each) or {each})))


def _found(context: CommandContext, bucket: str | None, target: TargetId | None) -> list[StoredRule]:
    if target is not None and all(stored.target != target for stored in context.chosen.targets()):
        raise UnknownTarget(target)
    return [stored for stored in context.chosen.rules(bucket) if target in (None, stored.rule.target)]


def _words(rule: Rule) -> str:
    events = "every event" if rule.events == (EVERY,) else ", ".join(rule.events)
    bucket = "every bucket" if rule.bucket == EVERY_BUCKET else rule.bucket
    ends = [f" under {rule.prefix}"] if rule.prefix else []
    ends += [f" ending in {rule.suffix}"] if rule.suffix else []
    return f"{events} of {bucket}{''.join(ends)}"


def _row(context: CommandContext, stored: StoredRule) -> dict[str, Any]:
    return {
        "number": stored.row_id,
        "bucket": stored.rule.bucket,
        "arn": stored.rule.target.arn(context.region),
        "events": list(stored.rule.events),
        "prefix": stored.rule.prefix,
        "suffix": stored.rule.suffix,
        "rule_id": stored.rule.rule_id,
    }
