"""The item catalogue of a task: its digest in the terms, and its blob. Revision: 0003."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tasks", sa.Column("catalogue_digest", sa.String(length=64), nullable=True))
    op.add_column("tasks", sa.Column("catalogue_key", sa.String(length=200), nullable=True))
    op.add_column("tasks", sa.Column("catalogue_bytes", sa.Integer(), nullable=True))
