"""`bucketwire target …`: the targets, one at a time."""

from typing import Any

import click

from app.cli.config import change, put_all
from app.cli.run import TRIAL, become
from app.cli.shell import Shell, anywhere, printable, with_shell
from app.cli.words import TARGET
from app.config.arn import TargetId
from app.config.target_settings import REDACTED, BadSettings, redacted
from app.outbox.registry import StoredTarget


@click.group()
def target() -> None:
    """List, show, set, test, remove, pause and resume targets, given as type:name or as an ARN."""


@target.command()
@anywhere
def ls(shell: Shell) -> None:
    """List the targets and whether they get events; `bucketwire status` shows how many."""
    rows = [facts(shell, stored) for stored in shell.chosen.targets()]
    columns = {"target": "target", "ARN": "arn", "state": "state", "from": "origin", "reason": "reason"}
    shell.rows(rows, columns, "no targets; `bucketwire target set TYPE:NAME KEY=VALUE …` makes one")


@target.command()
@click.argument("which", metavar="TARGET", type=TARGET)
@anywhere
def show(shell: Shell, which: TargetId) -> None:
    """Show a target's settings, secrets left out, and the rules that name it."""
    stored = shell.chosen.target(which)
    rules = [
        {"number": rule.row_id, "bucket": rule.rule.bucket, "events": list(rule.rule.events),
         "prefix": rule.rule.prefix, "suffix": rule.rule.suffix}
        for rule in shell.chosen.rules() if rule.rule.target == which
    ]  # fmt: skip
    found = facts(shell, stored)
    if shell.as_json:
        shell.json(found | {"settings": _settings(shell, stored), "rules": rules})
        return
    for name, value in (found | _settings(shell, stored)).items():
        click.echo(f"{name:>20}  {printable(str(value))}")
    columns = {"rule": "number", "bucket": "bucket", "events": "events", "prefix": "prefix", "suffix": "suffix"}
    shell.rows(rules, columns, "no rule names it: it gets nothing; `bucketwire event add` makes one")


@target.command(name="set")
@click.argument("which", metavar="TARGET", type=TARGET)
@click.argument("pairs", metavar="KEY=VALUE...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Check, show what would change, and change nothing.")
@anywhere
def set_(shell: Shell, which: TargetId, pairs: tuple[str, ...], dry_run: bool) -> None:
    """Make a target or change settings of one; keys that are left out stay, an empty value is the default."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, divider, value = pair.partition("=")
        if not divider:
            raise click.UsageError(f"{pair!r} is no KEY=VALUE")
        values[key] = value
    put_all(shell, [change(shell, which, {"enable": "on"} | values)], dry_run=dry_run)


@target.command()
@click.argument("which", metavar="TARGET", type=TARGET)
@click.option("--force", is_flag=True, help="Also with its rules, its undelivered events and its dead letters.")
@anywhere
def rm(shell: Shell, which: TargetId, force: bool) -> None:
    """Remove a target; refused while rules name it or events wait for it."""
    lost = shell.chosen.remove(which, force=force)
    said = " with what it had: ".join(filter(None, (f"removed {which}", ", ".join(lost))))
    shell.done(said, removed=str(which), lost=lost)


@target.command()
@click.argument("which", metavar="TARGET", type=TARGET)
@click.option("--reason", default="paused by hand", show_default=True, help="What `target ls` shows.")
@anywhere
def pause(shell: Shell, which: TargetId, reason: str) -> None:
    """Deliver nothing to a target until it is resumed; its events wait."""
    shell.chosen.pause(which, reason)
    shell.done(f"paused {which}", paused=str(which))


@target.command()
@click.argument("which", metavar="TARGET", type=TARGET)
@anywhere
def resume(shell: Shell, which: TargetId) -> None:
    """End a pause, and the wait for a target that was away."""
    shell.chosen.resume(which)
    shell.done(f"resumed {which}", resumed=str(which))


@target.command()
@click.argument("which", metavar="TARGET", type=TARGET)
@with_shell
def test(shell: Shell, which: TargetId) -> None:
    """Send a target a marked test event, past the log, and show each step with its time.

    A namespace keeps nothing of it; elsewhere one entry stays, of bucket bucketwire-test and name s3:TestEvent.
    """
    shell.registry.settings(shell.registry.target(which))
    shell.close()
    become([*TRIAL, str(which), *(["--json"] if shell.as_json else [])])


def facts(shell: Shell, stored: StoredTarget) -> dict[str, Any]:
    """What a target is and how it stands."""
    state, reason = stored.standing
    return {
        "target": str(stored.target),
        "arn": stored.target.arn(shell.region),
        "state": state,
        "origin": stored.origin,
        "reason": reason,
    }


def _settings(shell: Shell, stored: StoredTarget) -> dict[str, str]:
    try:
        return redacted(stored.target.type, shell.chosen.texts(stored))
    except BadSettings:  # sealed with a key that is gone, or of a type that this version does not know
        return dict.fromkeys(stored.values, REDACTED)
