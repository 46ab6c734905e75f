"""What is left of a member after an erasure, and which erasures wait. Revision: 0009."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from protocols.crypto.keys import person_of

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    person = sa.Column("person", sa.LargeBinary(length=32), nullable=False, server_default=sa.text("''"))
    op.add_column("clients", person)
    for name in ("erase_asked_at", "erased_at"):
        op.add_column("clients", sa.Column(name, sa.Float(), nullable=True))
    asked = sa.text("erase_asked_at IS NOT NULL")
    op.create_index("ix_clients_to_erase", "clients", ["id"], sqlite_where=asked, postgresql_where=asked)
    clients = sa.table("clients", sa.column("id"), sa.column("identity_key"), sa.column("person", sa.LargeBinary()))
    connection = op.get_bind()
    filled = clients.update().where(clients.c.id == sa.bindparam("client")).values(person=sa.bindparam("of"))
    rows = connection.execute(sa.select(clients.c.id, clients.c.identity_key)).all()
    if rows:
        connection.execute(filled, [{"client": row.id, "of": person_of(bytes(row.identity_key))} for row in rows])
