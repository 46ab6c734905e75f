"""federated evaluation

The evaluation block of a task, and the round of its best measured model.

Revision ID: 0006
Revises: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tasks", sa.Column("evaluation", sa.JSON()))
    op.add_column("tasks", sa.Column("best_round", sa.Integer()))


def downgrade() -> None:
    op.drop_column("tasks", "best_round")
    op.drop_column("tasks", "evaluation")
