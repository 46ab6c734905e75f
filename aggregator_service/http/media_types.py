"""The media type that a request states for a raw body."""

from __future__ import annotations

from starlette.requests import Request

from aggregator_service.problems import Problem
from protocols.messages.media_types import OCTETS

__all__ = ["check_media_type"]


def check_media_type(request: Request, own: str) -> None:
    """Raise `Problem` unsupported-media-type unless the body is stated as `own` or as plain bytes, or not at all."""
    stated = request.headers.get("content-type", "")
    if stated not in ("", OCTETS, own) and stated.split(";")[0].strip().lower() not in ("", OCTETS, own):
        raise Problem("unsupported-media-type", f"this body has the media type {own}, or {OCTETS}")
