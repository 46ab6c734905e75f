"""When a server last noted that database and blob store work. Revision: 0005."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("storage", sa.Column("noted_at", sa.Float(), nullable=True))
