"""No index of how often members were asked: cohorts take turns by what rounds there were. Revision: 0014."""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_clients_least_asked", "clients")
