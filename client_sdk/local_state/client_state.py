"""The state that a client keeps between rounds and never sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

__all__ = ["ClientState"]

ClientState = Mapping[str, NDArray[Any]]
"""Arrays by name, such as the user factor or a residual, as the client's half of the recipe needs them."""
