"""membership certificates

Members of a task are certified by an organiser. The proofs that were made with a secret of all members are dropped:
their tasks go on without an organiser. Rosters have another form, so masked rounds that are open fail, and their sums
are made again by the next round.

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_FAIL_OPEN_MASKED_ROUNDS = """
UPDATE rounds SET state = 'failed', failure = 'the server was upgraded during the round'
WHERE model_digest IS NOT NULL AND state IN ('advertising', 'sharing', 'collecting', 'confirming', 'unmasking')
"""


def upgrade() -> None:
    # not in batches: SQLite would copy the tables, and rows of others refer to them
    op.add_column("tasks", sa.Column("organiser_key", sa.LargeBinary(length=32), nullable=True))
    op.add_column("tasks", sa.Column("organiser_scope", sa.String(length=100), nullable=True))
    op.add_column("tasks", sa.Column("revocations", sa.LargeBinary(), nullable=True))
    op.add_column("clients", sa.Column("certificate", sa.LargeBinary(length=81), nullable=True))
    op.drop_column("clients", "membership_proof")
    op.execute(_FAIL_OPEN_MASKED_ROUNDS)


def downgrade() -> None:
    op.add_column("clients", sa.Column("membership_proof", sa.LargeBinary(length=32), nullable=True))
    op.drop_column("clients", "certificate")
    op.drop_column("tasks", "revocations")
    op.drop_column("tasks", "organiser_scope")
    op.drop_column("tasks", "organiser_key")
