"""`bucketwire target …`: manage targets, one at a time."""

import click

from app.api import Refused
from app.cli.commands.config import remove_target, set_keys
from app.cli.commands.rules import rule_columns
from app.cli.context import CommandContext, add_pausing, target_name, target_path, with_api
from app.cli.groups import Group
from app.cli_common import CommandError
from app.cli_common.context import ServiceContext, pass_context
from app.cli_common.output import printable, step_line
from app.cli_common.param_types import KEY_VALUE, TARGET
from app.config.arn import TargetId
from app.config.declared_types import settings_type
from app.config.fields.fields import names_of
from app.quantities import count_noun
from app.resources.target import Target

_FACTS = {"ARN": "arn", "state": "state", "reason": "reason", "mode": "mode", "from": "origin"}  # by their headers


@click.group(cls=Group)
def target() -> None:
    """List, show, set, test, remove, pause and resume targets.

    A target is given as type:name or as an ARN.
    """


@target.command()
@with_api
def ls(context: CommandContext) -> None:
    """List the targets and their states; `bucketwire status` shows their counters."""
    targets = context.api.get("/v1/targets", brief=True)["targets"]
    context.rows(targets, Target.columns, "no targets; add one: `bucketwire target set TYPE:NAME KEY=VALUE …`")


@target.command()
@click.argument("which", metavar="TARGET", type=TARGET)
@with_api
def show(context: CommandContext, which: TargetId) -> None:
    """Show a target's settings, secrets redacted, and the rules that name it."""
    target = context.api.get(target_path(which))
    rules = [rule for rule in context.api.get("/v1/rules")["rules"] if rule["target"] == target["arn"]]
    if context.as_json:
        context.json(target | {"rules": rules})
        return
    facts = {"target": target_name(target), **{header: target[name] for header, name in _FACTS.items()}}
    facts |= {"opening": target["opening"]["state"], "opening reason": target["opening"]["reason"]}
    context.facts({name: value for name, value in facts.items() if value} | target["settings"])
    click.echo()
    columns = rule_columns(rules, without="target")
    context.rows(rules, columns, "no rule names it, so it gets no events; add one: `bucketwire rule add`")


@target.command(name="set")
@click.argument("which", metavar="TARGET", type=TARGET)
@click.argument("pairs", metavar="KEY=VALUE...", type=KEY_VALUE, nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Check, show what would change, and change nothing.")
@click.option(
    "--test", is_flag=True, help="Before, send a test event with these settings; if it fails, change nothing."
)
@with_api
def set_(
    context: CommandContext, which: TargetId, pairs: tuple[tuple[str, str], ...], dry_run: bool, test: bool
) -> None:
    """Create or change a target; keys that are left out keep their values, an empty value resets to the default."""
    if test:
        _test_settings(context, which, dict(pairs))
    set_keys(context, {which: {"enable": "on"} | dict(pairs)}, dry_run=dry_run, lenient=False)


def _test_settings(context: CommandContext, which: TargetId, pairs: dict[str, str]) -> None:
    """Send a test event with the stored settings and these; print each step. Raises `CommandError` if one fails."""
    try:
        stored = context.api.get(target_path(which))["settings"]
    except Refused as refused:
        if refused.kind != "unknown-target":
            raise
        stored = {}
    names = names_of(settings_type(which.type))
    stored = {names.get(name, name): text for name, text in stored.items()}
    changed = {names.get(name, name): text for name, text in pairs.items()}
    settings = {name: text for name, text in (stored | changed).items() if text}
    tested = context.api.change("POST", f"{target_path(which)}/test-settings", settings)
    for step in tested["steps"]:
        line = step_line(step["step"], printable(step["message"]), ok=step["ok"], seconds=step["seconds"])
        click.echo(line, err=context.as_json)
    if not tested["ok"]:
        raise CommandError(f"{which} did not accept the test event; nothing was changed")


@target.command()
@click.argument("which", metavar="TARGET", type=TARGET)
@click.option("--force", is_flag=True, help="Also delete its rules, undelivered events and dead letters.")
@with_api
def rm(context: CommandContext, which: TargetId, force: bool) -> None:
    """Remove a target; refused while rules name it or events wait for it."""
    remove_target(context, which, force=force)


add_pausing(
    target,
    TARGET,
    target_path,
    pause="Pause deliveries to a target until it is resumed; its events wait.",
    resume="Resume a paused or unavailable target, and try its retried events at once.",
)


@target.command()
@click.argument("which", metavar="TARGET", type=TARGET)
@with_api
def acknowledge(context: CommandContext, which: TargetId) -> None:
    """End the warning of events that were discarded for a target; later ones are reported again.

    `bucketwire event search --state discarded --target TARGET` lists those that the log still has.
    """
    before = context.api.get(target_path(which))
    discarded = before["events"]["discarded"]
    answer = context.api.change("POST", f"{target_path(which)}/acknowledge", {"discarded": discarded})
    count = count_noun(discarded - before["acknowledged_discards"], "discarded event")
    context.done(f"{which}: {count} acknowledged", **answer)


@target.command()
@click.argument("which", metavar="TARGET", type=TARGET)
@pass_context(ServiceContext)
def test(context: ServiceContext, which: TargetId) -> None:
    """Send a target a test event directly, without the event log, and show each step with its duration.

    A namespace keeps nothing of it; other targets keep one entry, of bucket bucketwire-test and name s3:TestEvent.
    """
    from app.cli.commands.processes import TARGET_TEST, exec_process  # noqa: PLC0415 - slow; others do not need it
    from app.outbox import audit  # noqa: PLC0415 - as above

    context.registry.settings(context.registry.target(which))
    audit.record_alone(context.database, "target.test", f"target:{which}", {"events": "sent directly"})
    context.close()
    exec_process([*TARGET_TEST, str(which), *(["--json"] if context.as_json else [])])
