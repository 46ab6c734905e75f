"""The client half of a recipe: what a client does with its own data, and what it keeps to itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from protocols.recipes.base import ModelState, RoundSpec

__all__ = ["ClientHalf", "LocalResult", "Memory"]

Memory = Mapping[str, NDArray[Any]]
"""What a client keeps from round to round and never sends: its user factor, a residual; arrays by name."""


@dataclass(frozen=True)
class LocalResult:
    """What one round on a client gives.

    blocks: the contribution's float64 vectors, one per route entry, within their clips. clipped: how many values had to
    be moved for that. memory: to be kept once the contribution is stored. loss: mean training loss, nan for recipes
    that train nothing. samples: what was trained on.
    """

    blocks: Sequence[NDArray[np.float64]]
    clipped: int
    memory: Memory
    loss: float
    samples: int

    @property
    def values(self) -> int:
        """Values of the contribution."""
        return sum(block.size for block in self.blocks)


class ClientHalf(Protocol):
    """One recipe's work on one client. `positives` are the client's items, int32 (k,), each once."""

    def first_memory(self, rng: np.random.Generator) -> Memory:
        """What a client starts with."""

    def contribute(
        self,
        spec: RoundSpec,
        client_id: str,
        state: ModelState,
        positives: NDArray[np.int32],
        memory: Memory,
        rng: np.random.Generator,
        excluded: NDArray[np.int32] | None = None,
    ) -> LocalResult:
        """The client's part of the round; nothing that is handed in is changed.

        `excluded` items are never drawn as negatives; see `client_sdk.training.negatives`. Raises `ParameterError` for
        a client without positives, and when training diverged.
        """

    def prepare(
        self, spec: RoundSpec, state: ModelState, positives: NDArray[np.int32], rng: np.random.Generator
    ) -> Memory:
        """The memory of a client that never took part and wants recommendations; nothing of it is sent."""

    def scores(self, state: ModelState, memory: Memory, positives: NDArray[np.int32]) -> NDArray[np.float32]:
        """A score for every item, float32 (items,): the higher, the better."""
