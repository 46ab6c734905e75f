"""Who shares secrets with whom: a regular graph in random order, the same for everyone who knows the seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["neighbours"]


def neighbours(clients: int, degree: int, seed: bytes) -> NDArray[np.int32]:
    """int32 (clients, degree): row i holds the neighbours of client i, ascending."""
    raise NotImplementedError
