"""Signing requests as an enrolled client, by the server's clock. The driver tells the time; nothing here looks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.crypto.http_signature import SIGNED_FIELDS, SignedRequest, sign_request

__all__ = ["LARGEST_OFFSET", "ServerTime", "Signer"]

LARGEST_OFFSET: Final = 26 * 3600
"""Seconds that a server may move this client's time by: what a wrong time zone is off at most. Whoever is handed a
signature for a far day could keep it until then."""


class ServerTime:
    """The time at the server, as far as it has told: by so many seconds it is ahead of this machine's clock."""

    def __init__(self) -> None:
        self.offset = 0
        self._looked = 0.0

    def at(self, now: float) -> int:
        """The server's time when this machine's clock says `now`; both in seconds since the epoch."""
        self._looked = now
        return max(0, round(now) + self.offset)

    def learn(self, server_time: int) -> bool:
        """Take the server's time of the last request; False when that changes nothing, or goes too far."""
        offset = server_time - round(self._looked)
        if offset == self.offset or abs(offset) > LARGEST_OFFSET:
            return False
        self.offset = offset
        return True


@dataclass(frozen=True, repr=False)
class Signer:
    """Signs as one client of one task. It never shows its key."""

    client_id: str
    key: Ed25519PrivateKey
    time: ServerTime

    def __repr__(self) -> str:
        return f"<Signer {self.client_id}>"

    def fields(self, method: str, target: str, headers: Mapping[str, str], now: float) -> dict[str, str]:
        """The headers to add. target: path and query as they go over the wire; headers: by lower case name."""
        path, _, query = target.partition("?")
        covered = {name: headers[name] for name in SIGNED_FIELDS if name in headers}
        request = SignedRequest(method, path, query, covered)
        return sign_request(self.key, self.client_id, request, self.time.at(now))
