"""committees of one-shot rounds

The keys that members of a committee publish for single rounds, and the statements that the clients of a round signed.

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "committee_keys",
        sa.Column(
            "task_id", sa.String(40), sa.ForeignKey("tasks.id", name="fk_committee_keys_task_id"), nullable=False
        ),
        sa.Column("round_number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column(
            "client_id", sa.String(40), sa.ForeignKey("clients.id", name="fk_committee_keys_client_id"), nullable=False
        ),
        sa.Column("round_id", sa.Integer(), sa.ForeignKey("rounds.id", name="fk_committee_keys_round_id")),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "round_number", "client_id", name="pk_committee_keys"),
    )
    op.create_index("ix_committee_keys_round_id", "committee_keys", ["round_id"])
    op.add_column("rounds", sa.Column("committee", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("contributions", sa.Column("statement", sa.LargeBinary()))


def downgrade() -> None:
    op.drop_column("contributions", "statement")
    op.drop_column("rounds", "committee")
    op.drop_index("ix_committee_keys_round_id", "committee_keys")
    op.drop_table("committee_keys")
