"""Locks that belong to no row."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Session

__all__ = ["lock_name"]


def lock_name(session: Session, name: str) -> None:
    """Lock `name` until the transaction ends. SQLite needs no lock: it has only one writer."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": name})
