"""Which task another one follows, in a column with an index; no times that nothing reads. Revision: 0015."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tasks", sa.Column("follows", sa.String(40), nullable=True))
    op.create_index("ix_tasks_follows", "tasks", ["follows"])
    tasks = sa.table("tasks", sa.column("follows", sa.String(40)), sa.column("schedule", sa.JSON()))
    op.execute(tasks.update().values(follows=tasks.c.schedule["follows"].as_string()))
    op.drop_column("refusals", "refused_at")
    op.drop_column("past_tasks", "deleted_at")
