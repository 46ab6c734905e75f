"""Errors of migrations."""

from __future__ import annotations

__all__ = ["NewerDatabaseError"]


class NewerDatabaseError(RuntimeError):
    """A newer version of the server has migrated the database."""
