"""The Celery application: broker, queues, limits and beat's schedule.

Only this file, broker_consumer.py and tasks.py use Celery.

Celery messages are wake-ups; they carry no event data. Celery's retries, results and per-task schedules stay off. A
wake-up that is lost, late or duplicated costs nothing but time.
"""

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from billiard.process import current_process
from celery import Celery, beat, bootsteps, schedules
from celery.exceptions import CPendingDeprecationWarning, SecurityWarning
from celery.signals import (
    beat_init,
    celeryd_init,
    setup_logging,
    task_postrun,
    task_prerun,
    worker_init,
    worker_process_init,
    worker_process_shutdown,
    worker_ready,
    worker_shutdown,
    worker_shutting_down,
)
from kombu import Queue

from app import logs, telemetry
from app.broker import (
    POLICY,
    SERVICE_QUEUE,
    SOURCES_QUEUE,
    SPARK_QUEUE,
    Broker,
    BrokerState,
    BrokerUnavailable,
    QueueDeclarations,
    QueueRefused,
    declared_queue,
    queue_name,
    transport_options,
)
from app.config.arn import TargetId
from app.config.fields.times import last_moment
from app.config.settings import Settings, is_rabbitmq
from app.folders import remove
from app.outbox import log_head, series
from app.outbox.declared import enabled_targets
from app.outbox.delivery.ready_targets import HARD_LIMIT_SECONDS
from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.engine.db_errors import outbox_state
from app.outbox.policies import HEARTBEATS
from app.outbox.processes import DRAIN, SOURCES, SPARK
from workers import runtime, scheduled_jobs
from workers.heartbeat import BeatHeartbeat, ServedTargets, WorkerHeartbeat, broker_state, readiness
from workers.idle_processes import processes
from workers.sources import role as source_runs
from workers.telemetry import metrics
from workers.telemetry.metrics import BackgroundServer

_LEFT_TO_LOOP = 3  # times as long as the worker's loop has waited for the database in vain
PURGE_INTERVAL_SECONDS = 10  # each purge is short, and the drains continue it if it has not removed everything


settings = Settings.from_environ(os.environ)
_rabbitmq = is_rabbitmq(settings.broker_url)


def queue(name: str) -> Queue:
    """Return a queue as this service declares it at its broker."""
    return declared_queue(settings.broker_url, name)


def queue_of(target: TargetId) -> Queue:
    """Return the queue of a target's wake-ups."""
    name = queue_name(target)
    if name not in app.amqp.queues:
        app.amqp.queues.add(queue(name))
    own: Queue = app.amqp.queues[name]
    return own


log = logging.getLogger("bucketwire.beat")
delivery_log = logging.getLogger("bucketwire.worker")
# Celery would log three lines per drain, and there are many; the delivery log records the results of deliveries.
for _name in ("celery.worker.strategy", "celery.app.trace"):
    logging.getLogger(_name).setLevel(logging.WARNING)
# At each start it would warn of delayed tasks in direct exchanges, and no task is delayed.
logging.getLogger("kombu.transport.native_delayed_delivery").setLevel(logging.ERROR)
# Of a queue's kind, at each connection to a RabbitMQ.
logging.getLogger("celery.worker.consumer.tasks").setLevel(logging.WARNING)
# Of a Redis that does not answer, which is said once as the loss of the broker.
logging.getLogger("kombu.transport.redis").setLevel(logging.ERROR)
# To a service that runs as root, of an option that `bucketwire worker` does not have.
warnings.filterwarnings("ignore", category=SecurityWarning)
logging.getLogger("celery.beat").addFilter(lambda record: "Sending due task" not in record.msg)


_UPDATE_TABLES = "update_tables"


class CronSchedule(schedules.BaseSchedule):
    """A cron expression in UTC, as the settings have it. A time at which beat does not run is not caught up."""

    def __init__(self, expression: str) -> None:
        super().__init__()
        self._expression = expression

    def is_due(self, last_run_at: datetime) -> schedules.schedstate:
        """Return whether the expression matched a time since then, and the seconds until the next look."""
        moment = last_moment(self._expression, int(self.now().timestamp() * 1000))
        return schedules.schedstate(moment > last_run_at.timestamp() * 1000, 1.0)


class Scheduler(beat.Scheduler):
    """Beat's scheduler, without state that persists between starts, which continues when the clock is set back.

    Celery's own would have nothing due until the clock reaches its old value again. While no worker serves the service
    queue, it sends only a few messages there. While the broker does not answer, or refuses messages, it says so once;
    Celery's own would log a traceback for each task.
    """

    producer = None  # type: ignore[assignment]  # Celery's would connect first, and end beat if that is refused
    _ticked = 0.0
    # Why the broker did not take the last message that this service cannot do without; None before the first one.
    _problem: str | None = None
    _broker = Broker(settings.broker_url, BrokerState(log, "beat sends nothing until it works again"))

    def apply_entry(self, entry: Any, producer: Any = None) -> None:  # noqa: ARG002 - Celery passes it
        """Send a task that is due, unless enough messages wait already, or the broker does not take it."""
        queue = entry.options.get("queue", SERVICE_QUEUE)
        try:
            self._send(queue, entry.task)
        except QueueRefused as error:
            if queue == SERVICE_QUEUE:  # another one is only for what is overdue then
                self._problem = str(error)
        except BrokerUnavailable as error:
            self._problem = str(error)
        else:
            if queue == SERVICE_QUEUE:
                self._problem = ""
        readiness.report(serves=self._problem == "")

    def _send(self, queue: str, task: str) -> None:
        """Send a task if there is room. A queue that is refused counts also while there is none."""
        reason = self._broker.refusal(queue)
        if not reason and self._has_room(task) and not self._broker.publish(queue, task):
            reason = self._broker.refusal(queue)
        if reason:
            raise QueueRefused(queue, reason)

    def _has_room(self, task: str) -> bool:
        if task == _UPDATE_TABLES:  # one that waits for Spark's worker is enough
            return not self._waiting(SPARK_QUEUE)
        most = POLICY.max_drains if task == "drain" else POLICY.max_beat_messages
        return self._waiting(SERVICE_QUEUE) < most

    def _waiting(self, name: str) -> int:
        return self._broker.length(name) or 0

    def tick(self, *arguments: Any, **options: Any) -> float:
        """Send what is due; return the seconds until the next check."""
        now = time.time()
        if now < self._ticked:
            for entry in self.schedule.values():
                entry.last_run_at = entry.default_now()
            self._heap = None
        self._ticked = now
        seconds: float = super().tick(*arguments, **options)
        if _beat_heartbeat is not None and self._problem is not None:
            _beat_heartbeat.turned(self._problem)
        return seconds

    def close(self) -> None:
        """Record that beat ends; Celery calls this more than once."""
        super().close()
        if _beat_heartbeat is not None:
            _beat_heartbeat.end()


_beat_heartbeat: BeatHeartbeat | None = None


app = Celery(
    "bucketwire",
    broker=settings.broker_url,
    include=["workers.tasks"],
    events="workers.broker_consumer:Events",
)
app.conf.update(
    accept_content=["json"],
    beat_max_loop_interval=1,
    beat_schedule={
        "drain": {
            "task": "drain",
            "schedule": timedelta(seconds=settings.drain_interval),
        },
        "schedule_reconciliations": {
            "task": "schedule_reconciliations",
            "schedule": timedelta(seconds=scheduled_jobs.CHECK_INTERVAL_SECONDS),
        },
        "purge": {"task": "purge", "schedule": timedelta(seconds=PURGE_INTERVAL_SECONDS)},
        **(
            {
                _UPDATE_TABLES: {
                    "task": _UPDATE_TABLES,
                    "schedule": CronSchedule(settings.tables_schedule),
                    "options": {"queue": SPARK_QUEUE},
                }
            }
            if settings.tables_schedule
            else {}
        ),
        # Twice in a step, because beat is not exact: a step without a sample would be a gap.
        "sample": {"task": "sample", "schedule": timedelta(seconds=series.FINE.step / 2)},
    },
    beat_scheduler="workers.celery:Scheduler",
    broker_channel_error_retry=True,  # RabbitMQ refuses by errors of a channel
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    # For RabbitMQ, where a connection is closed after two intervals without a heartbeat.
    broker_heartbeat=2 * POLICY.timeout_seconds,
    broker_transport_options=transport_options(settings.broker_url),
    # Otherwise a worker that lost its connection silently could not reconnect before the broker notices the loss.
    control_queue_durable=_rabbitmq,
    control_queue_exclusive=False,
    enable_utc=True,
    task_acks_late=True,
    task_create_missing_queues=False,
    task_default_queue=SERVICE_QUEUE,
    task_default_queue_type="quorum" if _rabbitmq else "classic",
    task_ignore_result=True,
    task_queues=[queue(SERVICE_QUEUE), queue(SPARK_QUEUE), queue(SOURCES_QUEUE)],
    task_reject_on_worker_lost=True,
    task_serializer="json",
    task_soft_time_limit=None,
    task_time_limit=HARD_LIMIT_SECONDS,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    worker_consumer="workers.broker_consumer:Consumer",
    worker_hijack_root_logger=True,
    worker_prefetch_multiplier=1,
    worker_send_task_events=True,
    worker_soft_shutdown_timeout=30,
)


class TargetQueues(bootsteps.StartStopStep):
    """Consume the queues of all enabled targets; a target that is created or removed is noticed within a second."""

    requires = ("celery.worker.consumer:Tasks",)

    def __init__(self, parent: Any, **_: Any) -> None:
        parent.refused_targets = self._refused
        self._served_targets = ServedTargets()
        self.enabled = bool(self._served_targets)
        # As the heartbeat's: the worker's loop stands still for as long as it waits.
        patience = min(HEARTBEATS.patience_seconds, settings.database_timeout)
        self._database = Database(settings.database_url, pool_size=1, patience=patience)
        self._retry_at = 0.0  # by time.monotonic(), after a database that did not answer
        self._declarations = QueueDeclarations()
        self._targets: tuple[int, dict[str, TargetId]] = (-1, {})  # version of targets and rules, what is served then
        self._timer: Any = None

    def start(self, parent: Any) -> None:
        """Start consuming; Celery calls this when the worker is connected, and again after each reconnect."""
        # Its channel declares nothing, because RabbitMQ closes the one on which it refuses a queue.
        parent.task_consumer.auto_declare = False
        # Only add the queues: nothing takes messages before the event loop runs, which then starts to consume them all.
        self._add(parent, self._served() or {})
        self._timer = parent.timer.call_repeatedly(1.0, self._follow, (parent,))

    def stop(self, _parent: Any) -> None:
        """Stop following the targets; Celery calls this when the connection is lost or the worker ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._database.close()

    def _follow(self, consumer: Any) -> None:
        served = self._served()
        if served is None:
            return
        if self._add(consumer, served):
            consumer.task_consumer.consume()
        for name in self._consuming(consumer) - served.keys():
            consumer.task_consumer.cancel_by_queue(name)

    def _add(self, consumer: Any, served: Mapping[str, TargetId]) -> bool:
        """Add those of the queues that are not consumed and that the broker does not refuse; return whether any."""
        added = [queue_of(served[name]) for name in served.keys() - self._consuming(consumer)]
        usable = self._declarations.usable(consumer.connection, added)
        for queue in usable:
            consumer.task_consumer.add_queue(queue)
        return bool(usable)

    def _served(self) -> dict[str, TargetId] | None:
        """Return the enabled targets by queue; None while the database is unavailable: nothing changes then."""
        began = time.monotonic()
        if began < self._retry_at:
            return None
        try:
            with self._database.reading() as connection:
                version = log_head.read(connection).version  # another one after each change of a target
            if version != self._targets[0]:
                served = filter(self._served_targets.__contains__, enabled_targets(self._database))
                self._targets = version, {queue_name(target): target for target in served}
        except DatabaseUnavailable:
            ended = time.monotonic()
            self._retry_at = ended + _LEFT_TO_LOOP * (ended - began)
            return None
        return self._targets[1]

    def _refused(self) -> dict[str, str]:
        """Return the targets whose queues the broker refuses, with its reasons."""
        refused, served = self._declarations.refused, self._targets[1]
        return {str(served[name]): reason for name, reason in refused.items() if name in served}

    @staticmethod
    def _consuming(consumer: Any) -> set[str]:
        own = (SERVICE_QUEUE, SPARK_QUEUE, SOURCES_QUEUE)
        return {one.name for one in consumer.task_consumer.queues if one.name not in own}


app.steps["consumer"].add(TargetQueues)


class Heartbeat(bootsteps.StartStopStep):
    """Record that the worker is there, and that it serves while its loop runs on a connection that works.

    The loop runs also while all processes of the pool are busy.
    """

    requires = (TargetQueues,)

    def __init__(self, parent: Any, **_: Any) -> None:
        parent.report = partial(self._record, parent)
        self._timer: Any = None

    def start(self, parent: Any) -> None:
        """Begin to record; Celery calls this when the worker is connected, and again after each reconnect."""
        self._timer = parent.timer.call_repeatedly(1.0, parent.report)

    def stop(self, parent: Any) -> None:
        """Stop; Celery calls this when the connection is lost, and when the worker takes no more messages."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        _report_readiness(serves=False)
        ends = parent.blueprint.state != bootsteps.RUN  # type: ignore[attr-defined]  # the stubs do not know it
        if ends and _heartbeat is not None:
            _heartbeat.end()

    @staticmethod
    def _record(parent: Any) -> None:
        global _heartbeat  # noqa: PLW0603 - one for each worker is the point
        if _heartbeat is None:
            queues = app.amqp.queues.consume_from
            pool = type(parent.pool).__module__.rpartition(".")[2]
            _heartbeat = WorkerHeartbeat(
                settings, parent.hostname, pool, [name for queue, name in _SERVICES.items() if queue in queues]
            )
        _heartbeat.record(
            parent.pool.info.get("processes", ()),
            scheduled_jobs.jobs.names,
            parent.refused_targets(),
            "" if source_runs.has_role() else broker_state.problem,  # what it pulls from is not the broker
        )
        _report_readiness(serves=not broker_state.problem)


def _report_readiness(*, serves: bool) -> None:
    """Report whether this worker serves its queues; one that pulls from sources does without them."""
    if not source_runs.has_role():
        readiness.report(serves=serves)


class PullSources(bootsteps.StartStopStep):
    """Begin to pull, whether the task broker is available or not.

    Celery has changed the environment of the process before any step starts. A thread of ours that connected meanwhile
    could crash it: the C libraries of databases and of TLS read the environment.
    """

    requires = ("celery.worker.components:Pool",)

    def start(self, _parent: Any) -> None:
        """Begin, if this worker has the role."""
        readiness.answer_probes(settings.probe_listen)
        source_runs.start(settings)


app.steps["consumer"].add(Heartbeat)
app.steps["worker"].add(PullSources)
_heartbeat: WorkerHeartbeat | None = None
_SERVICES = {
    SERVICE_QUEUE: DRAIN,
    SOURCES_QUEUE: SOURCES,
    SPARK_QUEUE: SPARK,
}


_metrics_server: BackgroundServer | None = None


@worker_ready.connect
def _ready(**_: Any) -> None:
    """Report that the worker serves; serve and export the pool's metrics. Called again after each reconnect."""
    _report_readiness(serves=not broker_state.problem)
    global _metrics_server  # noqa: PLW0603 - one for each worker is the point
    # Of a setting that is chosen on purpose, at each loss of the broker. Celery has just asked to see it always.
    warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)
    folder = os.environ.get(metrics.FOLDER)
    telemetry.start("worker")
    if folder and telemetry.exports_metrics():
        telemetry.send_metrics(metrics.pool_registry(folder).collect)
    if _metrics_server is None and folder and settings.metrics_listen.host:
        _metrics_server = metrics.server(settings.metrics_listen, folder)
        _metrics_server.start()


@worker_init.connect
def _starting(**_: Any) -> None:
    outbox_state.watch()
    processes.share()
    telemetry.prepare()


@task_prerun.connect
def _begun(**_: Any) -> None:
    processes.set_busy(busy=True)


@task_postrun.connect
def _done(**_: Any) -> None:
    processes.set_busy(busy=False)


@worker_shutting_down.connect
def _stopping(**_: Any) -> None:
    processes.stop()
    scheduled_jobs.jobs.stop()
    source_runs.request_stop()


@worker_process_init.connect
def _forked(**_: Any) -> None:
    own = current_process()
    # The kernel kills a pool's process with its parent; Celery asks for that too late if the parent is gone already.
    if getattr(own, "_parent_pid", None) not in (None, os.getppid()):
        os._exit(1)
    runtime.forget()
    if _metrics_server is not None:
        _metrics_server.forget()
    readiness.forget()
    index = getattr(own, "index", 0)
    metrics.begin(index)
    processes.begin(index)
    threading.Thread(target=_end_if_it_hinders_others, name="share", daemon=True).start()
    telemetry.start("worker")


def _end_if_it_hinders_others() -> None:
    """End this process once all of its pool wait for targets that take long: its successor serves others.

    Killing it loses nothing. Whatever it waits for could not be interrupted as surely.
    """
    while not processes.hinders_others():
        time.sleep(1)
    delivery_log.warning(
        "every process of the pool waits for a target that takes long; this one ends, so that others are served"
    )
    with suppress(Exception):  # it is only that an event may count as the reason
        runtime.current().leases.disown()
    os.kill(os.getpid(), signal.SIGKILL)


@worker_process_shutdown.connect
def _child_ended(**_: Any) -> None:
    processes.end()
    runtime.forget()
    telemetry.stop()


@worker_shutdown.connect
def _ended(**_: Any) -> None:
    source_runs.join()
    if _heartbeat is not None:
        _heartbeat.end()
    runtime.forget()
    telemetry.stop()
    if _metrics_server is not None:
        _metrics_server.stop()
        remove(Path(os.environ[metrics.FOLDER]), settings.folder)


@beat_init.connect
def _beat_started(**_: Any) -> None:
    global _beat_heartbeat  # noqa: PLW0603 - there is one beat in a process
    outbox_state.watch()
    telemetry.start("beat")
    readiness.answer_probes(settings.probe_listen)
    _beat_heartbeat = BeatHeartbeat(settings)
    _beat_heartbeat.start()


@celeryd_init.connect  # before the worker checks whether it runs as root, and warns
@setup_logging.connect
def _configure_logs(loglevel: int = logging.INFO, **_: Any) -> None:
    """Configure logging; this replaces Celery's own configuration."""
    logs.configure(settings.log_format, loglevel)
    pools = logging.getLogger("multiprocessing")  # billiard's logger, which does not propagate
    pools.handlers = logging.getLogger().handlers[:1]
    pools.setLevel(logging.ERROR)
    app.log.redirect_stdouts("WARNING")  # type: ignore[arg-type]  # the stubs know numbers only, its code names only
