"""Which targets have events in which part of the log."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_MYSQL = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}
# As the function of 0014, which the version before goes on to call, with four more parameters: the targets and
# partitions of the events, and the first and the last number among them of each.
_PARAMETERS = """
    known_version bigint, target_ids integer[], counts bigint[], ceilings bigint[], posted_events bigint,
    arrived_at integer[], arrived_in smallint[], firsts integer[], lasts integer[],
    partitions smallint[], ids bpchar[], key_hashes bigint[], names text[], buckets text[], keys text[],
    versions text[], sequencers text[], times bigint[], targets_texts text[], records text[], traces text[],
    origins text[]
"""
_APPEND_EVENTS = f"""
CREATE FUNCTION append_events({_PARAMETERS}) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    last_before bigint;
    complete boolean;
BEGIN
    UPDATE log_head SET last_seq = last_seq + cardinality(ids), posted = posted + posted_events,
        arrivals_seq = CASE WHEN arrivals_seq = last_seq THEN last_seq + cardinality(ids) ELSE arrivals_seq END
        WHERE id = 1 AND version = known_version
        RETURNING last_seq - cardinality(ids), arrivals_seq = last_seq INTO last_before, complete;
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
    UPDATE targets SET recorded = targets.recorded + added.number, last_seq = last_before + cardinality(ids)
        FROM unnest(target_ids, counts) AS added (id, number) WHERE targets.id = added.id;
    INSERT INTO arrivals AS known (target_id, partition, last_seq, gap_after, gap_until)
        SELECT added.id, added.place, last_before + added.last, 0,
            CASE WHEN complete THEN last_before + added.first - 1 ELSE 0 END
        FROM unnest(arrived_at, arrived_in, firsts, lasts) AS added (id, place, first, last)
        ON CONFLICT (target_id, partition) DO UPDATE SET
            last_seq = excluded.last_seq,
            gap_after = CASE WHEN excluded.gap_until - known.last_seq >= 1000
                THEN known.last_seq ELSE known.gap_after END,
            gap_until = CASE WHEN excluded.gap_until - known.last_seq >= 1000
                THEN excluded.gap_until ELSE known.gap_until END;
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
    op.add_column("log_head", sa.Column("arrivals_seq", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("targets", sa.Column("last_seq", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_table(
        "arrivals",
        sa.Column("target_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("partition", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("gap_after", sa.BigInteger(), nullable=False),
        sa.Column("gap_until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("target_id", "partition", name="pk_arrivals"),
        postgresql_with={"fillfactor": 50},
        **_MYSQL,
    )
    if is_postgresql:
        op.execute(_APPEND_EVENTS)


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"DROP FUNCTION append_events({_PARAMETERS})")
    op.drop_table("arrivals")
    op.drop_column("targets", "last_seq")
    op.drop_column("log_head", "arrivals_seq")
