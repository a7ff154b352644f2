"""`bucketwire sample`: what the sample target has got so far."""

import click
import orjson
import redis

from app.cli.problems import CannotDo
from app.cli.shell import Shell, with_shell
from app.embedded import SAMPLE, SAMPLE_DB, SAMPLE_KEY
from app.outbox.registry import UnknownTarget


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
    with redis.Redis(unix_socket_path=str(shell.settings.broker_socket), db=SAMPLE_DB) as client:
        entries = client.lrange(SAMPLE_KEY, -limit, -1)
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
