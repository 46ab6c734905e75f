"""What a client keeps to itself from round to round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

__all__ = ["ClientState"]

ClientState = Mapping[str, NDArray[Any]]
"""Arrays by name, which are never sent: the user factor, a residual, and what else the recipe's client half needs."""
