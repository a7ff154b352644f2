"""By which request or source each event came, and how many events requests have recorded."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

# As the function of 0008, which the version before goes on to call, with two more parameters: the number of posted
# events, and the origins.
_PARAMETERS = """
    known_version bigint, target_ids integer[], counts bigint[], ceilings bigint[], posted_events bigint,
    partitions smallint[], ids bpchar[], key_hashes bigint[], names text[], buckets text[], keys text[],
    versions text[], sequencers text[], times bigint[], targets_texts text[], records text[], traces text[],
    origins text[]
"""
APPEND_EVENTS = f"""
CREATE FUNCTION append_events({_PARAMETERS}) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    last_before bigint;
BEGIN
    UPDATE log_head SET last_seq = last_seq + cardinality(ids), posted = posted + posted_events
        WHERE id = 1 AND version = known_version RETURNING last_seq - cardinality(ids) INTO last_before;
    IF last_before IS NULL THEN
        RETURN FALSE;
    END IF;
    IF EXISTS (SELECT FROM events WHERE id = ANY (ids)) OR ceilings IS NOT NULL AND EXISTS (
        SELECT FROM unnest(target_ids, counts, ceilings) AS added (id, number, ceiling)
        JOIN targets ON targets.id = added.id WHERE targets.recorded + added.number > added.ceiling
    ) THEN
        IF posted_events > 0 THEN
            UPDATE log_head SET posted = posted - posted_events WHERE id = 1;
        END IF;
        RETURN FALSE;
    END IF;
    UPDATE targets SET recorded = targets.recorded + added.number
        FROM unnest(target_ids, counts) AS added (id, number) WHERE targets.id = added.id;
    INSERT INTO events (
        partition, seq, id, key_hash, received_at, name, bucket, key, version, sequencer, time, targets, record, trace,
        origin
    ) SELECT
        added.partition, last_before + added.number, added.id, added.key_hash,
        CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT), added.name, added.bucket, added.key,
        added.version, added.sequencer, added.time, added.targets, added.record, added.trace, added.origin
    FROM unnest(
        partitions, ids, key_hashes, names, buckets, keys, versions, sequencers, times, targets_texts, records, traces,
        origins
    ) WITH ORDINALITY AS added (
        partition, id, key_hash, name, bucket, key, version, sequencer, time, targets, record, trace, origin, number
    );
    RETURN TRUE;
END
$$
"""  # noqa: S608 - the parameters are those above


def upgrade() -> None:
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    if is_postgresql:
        # First, as every append does: else an append and the migration wait for each other, and one of them fails.
        op.execute("LOCK TABLE log_head IN ACCESS EXCLUSIVE MODE")
    op.add_column("events", sa.Column("origin", sa.String(600), nullable=False, server_default=""))
    op.add_column("log_head", sa.Column("posted", sa.BigInteger(), nullable=False, server_default="0"))
    if is_postgresql:
        op.execute(APPEND_EVENTS)


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"DROP FUNCTION append_events({_PARAMETERS})")
    op.drop_column("log_head", "posted")
    op.drop_column("events", "origin")
