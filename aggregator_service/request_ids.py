"""Request ids: from the header `X-Request-Id` or random, and part of every log line about the request."""

from __future__ import annotations

import random
import re
from contextvars import ContextVar
from typing import Final

__all__ = ["HEADER", "choose", "current"]

HEADER: Final = b"x-request-id"
# Characters that cannot break a log line or look like something else in it. Texts with a token's prefix are excluded.
_ALLOWED: Final = re.compile(rb"^(?!hr[a-z]_)[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")

_RANDOM: Final = random.Random()  # noqa: S311

current: ContextVar[str | None] = ContextVar("hushrec_request_id", default=None)
"""Id of the request being handled, also in the threads that work for it; None outside requests."""


def choose(offered: bytes | None) -> str:
    """Return the id that a proxy or client sent, or 64 random bits in hex if it sent none or one that is not allowed.

    Ids are not secret, so the random bits need not be cryptographically secure.
    """
    if offered is not None and _ALLOWED.match(offered):
        return offered.decode("ascii")
    return f"{_RANDOM.getrandbits(64):016x}"
