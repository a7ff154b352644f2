"""`python -m workers.source_test TYPE:NAME [--json]`: connect to a source's queue, and read without taking anything.

`bucketwire source test` executes this program. It does not touch the source's positions. The exit code is 0 if the
queue can be read, else 1.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, cast

import orjson

from app.cli_common.output import step_line
from app.config.arn import SourceId, parse_source
from app.config.secret_texts import Redaction
from app.config.settings import Settings
from app.config.sources.base import QueueSettings, SourceSettings
from app.config.sources.bucket import BucketSourceSettings
from app.config.target_settings import BadSettings
from app.events.frontends import S3_FRONTENDS
from app.events.limits import Limits
from app.events.parsing import Message, read_message
from app.listings import s3_client
from app.listings.inventory import S3_SCHEME, manifest
from app.listings.limits import BadListing
from app.outbox.engine.database import Database, DatabaseUnavailable, describe_error
from app.outbox.errors import UnknownSource
from app.outbox.registry import open_sealer
from app.outbox.sources.registry import SourceRegistry
from app.quantities import count_noun
from workers.sources import create
from workers.sources.base import Source, SourceUnavailable
from workers.target_test import Step
from workers.targets import tcp

_PULL_SECONDS = 2.0


def run_source_test(settings: SourceSettings, positions: dict[str, str], limits: Limits) -> Iterator[Step]:
    """Yield each step when it is done; the first that fails is the last one. No message contains a secret."""
    began, hide = time.monotonic(), Redaction(settings).hide

    def step(name: str, message: str, *, ok: bool = True) -> Step:
        return Step(name, ok, time.monotonic() - began, hide(message))

    if isinstance(settings, QueueSettings):
        yield from _test_queue(settings, positions, limits, step)
    else:
        yield from _test_bucket(cast(BucketSourceSettings, settings), step)


def _test_bucket(settings: BucketSourceSettings, step: Callable[..., Step]) -> Iterator[Step]:
    source: Any = create(settings.type_name, settings)
    try:
        source.open()
        yield step("open", "it has versions" if source.versioned else "it has no versions")
        page = next(source.pages())
        first = f"; the first key is {page.entries[0].key!r:.100}" if page.entries else ""
        yield step("list", f"{count_noun(len(page.entries), 'object')} on the first page{first}")
        if settings.inventory.startswith(S3_SCHEME):  # a path is of the host of Spark, and a catalog is asked by it
            yield _test_inventory(settings, step)
    except (SourceUnavailable, BadListing) as error:
        yield step("open", str(error), ok=False)
    finally:
        source.close()


def _test_inventory(settings: BucketSourceSettings, step: Callable[..., Step]) -> Step:
    try:
        report = manifest(settings.inventory, lambda _: s3_client.of_source(settings, attempts=1))
    except BadListing as error:
        return step("inventory", str(error), ok=False)
    except s3_client.STORE_ERRORS as error:
        return step("inventory", f"{settings.inventory} cannot be read: {error}", ok=False)
    if report.bucket != settings.bucket:
        return step("inventory", f"{report.location} is of the bucket {report.bucket}", ok=False)
    return step("inventory", f"{report.location} has {count_noun(len(report.files), 'file')}")


def _test_queue(
    settings: QueueSettings, positions: dict[str, str], limits: Limits, step: Callable[..., Step]
) -> Iterator[Step]:
    source = create(settings.type_name, settings)
    try:
        opened = tcp.reaching(lambda: source.open(positions), settings.timeout)
        where = "begins at new positions" if opened.moved else "goes on where it was"
        yield step("open", "; ".join([*(opened.lost or [where]), *opened.risks]))
        lag = source.lag()
        yield step("lag", "unknown" if lag is None else f"{count_noun(lag, 'message')} waiting")
        message = _first_message(source)
        if message is None:
            yield step("read", "no message waits")
            return
        read = read_message(message, limits, S3_FRONTENDS.get(settings.frontend), tenant=settings.tenant)
        first = f", the first in {read.events[0].bucket}" if read.events else ""
        found = f"{count_noun(len(read.events), 'event')}{first}"
        yield step("read", read.problem or found, ok=not read.problem)
    except SourceUnavailable as error:
        yield step("open", str(error), ok=False)
    finally:
        source.close()


def _first_message(source: Source) -> Message | None:
    """Return the first message that is one, and no gap; None if none comes in time."""
    until = time.monotonic() + _PULL_SECONDS
    while (left := until - time.monotonic()) > 0:
        for message in source.pull(1, left):
            if not message.is_gap:
                return message
    return None


def main(arguments: Sequence[str]) -> int:
    """Run the program; return its exit code."""
    names = [argument for argument in arguments if argument != "--json"]
    as_json = len(names) < len(arguments)
    source = parse_source(names[0])
    try:
        steps = list(_steps(source))
    except (BadSettings, UnknownSource) as error:
        steps = [Step("settings", False, 0.0, str(error))]
    except DatabaseUnavailable as error:
        steps = [Step("settings", False, 0.0, f"the outbox database cannot be used: {describe_error(error)}")]
    ok = all(step.ok for step in steps)
    if as_json:
        result = {"source": str(source), "ok": ok, "steps": [asdict(step) for step in steps]}
        sys.stdout.write(orjson.dumps(result, option=orjson.OPT_INDENT_2).decode() + "\n")
        return 0 if ok else 1
    for step in steps:
        message = "".join(char if char.isprintable() else " " for char in step.message)
        sys.stdout.write(f"{step_line(step.step, message, ok=step.ok)}\n")
    sys.stdout.write(f"{source} can be pulled from\n" if ok else f"{source} cannot be pulled from\n")
    return 0 if ok else 1


def _steps(source: SourceId) -> Iterator[Step]:
    service = Settings.from_environ(os.environ)
    database = Database(service.database_url, pool_size=1, patience=service.database_timeout)
    try:
        registry = SourceRegistry(database, open_sealer(service))
        stored = registry.source(source)
        positions = registry.positions(stored)
        yield from run_source_test(registry.settings(stored), positions, Limits(records=service.record_limit))
    finally:
        database.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
