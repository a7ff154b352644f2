"""`spark_jobs watched-bucket`: list the bucket of a source; a worker of the role `spark` starts it."""

from functools import partial
from typing import cast

import click

from app.cli_common.context import ServiceContext
from app.cli_common.param_types import SOURCE
from app.config.arn import SourceId
from app.config.fields.aws import catalog_of
from app.config.sources.bucket import BucketSourceSettings
from app.outbox.delivery.leases import LeaseLost
from app.outbox.delivery.ready_targets import ReadyTargets
from app.outbox.errors import AlreadyRunning
from app.outbox.registry import open_sealer
from app.outbox.sources.registry import SourceRegistry
from app.outbox.sources.rows import SourceLease
from app.wakeups import WakeUps
from spark_jobs import connectors, errors, runs
from spark_jobs.commands import options


@click.command("watched-bucket")
@click.argument("source", type=SOURCE)
@click.option("--lease", "token", required=True, metavar="TOKEN", help="The token of the lease of the source.")
@options.with_context
def watched_bucket(context: ServiceContext, source: SourceId, token: str) -> None:
    """List the bucket of SOURCE, compare it with what is known, and record an event for what no event explains."""
    registry = SourceRegistry(context.database, open_sealer(context.settings))
    stored = registry.source(source)
    if stored.lease_token != token:
        raise AlreadyRunning(f"the source {source} was leased by another process, or was changed")
    settings = cast(BucketSourceSettings, registry.settings(stored))
    errors.remember(settings)
    session_name = f"bucketwire listing of {source}"
    libraries = (connectors.ICEBERG, connectors.ICEBERG_S3) if catalog_of(settings.inventory) else ()
    end_java = options.launch_spark(context, session_name, libraries)
    with options.spark_imports():
        from spark_jobs.jobs import watched_bucket as job  # noqa: PLC0415 - --help needs no Spark
    runs.end_with_input()
    service = context.settings
    config = job.WatchConfig(
        reports=service.reports or str(service.folder / "reconciliations"),
        lease_ms=int(service.lease_ttl * 1000),
        log_retention=int(service.retention * 1000),
        connections=service.spark_connections,
    )
    wakeups = WakeUps(service.broker_url, ReadyTargets(context.database, context.registry, service))
    try:
        result = job.run(
            partial(options.spark_session, context, session_name, libraries),
            context.database,
            settings,
            SourceLease(stored, token),
            config,
            lambda receipt: wakeups.request_delivery(receipt.due),
        )
    except LeaseLost as error:
        raise AlreadyRunning(f"{error} is no longer this job's") from None
    finally:
        wakeups.close()
    context.done(result)
    end_java()
