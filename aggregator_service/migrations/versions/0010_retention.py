"""What is kept of old rounds and of deleted tasks, and how much a server stores. Revision: 0010."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rounds", sa.Column("tally", sa.JSON(), nullable=True))
    for name in ("keep_rounds", "ended_days"):
        op.add_column("tasks", sa.Column(name, sa.Integer(), nullable=True))
    op.add_column("tasks", sa.Column("tidied_upto", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("tasks", sa.Column("ended_at", sa.Float(), nullable=True))
    for name in ("past_contributions", "past_bytes"):
        op.add_column("clients", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("clients", sa.Column("past_seen_at", sa.Float(), nullable=True))
    op.create_table(
        "past_tasks",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("data_set", sa.String(length=63), nullable=True),
        sa.Column("recipe_name", sa.String(length=63), nullable=False),
        sa.Column("recipe_parameters", sa.JSON(), nullable=False),
        sa.Column("mechanism_name", sa.String(length=63), nullable=False),
        sa.Column("mechanism_parameters", sa.JSON(), nullable=False),
        sa.Column("public_key", sa.LargeBinary(), nullable=True),
        sa.Column("schedule", sa.JSON(), nullable=False),
        sa.Column("evaluation", sa.JSON(), nullable=True),
        sa.Column("privacy", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("deleted_at", sa.Float(), nullable=False),
        sa.Column("released_sums", sa.Integer(), nullable=False),
        sa.Column("ledger_digest", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_past_tasks")),
    )
    op.create_index(op.f("ix_past_tasks_data_set"), "past_tasks", ["data_set"], unique=False)
    op.create_table(
        "past_sums",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.String(length=40), nullable=False),
        sa.Column("data_set", sa.String(length=63), nullable=False),
        sa.Column("sum_rule", sa.String(length=16), nullable=False),
        sa.Column("sum_data", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["past_tasks.id"], name=op.f("fk_past_sums_task_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_past_sums")),
    )
    op.create_index(op.f("ix_past_sums_data_set"), "past_sums", ["data_set"], unique=False)
    op.create_table(
        "past_summands",
        sa.Column("sum_id", sa.Integer(), nullable=False),
        sa.Column("person", sa.LargeBinary(length=32), nullable=False),
        sa.ForeignKeyConstraint(["sum_id"], ["past_sums.id"], name=op.f("fk_past_summands_sum_id")),
        sa.PrimaryKeyConstraint("sum_id", "person", name=op.f("pk_past_summands")),
    )
    op.create_table(
        "sizes",
        sa.Column("measured_at", sa.Float(), nullable=False),
        sa.Column("database_bytes", sa.BigInteger(), nullable=False),
        sa.Column("kinds", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("measured_at", name=op.f("pk_sizes")),
    )
