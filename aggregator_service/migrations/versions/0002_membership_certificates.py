"""membership certificates

Members of a task are certified by an organiser. The proofs that were made with a secret of all members go: their tasks
have no organiser, and go on without one.

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("tasks") as table:
        table.add_column(sa.Column("organiser_key", sa.LargeBinary(length=32), nullable=True))
        table.add_column(sa.Column("organiser_scope", sa.String(length=100), nullable=True))
        table.add_column(sa.Column("revocations", sa.LargeBinary(), nullable=True))
    with op.batch_alter_table("clients") as table:
        table.add_column(sa.Column("certificate", sa.LargeBinary(length=81), nullable=True))
        table.drop_column("membership_proof")


def downgrade() -> None:
    with op.batch_alter_table("clients") as table:
        table.add_column(sa.Column("membership_proof", sa.LargeBinary(length=32), nullable=True))
        table.drop_column("certificate")
    with op.batch_alter_table("tasks") as table:
        table.drop_column("revocations")
        table.drop_column("organiser_scope")
        table.drop_column("organiser_key")
