"""Where a contribution begins in a pack. Revision: 0013."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # null for the contributions that there are: each has a blob of its own
    op.add_column("contributions", sa.Column("blob_start", sa.BigInteger(), nullable=True))
