"""What a person can do about an error, where its own text does not say it."""

from __future__ import annotations

from typing import Final

from client_sdk.errors import (
    BadSignature,
    ConnectionFailed,
    Forbidden,
    GaveUp,
    Gone,
    LocalFileError,
    ModelUnavailable,
    NotEnrolled,
    PolicyRefused,
    ServerFault,
    StaleSignature,
    Unauthenticated,
)
from protocols.errors import EnvelopeError, KeyringError

__all__ = ["hint"]

_UNREACHABLE: Final = "Is the address right, and the server running? hushrec doctor --url URL looks at it."
_HINTS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (NotEnrolled, "Join it first: hushrec join URL --invitation I --interactions FILE"),
    (Gone, "Ask the operator for a new invitation: hushrec-server invite TASK"),
    (Unauthenticated, "The server no longer knows this client: join again with an invitation."),
    (
        BadSignature,
        "Is --identity the file this client enrolled with? Proxies that rewrite paths break signatures.",
    ),
    (StaleSignature, "Set this machine's clock: it is off by more than the server's word is taken for."),
    (Forbidden, "Was the invitation copied whole, and is it for this server?"),
    (PolicyRefused, "--min-cohort and --allow-plain change what this client agrees to."),
    (ModelUnavailable, "Try again when the next round is over."),
    (ConnectionFailed, _UNREACHABLE),
    (EnvelopeError, "Is this the membership secret that the key holder gave out? Pass it with --membership-secret."),
    (KeyringError, "The holder makes the keys with: hushrec keyring create. Members pass --membership-secret to join."),
    (ServerFault, "The server is at fault: its operator finds more in the server's log."),
    (LocalFileError, "hushrec join makes the identity and keeps what belongs to it; --identity names the file."),
)


def hint(error: Exception) -> str:
    """One sentence on what to do, or nothing; the first kind of error that fits counts."""
    cause = error.last if isinstance(error, GaveUp) else error
    return next((text for kind, text in _HINTS if isinstance(cause, kind)), "")
