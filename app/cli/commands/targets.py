"""`bucketwire target …`: manage targets, one at a time."""

from typing import Any

import click

from app.cli.commands.config import put_all
from app.cli.commands.processes import TARGET_TEST, exec_process
from app.cli.commands.rules import rule_columns, shown_filters
from app.cli.context import CommandContext, with_context, with_context_or_url
from app.cli_common.output import printable
from app.cli_common.param_types import TARGET
from app.config.arn import TargetId
from app.config.target_settings import REDACTED, BadSettings, redacted
from app.manifest.changes import changed
from app.outbox import audit
from app.outbox.targets import StoredTarget


@click.group()
def target() -> None:
    """List, show, set, test, remove, pause and resume targets, given as type:name or as an ARN."""


@target.command()
@with_context_or_url
def ls(context: CommandContext) -> None:
    """List the targets and their states; `bucketwire status` shows their counters."""
    rows = [facts(context, stored) for stored in context.chosen.targets()]
    if not context.as_json:  # a target that runs has no other reason to show
        rows = [row | {"reason": row["reason"] or row["opening_reason"]} for row in rows]
    columns = {"target": "target", "ARN": "arn"} | {name: name for name in ("state", "opening")}
    columns |= {"from": "origin", "reason": "reason"}
    context.rows(rows, columns, "no targets; add one: `bucketwire target set TYPE:NAME KEY=VALUE …`")


@target.command()
@click.argument("which", metavar="TARGET", type=TARGET)
@with_context_or_url
def show(context: CommandContext, which: TargetId) -> None:
    """Show a target's settings, secrets redacted, and the rules that name it."""
    stored = context.chosen.target(which)
    rules = [
        {"number": rule.row_id, "bucket": rule.rule.bucket, "events": list(rule.rule.events),
         "prefix": rule.rule.prefix, "suffix": rule.rule.suffix, **shown_filters(context, rule.rule)}
        for rule in context.chosen.rules() if rule.rule.target == which
    ]  # fmt: skip
    members = facts(context, stored)
    if context.as_json:
        context.json(members | {"settings": _settings(context, stored), "rules": rules})
        return
    for name, value in (members | _settings(context, stored)).items():
        click.echo(f"{name:>20}  {printable(str(value))}")
    columns = rule_columns(rules, "bucket", "events")
    context.rows(rules, columns, "no rule names it, so it gets no events; add one: `bucketwire event add`")


@target.command(name="set")
@click.argument("which", metavar="TARGET", type=TARGET)
@click.argument("pairs", metavar="KEY=VALUE...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Check, show what would change, and change nothing.")
@with_context_or_url
def set_(context: CommandContext, which: TargetId, pairs: tuple[str, ...], dry_run: bool) -> None:
    """Create or change a target; keys that are left out keep their values, an empty value resets to the default."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise click.UsageError(f"{pair!r} is not KEY=VALUE")
        values[key] = value
    put_all(context, changed(context.chosen, {which: {"enable": "on"} | values}), dry_run=dry_run, lenient=False)


@target.command()
@click.argument("which", metavar="TARGET", type=TARGET)
@click.option("--force", is_flag=True, help="Also delete its rules, undelivered events and dead letters.")
@with_context_or_url
def rm(context: CommandContext, which: TargetId, force: bool) -> None:
    """Remove a target; refused while rules name it or events wait for it."""
    lost = context.chosen.remove(which, force=force)
    message = ", deleted with it: ".join(filter(None, (f"removed {which}", ", ".join(lost))))
    context.done(message, removed=str(which), lost=lost)


@target.command()
@click.argument("which", metavar="TARGET", type=TARGET)
@click.option("--reason", default="paused by hand", show_default=True, help="The reason that `target ls` shows.")
@with_context_or_url
def pause(context: CommandContext, which: TargetId, reason: str) -> None:
    """Pause deliveries to a target until it is resumed; its events wait."""
    context.chosen.pause(which, reason)
    context.done(f"paused {which}", paused=str(which))


@target.command()
@click.argument("which", metavar="TARGET", type=TARGET)
@with_context_or_url
def resume(context: CommandContext, which: TargetId) -> None:
    """Resume a paused target, and close an unavailable target's circuit breaker."""
    context.chosen.resume(which)
    context.done(f"resumed {which}", resumed=str(which))


@target.command()
@click.argument("which", metavar="TARGET", type=TARGET)
@with_context
def test(context: CommandContext, which: TargetId) -> None:
    """Send a target a test event directly, without the event log, and show each step with its duration.

    A namespace keeps nothing of it; other targets keep one entry, of bucket bucketwire-test and name s3:TestEvent.
    """
    context.registry.settings(context.registry.target(which))
    with context.database.writing() as connection:
        audit.record(connection, "target.test", f"target:{which}", {"events": "sent directly"})
    context.close()
    exec_process([*TARGET_TEST, str(which), *(["--json"] if context.as_json else [])])


def facts(context: CommandContext, stored: StoredTarget) -> dict[str, Any]:
    """Return a target's identity and state."""
    return {
        "target": str(stored.target),
        "arn": stored.target.arn(context.region),
        "state": stored.state,
        "origin": stored.origin,
        "reason": stored.state_reason,
        "opening": stored.opening,
        "opening_reason": stored.opening_reason,
    }


def _settings(context: CommandContext, stored: StoredTarget) -> dict[str, str]:
    try:
        return redacted(stored.target.type, context.chosen.texts(stored))
    except BadSettings:  # sealed with a lost key, or of a type that this version does not know
        return dict.fromkeys(stored.values, REDACTED)
