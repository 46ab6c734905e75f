"""Operators' tokens and their roles."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from protocols.messages.base import Message, Name

__all__ = ["OperatorPage", "OperatorRequest", "OperatorRole", "OperatorToken", "OperatorView"]

OperatorRole = Literal["admin", "operator", "read-only"]
"""`read-only` may view everything; `operator` may also create and end tasks; `admin` may also issue tokens."""


class OperatorRequest(Message):
    """An admin's request for a token."""

    name: Name = Field(description="Name of the operator; each name has one token.")
    role: OperatorRole = "operator"
    expires_seconds: float | None = Field(
        default=None, gt=0, le=315_360_000, description="Seconds that the token is valid; null: until it is revoked."
    )


class OperatorView(Message):
    """What admins see of a token; the token itself is not included."""

    name: str
    role: OperatorRole
    age_seconds: float = Field(description="Seconds since the token was made or last rotated.")
    expires_seconds: float | None = Field(
        description="Seconds until the token expires, 0 if it has expired; null: it does not expire."
    )


class OperatorPage(Message):
    """All operators' tokens, sorted by name."""

    operators: list[OperatorView]


class OperatorToken(OperatorView):
    """A new token. It is shown once: the server stores only its hash."""

    token: str = Field(description="Bearer token.")
