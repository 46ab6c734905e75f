"""The first tables. Revision: 0001."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "operators",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("lifetime", sa.Float(), nullable=True),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_operators")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_operators_token_hash")),
    )
    op.create_table(
        "sign_ins",
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("secret_hash", name=op.f("pk_sign_ins")),
    )
    op.create_table(
        "small_bodies",
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_small_bodies")),
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("recipe_name", sa.String(length=63), nullable=False),
        sa.Column("recipe_parameters", sa.JSON(), nullable=False),
        sa.Column("mechanism_name", sa.String(length=63), nullable=False),
        sa.Column("mechanism_parameters", sa.JSON(), nullable=False),
        sa.Column("public_key", sa.LargeBinary(), nullable=True),
        sa.Column("schedule", sa.JSON(), nullable=False),
        sa.Column("seed", sa.LargeBinary(length=32), nullable=False),
        sa.Column("opened_by", sa.String(length=16), nullable=False),
        sa.Column("needs_keyring", sa.Boolean(), nullable=False),
        sa.Column("data_set", sa.String(length=63), nullable=True),
        sa.Column("organiser_key", sa.LargeBinary(length=32), nullable=True),
        sa.Column("organiser_scope", sa.String(length=100), nullable=True),
        sa.Column("revocations", sa.LargeBinary(), nullable=True),
        sa.Column("evaluation", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("best_round", sa.Integer(), nullable=True),
        sa.Column("repeatable", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("completed_rounds", sa.Integer(), nullable=False),
        sa.Column("failed_rounds", sa.Integer(), nullable=False),
        sa.Column("failures_in_a_row", sa.Integer(), nullable=False),
        sa.Column("abandoned_sums", sa.Integer(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
        sa.UniqueConstraint("name", name=op.f("uq_tasks_name")),
    )
    op.create_index(op.f("ix_tasks_data_set"), "tasks", ["data_set"], unique=False)
    op.create_index(op.f("ix_tasks_state"), "tasks", ["state"], unique=False)

    op.create_table(
        "clients",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("task_id", sa.String(length=40), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("identity_key", sa.LargeBinary(length=32), nullable=False),
        sa.Column("mailbox_key", sa.LargeBinary(length=32), nullable=False),
        sa.Column("certificate", sa.LargeBinary(length=81), nullable=True),
        sa.Column("subject", sa.LargeBinary(length=8), nullable=True),
        sa.Column("renewal", sa.Integer(), nullable=False),
        sa.Column("device_group", sa.Integer(), nullable=False),
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("enrolled_at", sa.Float(), nullable=False),
        sa.Column("turn", sa.BigInteger(), nullable=False),
        sa.Column("times_asked", sa.Integer(), nullable=False),
        sa.Column("retired_in", sa.Integer(), nullable=True),
        sa.Column("left_data_in", sa.Integer(), nullable=True),
        sa.Column("revoked_at", sa.Float(), nullable=True),
        sa.Column("envelope_key", sa.String(length=200), nullable=True),
        sa.Column("envelope_digest", sa.String(length=64), nullable=True),
        sa.Column("envelope_bytes", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_clients_task_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_clients")),
        sa.UniqueConstraint("task_id", "identity_key", name=op.f("uq_clients_task_id_identity_key")),
        sa.UniqueConstraint("task_id", "subject", name=op.f("uq_clients_task_id_subject")),
        sa.UniqueConstraint("task_id", "sequence", name=op.f("uq_clients_task_id_sequence")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_clients_token_hash")),
    )
    op.create_index("ix_clients_least_asked", "clients", ["task_id", "device_group", "times_asked"], unique=False)
    op.create_index(
        "ix_clients_one_holder",
        "clients",
        ["task_id"],
        unique=True,
        sqlite_where=sa.text("role = 'holder'"),
        postgresql_where=sa.text("role = 'holder'"),
    )

    op.create_table(
        "invitations",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("task_id", sa.String(length=40), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("uses", sa.Integer(), nullable=False),
        sa.Column("used", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("revoked_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_invitations_task_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_invitations")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_invitations_token_hash")),
    )
    op.create_index(op.f("ix_invitations_task_id"), "invitations", ["task_id"], unique=False)

    op.create_table(
        "rounds",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("sum_index", sa.Integer(), nullable=False),
        sa.Column("sum_rule", sa.String(length=16), nullable=False),
        sa.Column("sum_data", sa.String(length=16), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("seed", sa.LargeBinary(length=32), nullable=False),
        sa.Column("levels", sa.JSON(), nullable=False),
        sa.Column("model_digest", sa.LargeBinary(length=32), nullable=True),
        sa.Column("confirms", sa.Boolean(), nullable=False),
        sa.Column("committee", sa.Integer(), nullable=False),
        sa.Column("aggregate_chain", sa.String(length=64), nullable=True),
        sa.Column("again", sa.Integer(), nullable=True),
        sa.Column("opened_at", sa.Float(), nullable=False),
        sa.Column("deadline", sa.Float(), nullable=False),
        sa.Column("cohort", sa.Integer(), nullable=False),
        sa.Column("folded", sa.Integer(), nullable=False),
        sa.Column("survivors", sa.Integer(), nullable=False),
        sa.Column("unfinished", sa.Integer(), nullable=False),
        sa.Column("partial_key", sa.String(length=200), nullable=True),
        sa.Column("partial_digest", sa.String(length=64), nullable=True),
        sa.Column("aggregate_key", sa.String(length=200), nullable=True),
        sa.Column("aggregate_digest", sa.String(length=64), nullable=True),
        sa.Column("aggregate_bytes", sa.BigInteger(), nullable=True),
        sa.Column("released_at", sa.Float(), nullable=True),
        sa.Column("survivors_digest", sa.String(length=64), nullable=True),
        sa.Column("failure", sa.String(length=400), nullable=True),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_rounds_task_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rounds")),
        sa.UniqueConstraint("task_id", "number", name=op.f("uq_rounds_task_id_number")),
    )
    op.create_table(
        "snapshots",
        sa.Column("task_id", sa.String(length=40), nullable=False),
        sa.Column("round_number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("author", sa.String(length=40), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("blob_key", sa.String(length=200), nullable=True),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_snapshots_task_id")),
        sa.PrimaryKeyConstraint("task_id", "round_number", name=op.f("pk_snapshots")),
    )
    op.create_table(
        "chunks",
        sa.Column("round_id", sa.Integer(), nullable=False),
        sa.Column("client_id", sa.String(length=40), nullable=False),
        sa.Column("chunk_offset", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("blob_key", sa.String(length=200), nullable=False),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_chunks_client_id")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_chunks_round_id")),
        sa.PrimaryKeyConstraint("round_id", "client_id", "chunk_offset", name=op.f("pk_chunks")),
    )
    op.create_table(
        "cohorts",
        sa.Column("round_id", sa.Integer(), nullable=False),
        sa.Column("client_id", sa.String(length=40), nullable=False),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_cohorts_client_id")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_cohorts_round_id")),
        sa.PrimaryKeyConstraint("round_id", "client_id", name=op.f("pk_cohorts")),
    )
    op.create_table(
        "disputes",
        sa.Column("round_id", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(length=40), nullable=False),
        sa.Column("reporter", sa.String(length=40), nullable=False),
        sa.ForeignKeyConstraint(["owner"], ["clients.id"], name=op.f("fk_disputes_owner")),
        sa.ForeignKeyConstraint(["reporter"], ["clients.id"], name=op.f("fk_disputes_reporter")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_disputes_round_id")),
        sa.PrimaryKeyConstraint("round_id", "owner", "reporter", name=op.f("pk_disputes")),
    )
    op.create_table(
        "committee_keys",
        sa.Column("task_id", sa.String(length=40), nullable=False),
        sa.Column("round_number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("client_id", sa.String(length=40), nullable=False),
        sa.Column("round_id", sa.Integer(), nullable=True),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_committee_keys_client_id")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_committee_keys_round_id")),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_committee_keys_task_id")),
        sa.PrimaryKeyConstraint("task_id", "round_number", "client_id", name=op.f("pk_committee_keys")),
    )
    op.create_index(op.f("ix_committee_keys_round_id"), "committee_keys", ["round_id"], unique=False)

    op.create_table(
        "contributions",
        sa.Column("round_id", sa.Integer(), nullable=False),
        sa.Column("client_id", sa.String(length=40), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("stored_at", sa.Float(), nullable=False),
        sa.Column("blob_key", sa.String(length=200), nullable=True),
        sa.Column("folded", sa.Boolean(), nullable=False),
        sa.Column("statement", sa.LargeBinary(), nullable=True),
        sa.Column("attestation", sa.Text(), nullable=True),
        sa.Column("tag", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_contributions_client_id")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_contributions_round_id")),
        sa.PrimaryKeyConstraint("round_id", "client_id", name=op.f("pk_contributions")),
    )
    op.create_index(
        "ix_contributions_unfolded", "contributions", ["round_id", "folded", "stored_at", "client_id"], unique=False
    )

    op.create_table(
        "handouts",
        sa.Column("round_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("recipient", sa.String(length=40), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_handouts_round_id")),
        sa.PrimaryKeyConstraint("round_id", "kind", "recipient", name=op.f("pk_handouts")),
    )
    op.create_table(
        "refusals",
        sa.Column("round_id", sa.Integer(), nullable=False),
        sa.Column("client_id", sa.String(length=40), nullable=False),
        sa.Column("reason", sa.String(length=16), nullable=False),
        sa.Column("refused_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_refusals_client_id")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_refusals_round_id")),
        sa.PrimaryKeyConstraint("round_id", "client_id", name=op.f("pk_refusals")),
    )
    op.create_table(
        "round_states",
        sa.Column("round_id", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("entered_at", sa.Float(), nullable=False),
        sa.Column("handed_out", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_round_states_round_id")),
        sa.PrimaryKeyConstraint("round_id", "state", name=op.f("pk_round_states")),
    )
    op.create_table(
        "stage_messages",
        sa.Column("round_id", sa.Integer(), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("client_id", sa.String(length=40), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("length", sa.Integer(), nullable=False),
        sa.Column("stored_at", sa.Float(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_stage_messages_client_id")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_stage_messages_round_id")),
        sa.PrimaryKeyConstraint("round_id", "stage", "client_id", name=op.f("pk_stage_messages")),
    )
    op.create_table(
        "views",
        sa.Column("task_id", sa.String(length=40), nullable=False),
        sa.Column("round_number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("device_group", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("blob_key", sa.String(length=200), nullable=True),
        sa.ForeignKeyConstraint(
            ["task_id", "round_number"],
            ["snapshots.task_id", "snapshots.round_number"],
            name=op.f("fk_views_task_id_round_number"),
        ),
        sa.PrimaryKeyConstraint("task_id", "round_number", "device_group", name=op.f("pk_views")),
    )
