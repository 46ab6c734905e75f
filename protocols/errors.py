"""Every error HushRec raises on purpose, drawn as a tree.

    HushRecError
    ├── ParameterError           the caller asked for something impossible or inconsistent
    │   ├── BudgetError          the numbers do not fit the ring, modulus or precision
    │   └── CombinationError     this recipe cannot ride on this mechanism
    ├── CodecError               bytes that do not have the one form their parameters allow
    │   └── ContributionError    a contribution that must not enter a sum (the sender's fault)
    ├── KeyringError             a key is missing, of another task, or does not open what it should
    │   └── EnvelopeError        a sealed envelope does not open or was not made by a member of the group
    └── RoutingError             a contribution aimed at blocks it may not touch

The service maps them to problem documents (`aggregator_service.problems`), the SDK raises its own errors for
what comes back (`client_sdk.errors`).
"""

from __future__ import annotations

__all__ = [
    "BudgetError",
    "CodecError",
    "CombinationError",
    "ContributionError",
    "EnvelopeError",
    "HushRecError",
    "KeyringError",
    "ParameterError",
    "RoutingError",
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


class KeyringError(HushRecError):
    """A key is missing, belongs to another task or does not open what it should."""


class EnvelopeError(KeyringError):
    """A sealed envelope does not open: wrong recipient, wrong group code, or altered on the way."""


class RoutingError(ParameterError):
    """A contribution aimed at blocks of the sum that its route does not allow."""
