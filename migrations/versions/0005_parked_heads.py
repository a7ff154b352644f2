"""An index that finds the head of an object's parked events, however many wait behind it."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        op.f("ix_parked_target_id_partition_key_hash_not_before"),
        "parked",
        ["target_id", "partition", "key_hash", "not_before"],
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_parked_target_id_partition_key_hash_not_before"), table_name="parked")
