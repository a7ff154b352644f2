"""`bucketwire source …`: manage the queues that events are pulled from, and the buckets that are listed."""

import sys
from base64 import b64decode
from typing import Any

import click

from app.cli.commands.config import set_keys
from app.cli.context import CommandContext, add_pausing, source_path, with_api
from app.cli.groups import Group
from app.cli_common.context import ServiceContext, pass_context
from app.cli_common.param_types import KEY_VALUE, SOURCE
from app.config.arn import SourceId
from app.quantities import count_noun
from app.resources.source import RejectedMessage, Source

_FACTS = (
    "state", "reason", "origin", "holder", "lag", "pulled_at", "error_at", "resume_at", "notice", "notice_at",
    "rejected_messages",
)  # fmt: skip


@click.group(cls=Group)
def source() -> None:
    """List, show, set, test, remove, pause and resume sources, given as type:name."""


@source.command()
@with_api
def ls(context: CommandContext) -> None:
    """List the sources: their states, and how many messages wait."""
    sources = context.api.get("/v1/sources")["sources"]
    context.rows(sources, Source.columns, "no sources; add one: `bucketwire source set TYPE:NAME KEY=VALUE …`")


@source.command()
@click.argument("which", metavar="SOURCE", type=SOURCE)
@with_api
def show(context: CommandContext, which: SourceId) -> None:
    """Show a source's state, settings, secrets redacted, and positions."""
    shown = context.api.get(source_path(which))
    if context.as_json:
        context.json(shown)
        return
    facts: dict[str, Any] = {"source": str(which), **{name: shown[name] for name in _FACTS}, **shown["counters"]}
    facts |= shown.get("listing", {})
    positions = {f"position {share}": position for share, position in shown["positions"].items()}
    context.facts(facts | shown["settings"] | positions)


@source.command(name="set")
@click.argument("which", metavar="SOURCE", type=SOURCE)
@click.argument("pairs", metavar="KEY=VALUE...", type=KEY_VALUE, nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Check, show what would change, and change nothing.")
@with_api
def set_(context: CommandContext, which: SourceId, pairs: tuple[tuple[str, str], ...], dry_run: bool) -> None:
    """Create or change a source; keys that are left out keep their values, an empty value resets to the default.

    A worker takes it up within seconds.
    """
    set_keys(context, sources={which: dict(pairs)}, dry_run=dry_run, lenient=False)


@source.command()
@click.argument("which", metavar="SOURCE", type=SOURCE)
@click.option("--force", is_flag=True, help="Also delete its rejected messages.")
@with_api
def rm(context: CommandContext, which: SourceId, force: bool) -> None:
    """Remove a source and its positions; what it recorded stays."""
    context.done(f"removed {which}", **context.api.change("DELETE", source_path(which), force=force))


add_pausing(
    source,
    SOURCE,
    source_path,
    pause="Stop pulling from a source until it is resumed; its messages wait in the queue.",
    resume=(
        "Resume a paused source, try a failing one at once, list a bucket now, approve the removals that paused it, or"
        " forget the notice of messages that were lost."
    ),
)


@source.command()
@click.argument("which", metavar="SOURCE", type=SOURCE)
@pass_context(ServiceContext)
def test(context: ServiceContext, which: SourceId) -> None:
    """Connect to a source from this machine, and read the first waiting message without taking it, or list a page."""
    from app.cli.commands.processes import SOURCE_TEST, exec_process  # noqa: PLC0415 - slow; others do not need it

    exec_process([*SOURCE_TEST, str(which), *(["--json"] if context.as_json else [])])


@source.group()
def rejected() -> None:
    """Show, retry and delete the messages of a source that had no valid events."""


@rejected.command(name="ls")
@click.argument("which", metavar="SOURCE", type=SOURCE)
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, 100_000), help="Show at most this many."
)
@with_api
def ls_rejected(context: CommandContext, which: SourceId, limit: int) -> None:
    """List the rejected messages of a source, oldest first."""
    rows = context.api.pages(f"{source_path(which)}/rejected", "rejected", limit=limit)
    context.rows(rows, RejectedMessage.columns, "no rejected messages")


@rejected.command(name="show")
@click.argument("which", metavar="SOURCE", type=SOURCE)
@click.argument("number", metavar="ID", type=click.IntRange(1))
@with_api
def show_rejected(context: CommandContext, which: SourceId, number: int) -> None:
    """Print the body of a rejected message as it was pulled, byte by byte; with --json its headers too."""
    message = context.api.get(f"{source_path(which)}/rejected/{number}")
    if context.as_json:
        context.json(message)
    else:
        sys.stdout.buffer.write(b64decode(message["base64"]))


@rejected.command(name="retry")
@click.argument("which", metavar="SOURCE", type=SOURCE)
@click.argument("ids", metavar="ID...", type=click.IntRange(1), nargs=-1, required=True)
@with_api
def retry_rejected(context: CommandContext, which: SourceId, ids: tuple[int, ...]) -> None:
    """Record the events of rejected messages, after what was recorded meanwhile, and delete the messages."""
    recorded = sum(
        context.api.change("POST", f"{source_path(which)}/rejected/{number}/retry")["recorded"] for number in ids
    )
    context.done(f"{count_noun(recorded, 'event')} recorded", recorded=recorded)


@rejected.command(name="rm")
@click.argument("which", metavar="SOURCE", type=SOURCE)
@click.argument("ids", metavar="[ID]...", type=click.IntRange(1), nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every rejected message of the source.")
@with_api
def rm_rejected(context: CommandContext, which: SourceId, ids: tuple[int, ...], everything: bool) -> None:
    """Delete rejected messages permanently."""
    if everything == bool(ids):
        raise click.UsageError("name the messages, or give --all")
    body: dict[str, Any] = {"all": True} if everything else {"ids": list(ids)}
    answer = context.api.change("POST", f"{source_path(which)}/rejected/delete", body)
    context.done(f"{count_noun(answer['deleted'], 'message')} deleted", **answer)
