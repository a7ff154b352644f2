"""`bucketwire import minio`: rules and undelivered events of a MinIO, taken over."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from app.cli.commands.apply import rule_words
from app.cli.context import CommandContext, with_context
from app.cli_common.errors import CommandError
from app.cli_common.output import count_noun, printable, progress
from app.config.arn import TargetId
from app.events.model import Event
from app.manifest.document import Manifest
from app.minio_import.queue_dir import QueueFile, files, read
from app.outbox.delivery.counters import read_counters, snapshot
from app.outbox.log.append import QueueFull
from app.outbox.log.recorder import Recorder
from app.outbox.log.routing import Routing
from app.rules.matching import compile_rules
from app.rules.model import Rule

_BATCH = 500  # events of one commit


@click.group(name="import")
def import_() -> None:
    """Take over what another notifier has."""


@import_.command()
@click.option(
    "--queue-dir",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Take the undelivered events in MinIO's queue_dir, or in the folder of one target in it.",
)
@click.option("--from", "endpoint", metavar="URL", help="Copy the rules of every bucket of the MinIO at this address.")
@click.option("--access-key", envvar="AWS_ACCESS_KEY_ID", help="For --from; or AWS_ACCESS_KEY_ID.")
@click.option("--region", default="us-east-1", show_default=True, help="For --from: the server's region.")
@click.option("--ca", default="", help="For --from: a PEM file of the only authorities to trust.")
@click.option("--skip-unknown", is_flag=True, help="For --from: leave out rules whose target is not set here.")
@click.option("--remove", is_flag=True, help="For --queue-dir: remove each file once its events are recorded.")
@click.option("--dry-run", is_flag=True, help="Look and tell, and change nothing.")
@with_context
def minio(
    context: CommandContext, folder: Path | None, endpoint: str | None, access_key: str | None, region: str, ca: str,
    skip_unknown: bool, remove: bool, dry_run: bool,
) -> None:  # fmt: skip
    """Take over from MinIO: first the rules of its buckets, then the events that its targets have not got yet.

    The secret key of --from is asked for, or taken from AWS_SECRET_ACCESS_KEY. Doing it again changes nothing.
    """
    if (folder is None) == (endpoint is None):
        raise click.UsageError("say what: --from URL for rules, --queue-dir DIR for events")
    if endpoint is not None:
        _copy_rules(context, endpoint, access_key, region, ca, skip_unknown=skip_unknown, dry_run=dry_run)
    elif folder is not None:
        _take_events(context, folder, remove=remove, dry_run=dry_run)


def _copy_rules(
    context: CommandContext,
    endpoint: str,
    access_key: str | None,
    region: str,
    ca: str,
    *,
    skip_unknown: bool,
    dry_run: bool,
) -> None:
    from app.minio_import.live import MinioUnreachable, bucket_rules  # noqa: PLC0415 - loads botocore: 0.1 s

    access_key = access_key or click.prompt("access key", err=True)
    secret_key = os.environ.get("AWS_SECRET_ACCESS_KEY") or click.prompt("secret key", hide_input=True, err=True)
    try:
        found = list(bucket_rules(endpoint, str(access_key), str(secret_key), region=region, ca=ca))
    except MinioUnreachable as error:
        raise CommandError(str(error)) from None
    left = [f"{each[0]}: {each[1]}" for each in found if not isinstance(each, Rule)]
    rules = [each for each in found if isinstance(each, Rule)]
    known = {each.target for each in context.registry.targets()}
    unknown = sorted({rule.target for rule in rules} - known)
    if unknown and not skip_unknown:
        raise CommandError(
            f"rules there name targets that are not set here: {', '.join(map(str, unknown))}; set them "
            "(`bucketwire config set`, `config import`, MINIO_NOTIFY_… variables), or add --skip-unknown"
        )
    left += [
        f"{rule.bucket}: its rule for {rule.target} is left out, which is not set here"
        for rule in rules
        if rule.target in unknown
    ]
    wanted = tuple(rule for rule in rules if rule.target in known)
    plan = context.apply(Manifest({}, wanted), dry_run=dry_run)
    added = plan["rules_added"]
    if context.as_json:
        context.json({"dry_run": dry_run, "rules": len(wanted), "added": added, "left_out": left})
        return
    for rule in added:
        click.echo(f"+ rule: {printable(rule_words(rule))}")
    for line in left:
        click.echo(printable(line), err=True)
    there = count_noun(len(wanted) - len(added), "rule")
    click.echo(f"{count_noun(len(added), 'rule')} {'to add' if dry_run else 'added'}, {there} there already")


def _take_events(context: CommandContext, folder: Path, *, remove: bool, dry_run: bool) -> None:
    """Two readings: the first finds out whether everything has its place, the second records it."""
    paths = files(folder)
    routing = _routing(context)
    wanted: Counter[TargetId] = Counter()
    events = unnamed = empty = 0
    problems: list[dict[str, str]] = []
    # File times tie, and MinIO writes several files at a time: the events themselves know better which came first.
    order: list[tuple[int, str, int, Path]] = []
    for found in progress(context, "looking", read(paths), len(paths)):
        empty += found.empty
        problems += [{"file": str(found.path), "problem": problem} for problem in found.problems]
        if found.events:
            order.append((found.events[0].time, found.events[0].sequencer, len(order), found.path))
        for event in found.events:
            targets = routing.targets(event)
            events += 1
            unnamed += not targets
            wanted.update(routing.ids[target] for target in targets)
    _check_room(context, wanted)
    facts: dict[str, Any] = {
        "dry_run": dry_run, "files": len(paths), "events": events, "recorded": 0, "repeated": 0,
        "not_named_by_rules": unnamed, "empty_files": empty, "problems": problems, "removed_files": 0,
    }  # fmt: skip
    if not dry_run:
        ordered = [path for *_, path in sorted(order)]
        _record(context, routing, progress(context, "recording", read(ordered), len(ordered)), facts, remove=remove)
    if context.as_json:
        context.json(facts)
    else:
        _tell(facts)
    click.get_current_context().exit(1 if problems or unnamed else 0)


def _routing(context: CommandContext) -> Routing:
    ids = {each.row_id: each.target for each in context.registry.targets() if each.enabled}
    rows = {target: row_id for row_id, target in ids.items()}
    rules = [(each.rule, rows[each.rule.target]) for each in context.registry.rules() if each.rule.target in rows]
    return Routing(0, ids, {}, frozenset(), compile_rules(rules))


def _check_room(context: CommandContext, wanted: Counter[TargetId]) -> None:
    """Refuse before anything is recorded if a queue would overflow: its events would be discarded."""
    with snapshot(context.database) as connection:
        waiting = {each.target: each.pending + each.parked for each in read_counters(connection)}
    for target, count in wanted.items():
        limit = context.registry.settings(context.registry.target(target)).effective_queue_limit
        if limit is not None and waiting.get(target, 0) + count > limit:
            raise CommandError(
                f"{target} would have {waiting.get(target, 0) + count} undelivered events, and its queue_limit is "
                f"{limit}: raise it, or let what waits be delivered first"
            )


def _record(
    context: CommandContext, routing: Routing, found: Iterator[QueueFile], facts: dict[str, Any], *, remove: bool
) -> None:
    recorder = Recorder(context.database)
    batch: list[QueueFile] = []
    for each in found:
        batch.append(each)
        if sum(len(one.events) for one in batch) >= _BATCH:
            _commit(recorder, routing, batch, facts, remove=remove)
            batch = []
    _commit(recorder, routing, batch, facts, remove=remove)


def _commit(
    recorder: Recorder, routing: Routing, batch: Sequence[QueueFile], facts: dict[str, Any], *, remove: bool
) -> None:
    """Record what rules name. The rest stays where it is: in the log it would be known, and go nowhere for ever."""
    events: list[Event] = [event for each in batch for event in each.events if routing.targets(event)]
    receipts, refused = recorder.record_most(events, promised=True)
    lost = {event.id: reason for event, reason in refused}
    for receipt in receipts:
        if isinstance(receipt, QueueFull):
            raise CommandError(f"the queue is full: {', '.join(map(str, receipt.targets))}; raise its queue_limit")
        facts["recorded"] += receipt.recorded
        facts["repeated"] += receipt.repeated
        if receipt.discarded:
            full = ", ".join(f"{target} ({count})" for target, count in receipt.discarded.items())
            raise CommandError(f"other events came meanwhile and the queue is full, which discarded events of {full}")
    for each in batch:
        refusals = [lost[event.id] for event in each.events if event.id in lost]
        facts["problems"] += [
            {"file": str(each.path), "problem": f"the outbox database refuses an event of it: {reason}"}
            for reason in refusals
        ]
        if refusals:
            continue
        if remove and each.events and not each.problems and all(map(routing.targets, each.events)):
            each.path.unlink(missing_ok=True)
            facts["removed_files"] += 1


def _tell(facts: dict[str, Any]) -> None:
    for each in facts["problems"]:
        click.echo(printable(f"{each['file']}: {each['problem']}"), err=True)
    click.echo(f"{count_noun(facts['events'], 'event')} in {count_noun(facts['files'], 'file')}")
    if facts["empty_files"]:
        click.echo(f"{count_noun(facts['empty_files'], 'file')} hold nothing")
    if facts["not_named_by_rules"]:
        click.echo(
            f"{count_noun(facts['not_named_by_rules'], 'event')} left where they are: no rule names a target for them; "
            "`bucketwire event add` or `import minio --from` makes rules, then do this again",
            err=True,
        )
    if facts["dry_run"]:
        click.echo("nothing was changed: --dry-run")
        return
    click.echo(f"{facts['recorded']} recorded, {facts['repeated']} known already")
    if facts["removed_files"]:
        click.echo(f"{count_noun(facts['removed_files'], 'file')} removed")
