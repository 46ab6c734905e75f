"""enrolment renewals

The number of a client's last enrolment. A later enrolment replaces its token only if its number is greater.

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("clients", sa.Column("renewal", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("clients", "renewal")
