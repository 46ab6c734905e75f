"""Mechanisms by name, imported only when asked for, so that a plain client needs no HE library."""

from __future__ import annotations

from importlib import import_module
from typing import Final, cast

from protocols.errors import ParameterError
from protocols.sums.base import Mechanism

__all__ = ["MECHANISMS", "mechanism"]

MECHANISMS: Final[dict[str, str]] = {
    "ckks": "protocols.sums.ckks.mechanism:CKKS",
    "masked": "protocols.sums.masked.mechanism:MASKED",
    "paillier": "protocols.sums.paillier.mechanism:PAILLIER",
    "plain": "protocols.sums.plain:PLAIN",
}
"""Name -> module:attribute."""


def mechanism(name: str) -> Mechanism:
    """The mechanism called `name`; `ParameterError` names those that exist."""
    try:
        module, attribute = MECHANISMS[name].split(":")
    except KeyError:
        raise ParameterError(f"unknown mechanism: choose one of {', '.join(sorted(MECHANISMS))}") from None
    return cast(Mechanism, getattr(import_module(module), attribute))
