"""Signing the requests of an enrolled client with the server's time. The driver passes the local time in."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.crypto.http_signature import SIGNED_FIELDS, SignedRequest, sign_request

__all__ = ["LARGEST_OFFSET", "ServerTime", "Signer"]

_LOG = logging.getLogger(__name__)
LARGEST_OFFSET: Final = 26 * 3600
"""Largest correction of this client's clock in seconds: the largest error of a wrong time zone. A server that could
move the clock further could obtain signatures for a later day."""


class ServerTime:
    """The server's clock: `offset` is the number of seconds that it is ahead of this machine's clock, 0 at first."""

    def __init__(self) -> None:
        self.offset = 0
        self._last_now = 0.0

    def at(self, now: float) -> int:
        """Return the server's time for the local time `now`, both in seconds since the epoch."""
        self._last_now = now
        return max(0, round(now) + self.offset)

    def learn(self, server_time: int) -> bool:
        """Set the offset from the server's time at the last request, and log it.

        Returns False, and changes nothing, when the offset is the same or exceeds `LARGEST_OFFSET`.
        """
        offset = server_time - round(self._last_now)
        if offset == self.offset or abs(offset) > LARGEST_OFFSET:
            return False
        self.offset = offset
        _LOG.warning(
            "this machine's clock is %d s %s the server's: requests are signed with the server's time; set the clock",
            abs(offset),
            "behind" if offset > 0 else "ahead of",
        )
        return True


@dataclass(frozen=True, repr=False)
class Signer:
    """Signs requests as one client of one task. Its repr omits the key."""

    client_id: str
    key: Ed25519PrivateKey
    time: ServerTime

    def __repr__(self) -> str:
        return f"<Signer {self.client_id}>"

    def fields(
        self, method: str, authority: str, target: str, headers: Mapping[str, str], now: float
    ) -> dict[str, str]:
        """Return the headers to add to a request.

        authority: host and port of the server, as `format_authority` writes them. target: path and query as sent.
        headers: the request's headers by lower-case name. now: local time in seconds
        since the epoch.
        """
        path, _, query = target.partition("?")
        covered = {name: headers[name] for name in SIGNED_FIELDS if name in headers}
        request = SignedRequest(method, authority, path, query, covered)
        return sign_request(self.key, self.client_id, request, self.time.at(now))
