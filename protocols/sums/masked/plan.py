"""Lays out a masked sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocols.layout import Route, VectorLayout

__all__ = ["MaskedPlan", "encode"]


@dataclass(frozen=True)
class MaskedPlan:
    """A laid-out masked sum."""

    layout: VectorLayout
    max_contributions: int
    bits: int


def encode(plan: MaskedPlan, route: Route, blocks: Sequence[NDArray[np.float64]]) -> NDArray[np.unsignedinteger[Any]]:
    """Ring elements (layout.length,) of a contribution: what masks are added to."""
    raise NotImplementedError
