"""`bucketwire sample`: what the sample target has got so far."""

import click
import orjson

from app.cli.problems import CannotDo
from app.cli.shell import Shell, with_shell
from app.embedded import SAMPLE
from app.outbox.registry import UnknownTarget
from app.service import embedded_redis


@click.command()
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 10_000), help="The last so many.")
@with_shell
def sample(shell: Shell, limit: int) -> None:
    """Show the last events that the sample target got: a list on the embedded Redis, which a restart empties."""
    if not shell.settings.embedded_broker:
        raise CannotDo("the sample target is on the embedded Redis, and BUCKETWIRE_BROKER_URL names another broker")
    try:
        shell.registry.target(SAMPLE)
    except UnknownTarget:
        raise CannotDo("there is no sample target; the first `bucketwire up` makes it if nothing else is set") from None
    try:
        entries = embedded_redis.sample(shell.settings, limit)
    except embedded_redis.RedisSilent as error:
        raise CannotDo(f"the embedded Redis does not answer: {error}; is `bucketwire up` running?") from None
    rows = []
    for entry in entries:
        found = orjson.loads(entry)
        [record] = found[0]["Event"]
        rows.append(
            {
                "time": record["eventTime"],
                "name": record["eventName"],
                "object": f"{record['s3']['bucket']['name']}/{record['s3']['object']['key']}",
                "record": record,
            }
        )
    shell.rows(rows, {"time": "time", "event": "name", "object": "object"}, "nothing yet: post an event and look again")
