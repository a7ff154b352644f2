"""The event log, its cursors, and the other tables of the outbox."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

MYSQL = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}
LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

BEGIN_APPEND = """
CREATE FUNCTION begin_append(
    known_version bigint, wanted bigint, ids bpchar[], target_ids integer[], counts bigint[], ceilings bigint[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    first_seq bigint;
BEGIN
    UPDATE log_head SET last_seq = last_seq + wanted WHERE id = 1 AND version = known_version
        RETURNING last_seq - wanted + 1 INTO first_seq;
    IF first_seq IS NULL OR EXISTS (SELECT FROM events WHERE id = ANY (ids)) THEN
        RETURN NULL;
    END IF;
    IF ceilings IS NOT NULL AND EXISTS (
        SELECT FROM unnest(target_ids, counts, ceilings) AS added (id, number, ceiling)
        JOIN targets ON targets.id = added.id WHERE targets.recorded + added.number > added.ceiling
    ) THEN
        RETURN NULL;
    END IF;
    UPDATE targets SET recorded = targets.recorded + added.number
        FROM unnest(target_ids, counts) AS added (id, number) WHERE targets.id = added.id;
    RETURN first_seq;
END
$$
"""


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(length=255), nullable=False),
        sa.Column("address", sa.String(length=255), nullable=False),
        sa.Column("via", sa.String(length=255), nullable=False),
        sa.Column("operation", sa.CHAR(length=32), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("resource", sa.String(length=255), nullable=False),
        sa.Column("details", LONG_TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
        sqlite_autoincrement=True,
        **MYSQL,
    )
    op.create_index("ix_audit_action_id", "audit", ["action", "id"], unique=False)
    op.create_index("ix_audit_actor_id", "audit", ["actor", "id"], unique=False)
    op.create_index("ix_audit_at", "audit", ["at"], unique=False)
    op.create_index("ix_audit_resource_id", "audit", ["resource", "id"], unique=False)
    op.create_table(
        "buckets",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_buckets"),
        **MYSQL,
    )
    op.create_table(
        "events",
        sa.Column("partition", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.CHAR(length=32), nullable=False),
        sa.Column("key_hash", sa.BigInteger(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("bucket", sa.String(length=255), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("version", sa.String(length=1024), nullable=False),
        sa.Column("sequencer", sa.String(length=64), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("targets", sa.Text(), nullable=False),
        sa.Column("record", LONG_TEXT, nullable=False),
        sa.Column("trace", sa.String(length=600), nullable=False),
        sa.PrimaryKeyConstraint("partition", "seq", name="pk_events"),
        sa.UniqueConstraint("id", name="uq_events_id"),
        **MYSQL,
    )
    op.create_index("ix_events_key_hash_sequencer", "events", ["key_hash", "sequencer"], unique=False)
    op.create_table(
        "heartbeats",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_heartbeats"),
        **MYSQL,
    )
    op.create_table(
        "log_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("partitions", sa.Integer(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_log_head"),
        **MYSQL,
    )
    op.create_table(
        "log_tail",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_log_tail"),
        **MYSQL,
    )
    op.create_table(
        "object_versions",
        sa.Column("target_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("partition", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("object", sa.String(length=32), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("sequencer", sa.String(length=64), nullable=True),
        sa.Column("tie", sa.SmallInteger(), nullable=False),
        sa.Column("placed", sa.BigInteger(), nullable=False),
        sa.Column("is_object", sa.Boolean(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("trimmed", sa.Boolean(), nullable=False),
        sa.Column("record", LONG_TEXT, nullable=True),
        sa.PrimaryKeyConstraint("target_id", "partition", "id", name="pk_object_versions"),
        **MYSQL,
    )
    op.create_index(
        "ix_object_versions_layer",
        "object_versions",
        ["target_id", "partition", "object", "sequencer", "tie", "placed"],
        unique=False,
    )
    op.create_index("ix_object_versions_partition_seq", "object_versions", ["partition", "seq"], unique=False)
    op.create_table(
        "reconciliations",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run", sa.CHAR(length=32), nullable=False),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("bucket", sa.String(length=255), nullable=False),
        sa.Column("job", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("alive_until", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=False),
        sa.Column("objects", sa.BigInteger(), nullable=False),
        sa.Column("target_rows", sa.BigInteger(), nullable=False),
        sa.Column("missing", sa.BigInteger(), nullable=False),
        sa.Column("stale", sa.BigInteger(), nullable=False),
        sa.Column("orphaned", sa.BigInteger(), nullable=False),
        sa.Column("malformed", sa.BigInteger(), nullable=False),
        sa.Column("unmatched", sa.BigInteger(), nullable=False),
        sa.Column("in_flight", sa.BigInteger(), nullable=False),
        sa.Column("unreadable", sa.BigInteger(), nullable=False),
        sa.Column("repaired", sa.BigInteger(), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sa.Column("problem", sa.Text(), nullable=False),
        sa.Column("repair", sa.String(length=8), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_reconciliations"),
        sa.UniqueConstraint("run", name="uq_reconciliations_run"),
        sqlite_autoincrement=True,
        **MYSQL,
    )
    op.create_index("ix_reconciliations_type_name", "reconciliations", ["type", "name"], unique=False)
    op.create_table(
        "findings",
        sa.Column("run", sa.CHAR(length=32), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("facts", LONG_TEXT, nullable=False),
        sa.PrimaryKeyConstraint("run", "number", name="pk_findings"),
        **MYSQL,
    )
    op.create_table(
        "series",
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("slot", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("target_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("recorded", sa.BigInteger(), nullable=False),
        sa.Column("delivered", sa.BigInteger(), nullable=False),
        sa.Column("superseded", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("dead_lettered", sa.BigInteger(), nullable=False),
        sa.Column("discarded", sa.BigInteger(), nullable=False),
        sa.Column("backlog", sa.BigInteger(), nullable=False),
        sa.Column("oldest_age", sa.BigInteger(), nullable=True),
        sa.Column("times", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("step", "slot", "target_id", name="pk_series"),
        **MYSQL,
    )
    op.create_index("ix_series_target_id_step_at", "series", ["target_id", "step", "at"], unique=False)
    op.create_table(
        "delivery_times",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("times", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_delivery_times"),
        **MYSQL,
    )
    op.create_table(
        "rate_limits",
        sa.Column("target_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("used_until", sa.BigInteger(), nullable=False),
        sa.Column("ready_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("target_id", name="pk_rate_limits"),
        **MYSQL,
    )
    op.create_table(
        "attempts",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("ring", sa.SmallInteger(), nullable=False),
        sa.Column("partition", sa.SmallInteger(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("events", sa.Integer(), nullable=False),
        sa.Column("duration", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("replay_id", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_attempts"),
        **MYSQL,
    )
    op.create_index(
        "ix_attempts_target_id_partition_last_seq", "attempts", ["target_id", "partition", "last_seq"], unique=False
    )
    op.create_index("ix_attempts_target_id_ring_id", "attempts", ["target_id", "ring", "id"], unique=False)
    op.create_table(
        "targets",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("settings", LONG_TEXT, nullable=False),
        sa.Column("origin", sa.String(length=16), nullable=False),
        sa.Column("problem", sa.Text(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("queue_limit", sa.BigInteger(), nullable=False),
        sa.Column("rejects", sa.Boolean(), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("breaker", sa.String(length=16), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("resume_at", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("recorded", sa.BigInteger(), nullable=False),
        sa.Column("discarded", sa.BigInteger(), nullable=False),
        sa.Column("purged", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("opening", sa.String(length=16), nullable=False),
        sa.Column("opening_reason", sa.Text(), nullable=False),
        sa.Column("opening_at", sa.BigInteger(), nullable=False),
        sa.Column("opening_due_at", sa.BigInteger(), nullable=False),
        sa.Column("opening_tries", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_targets"),
        sa.UniqueConstraint("type", "name", name="uq_targets_type_name"),
        sqlite_autoincrement=True,
        **MYSQL,
    )
    op.create_table(
        "service_settings",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_service_settings"),
        **MYSQL,
    )
    op.create_table(
        "tokens",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.CHAR(length=64), nullable=False),
        sa.Column("scopes", sa.String(length=255), nullable=False),
        sa.Column("limits", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_tokens"),
        sa.UniqueConstraint("digest", name="uq_tokens_digest"),
        **MYSQL,
    )
    op.create_table(
        "cursors",
        sa.Column("target_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("partition", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("replay_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.Column("begins_after", sa.BigInteger(), nullable=False),
        sa.Column("replayed", sa.BigInteger(), nullable=False),
        sa.Column("lease_token", sa.String(length=64), nullable=False),
        sa.Column("leased_until", sa.BigInteger(), nullable=False),
        sa.Column("delivered", sa.BigInteger(), nullable=False),
        sa.Column("superseded", sa.BigInteger(), nullable=False),
        sa.Column("dead", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("freed", sa.BigInteger(), nullable=False),
        sa.Column("folded", sa.BigInteger(), nullable=False),
        sa.Column("delivered_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], name="fk_cursors_target_id_targets"),
        sa.PrimaryKeyConstraint("target_id", "partition", "replay_id", name="pk_cursors"),
        postgresql_with={"fillfactor": 50},
        **MYSQL,
    )
    op.create_table(
        "dead_letters",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("partition", sa.SmallInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("event_id", sa.CHAR(length=32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("first_tried", sa.BigInteger(), nullable=False),
        sa.Column("last_tried", sa.BigInteger(), nullable=False),
        sa.Column("history", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], name="fk_dead_letters_target_id_targets"),
        sa.PrimaryKeyConstraint("id", name="pk_dead_letters"),
        sa.UniqueConstraint("target_id", "partition", "seq", name="uq_dead_letters_target_id_partition_seq"),
        sqlite_autoincrement=True,
        **MYSQL,
    )
    op.create_index("ix_dead_letters_event_id", "dead_letters", ["event_id"], unique=False)
    op.create_index("ix_dead_letters_partition_seq", "dead_letters", ["partition", "seq"], unique=False)
    op.create_table(
        "parked",
        sa.Column("target_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("partition", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("key_hash", sa.BigInteger(), nullable=False),
        sa.Column("not_before", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("first_tried", sa.BigInteger(), nullable=False),
        sa.Column("last_tried", sa.BigInteger(), nullable=False),
        sa.Column("history", sa.Text(), nullable=False),
        sa.Column("replayed", sa.Boolean(), nullable=False),
        sa.Column("refused_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], name="fk_parked_target_id_targets"),
        sa.PrimaryKeyConstraint("target_id", "partition", "seq", name="pk_parked"),
        **MYSQL,
    )
    op.create_index("ix_parked_partition_seq", "parked", ["partition", "seq"], unique=False)
    op.create_index(
        "ix_parked_target_id_partition_key_hash_not_before",
        "parked",
        ["target_id", "partition", "key_hash", "not_before"],
        unique=False,
    )
    op.create_index(
        "ix_parked_target_id_partition_key_hash_seq",
        "parked",
        ["target_id", "partition", "key_hash", "seq"],
        unique=False,
    )
    op.create_index(
        "ix_parked_target_id_partition_not_before", "parked", ["target_id", "partition", "not_before"], unique=False
    )
    op.create_index("ix_parked_target_id_refused_at", "parked", ["target_id", "refused_at"], unique=False)
    op.create_index("ix_parked_target_id_replayed", "parked", ["target_id", "replayed"], unique=False)
    op.create_table(
        "redeliveries",
        sa.Column("target_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("partition", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("key_hash", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], name="fk_redeliveries_target_id_targets"),
        sa.PrimaryKeyConstraint("target_id", "partition", "key_hash", name="pk_redeliveries"),
        **MYSQL,
    )
    op.create_index("ix_redeliveries_partition_key_hash", "redeliveries", ["partition", "key_hash"], unique=False)
    op.create_table(
        "replays",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("before", sa.BigInteger(), nullable=False),
        sa.Column("bucket", sa.String(length=255), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("events", sa.Text(), nullable=False),
        sa.Column("replayed", sa.BigInteger(), nullable=False),
        sa.Column("passed", sa.BigInteger(), nullable=False),
        sa.Column("cancelled_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], name="fk_replays_target_id_targets"),
        sa.PrimaryKeyConstraint("id", name="pk_replays"),
        sqlite_autoincrement=True,
        **MYSQL,
    )
    op.create_index("ix_replays_target_id", "replays", ["target_id"], unique=False)
    op.create_table(
        "rules",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("bucket", sa.String(length=255), nullable=False),
        sa.Column("rule_id", sa.Text(), nullable=False),
        sa.Column("events", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("suffix", sa.Text(), nullable=False),
        sa.Column("filter_names", sa.String(length=32), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], name="fk_rules_target_id_targets"),
        sa.PrimaryKeyConstraint("id", name="pk_rules"),
        **MYSQL,
    )
    op.create_index("ix_rules_bucket", "rules", ["bucket"], unique=False)
    op.create_index("ix_rules_target_id", "rules", ["target_id"], unique=False)
    op.bulk_insert(sa.table("log_tail", sa.column("id", sa.Integer)), [{"id": 1}])
    if op.get_bind().dialect.name == "postgresql":
        op.execute(BEGIN_APPEND)


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION begin_append")
    op.drop_table("rules")
    op.drop_table("replays")
    op.drop_table("redeliveries")
    op.drop_table("parked")
    op.drop_table("dead_letters")
    op.drop_table("cursors")
    op.drop_table("tokens")
    op.drop_table("service_settings")
    op.drop_table("targets")
    op.drop_table("attempts")
    op.drop_table("rate_limits")
    op.drop_table("delivery_times")
    op.drop_table("series")
    op.drop_table("findings")
    op.drop_table("reconciliations")
    op.drop_table("object_versions")
    op.drop_table("log_tail")
    op.drop_table("log_head")
    op.drop_table("heartbeats")
    op.drop_table("events")
    op.drop_table("buckets")
    op.drop_table("audit")
