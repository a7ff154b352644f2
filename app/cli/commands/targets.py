"""`bucketwire target …`: the targets, one at a time."""

from typing import Any

import click

from app.cli.commands.config import change, put_all
from app.cli.commands.processes import TARGET_TEST, exec_process
from app.cli.context import CommandContext, with_context, with_context_or_url
from app.cli_common.output import printable
from app.cli_common.param_types import TARGET
from app.config.arn import TargetId
from app.config.target_settings import REDACTED, BadSettings, redacted
from app.outbox.registry import StoredTarget


@click.group()
def target() -> None:
    """List, show, set, test, remove, pause and resume targets, given as type:name or as an ARN."""


@target.command()
@with_context_or_url
def ls(context: CommandContext) -> None:
    """List the targets and whether they get events; `bucketwire status` shows how many."""
    rows = [facts(context, stored) for stored in context.chosen.targets()]
    columns = {"target": "target", "ARN": "arn", "state": "state", "from": "origin", "reason": "reason"}
    context.rows(rows, columns, "no targets; `bucketwire target set TYPE:NAME KEY=VALUE …` makes one")


@target.command()
@click.argument("which", metavar="TARGET", type=TARGET)
@with_context_or_url
def show(context: CommandContext, which: TargetId) -> None:
    """Show a target's settings, secrets left out, and the rules that name it."""
    stored = context.chosen.target(which)
    rules = [
        {"number": rule.row_id, "bucket": rule.rule.bucket, "events": list(rule.rule.events),
         "prefix": rule.rule.prefix, "suffix": rule.rule.suffix}
        for rule in context.chosen.rules() if rule.rule.target == which
    ]  # fmt: skip
    found = facts(context, stored)
    if context.as_json:
        context.json(found | {"settings": _settings(context, stored), "rules": rules})
        return
    for name, value in (found | _settings(context, stored)).items():
        click.echo(f"{name:>20}  {printable(str(value))}")
    columns = {"rule": "number", "bucket": "bucket", "events": "events", "prefix": "prefix", "suffix": "suffix"}
    context.rows(rules, columns, "no rule names it: it gets nothing; `bucketwire event add` makes one")


@target.command(name="set")
@click.argument("which", metavar="TARGET", type=TARGET)
@click.argument("pairs", metavar="KEY=VALUE...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Check, show what would change, and change nothing.")
@with_context_or_url
def set_(context: CommandContext, which: TargetId, pairs: tuple[str, ...], dry_run: bool) -> None:
    """Make a target or change settings of one; keys that are left out stay, an empty value is the default."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, divider, value = pair.partition("=")
        if not divider:
            raise click.UsageError(f"{pair!r} is no KEY=VALUE")
        values[key] = value
    put_all(context, [change(context, which, {"enable": "on"} | values)], dry_run=dry_run)


@target.command()
@click.argument("which", metavar="TARGET", type=TARGET)
@click.option("--force", is_flag=True, help="Also with its rules, its undelivered events and its dead letters.")
@with_context_or_url
def rm(context: CommandContext, which: TargetId, force: bool) -> None:
    """Remove a target; refused while rules name it or events wait for it."""
    lost = context.chosen.remove(which, force=force)
    said = " with what it had: ".join(filter(None, (f"removed {which}", ", ".join(lost))))
    context.done(said, removed=str(which), lost=lost)


@target.command()
@click.argument("which", metavar="TARGET", type=TARGET)
@click.option("--reason", default="paused by hand", show_default=True, help="What `target ls` shows.")
@with_context_or_url
def pause(context: CommandContext, which: TargetId, reason: str) -> None:
    """Deliver nothing to a target until it is resumed; its events wait."""
    context.chosen.pause(which, reason)
    context.done(f"paused {which}", paused=str(which))


@target.command()
@click.argument("which", metavar="TARGET", type=TARGET)
@with_context_or_url
def resume(context: CommandContext, which: TargetId) -> None:
    """End a pause, and the wait for a target that was away."""
    context.chosen.resume(which)
    context.done(f"resumed {which}", resumed=str(which))


@target.command()
@click.argument("which", metavar="TARGET", type=TARGET)
@with_context
def test(context: CommandContext, which: TargetId) -> None:
    """Send a target a marked test event, past the log, and show each step with its time.

    A namespace keeps nothing of it; elsewhere one entry stays, of bucket bucketwire-test and name s3:TestEvent.
    """
    context.registry.settings(context.registry.target(which))
    context.close()
    exec_process([*TARGET_TEST, str(which), *(["--json"] if context.as_json else [])])


def facts(context: CommandContext, stored: StoredTarget) -> dict[str, Any]:
    """What a target is and how it stands."""
    state, reason = stored.standing
    return {
        "target": str(stored.target),
        "arn": stored.target.arn(context.region),
        "state": state,
        "origin": stored.origin,
        "reason": reason,
    }


def _settings(context: CommandContext, stored: StoredTarget) -> dict[str, str]:
    try:
        return redacted(stored.target.type, context.chosen.texts(stored))
    except BadSettings:  # sealed with a key that is gone, or of a type that this version does not know
        return dict.fromkeys(stored.values, REDACTED)
