"""The key with which a task's acknowledgements are signed. Revision: 0012."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Tasks that there are keep none: it would change the terms that their members agreed to.
    op.add_column("tasks", sa.Column("receipt_seed", sa.LargeBinary(length=32), nullable=True))
