"""Every error HushRec raises on purpose, drawn as a tree.

    HushRecError
    ├── ParameterError           the caller asked for something impossible or inconsistent
    │   ├── BudgetError          the numbers do not fit the ring, modulus or precision
    │   └── CombinationError     this recipe cannot ride on this mechanism
    ├── CodecError               bytes that do not have the one form their parameters allow
    │   ├── ContributionError    a contribution that must not enter a sum (the sender's fault)
    │   └── SignatureError       a request's signature that is malformed or does not match
    ├── KeyringError             a key is missing, of another task, or does not open what it should
    │   ├── CertificateError     a membership certificate has expired, is revoked or was not signed by the organiser
    │   └── EnvelopeError        a sealed envelope does not open or was not made by a member of the group
    ├── RefusalError             a client will not go on: the server breaks a rule or the client's own policy
    ├── RoutingError             a contribution aimed at blocks it may not touch
    └── ThresholdError           too few clients reached a stage of a round: nothing is opened

The service maps them to problem documents (`aggregator_service.problems`), the SDK raises its own errors for
what comes back (`client_sdk.errors`).
"""

from __future__ import annotations

__all__ = [
    "BudgetError",
    "CertificateError",
    "CodecError",
    "CombinationError",
    "ContributionError",
    "EnvelopeError",
    "HushRecError",
    "KeyringError",
    "ParameterError",
    "RefusalError",
    "RoutingError",
    "SignatureError",
    "ThresholdError",
]


class HushRecError(Exception):
    """Base of every error that HushRec raises on purpose. The text is safe to show: it never holds a secret."""


class ParameterError(HushRecError, ValueError):
    """The caller asked for something impossible or inconsistent; the text says which parameter and why."""


class BudgetError(ParameterError):
    """Values, cohort and precision do not fit the ring, modulus or scale that was asked for."""


class CombinationError(ParameterError):
    """The recipe cannot ride on the mechanism; the text says why."""


class CodecError(HushRecError, ValueError):
    """Bytes that do not have the exact form that their parameters imply."""


class ContributionError(CodecError):
    """A contribution that must not enter a sum: wrong length, residues out of range. The sender's fault."""


class SignatureError(CodecError):
    """A request's signature is malformed, covers the wrong things, or was not made with the key it should be."""


class KeyringError(HushRecError):
    """A key is missing, belongs to another task or does not open what it should."""


class CertificateError(KeyringError):
    """A membership certificate has expired, is revoked, or was not signed by the organiser for these keys."""


class EnvelopeError(KeyringError):
    """A sealed envelope does not open: wrong recipient, wrong membership secret, or altered on the way."""


class RoutingError(ParameterError):
    """A contribution aimed at blocks of the sum that its route does not allow."""


class RefusalError(HushRecError):
    """A client leaves a round: what the server sent breaks a rule of the protocol or the client's own policy."""


class ThresholdError(HushRecError):
    """Too few clients reached a stage, so that the sum cannot be opened. The round fails; nobody need be at fault.

    stage: what they should have done, as "sharing" or "unmasking"; needed, present: how many clients; whose: around
    whom they are counted (a client id), or None when the whole round is.
    """

    def __init__(self, stage: str, needed: int, present: int, whose: str | None = None) -> None:
        super().__init__(stage, needed, present, whose)  # all of it, so that the error passes between processes
        self.stage, self.needed, self.present, self.whose = stage, needed, present, whose

    def __str__(self) -> str:
        around = "in the round" if self.whose is None else f"among the neighbours of {self.whose}"
        return f"{self.stage}: {self.needed} clients are needed {around}, {self.present} are present"
