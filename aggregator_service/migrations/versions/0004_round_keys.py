"""round keys

The public keys of single rounds, which the key holder of an encrypted task in public mode publishes before each round.

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "round_keys",
        sa.Column("task_id", sa.String(40), sa.ForeignKey("tasks.id", name="fk_round_keys_task_id"), nullable=False),
        sa.Column("round_number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "round_number", name="pk_round_keys"),
    )
    op.add_column("rounds", sa.Column("key_digest", sa.String(64)))


def downgrade() -> None:
    op.drop_column("rounds", "key_digest")
    op.drop_table("round_keys")
