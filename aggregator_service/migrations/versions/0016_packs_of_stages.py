"""Where a long message of a stage, and what is handed out to one client, begin in a pack. Revision: 0016."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # null for what there is: its bytes are in the rows
    for table in ("stage_messages", "handouts"):
        op.add_column(table, sa.Column("blob_key", sa.String(200), nullable=True))
        op.add_column(table, sa.Column("blob_start", sa.BigInteger(), nullable=True))
    op.add_column("handouts", sa.Column("length", sa.Integer(), nullable=False, server_default="0"))
    handouts = sa.table("handouts", sa.column("length", sa.Integer()), sa.column("body", sa.LargeBinary()))
    op.execute(handouts.update().values(length=sa.func.length(handouts.c.body)))
