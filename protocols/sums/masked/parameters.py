"""Neighbours and threshold of a masked sum, from the cohort and what may go wrong in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Mode", "Neighbourhood", "choose_neighbourhood"]

Mode = Literal["curious", "semi-malicious"]


@dataclass(frozen=True)
class Neighbourhood:
    """k neighbours a client, t of their shares open a secret of it."""

    clients: int
    degree: int
    threshold: int
    corrupt: float
    dropout: float
    mode: Mode
    sigma: int
    eta: int
    log2_disconnected: float
    log2_too_many_corrupt: float
    log2_too_few_survivors: float


def choose_neighbourhood(
    clients: int, corrupt: float, dropout: float, mode: Mode = "semi-malicious", sigma: int = 40, eta: int = 30
) -> Neighbourhood:
    """The smallest neighbourhood that holds; `ParameterError` when there is none."""
    raise NotImplementedError
