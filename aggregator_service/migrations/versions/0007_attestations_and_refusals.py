"""attestations and refusals

What members of encrypted tasks state about the aggregates that they absorbed, and which clients refused a round.

Revision ID: 0007
Revises: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rounds", sa.Column("aggregate_chain", sa.String(64)))
    op.add_column("contributions", sa.Column("attestation", sa.Text()))
    op.create_table(
        "refusals",
        sa.Column("round_id", sa.Integer(), sa.ForeignKey("rounds.id", name="fk_refusals_round_id"), nullable=False),
        sa.Column(
            "client_id", sa.String(40), sa.ForeignKey("clients.id", name="fk_refusals_client_id"), nullable=False
        ),
        sa.Column("reason", sa.String(16), nullable=False),
        sa.Column("refused_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("round_id", "client_id", name="pk_refusals"),
    )


def downgrade() -> None:
    op.drop_table("refusals")
    op.drop_column("contributions", "attestation")
    op.drop_column("rounds", "aggregate_chain")
