"""Alembic migrations of the database schema. The server runs them when it starts."""
