"""tags of bodies

A contribution that is a blob has a tag, with which a fold checks its bytes.

Revision ID: 0009
Revises: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("contributions") as batch_op:
        batch_op.add_column(sa.Column("tag", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("contributions") as batch_op:
        batch_op.drop_column("tag")
