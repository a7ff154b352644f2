"""`bucketwire import minio`: import the rules and undelivered events of a MinIO."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from app.cli.commands.declaration import format_rule
from app.cli.context import CommandContext, with_api
from app.cli.groups import Group
from app.cli_common import CommandError
from app.cli_common.context import ServiceContext
from app.cli_common.output import printable, progress
from app.config.arn import TargetId
from app.events.buckets import TENANT_HINT, is_fixed, is_tenant, name_in
from app.events.model import Event
from app.minio_queue_dir import QueueFile, files, read
from app.outbox.admin.counters import read_counters
from app.outbox.engine.many_rows import chunks
from app.outbox.log.append import QueueFull
from app.outbox.log.group_commit import Recorder
from app.outbox.log.routing import Routing
from app.quantities import count_noun
from app.rules.matching import compile_rules
from app.rules.model import Rule, problems_of

_BATCH = 500  # events of one commit


@click.group(name="import", cls=Group)
def import_() -> None:
    """Import rules and events of another notifier."""


@import_.command()
@click.option(
    "--queue-dir",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Import the undelivered events in MinIO's queue_dir, or in the folder of one target in it.",
)
@click.option("--from", "endpoint", metavar="URL", help="Import the rules of every bucket of the MinIO at this URL.")
@click.option("--access-key", envvar="AWS_ACCESS_KEY_ID", help="For --from; or AWS_ACCESS_KEY_ID.")
@click.option("--region", default="us-east-1", show_default=True, help="For --from: the server's region.")
@click.option("--ca", default="", help="For --from: PEM file of the only authorities to trust.")
@click.option("--skip-unknown", is_flag=True, help="For --from: skip rules whose target does not exist here.")
@click.option("--tenant", default="", help="Whose buckets they are, as of the token with which this MinIO posts.")
@click.option("--remove", is_flag=True, help="For --queue-dir: remove each file once its events are recorded.")
@click.option("--dry-run", is_flag=True, help="Check, show what would be imported, and change nothing.")
@with_api
def minio(
    context: CommandContext, folder: Path | None, endpoint: str | None, access_key: str | None, region: str, ca: str,
    skip_unknown: bool, tenant: str, remove: bool, dry_run: bool,
) -> None:  # fmt: skip
    """Import from MinIO: first the rules of its buckets (--from), then its undelivered events (--queue-dir).

    The secret key of --from is read from AWS_SECRET_ACCESS_KEY or prompted for. Importing again changes nothing.
    """
    if (folder is None) == (endpoint is None):
        raise click.UsageError("give --from URL to import rules, or --queue-dir DIR to import events")
    if tenant and not (is_tenant(tenant) and is_fixed(tenant)):
        raise click.UsageError(f"--tenant {tenant[:64]!r} cannot be a tenant: {TENANT_HINT}")
    if endpoint is not None:
        _copy_rules(
            context, endpoint, access_key, region, ca, tenant=tenant, skip_unknown=skip_unknown, dry_run=dry_run
        )
    elif folder is not None:
        if context.url:
            raise click.UsageError("--queue-dir records events in this machine's outbox; leave out --url")
        with closing(ServiceContext(as_json=context.as_json)) as service:
            clean = _import_events(service, folder, tenant=tenant, remove=remove, dry_run=dry_run)
        click.get_current_context().exit(0 if clean else 1)


def _copy_rules(
    context: CommandContext,
    endpoint: str,
    access_key: str | None,
    region: str,
    ca: str,
    *,
    tenant: str,
    skip_unknown: bool,
    dry_run: bool,
) -> None:
    from app.minio_rules import MinioUnreachable, bucket_rules  # noqa: PLC0415 - loads botocore: 0.1 s

    access_key = access_key or click.prompt("access key", err=True)
    secret_key = os.environ.get("AWS_SECRET_ACCESS_KEY") or click.prompt("secret key", hide_input=True, err=True)
    try:
        results = list(bucket_rules(endpoint, str(access_key), str(secret_key), region=region, ca=ca))
    except MinioUnreachable as error:
        raise CommandError(str(error)) from None
    skipped = [f"{result[0]}: {result[1]}" for result in results if not isinstance(result, Rule)]
    copied = [result for result in results if isinstance(result, Rule)]
    if tenant:
        copied = [replace(rule, bucket=name_in(tenant, rule.bucket)) for rule in copied]
    rules, invalid = _usable(copied)
    skipped += invalid
    known = {
        TargetId(target["type"], target["name"]) for target in context.api.get("/v1/targets", brief=True)["targets"]
    }
    unknown = sorted({rule.target for rule in rules} - known)
    if unknown and not skip_unknown:
        raise CommandError(
            f"rules name targets that do not exist here: {', '.join(map(str, unknown))}; set them "
            "(`bucketwire config set`, `config import`, MINIO_NOTIFY_… variables), or add --skip-unknown"
        )
    skipped += [
        f"{rule.bucket}: skipped its rule for {rule.target}, which does not exist here"
        for rule in rules
        if rule.target in unknown
    ]
    importable = tuple(rule for rule in rules if rule.target in known)
    added = []
    for part in chunks(importable):
        body = {"rules": [_declared(rule) for rule in part]}
        added += context.api.change("POST", "/v1/declaration", body, dry_run=dry_run)["rules_added"]
    if context.as_json:
        context.json({"dry_run": dry_run, "rules": len(importable), "added": added, "left_out": skipped})
        return
    for rule in added:
        click.echo(f"+ rule: {printable(format_rule(rule))}")
    for line in skipped:
        click.echo(printable(line), err=True)
    existing = count_noun(len(importable) - len(added), "rule")
    click.echo(f"{count_noun(len(added), 'rule')} {'to add' if dry_run else 'added'}, {existing} already present")


def _declared(rule: Rule) -> dict[str, Any]:
    return {
        "bucket": rule.bucket, "events": rule.events, "prefix": rule.prefix, "suffix": rule.suffix,
        "target": str(rule.target), "id": rule.rule_id, **rule.filters.members,
    }  # fmt: skip


def _usable(rules: Sequence[Rule]) -> tuple[list[Rule], list[str]]:
    """Return the rules that can be stored here, and why each of the others, which MinIO allows, cannot."""
    usable, problems = [], []
    for rule in rules:
        reasons = [str(problem) for problem in problems_of(rule)]
        if reasons:
            name = f"rule {rule.rule_id}" if rule.rule_id else f"a rule for {rule.target}"
            problems.append(f"{rule.bucket}: left out its {name}: {'; '.join(reasons)}")
        elif rule not in usable:
            usable.append(rule)
    return usable, problems


def _import_events(context: ServiceContext, folder: Path, *, tenant: str, remove: bool, dry_run: bool) -> bool:
    """Record the events in MinIO's files; return whether all could be.

    The files are read twice: first to check that every queue has room, then to record the events.
    """
    paths = files(folder)
    routing = _routing(context)
    deliveries: Counter[TargetId] = Counter()
    events = unnamed = empty = 0
    problems: list[dict[str, str]] = []
    # File times can be equal, and MinIO writes several files at a time, so the order comes from the events themselves.
    order: list[tuple[int, str, int, Path]] = []
    for file in progress(context, "checking", read(paths, tenant), len(paths)):
        empty += file.empty
        problems += [{"file": str(file.path), "problem": problem} for problem in file.problems]
        if file.events:
            order.append((file.events[0].time, file.events[0].sequencer, len(order), file.path))
        for event in file.events:
            targets = routing.targets(event)
            events += 1
            unnamed += not targets
            deliveries.update(routing.ids[target] for target in targets)
    _check_queue_limits(context, deliveries)
    facts: dict[str, Any] = {
        "dry_run": dry_run, "files": len(paths), "events": events, "recorded": 0, "repeated": 0,
        "not_named_by_rules": unnamed, "empty_files": empty, "problems": problems, "removed_files": 0,
    }  # fmt: skip
    if not dry_run:
        ordered = [path for *_, path in sorted(order)]
        found = progress(context, "recording", read(ordered, tenant), len(ordered))
        _record(context, routing, found, facts, remove=remove)
    if context.as_json:
        context.json(facts)
    else:
        _print_summary(facts)
    return not (problems or unnamed)


def _routing(context: ServiceContext) -> Routing:
    ids = {row.row_id: row.target for row in context.registry.targets() if row.enabled}
    rows = {target: row_id for row_id, target in ids.items()}
    rules = [(row.rule, rows[row.rule.target]) for row in context.registry.rules() if row.rule.target in rows]
    return Routing(0, ids, {}, frozenset(), compile_rules(rules))


def _check_queue_limits(context: ServiceContext, deliveries: Counter[TargetId]) -> None:
    """Fail before anything is recorded if a target would exceed its queue_limit: its events would be discarded."""
    with context.database.snapshot() as connection:
        waiting = {counters.target: counters.undelivered for counters in read_counters(connection, oldest=False)}
    for target, count in deliveries.items():
        limit = context.registry.settings(context.registry.target(target)).effective_queue_limit
        if limit is not None and waiting.get(target, 0) + count > limit:
            raise CommandError(
                f"{target} would have {waiting.get(target, 0) + count} undelivered events, and its queue_limit is "
                f"{limit}: raise it, or wait until its events are delivered"
            )


def _record(
    context: ServiceContext, routing: Routing, queue_files: Iterator[QueueFile], facts: dict[str, Any], *, remove: bool
) -> None:
    recorder = Recorder(context.database)
    batch: list[QueueFile] = []
    for file in queue_files:
        batch.append(file)
        if sum(len(queued.events) for queued in batch) >= _BATCH:
            _commit(recorder, routing, batch, facts, remove=remove)
            batch = []
    _commit(recorder, routing, batch, facts, remove=remove)


def _commit(
    recorder: Recorder, routing: Routing, batch: Sequence[QueueFile], facts: dict[str, Any], *, remove: bool
) -> None:
    """Record the events that match rules. The others stay in their files: once recorded they would never be routed."""
    events: list[Event] = [event for file in batch for event in file.events if routing.targets(event)]
    receipts, refused = recorder.record_most(events, promised=True)
    reasons = {event.id: reason for event, reason in refused}
    for receipt in receipts:
        if isinstance(receipt, QueueFull):
            raise CommandError(f"the queue is full: {', '.join(map(str, receipt.targets))}; raise its queue_limit")
        facts["recorded"] += receipt.recorded
        facts["repeated"] += receipt.repeated
        if receipt.discarded:
            full = ", ".join(f"{target} ({count})" for target, count in receipt.discarded.items())
            raise CommandError(f"the queue became full during the import; events were discarded for {full}")
    for file in batch:
        refusals = [reasons[event.id] for event in file.events if event.id in reasons]
        facts["problems"] += [
            {"file": str(file.path), "problem": f"the outbox database refuses one of its events: {reason}"}
            for reason in refusals
        ]
        if refusals:
            continue
        if remove and file.events and not file.problems and all(map(routing.targets, file.events)):
            file.path.unlink(missing_ok=True)
            facts["removed_files"] += 1


def _print_summary(facts: dict[str, Any]) -> None:
    for problem in facts["problems"]:
        click.echo(printable(f"{problem['file']}: {problem['problem']}"), err=True)
    click.echo(f"{count_noun(facts['events'], 'event')} in {count_noun(facts['files'], 'file')}")
    if facts["empty_files"]:
        click.echo(f"{count_noun(facts['empty_files'], 'empty file')}")
    if facts["not_named_by_rules"]:
        click.echo(
            f"{count_noun(facts['not_named_by_rules'], 'event')} skipped: no rule matches; "
            "add rules (`bucketwire rule add` or `import minio --from`), then run this again",
            err=True,
        )
    if facts["dry_run"]:
        click.echo("nothing was changed: --dry-run")
        return
    click.echo(f"{facts['recorded']} recorded, {facts['repeated']} already known")
    if facts["removed_files"]:
        click.echo(f"{count_noun(facts['removed_files'], 'file')} removed")
