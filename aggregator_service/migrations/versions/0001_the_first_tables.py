"""The first tables. Revision: 0001."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_IS_HOLDER = sa.text("role = 'holder'")


def _required(kind: sa.types.TypeEngine[Any], *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name in names]


def _optional(kind: sa.types.TypeEngine[Any], *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind) for name in names]


def upgrade() -> None:
    """Create the tables; constraints get the names of `schema.Base.metadata`."""
    op.create_table(
        "operators",
        sa.Column("name", sa.String(63), primary_key=True),
        *_required(sa.String(16), "role"),
        sa.Column("token_hash", sa.String(64), unique=True, nullable=False),
        *_required(sa.Float(), "created_at"),
        *_optional(sa.Float(), "lifetime", "expires_at"),
    )
    op.create_table(
        "sign_ins",
        sa.Column("secret_hash", sa.String(64), primary_key=True),
        *_required(sa.String(64), "token_hash"),
        *_required(sa.Float(), "expires_at"),
    )
    op.create_table(
        "small_bodies",
        sa.Column("key", sa.String(200), primary_key=True),
        *_required(sa.LargeBinary(), "body"),
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("name", sa.String(63), unique=True, nullable=False),
        sa.Column("state", sa.String(16), index=True, nullable=False),
        *_required(sa.String(63), "recipe_name"),
        *_required(sa.JSON(), "recipe_parameters"),
        *_required(sa.String(63), "mechanism_name"),
        *_required(sa.JSON(), "mechanism_parameters"),
        *_optional(sa.LargeBinary(), "public_key"),
        *_required(sa.JSON(), "schedule"),
        *_required(sa.LargeBinary(32), "seed"),
        *_required(sa.String(16), "opened_by"),
        *_required(sa.Boolean(), "needs_keyring"),
        sa.Column("data_set", sa.String(63), index=True, nullable=True),
        *_optional(sa.LargeBinary(32), "organiser_key"),
        *_optional(sa.String(100), "organiser_scope"),
        *_optional(sa.LargeBinary(), "revocations"),
        *_optional(sa.JSON(none_as_null=True), "evaluation"),
        *_optional(sa.Integer(), "best_round"),
        *_required(sa.Boolean(), "repeatable"),
        *_required(sa.Float(), "created_at"),
        *_required(sa.Integer(), "completed_rounds", "failed_rounds", "failures_in_a_row", "abandoned_sums"),
        *_required(sa.BigInteger(), "version"),
    )
    op.create_table(
        "clients",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("task_id", sa.String(40), sa.ForeignKey("tasks.id"), nullable=False),
        *_required(sa.Integer(), "sequence"),
        *_required(sa.String(16), "role"),
        *_required(sa.LargeBinary(32), "identity_key", "mailbox_key"),
        *_optional(sa.LargeBinary(81), "certificate"),
        *_optional(sa.LargeBinary(8), "subject"),
        *_required(sa.Integer(), "renewal", "device_group"),
        sa.Column("token_hash", sa.String(64), unique=True, nullable=False),
        *_required(sa.Float(), "enrolled_at"),
        *_required(sa.BigInteger(), "turn"),
        *_required(sa.Integer(), "times_asked"),
        *_optional(sa.Integer(), "retired_in", "left_data_in"),
        *_optional(sa.Float(), "revoked_at"),
        *_optional(sa.String(200), "envelope_key"),
        *_optional(sa.String(64), "envelope_digest"),
        *_optional(sa.Integer(), "envelope_bytes"),
        sa.UniqueConstraint("task_id", "identity_key"),
        sa.UniqueConstraint("task_id", "subject"),
        sa.UniqueConstraint("task_id", "sequence"),
    )
    op.create_index("ix_clients_least_asked", "clients", ["task_id", "device_group", "times_asked"])
    op.create_index(
        "ix_clients_one_holder",
        "clients",
        ["task_id"],
        unique=True,
        sqlite_where=_IS_HOLDER,
        postgresql_where=_IS_HOLDER,
    )
    op.create_table(
        "invitations",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("token_hash", sa.String(64), unique=True, nullable=False),
        sa.Column("task_id", sa.String(40), sa.ForeignKey("tasks.id"), index=True, nullable=False),
        *_required(sa.String(16), "role"),
        *_required(sa.Integer(), "uses", "used"),
        *_required(sa.Float(), "created_at", "expires_at"),
        *_optional(sa.Float(), "revoked_at"),
    )
    op.create_table(
        "rounds",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("task_id", sa.String(40), sa.ForeignKey("tasks.id"), nullable=False),
        *_required(sa.Integer(), "number", "sum_index"),
        *_required(sa.String(16), "sum_rule"),
        *_optional(sa.String(16), "sum_data"),
        *_required(sa.String(16), "state"),
        *_required(sa.LargeBinary(32), "seed"),
        *_required(sa.JSON(), "levels"),
        *_optional(sa.LargeBinary(32), "model_digest"),
        *_required(sa.Boolean(), "confirms"),
        *_required(sa.Integer(), "committee"),
        *_optional(sa.String(64), "aggregate_chain"),
        *_optional(sa.Integer(), "again"),
        *_required(sa.Float(), "opened_at", "deadline"),
        *_required(sa.Integer(), "cohort", "folded", "survivors", "unfinished"),
        *_optional(sa.String(200), "partial_key"),
        *_optional(sa.String(64), "partial_digest"),
        *_optional(sa.String(200), "aggregate_key"),
        *_optional(sa.String(64), "aggregate_digest"),
        *_optional(sa.BigInteger(), "aggregate_bytes"),
        *_optional(sa.Float(), "released_at"),
        *_optional(sa.String(64), "survivors_digest"),
        *_optional(sa.String(400), "failure"),
        *_required(sa.JSON(), "report"),
        sa.UniqueConstraint("task_id", "number"),
    )
    op.create_table(
        "snapshots",
        sa.Column("task_id", sa.String(40), sa.ForeignKey("tasks.id"), primary_key=True),
        sa.Column("round_number", sa.Integer(), primary_key=True, autoincrement=False),
        *_required(sa.String(40), "author"),
        *_required(sa.String(64), "digest"),
        *_required(sa.BigInteger(), "bytes"),
        *_optional(sa.String(200), "blob_key"),
    )
    op.create_table(
        "chunks",
        sa.Column("round_id", sa.Integer(), sa.ForeignKey("rounds.id"), primary_key=True),
        sa.Column("client_id", sa.String(40), sa.ForeignKey("clients.id"), primary_key=True),
        sa.Column("chunk_offset", sa.BigInteger(), primary_key=True, autoincrement=False),
        *_required(sa.BigInteger(), "bytes"),
        *_required(sa.String(64), "digest"),
        *_required(sa.String(200), "blob_key"),
    )
    op.create_table(
        "cohorts",
        sa.Column("round_id", sa.Integer(), sa.ForeignKey("rounds.id"), primary_key=True),
        sa.Column("client_id", sa.String(40), sa.ForeignKey("clients.id"), primary_key=True),
    )
    op.create_table(
        "disputes",
        sa.Column("round_id", sa.Integer(), sa.ForeignKey("rounds.id"), primary_key=True),
        sa.Column("owner", sa.String(40), sa.ForeignKey("clients.id"), primary_key=True),
        sa.Column("reporter", sa.String(40), sa.ForeignKey("clients.id"), primary_key=True),
    )
    op.create_table(
        "committee_keys",
        sa.Column("task_id", sa.String(40), sa.ForeignKey("tasks.id"), primary_key=True),
        sa.Column("round_number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("client_id", sa.String(40), sa.ForeignKey("clients.id"), primary_key=True),
        sa.Column("round_id", sa.Integer(), sa.ForeignKey("rounds.id"), index=True, nullable=True),
        *_required(sa.String(64), "digest"),
        *_required(sa.LargeBinary(), "body"),
    )
    op.create_table(
        "contributions",
        sa.Column("round_id", sa.Integer(), sa.ForeignKey("rounds.id"), primary_key=True),
        sa.Column("client_id", sa.String(40), sa.ForeignKey("clients.id"), primary_key=True),
        *_required(sa.String(64), "digest"),
        *_required(sa.BigInteger(), "bytes"),
        *_required(sa.Float(), "stored_at"),
        *_optional(sa.String(200), "blob_key"),
        *_required(sa.Boolean(), "folded"),
        *_optional(sa.LargeBinary(), "statement"),
        *_optional(sa.Text(), "attestation"),
        *_optional(sa.LargeBinary(), "tag"),
    )
    op.create_index("ix_contributions_unfolded", "contributions", ["round_id", "folded", "stored_at", "client_id"])
    op.create_table(
        "handouts",
        sa.Column("round_id", sa.Integer(), sa.ForeignKey("rounds.id"), primary_key=True),
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("recipient", sa.String(40), primary_key=True),
        *_required(sa.String(64), "digest"),
        *_required(sa.LargeBinary(), "body"),
    )
    op.create_table(
        "refusals",
        sa.Column("round_id", sa.Integer(), sa.ForeignKey("rounds.id"), primary_key=True),
        sa.Column("client_id", sa.String(40), sa.ForeignKey("clients.id"), primary_key=True),
        *_required(sa.String(16), "reason"),
        *_required(sa.Float(), "refused_at"),
    )
    op.create_table(
        "round_states",
        sa.Column("round_id", sa.Integer(), sa.ForeignKey("rounds.id"), primary_key=True),
        sa.Column("state", sa.String(16), primary_key=True),
        *_required(sa.Float(), "entered_at"),
        *_required(sa.BigInteger(), "handed_out"),
    )
    op.create_table(
        "stage_messages",
        sa.Column("round_id", sa.Integer(), sa.ForeignKey("rounds.id"), primary_key=True),
        sa.Column("stage", sa.String(16), primary_key=True),
        sa.Column("client_id", sa.String(40), sa.ForeignKey("clients.id"), primary_key=True),
        *_required(sa.String(64), "digest"),
        *_required(sa.Integer(), "length"),
        *_required(sa.Float(), "stored_at"),
        *_optional(sa.LargeBinary(), "body"),
    )
    op.create_table(
        "views",
        sa.Column("task_id", sa.String(40), primary_key=True),
        sa.Column("round_number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("device_group", sa.Integer(), primary_key=True, autoincrement=False),
        *_required(sa.String(64), "digest"),
        *_required(sa.BigInteger(), "bytes"),
        *_optional(sa.String(200), "blob_key"),
        sa.ForeignKeyConstraint(["task_id", "round_number"], ["snapshots.task_id", "snapshots.round_number"]),
    )
