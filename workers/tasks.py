"""The tasks: a few lines each, no decision."""

from app.config.arn import TargetId, parse_arn
from app.outbox.delivery import heartbeats
from app.outbox.delivery.leases import Offer
from app.outbox.reconcile.schedule import WaitingRun
from workers import reconcile_jobs, runtime
from workers.celery import SPARK_QUEUE, app, queue, queue_name, settings, waiting
from workers.telemetry.delivery_log import format_partitions

_MOST_RUNS = 1000  # hints at reconciliations that may wait for a worker


@app.task(name="drain", send_events=False)
def drain() -> int:
    """Offer partitions with due work to their targets' queues. Not shown in Flower: it runs many times a second."""
    return runtime.current().drain(_publish, _hints)


@app.task(name="deliver")
def deliver(arn: str, partitions: str) -> str:
    """Work off some partitions of a target."""
    _, target = parse_arn(arn)
    return runtime.current().deliver(target, runtime.parse_partitions(partitions))


@app.task(name="probe_queues", send_events=False)
def probe_queues() -> int:
    """Ask each target's queue for a sign of life. Not shown in Flower, as drain."""
    return runtime.current().probe_queues(_ask)


@app.task(name="queue_alive", send_events=False)
def queue_alive(target: int) -> None:
    """Note that a queue is served: that of the target with this row id. Not shown in Flower, as drain."""
    runtime.current().queue_alive(target)


@app.task(name="schedule_reconciliations", send_events=False)
def schedule_reconciliations() -> int:
    """Hint at the reconciliations that are due. Not shown in Flower, as drain."""
    return reconcile_jobs.wake_ups.publish_due(runtime.current().database, _publish_run)


@app.task(name="reconcile", acks_late=False)  # what becomes of a run, the table of runs says
def reconcile(arn: str, bucket: str) -> str:
    """Do the reconciliation of a target with a bucket that waits."""
    _, target = parse_arn(arn)
    return reconcile_jobs.reconcile(runtime.current().database, target, bucket, arn)


@app.task(name="purge")
def purge() -> str:
    """Remove old events from the log's tail."""
    return f"purged={runtime.current().purge()}"


def _publish_run(run: WaitingRun) -> None:
    # It does not expire, which would compare the clocks of two hosts: where nobody takes them, no more are sent.
    if _waiting(SPARK_QUEUE) < _MOST_RUNS:
        arn = run.target.arn(settings.region)
        reconcile.apply_async((arn, run.bucket), queue=SPARK_QUEUE)


def _publish(offer: Offer) -> None:
    # It does not expire: there are no more of them in a queue than the target has partitions, and late is as good as
    # new.
    arn = offer.target.arn(settings.region)
    deliver.apply_async(
        (arn, format_partitions(offer.partitions)),
        queue=_known(offer.target),
        time_limit=runtime.current().time_limit(offer.target),
    )


def _hints(target: TargetId) -> int:
    """How many hints wait in the target's queue; 0 where there is none, and where the broker does not say."""
    return _waiting(queue_name(target))


def _waiting(name: str) -> int:
    with app.connection_for_write() as connection:
        try:
            return waiting(connection.channel(), name)
        except (*connection.channel_errors, *connection.connection_errors):
            return 0


def _ask(asked: heartbeats.Queue) -> None:
    # It does not expire: late is an answer too, and a queue that is not served is asked ever more rarely.
    queue_alive.apply_async((asked.row_id,), queue=_known(asked.target))


def _known(target: TargetId) -> str:
    """The target's queue, declared as this service has it before anything is published there."""
    name = queue_name(target)
    if name not in app.amqp.queues:
        app.amqp.queues.add(queue(name))
    return name
