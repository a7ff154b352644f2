"""`bucketwire watch`: print events as they are recorded; and `sample`: those that the sample target has received."""

import time
from typing import Any

import click
import orjson

from app.cli.commands.rules import names
from app.cli_common import CommandError
from app.cli_common.context import ServiceContext, pass_context
from app.cli_common.output import printable
from app.cli_common.param_types import TIME, complete_events
from app.config.arn import TargetId
from app.events.names import EVERY
from app.outbox.declared import UnknownTarget
from app.outbox.log.reading import LogReader
from app.resources.declaration import format_time
from app.rules.matching import compile_rules
from app.rules.model import EVERY_BUCKET, Rule, check
from app.supervisor import embedded_redis
from app.supervisor.start import SAMPLE

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


@click.command()
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1, 10_000), help="Show this many of the last events."
)
@pass_context(ServiceContext)
def sample(context: ServiceContext, limit: int) -> None:
    """Show the last events of the sample target: a list on the embedded Redis, which a restart empties."""
    if not context.settings.embedded_broker:
        raise CommandError("the sample target is on the embedded Redis, and BUCKETWIRE_BROKER_URL names another broker")
    try:
        context.registry.target(SAMPLE)
    except UnknownTarget:
        raise CommandError(
            "there is no sample target; the first `bucketwire up` creates it if there is no other target"
        ) from None
    try:
        entries = embedded_redis.sample(context.settings, limit)
    except embedded_redis.RedisNotResponding as error:
        mend = "start `bucketwire up`, or restart it if it runs"
        raise CommandError(f"the embedded Redis does not answer: {error}; {mend}") from None
    rows = []
    for entry in entries:
        parsed = orjson.loads(entry)
        [record] = parsed[0]["Event"]
        rows.append(
            {
                "time": record["eventTime"],
                "event": record["eventName"],
                "object": f"{record['s3']['bucket']['name']}/{record['s3']['object']['key']}",
                "record": record,
            }
        )
    context.rows(rows, {"time": "time", "event": "event", "object": "object"}, "no events yet; post one and try again")
