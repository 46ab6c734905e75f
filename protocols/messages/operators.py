"""Operators' tokens: who may look, who may act, who may hand out tokens."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from protocols.messages.base import Message, Name

__all__ = ["OperatorPage", "OperatorRequest", "OperatorRole", "OperatorToken", "OperatorView"]

OperatorRole = Literal["admin", "operator", "read-only"]
"""Each may do what those to its right may: `read-only` looks, `operator` makes and ends, `admin` hands out tokens."""


class OperatorRequest(Message):
    """A token that an admin asks for."""

    name: Name = Field(description="Whose token it is; one a name.")
    role: OperatorRole = "operator"
    expires_seconds: float | None = Field(
        default=None, gt=0, le=315_360_000, description="How long it is good for; null: until it is revoked."
    )


class OperatorView(Message):
    """A token as admins see it, without the token."""

    name: str
    role: OperatorRole
    age_seconds: float = Field(description="Since it was made, or replaced by rotation.")
    expires_seconds: float | None = Field(description="How long it is still good for, 0 when it no longer is.")


class OperatorPage(Message):
    """Every operator's token, by name."""

    operators: list[OperatorView]


class OperatorToken(OperatorView):
    """Shown once; the server keeps a hash."""

    token: str = Field(description="Bearer token.")
