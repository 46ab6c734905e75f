"""Mechanisms by name. A mechanism is imported on first use, so that a plain client needs no HE library."""

from __future__ import annotations

from importlib import import_module
from typing import Final, cast

from pydantic import BaseModel

from protocols.errors import ParameterError
from protocols.sums.base import Mechanism

__all__ = ["MECHANISMS", "PARAMETERS", "mechanism", "parameters_of"]

MECHANISMS: Final[dict[str, str]] = {
    "ckks": "protocols.sums.ckks.mechanism:CKKS",
    "masked": "protocols.sums.masked.mechanism:MASKED",
    "oneshot": "protocols.sums.oneshot.mechanism:ONESHOT",
    "paillier": "protocols.sums.paillier.mechanism:PAILLIER",
    "plain": "protocols.sums.plain:PLAIN",
}
"""Name -> "module:attribute" of the mechanism."""

PARAMETERS: Final[dict[str, str]] = {
    "ckks": "protocols.sums.ckks.parameters:CkksParameters",
    "masked": "protocols.sums.masked.parameters:MaskedParameters",
    "oneshot": "protocols.sums.oneshot.parameters:OneshotParameters",
    "paillier": "protocols.sums.paillier.parameters:PaillierParameters",
}
"""Name -> "module:class" of the model of its parameters. A mechanism that is not listed has none."""


def mechanism(name: str) -> Mechanism:
    """Return the mechanism called `name`; `ParameterError` for an unknown name lists the known ones."""
    return cast(Mechanism, _loaded(MECHANISMS[_known(name)]))


def parameters_of(name: str) -> type[BaseModel] | None:
    """Return the model of a mechanism's parameters, None if it has none; `ParameterError` for an unknown name."""
    place = PARAMETERS.get(_known(name))
    return None if place is None else cast(type[BaseModel], _loaded(place))


def _known(name: str) -> str:
    if name not in MECHANISMS:
        raise ParameterError(f"unknown mechanism: choose one of {', '.join(sorted(MECHANISMS))}")
    return name


def _loaded(place: str) -> object:
    module, attribute = place.split(":")
    return getattr(import_module(module), attribute)
