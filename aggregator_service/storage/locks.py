"""Locks that stand for no row."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Session

__all__ = ["hold_alone"]


def hold_alone(session: Session, name: str) -> None:
    """Nobody else holds `name` until the transaction ends; SQLite's only writer is alone anyway."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": name})
