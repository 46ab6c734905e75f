"""One id a request: taken from `X-Request-Id` when it is harmless, made otherwise, and in every log line it causes."""

from __future__ import annotations

import random
import re
from contextvars import ContextVar
from typing import Final

__all__ = ["HEADER", "choose", "current"]

HEADER: Final = b"x-request-id"
# Letters that can neither break a log line nor hide in one; and nobody writes a token of ours into the logs this way.
_HARMLESS: Final = re.compile(rb"^(?!hr[a-z]_)[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")

_RANDOM: Final = random.Random()  # noqa: S311

current: ContextVar[str | None] = ContextVar("hushrec_request_id", default=None)
"""The id of the request that this code runs for; threads that work for it see it, too."""


def choose(offered: bytes | None) -> str:
    """The id that a proxy or client offers, or 64 random bits where it offers none, or none that is harmless.

    An id is no secret: these bits need not come from the system.
    """
    if offered is not None and _HARMLESS.match(offered):
        return offered.decode("ascii")
    return f"{_RANDOM.getrandbits(64):016x}"
