"""The blob store that belongs to the database, and where the database was moved. Revision: 0002."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "storage",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("store_id", sa.String(length=32), nullable=False),
        sa.Column("moved_to", sa.String(length=400), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_storage")),
    )
