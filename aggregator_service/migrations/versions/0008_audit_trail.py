"""The audit trail of operators' actions. Revision: 0008."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("until", sa.Float(), nullable=False),
        sa.Column("operator", sa.String(length=200), nullable=False),
        sa.Column("via", sa.String(length=16), nullable=False),
        sa.Column("address", sa.String(length=255), nullable=False),
        sa.Column("action", sa.String(length=200), nullable=False),
        sa.Column("task_id", sa.String(length=40), nullable=True),
        sa.Column("task_name", sa.String(length=63), nullable=True),
        sa.Column("target", sa.String(length=200), nullable=True),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("refused", sa.String(length=40), nullable=True),
        sa.Column("times", sa.Integer(), nullable=False),
        sa.Column("logged", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    not_logged = sa.text("NOT logged")
    op.create_index(
        "ix_audit_not_logged", "audit", ["id"], unique=False, sqlite_where=not_logged, postgresql_where=not_logged
    )
    op.create_index(op.f("ix_audit_until"), "audit", ["until"], unique=False)
