"""`bucketwire watch`: events as they come."""

import time
from typing import Any

import click
import orjson

from app.cli.commands.rules import names
from app.cli.context import CommandContext, with_context
from app.cli_common.output import printable
from app.cli_common.param_types import TIME, iso
from app.config.arn import TargetId
from app.events.names import EVERY
from app.outbox.log.log_reader import LogReader
from app.rules.matching import compile_rules
from app.rules.model import EVERY_BUCKET, Rule, check

_PERIOD = 0.25  # seconds between two looks at the log's head, one row
_NOBODY = TargetId("webhook", "watch")  # a rule has a target; here only whether it matches counts


@click.command()
@click.argument("bucket", default=EVERY_BUCKET)
@click.option("--event", "given", default=EVERY, help="put, delete, get, …, or event names, divided by commas.")
@click.option("--prefix", default="", help="Only objects whose key begins so.")
@click.option("--suffix", default="", help="Only objects whose key ends so.")
@click.option("--since", type=TIME, help="First those received since then, such as 2h or 2026-11-21T14:00:00Z.")
@click.option("--count", type=click.IntRange(1), help="End after so many; Ctrl-C ends it anyway.")
@with_context
def watch(
    context: CommandContext, bucket: str, given: str, prefix: str, suffix: str, since: int | None, count: int | None
) -> None:
    """Print the events of BUCKET, or of every bucket, as they are recorded, whatever becomes of them.

    With --json each is a line: when it was received, its id, name, bucket, key and its whole record.
    """
    rule = Rule(bucket=bucket, events=names(given), target=_NOBODY, prefix=prefix, suffix=suffix)
    check([rule])
    matcher = compile_rules([(rule, True)])
    follower = LogReader(context.database, since or 0)
    left = count
    while left is None or left > 0:
        found = follower.read()
        for event in found:
            if left != 0 and matcher.targets(event.bucket, event.name, event.key):
                _show(context, event)
                left = left and left - 1
        if not found:
            time.sleep(_PERIOD)


def _show(context: CommandContext, event: Any) -> None:
    received = iso(event.received_at)
    if not context.as_json:
        click.echo(printable(f"{received}  {event.name}  {event.bucket}/{event.key}"))
        return
    line = {
        "received_at": received, "id": event.id, "name": event.name, "bucket": event.bucket, "key": event.key,
        "record": orjson.Fragment(event.record),
    }  # fmt: skip
    click.echo(orjson.dumps(line).decode())
