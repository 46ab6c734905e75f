"""small bodies

Contributions and envelopes of up to 64 KiB are rows of the database instead of blobs.

Revision ID: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "small_bodies",
        sa.Column("key", sa.String(200), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_small_bodies"),
    )


def downgrade() -> None:
    op.drop_table("small_bodies")
