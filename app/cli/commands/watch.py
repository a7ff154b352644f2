"""`bucketwire watch`: print events as they are recorded."""

import time
from typing import Any

import click
import orjson

from app.cli.commands.rules import names
from app.cli_common.context import ServiceContext, pass_context
from app.cli_common.output import printable
from app.cli_common.param_types import TIME, complete_events
from app.config.arn import TargetId
from app.events.names import EVERY
from app.outbox.log.reading import LogReader
from app.resources.declaration import format_time
from app.rules.matching import compile_rules
from app.rules.model import EVERY_BUCKET, Rule, check

_PERIOD = 0.25  # seconds between two queries of the log's head, one row
_NO_TARGET = TargetId("webhook", "watch")  # a rule needs a target; only its filter is used


@click.command()
@click.argument("bucket", default=EVERY_BUCKET)
@click.option(
    "--event",
    "event_words",
    default=EVERY,
    shell_complete=complete_events,
    help="put, delete, get, …, or event names, comma-separated.",
)
@click.option("--prefix", default="", help="Only objects whose key has this prefix.")
@click.option("--suffix", default="", help="Only objects whose key has this suffix.")
@click.option(
    "--since", type=TIME, help="Begin with events received since this time, such as 2h or 2026-11-21T14:00:00Z."
)
@click.option("--count", type=click.IntRange(1), help="Stop after this many events. [default: until Ctrl-C]")
@pass_context(ServiceContext)
def watch(
    context: ServiceContext,
    bucket: str,
    event_words: str,
    prefix: str,
    suffix: str,
    since: int | None,
    count: int | None,
) -> None:
    """Print the events of BUCKET, or of every bucket, as they are recorded, delivered or not.

    With --json each event is one line: received_at, id, event, bucket, key and the record.
    """
    rule = Rule(bucket=bucket, events=names(event_words), target=_NO_TARGET, prefix=prefix, suffix=suffix)
    check([rule])
    matcher = compile_rules([(rule, True)])
    reader = LogReader(context.database, since or 0)
    left = count
    while left is None or left > 0:
        batch = reader.read()
        for event in batch:
            if left != 0 and matcher.targets(event.bucket, event.name, event.key):
                _show(context, event)
                left = left and left - 1
        if not batch:
            time.sleep(_PERIOD)


def _show(context: ServiceContext, event: Any) -> None:
    received = format_time(event.received_at)
    if not context.as_json:
        click.echo(printable(f"{received}  {event.name}  {event.bucket}/{event.key}"))
        return
    line = {
        "received_at": received, "id": event.id, "event": event.name, "bucket": event.bucket, "key": event.key,
        "record": orjson.Fragment(event.record),
    }  # fmt: skip
    click.echo(orjson.dumps(line).decode())
