"""The digest of the model state after a round. Revision: 0006."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rounds", sa.Column("state_digest", sa.String(length=64), nullable=True))
