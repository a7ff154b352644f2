"""Fill a PostgreSQL outbox as a large installation has it, by SQL alone: for bench.console."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg2

from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from tests.support.builders import add_target, event

TARGETS, DEAD_LETTERS, PARKED = 50, 100_000, 5_000
PARTITIONS = 16
GAP = 10  # ms between two events
BEHIND = 200_000  # seqs by which a fifth of the targets lags
ATTEMPTS = 20_000  # rows of each target
RARE_BUCKET, RARE_PREFIX, BUSY_KEY = "rare", "rare/", "busy.bin"
BUSY_EVENTS = 200

_RESTORE = "SELECT indexdef FROM pg_indexes WHERE tablename = 'events' ORDER BY indexname"
_CONSTRAINTS = "SELECT conname FROM pg_constraint WHERE conrelid = 'events'::regclass AND contype IN ('p', 'u')"
_LOOSE = "SELECT indexname FROM pg_indexes WHERE tablename = 'events'"

# Two targets for each event; in the middle one event of a bucket of its own, and one of a key of its own.
_EVENTS = """
INSERT INTO events (partition, seq, id, key_hash, received_at, name, bucket, key, version, sequencer, time, targets,
                    record, trace)
SELECT (hash & {partitions_mask})::smallint, seq, md5(seq::text), hash, {began} + seq * {gap},
       CASE WHEN seq % 10 < 7 THEN 's3:ObjectCreated:Put' ELSE 's3:ObjectRemoved:Delete' END, bucket, key, '',
       lpad(to_hex(seq), 16, '0'), {began} + seq * {gap},
       ',' || {first} + seq % {targets} || ',' || {first} + (seq + 1 + seq / {targets} % {others}) % {targets} || ',',
       '{{"eventVersion":"2.0","eventSource":"minio:s3","eventTime":"2026-11-21T00:33:56.082Z","eventName":'
       || '"s3:ObjectCreated:Put","responseElements":{{"x-amz-request-id":"' || seq || '"}},"s3":{{"bucket":{{"name":"'
       || bucket || '"}},"object":{{"key":"' || replace(key, '/', '%2F') || '","sequencer":"' || to_hex(seq)
       || '","size":1048576,"contentType":"image/jpeg"}}}}}}', ''
FROM (SELECT seq, hashint8extended(seq / 3, 7) AS hash,
             CASE WHEN seq = {middle} THEN '{rare_bucket}' ELSE 'bucket-' || seq % 200 END AS bucket,
             CASE WHEN seq = {middle} THEN '{rare_prefix}' ELSE 'photos/2026/' END
               || md5((seq / 3)::text) || '.jpg' AS key
      FROM generate_series({start}, {end}) AS seq) AS made
"""
_BATCH_EVENTS = 1_000_000

_COUNTERS = """
UPDATE targets SET recorded = counted.events
FROM (SELECT target::int AS id, count(*) AS events
      FROM events, unnest(string_to_array(trim(both ',' FROM targets), ',')) AS target GROUP BY 1) AS counted
WHERE targets.id = counted.id
"""
_POSITIONS = """
UPDATE cursors SET delivered_at = {now},
  position = CASE WHEN (target_id - {first}) % 5 <> 0 THEN {head} ELSE coalesce((
    SELECT seq - 1 FROM events WHERE events.partition = cursors.partition AND seq > {head} - {behind}
    AND targets LIKE '%,' || cursors.target_id || ',%' ORDER BY seq LIMIT 1), {head}) END
"""
_FAILED = """
FROM (SELECT partition, seq, key_hash, id, split_part(targets, ',', 2)::int AS target_id, {began} + seq * {gap} AS at
      FROM events WHERE seq % {every} = (seq / {every} + {other}) % {every} AND seq < {head} - 2 * {behind}
      LIMIT {most}) AS failed
"""
_DEAD = """
INSERT INTO dead_letters (target_id, partition, seq, event_id, reason, attempts, first_tried, last_tried, history)
SELECT target_id, partition, seq, id, 'answered 422: ' || (ARRAY['no such column: tags', 'the document is too large',
         'mapper_parsing_exception', 'schema mismatch', 'quota'])[1 + seq / 7 % 5], 3, at, at + 60000,
       '[[' || at || ',"answered 422"],[' || at + 60000 || ',"answered 422"]]'
"""
_PARKED = """
INSERT INTO parked (target_id, partition, seq, key_hash, not_before, attempts, first_tried, last_tried, history,
                    replayed)
SELECT target_id, partition, seq, key_hash, {now} + seq % 600000, 2, at, at + 60000,
       '[[' || at || ',"answered 500"],[' || at + 60000 || ',"answered 503"]]', false
"""
_DELIVERED = """
UPDATE cursors SET delivered = targets.recorded - coalesce(dead.letters, 0) - coalesce(waiting.events, 0) - ahead.events
FROM targets
LEFT JOIN (SELECT target_id, count(*) AS letters FROM dead_letters GROUP BY 1) AS dead ON dead.target_id = targets.id
LEFT JOIN (SELECT target_id, count(*) AS events FROM parked GROUP BY 1) AS waiting ON waiting.target_id = targets.id
CROSS JOIN LATERAL (SELECT count(*) AS events FROM events WHERE (targets.id - {first}) % 5 = 0
  AND seq > {head} - {behind} AND partition BETWEEN 0 AND {partitions} - 1
  AND events.targets LIKE '%,' || targets.id || ',%') AS ahead
WHERE cursors.target_id = targets.id AND cursors.partition = 0
"""
_SERIES = """
INSERT INTO series (step, slot, target_id, at, recorded, delivered, superseded, failed, dead_lettered, discarded,
                    backlog, oldest_age, times)
SELECT {step}, at / ({step} * 1000) % {kept}, id, at, at / 100, at / 101, 0, at / 100000, at / 1000000, 0, 17, 900,
       '100:40 120:17 250:9 1000:1'
FROM targets, generate_series({until} - {kept}::bigint * {step} * 1000 + {step} * 1000, {until}, {step} * 1000) AS at
"""
_ATTEMPTS = """
INSERT INTO attempts (target_id, ring, partition, first_seq, last_seq, at, outcome, events, duration, attempt,
                      replay_id, reason)
SELECT id, 0, number % {partitions}, {head} - (number + 1) * 10, {head} - number * 10, {now} - number * 100,
       'delivered', 10, 5, 0, 0, ''
FROM targets, generate_series(0, {attempts} - 1) AS number
"""
_AUDIT = """
INSERT INTO audit (at, actor, address, via, operation, action, resource, details)
SELECT {now} - number * 1000, 'token:ops', '127.0.0.1', 'PUT /v1/targets/<type_name>/<name>', md5(number::text),
       'target.change', 'target:webhook:t' || number % 50, '{{}}'
FROM generate_series(1, 100000) AS number
"""


@dataclass(frozen=True)
class Filled:
    """What is in the log: its number of events, and the times (ms) of the first and the last one."""

    events: int
    began: int
    ended: int
    dead_id: str  # the id of an event that is a dead letter


def fill(database: Database, millions: float) -> Filled:
    """Fill a migrated, empty outbox on PostgreSQL; one that has events already keeps them and gets new samples."""
    with _cursor(database) as cursor:
        counted = _column(cursor, "SELECT last_seq FROM log_head")[0] - BUSY_EVENTS
    events = counted if counted > 0 else int(millions * 1_000_000)
    if counted <= 0:
        for number in range(TARGETS):
            add_target(database, f"t{number}", bucket=f"bucket-{number % 25}")
    ended = int(time.time() * 1000)
    began = ended - events * GAP
    with _cursor(database) as cursor:
        if counted > 0:
            [began] = _column(cursor, "SELECT min(received_at) FROM events WHERE partition = 0 AND seq < 1000")
        [first] = _column(cursor, "SELECT min(id) FROM targets")
        values: dict[str, Any] = {
            "partitions": PARTITIONS, "partitions_mask": PARTITIONS - 1, "began": began, "gap": GAP, "first": first,
            "targets": TARGETS, "others": TARGETS - 1, "middle": events // 2, "rare_bucket": RARE_BUCKET,
            "rare_prefix": RARE_PREFIX, "now": ended, "head": events, "behind": min(BEHIND, events // 5),
            "attempts": ATTEMPTS,
        }  # fmt: skip

        def step(what: str, *statements: str, **more: Any) -> None:
            started = time.monotonic()
            for statement in statements:
                cursor.execute(statement.format(**values, **more))
            print(f"  {what}: {time.monotonic() - started:.0f} s", flush=True)

        if counted <= 0:
            indexes = _column(cursor, _RESTORE)
            drop = [f'ALTER TABLE events DROP CONSTRAINT "{name}"' for name in _column(cursor, _CONSTRAINTS)]
            step("constraints", *drop)
            step("indexes", *(f'DROP INDEX "{name}"' for name in _column(cursor, _LOOSE)))
            for start in range(1, events + 1, _BATCH_EVENTS):
                step(f"events from {start:,}", _EVENTS, start=start, end=min(start + _BATCH_EVENTS - 1, events))
            step("indexes", "SET maintenance_work_mem = '256MB'", *indexes)
            step("counters", "VACUUM ANALYZE events", "UPDATE log_head SET last_seq = {head}", _COUNTERS)
            step("positions", "SET enable_bitmapscan = off", _POSITIONS)
            every = max(3, events // 2 // DEAD_LETTERS)
            step("dead letters", _DEAD + _FAILED, every=every, other=0, most=DEAD_LETTERS)
            step("parked", _PARKED + _FAILED, every=every, other=1, most=PARKED)
            step("delivered", _DELIVERED)
            step("attempts and audit", _ATTEMPTS, _AUDIT)
        step("no samples", "TRUNCATE series")
        for width, kept in ((10, 8640), (300, 25920)):
            step(f"series of {width} s", _SERIES, step=width, kept=kept, until=ended - ended % (width * 1000))
        step("statistics", "VACUUM ANALYZE")
        [dead_id] = _column(cursor, "SELECT event_id FROM dead_letters ORDER BY id DESC LIMIT 1")
    if counted <= 0:  # as the API does, so that this object's history is found by its hash
        Log(database).append([[event(BUSY_KEY, bucket="bucket-1") for _ in range(BUSY_EVENTS)]])
    return Filled(events, began, began + events * GAP, dead_id)


@contextmanager
def _cursor(database: Database) -> Iterator[Any]:
    """Open a connection for long statements, without the outbox's time limits."""
    address = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    connection = psycopg2.connect(address)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


def _column(cursor: Any, query: str) -> list[Any]:
    cursor.execute(query)
    return [row[0] for row in cursor.fetchall()]
