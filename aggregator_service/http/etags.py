"""Conditional requests (RFC 9110, section 13)."""

from __future__ import annotations

__all__ = ["not_modified"]


def not_modified(if_none_match: str | None, etag: str) -> bool:
    """Return whether the value of If-None-Match names `etag`, by weak comparison (RFC 9110, 8.8.3.2), or is `*`."""
    if if_none_match is None:
        return False
    if if_none_match == etag:  # the usual case
        return True
    known = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return "*" in known or etag.removeprefix("W/") in known
