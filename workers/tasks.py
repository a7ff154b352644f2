"""The Celery tasks: a few lines each, without decisions."""

from typing import Any

from app.config.arn import TargetId, parse_arn
from app.outbox.delivery import heartbeats
from app.outbox.delivery.openings import Opening
from app.outbox.reconcile.schedule import WaitingRun
from app.wakeups import queue_name, waiting
from workers import reconcile_jobs, runtime
from workers.celery import SPARK_QUEUE, app, queue_of, settings
from workers.queue_declarations import QueueDeclarations, refuses_queue

_MOST_RUNS = 1000  # wake-ups for reconciliations that may wait for a worker


@app.task(name="drain", send_events=False)
def drain() -> int:
    """Wake workers of targets with due work. Not shown in Flower: it runs many times a second."""
    with _QueueLengths() as lengths:
        return runtime.current().drain.run(_publish, lengths.of, _publish_opening)


@app.task(name="deliver")
def deliver(arn: str, _partitions: str = "") -> str:  # API and drain of version 0.2 name some, until the next release
    """Deliver what is due of a target."""
    _, target = parse_arn(arn)
    return runtime.current().deliverer.deliver(target)


@app.task(name="open_target")
def open_target(arn: str, revision: int, next_at: int = 0) -> str:
    """Open a target that was set, with the settings of this revision, and record whether that was possible."""
    _, target = parse_arn(arn)
    return runtime.current().deliverer.open_target(Opening(target, revision, next_at))


@app.task(name="probe_queues", send_events=False)
def probe_queues() -> int:
    """Send a heartbeat task to each target's queue. Not shown in Flower, like drain."""
    return runtime.current().drain.probe_queues(_ask)


@app.task(name="queue_alive", send_events=False)
def queue_alive(target: int) -> None:
    """Record a heartbeat of the queue of the target with this row id. Not shown in Flower, like drain."""
    runtime.current().drain.queue_alive(target)


@app.task(name="schedule_reconciliations", send_events=False)
def schedule_reconciliations() -> int:
    """Publish wake-ups for due reconciliations. Not shown in Flower, like drain."""
    return reconcile_jobs.wake_ups.publish_due(runtime.current().database, _publish_run)


@app.task(name="reconcile", acks_late=False)  # the table of runs holds the state of a run
def reconcile(arn: str, bucket: str) -> str:
    """Run the waiting reconciliation of a target with a bucket."""
    _, target = parse_arn(arn)
    return reconcile_jobs.reconcile(runtime.current().database, target, bucket, arn)


@app.task(name="update_tables", acks_late=False)  # the tables themselves have their state
def update_tables() -> str:
    """Add the log's new events to the Iceberg tables."""
    return reconcile_jobs.update_tables()


@app.task(name="purge")
def purge() -> str:
    """Remove old events from the log's tail."""
    return f"purged={runtime.current().upkeep.purge()}"


@app.task(name="sample", send_events=False)
def sample() -> bool:
    """Store a sample of every target's counters. Not shown in Flower, like drain."""
    return runtime.current().upkeep.sample()


def _publish_run(run: WaitingRun) -> None:
    # It has no expiry, which would compare the clocks of two hosts: while nobody takes them, no more are sent.
    with _QueueLengths() as lengths:
        free = lengths.waiting(SPARK_QUEUE) < _MOST_RUNS
    if free:
        arn = run.target.arn(settings.region)
        reconcile.apply_async((arn, run.bucket), queue=SPARK_QUEUE)


def _publish(target: TargetId) -> None:
    # It has no expiry: the drain sends no more while enough wait, and a late one is as good as a new one.
    arn, limit = target.arn(settings.region), runtime.current().drain.time_limit(target)
    _send(target, deliver, (arn,), time_limit=limit)


def _publish_opening(opening: Opening) -> None:
    arn, limit = opening.target.arn(settings.region), runtime.current().drain.time_limit(opening.target)
    _send(opening.target, open_target, (arn, opening.revision, opening.next_at), time_limit=limit)


def _ask(asked: heartbeats.Queue) -> None:
    # It has no expiry: a late answer is an answer too, and a queue that nobody serves is probed less and less often.
    _send(asked.target, queue_alive, (asked.row_id,))


_declarations = QueueDeclarations()


def _send(target: TargetId, task: Any, arguments: tuple[object, ...], **options: Any) -> None:
    """Publish a task to the target's queue, unless the broker refuses the queue: that concerns no other target."""
    queue = queue_of(target)
    with app.producer_or_acquire() as producer:
        connection = producer.connection
        try:
            usable = _declarations.usable(connection, [queue])
        except connection.connection_errors:
            usable = [queue]  # publishing connects again
        if not usable:
            return
        try:
            task.apply_async(arguments, queue=queue.name, producer=producer, **options)
        except Exception as error:
            if not refuses_queue(connection, error):
                raise
            _declarations.refuse(queue.name, error)


class _QueueLengths:
    """Counts the messages in queues over one connection to the broker, which is opened when it is needed."""

    def __init__(self) -> None:
        self._connection: Any = None
        self._channel: Any = None

    def __enter__(self) -> "_QueueLengths":
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def of(self, target: TargetId) -> int:
        """Return how many wake-ups wait in the target's queue."""
        return self.waiting(queue_name(target))

    def waiting(self, name: str) -> int:
        """Return how many messages wait; 0 if there is no such queue, or the broker does not answer."""
        connection = self._connection = self._connection or app.connection_for_write()
        try:
            self._channel = self._channel or connection.channel()
            return waiting(self._channel, name)
        except connection.channel_errors:
            self._channel = None  # RabbitMQ has closed it, because there is no such queue
        except connection.connection_errors:
            self._release()
        return 0

    def _release(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            connection.release()
