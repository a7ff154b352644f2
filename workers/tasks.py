"""The Celery tasks: a few lines each, without decisions."""

from collections.abc import Iterator
from contextlib import contextmanager

from app.broker import POLICY, SPARK_QUEUE, BrokerUnavailable, QueueRefused, queue_name
from app.config.arn import SourceId, TargetId, parse_arn, parse_source
from app.outbox.reconcile.schedule import WaitingRun
from workers import runtime, scheduled_jobs
from workers.celery import app, settings


@app.task(name="drain", send_events=False)
def drain() -> int:
    """Wake workers of targets with due work. Not shown in Flower: it runs many times a second."""
    with _waiting_for_the_broker():
        return runtime.current().drain.run(_wake_worker, _queued)
    return 0


@app.task(name="deliver")
def deliver(arn: str) -> str:
    """Deliver what is due of a target, or open it if it was set."""
    _, target = parse_arn(arn)
    return runtime.current().deliverer.deliver(target)


@app.task(name="schedule_reconciliations", send_events=False)
def schedule_reconciliations() -> int:
    """Publish wake-ups for due reconciliations and listings by Spark. Not shown in Flower, like drain."""
    with _waiting_for_the_broker():
        return runtime.current().upkeep.publish_runs(_publish_run, _publish_listing)
    return 0


@app.task(name="reconcile", acks_late=False)  # the table of runs holds the state of a run
def reconcile(arn: str, bucket: str) -> str:
    """Run the waiting reconciliation of a target with a bucket."""
    _, target = parse_arn(arn)
    return scheduled_jobs.reconcile(runtime.current().database, target, bucket, arn)


@app.task(name="list_bucket", acks_late=False)  # the table of sources holds the state
def list_bucket(source: str) -> str:
    """List the bucket of a source by Spark, if it is due."""
    held = runtime.current()
    return scheduled_jobs.list_bucket(held.database, held.clock, parse_source(source))


@app.task(name="update_tables", acks_late=False)  # the tables themselves have their state
def update_tables() -> str:
    """Add the log's new events to the Iceberg tables."""
    return scheduled_jobs.update_tables(runtime.current().database)


@app.task(name="purge")
def purge() -> str:
    """Remove old events from the log's tail."""
    return f"purged={runtime.current().upkeep.purge()}"


@app.task(name="sample", send_events=False)
def sample() -> bool:
    """Store a sample of every target's counters. Not shown in Flower, like drain."""
    return runtime.current().upkeep.sample()


@contextmanager
def _waiting_for_the_broker() -> Iterator[None]:
    """End a task without a failure if the broker is unavailable, which is logged once; have the drain run later."""
    try:
        yield
    except BrokerUnavailable:
        runtime.current().wakeups.request(POLICY.retry_seconds)


def _publish_run(run: WaitingRun) -> None:
    _publish_job("reconcile", run.target.arn(settings.region), run.bucket)


def _publish_listing(source: SourceId) -> None:
    _publish_job("list_bucket", str(source))


def _publish_job(task: str, *arguments: str) -> None:
    broker = runtime.current().broker
    if reason := broker.refusal(SPARK_QUEUE):
        raise QueueRefused(SPARK_QUEUE, reason)
    if (broker.length(SPARK_QUEUE) or 0) < POLICY.max_runs:
        broker.publish(SPARK_QUEUE, task, arguments)


def _queued(target: TargetId) -> int:
    return runtime.current().broker.length(queue_name(target)) or 0


def _wake_worker(target: TargetId) -> None:
    """Send a wake-up to the target's queue, unless the broker refuses the queue: that concerns no other target."""
    arn, limit = target.arn(settings.region), runtime.current().drain.time_limit(target)
    runtime.current().broker.publish(queue_name(target), "deliver", (arn,), time_limit=limit, declare=True)
