"""Measure the cost of rules: intake over HTTP with 10,000 rules beside 10.

    python -m bench.rules [--seconds 3] [--rounds 5] [--filtered]

The API runs as in `bench.ingest`: gunicorn with 2 processes of 32 threads over a PostgreSQL that waits for its disk.
One rule sends every event to a target, so that both sides write the same rows. The other rules match the events' names,
in their bucket, in every bucket and in other buckets, by prefix, suffix or both; one in twenty has a wildcard. With
`--filtered`, one in ten has a regular expression, which is 1,000 (half of them begin with `.*`, so that they are all
tried), and one in twenty a tag that no event has.
"""

import argparse
import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from app.rules.filters import NO_FILTERS, Filters, Pairs
from app.rules.model import EVERY_BUCKET, Rule
from bench.ingest import Api
from bench.load import BATCH, drive, makers
from bench.report import show
from tests import services
from tests.support.builders import add_target, migrated, registry

FEW, MANY = 10, 10_000
BUCKET = "plain"  # of the events


def rules(count: int, target: Any, *, filtered: bool = False) -> dict[str, list[Rule]]:
    """Return different rules by bucket; an event matches some of them."""
    rng, by_bucket = random.Random(1), dict[str, list[Rule]]()
    for number in range(count):
        bucket = rng.choice([BUCKET, BUCKET, EVERY_BUCKET, f"other-{number % 50}"])
        prefix = rng.choice(["", f"dir/{number:05}", f"dir/{number:05}", f"team-{number}/"])
        suffix = rng.choice(["", f"{number % 1000:03}.bin", f".{number}"]) if prefix else f".{number}"
        filters = NO_FILTERS
        if number % 20 == 0:
            prefix = f"dir/*{number:05}?"
        elif filtered and number % 10 == 1:
            beginning = ".*" if number % 20 == 1 else "dir"
            prefix, suffix, filters = "", "", Filters(regex=f"{beginning}/{number:05}.*[.]bin")
        elif filtered and number % 20 == 2:
            filters = Filters(tags=Pairs(tenant=str(number)))
        rule = Rule(
            bucket=bucket,
            events=("s3:ObjectCreated:*", "s3:ObjectRemoved:*"),
            target=target,
            prefix=prefix,
            suffix=suffix,
            rule_id=str(number),
            filters=filters,
        )
        by_bucket.setdefault(bucket, []).append(rule)
    return by_bucket


def start(stack: ExitStack, server: services.Postgres, count: int, *, filtered: bool) -> Api:
    """Start an API over its own database with so many rules."""
    url = server.create_database(f"rules_{count}")
    database = migrated(url)
    target = add_target(database, queue_limit=10**9)
    by_bucket = rules(count - 1, target, filtered=filtered)
    everything = Rule(bucket=EVERY_BUCKET, events=("*",), target=target)
    by_bucket.setdefault(EVERY_BUCKET, []).append(everything)
    for bucket, bucket_rules in by_bucket.items():
        registry(database).replace_rules(bucket, bucket_rules)
    database.close()
    api = Api(url, "app.server.wsgi:app")
    stack.enter_context(api)
    api.start()
    return api


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="the sides alternate; the best round of each counts")
    parser.add_argument("--filtered", action="store_true", help="also rules with regular expressions and tags")
    options = parser.parse_args()
    post, post_batch, size = makers()
    sides: dict[str, tuple[Callable[[], bytes], int, int]] = {
        "single posts": (post, 32, 1),
        f"lines of {BATCH}": (post_batch, 4, BATCH),
    }
    with ExitStack() as stack:
        server = stack.enter_context(services.postgres(durable=True))
        apis = {count: start(stack, server, count, filtered=options.filtered) for count in (FEW, MANY)}
        for api in apis.values():
            drive(api.port, 4, post_batch, 2)
        best: dict[tuple[str, int], float] = {}
        for turn in range(options.rounds):
            for name, (make, connections, events) in sides.items():
                for count in (FEW, MANY) if turn % 2 else (MANY, FEW):
                    requests, seconds, _ = drive(apis[count].port, connections, make, options.seconds)
                    best[name, count] = max(best.get((name, count), 0.0), requests * events / seconds)
    table = [
        {
            "what": name,
            f"{FEW} rules, events/s": best[name, FEW],
            f"{MANY:,} rules, events/s": best[name, MANY],
            "cost %": 100 * (1 - best[name, MANY] / best[name, FEW]),
        }
        for name in sides
    ]
    note = f"events of {size} bytes to one target; best of {options.rounds} rounds"
    show("rules", "Cost of rules (PostgreSQL, fsync on)", table, note)


if __name__ == "__main__":
    main()
