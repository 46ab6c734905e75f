"""Alembic's entry point: runs the migrations on the connection that `migrations.migrate` passes in."""

from __future__ import annotations

from alembic import context

from aggregator_service.storage.schema import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite cannot alter most of a table in place
)
with context.begin_transaction():
    context.run_migrations()
