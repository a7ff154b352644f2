"""What the log and its partitions are measured against: one Celery task for each event, one commit for each delivery.

The way most services begin: the task carries the event's id, reads the event, delivers it, and marks it delivered.
"""

import os
from typing import Any

import psycopg2
import redis
from celery import Celery

app = Celery("per_event", broker=os.environ["BENCH_BROKER"])
app.conf.update(
    task_acks_late=True, task_ignore_result=True, worker_prefetch_multiplier=4, broker_connection_retry_on_startup=True
)
_open: dict[int, tuple[Any, Any]] = {}


def _connections() -> tuple[Any, Any]:
    if os.getpid() not in _open:
        target = redis.Redis.from_url(os.environ["BENCH_TARGET"])
        _open[os.getpid()] = (psycopg2.connect(os.environ["BENCH_DATABASE"]), target)
    return _open[os.getpid()]


@app.task(name="one")
def one(partition: int, seq: int) -> None:
    """Deliver one event."""
    database, target = _connections()
    with database, database.cursor() as cursor:
        cursor.execute("SELECT record FROM events WHERE partition = %s AND seq = %s", (partition, seq))
        [record] = cursor.fetchone()
        target.rpush("per-event", record)
        cursor.execute("INSERT INTO delivered VALUES (%s, %s)", (partition, seq))
