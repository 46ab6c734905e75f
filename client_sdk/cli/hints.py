"""Hints printed below an error: what the user can do about it."""

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
    UntrustedServer,
)
from protocols.errors import CertificateError, EnvelopeError, KeyringError

__all__ = ["hint"]

_HINTS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (NotEnrolled, "Join the task first: hushrec join URL --invitation INVITATION --interactions FILE"),
    (Gone, "Ask the operator for a new invitation: hushrec-server invite TASK"),
    (Unauthenticated, "The server does not know this client any more: join again with an invitation."),
    (
        BadSignature,
        "Check that --identity is the file this client enrolled with, and that the server knows this address as "
        "its own (HUSHREC_PUBLIC_ORIGINS). A proxy that rewrites paths breaks signatures.",
    ),
    (StaleSignature, "Set this machine's clock: it differs too much from the server's."),
    (
        Forbidden,
        "Check that the invitation is copied in full and is for this server, and that the membership certificate is "
        "from the task's organiser (--issuer with --scope and --code, or --certificate).",
    ),
    (PolicyRefused, "To accept such a task, pass --min-cohort, --allow-plain, --trust-roster or --max-model-bytes."),
    (ModelUnavailable, "Try again when the next round has ended."),
    (
        UntrustedServer,
        "Set SSL_CERT_FILE to the PEM file of the authority that issued the server's certificate, and use the host "
        "name that the certificate names. If you did not expect this, do not go on: another server may be answering.",
    ),
    (ConnectionFailed, "Check the address and that the server is running: hushrec doctor --url URL"),
    (EnvelopeError, "Ask the key holder to run hushrec keyring serve; check that this is the identity that enrolled."),
    (
        CertificateError,
        "Ask the task's organiser for a certificate for this identity: --issuer with --scope and a code, or a file "
        "made from hushrec certificate request.",
    ),
    (
        KeyringError,
        "The key holder makes keys with: hushrec keyring create, and seals them with: hushrec keyring serve.",
    ),
    (ServerFault, "The error is in the server: its operator finds the details in the server's log."),
    (
        LocalFileError,
        "hushrec join creates a client's identity and files (--identity names the identity file); hushrec organiser "
        "init creates an organiser's key (--folder names its folder).",
    ),
)


def hint(error: Exception) -> str:
    """Return what the user can do about `error`, in one sentence, or "" if there is no hint for its type.

    For `GaveUp` the last error before giving up decides. The first matching entry of the table is used.
    """
    cause = error.last if isinstance(error, GaveUp) else error
    return next((text for kind, text in _HINTS if isinstance(cause, kind)), "")
