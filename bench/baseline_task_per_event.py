"""The baseline of bench.end_to_end: one Celery task and one commit per event.

Most services start this way: the task has the event's id, reads the event, delivers it, and marks it as delivered.
"""

import os
from typing import Any

import psycopg2
import redis
from celery import Celery

app = Celery("task_per_event", broker=os.environ["BENCH_BROKER"])
app.conf.update(
    task_acks_late=True, task_ignore_result=True, worker_prefetch_multiplier=4, broker_connection_retry_on_startup=True
)
_opened: dict[int, tuple[Any, Any]] = {}


def _connections() -> tuple[Any, Any]:
    if os.getpid() not in _opened:
        target = redis.Redis.from_url(os.environ["BENCH_TARGET"])
        _opened[os.getpid()] = (psycopg2.connect(os.environ["BENCH_DATABASE"]), target)
    return _opened[os.getpid()]


@app.task(name="deliver")
def deliver(partition: int, seq: int) -> None:
    """Deliver one event."""
    database, target = _connections()
    with database, database.cursor() as cursor:
        cursor.execute("SELECT record FROM events WHERE partition = %s AND seq = %s", (partition, seq))
        [record] = cursor.fetchone()
        target.rpush("task-per-event", record)
        cursor.execute("INSERT INTO delivered VALUES (%s, %s)", (partition, seq))
