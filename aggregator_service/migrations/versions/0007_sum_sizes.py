"""Rows and columns of a round's sum, and of the sum after it, where they follow from earlier ones. Revision: 0007."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("size", "next_size"):
        op.add_column("rounds", sa.Column(name, sa.JSON(), nullable=True))
