"""Append to the event log in one round trip, by a function that PostgreSQL plans once for each connection."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

# `app.outbox.log.append` calls it. It locks the log's head, inserts the events with the next sequence numbers, adds
# them to the targets' counters, and returns TRUE. It returns FALSE, and has only skipped sequence numbers, if the rules
# have changed, an event is recorded already, or a queue has not enough room. Each of its statements sees what was
# committed before the lock was granted.
APPEND_EVENTS = """
CREATE FUNCTION append_events(
    known_version bigint, target_ids integer[], counts bigint[], ceilings bigint[],
    partitions smallint[], ids bpchar[], key_hashes bigint[], names text[], buckets text[], keys text[],
    versions text[], sequencers text[], times bigint[], targets_texts text[], records text[], traces text[]
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    last_before bigint;
BEGIN
    UPDATE log_head SET last_seq = last_seq + cardinality(ids) WHERE id = 1 AND version = known_version
        RETURNING last_seq - cardinality(ids) INTO last_before;
    IF last_before IS NULL OR EXISTS (SELECT FROM events WHERE id = ANY (ids)) THEN
        RETURN FALSE;
    END IF;
    IF ceilings IS NOT NULL AND EXISTS (
        SELECT FROM unnest(target_ids, counts, ceilings) AS added (id, number, ceiling)
        JOIN targets ON targets.id = added.id WHERE targets.recorded + added.number > added.ceiling
    ) THEN
        RETURN FALSE;
    END IF;
    UPDATE targets SET recorded = targets.recorded + added.number
        FROM unnest(target_ids, counts) AS added (id, number) WHERE targets.id = added.id;
    INSERT INTO events (
        partition, seq, id, key_hash, received_at, name, bucket, key, version, sequencer, time, targets, record, trace
    ) SELECT
        added.partition, last_before + added.number, added.id, added.key_hash,
        CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT), added.name, added.bucket, added.key,
        added.version, added.sequencer, added.time, added.targets, added.record, added.trace
    FROM unnest(
        partitions, ids, key_hashes, names, buckets, keys, versions, sequencers, times, targets_texts, records, traces
    ) WITH ORDINALITY AS added (
        partition, id, key_hash, name, bucket, key, version, sequencer, time, targets, record, trace, number
    );
    RETURN TRUE;
END
$$
"""


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(APPEND_EVENTS)


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION append_events")
