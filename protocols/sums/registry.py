"""Mechanisms by name. A mechanism is imported on first use, so that a plain client needs no HE library."""

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
"""Name -> "module:attribute" of the mechanism."""


def mechanism(name: str) -> Mechanism:
    """Return the mechanism called `name`; `ParameterError` for an unknown name lists the known ones."""
    try:
        module, attribute = MECHANISMS[name].split(":")
    except KeyError:
        raise ParameterError(f"unknown mechanism: choose one of {', '.join(sorted(MECHANISMS))}") from None
    return cast(Mechanism, getattr(import_module(module), attribute))
