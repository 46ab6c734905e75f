"""Public sealing keys of mailboxes. Revision: 0011."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column = sa.Column("sealing_key", sa.LargeBinary(length=1216), nullable=False, server_default=sa.text("''"))
    op.add_column("clients", column)
