"""Conditional requests (RFC 9110, section 13)."""

from __future__ import annotations

__all__ = [
    "not_modified",
]


def not_modified(if_none_match: str | None, etag: str) -> bool:
    """Whether the client knows this version (RFC 9110, weak comparison)."""
    known = {tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")}
    return "*" in known or etag.removeprefix("W/") in known
