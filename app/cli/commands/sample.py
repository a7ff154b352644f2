"""`bucketwire sample`: the events that the sample target has received."""

import click
import orjson

from app.cli_common import CommandError
from app.cli_common.context import ServiceContext, pass_context
from app.outbox.declared import UnknownTarget
from app.supervisor import embedded_redis
from app.supervisor.start import SAMPLE


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
