"""The privacy block of a task, how often its members contributed, and why it ended. Revision: 0004."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tasks", sa.Column("privacy", sa.JSON(), nullable=True))
    op.add_column("tasks", sa.Column("ended", sa.String(length=400), nullable=True))
    contributed = sa.Column("times_contributed", sa.Integer(), nullable=False, server_default="0")
    op.add_column("clients", contributed)
