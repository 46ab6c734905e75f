"""The client half of a recipe: what a client does with its own data, and what it keeps to itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.local_state.client_state import ClientState
from protocols.errors import ParameterError
from protocols.recipes.base import ModelState, RoundSpec

__all__ = ["ChecksHistory", "ClientHalf", "LocalResult", "TrainingConfig", "training_for"]


@dataclass(frozen=True)
class LocalResult:
    """What one round on a client gives.

    blocks: the contribution's float64 vectors, one per route entry, within their clips. clipped: how many values had to
    be moved for that. memory: to be kept once the contribution is stored. loss: mean training loss, nan for recipes
    that train nothing. samples: what was trained on. finish: training that may wait until the contribution is on its
    way, if there is any; it gives the memory that replaces `memory`.
    """

    blocks: Sequence[NDArray[np.float64]]
    clipped: int
    client_state: ClientState
    loss: float
    samples: int
    finish: Callable[[], ClientState] | None = None

    @property
    def values(self) -> int:
        """Values of the contribution."""
        return sum(block.size for block in self.blocks)


@dataclass(frozen=True)
class TrainingConfig:
    """How a client trains, as far as that is its own business; each family of recipes has its kind."""


C = TypeVar("C", bound=TrainingConfig)


def training_for(recipe: str, given: TrainingConfig | None, kind: type[C]) -> C:
    """`given`, or the defaults of `kind`; `ParameterError` for settings of another family's."""
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise ParameterError(f"recipe {recipe!r} is trained with a {kind.__name__}, not a {type(given).__name__}")
    return given


class ClientHalf(Protocol):
    """One recipe's work on one client, whose own interactions are `history`."""

    def initial_client_state(self, rng: np.random.Generator) -> ClientState:
        """What a client starts with."""

    def contribute(
        self,
        spec: RoundSpec,
        client_id: str,
        state: ModelState,
        history: History,
        client_state: ClientState,
        rng: np.random.Generator,
        excluded: NDArray[np.int32] | None = None,
    ) -> LocalResult:
        """The client's part of the round; nothing that is handed in is changed.

        `excluded` items are never drawn as negatives; see `client_sdk.training.negatives`. Raises `ParameterError` for
        a client without interactions or, where the recipe learns from them, ratings, and when training diverged.
        """

    def prepare(self, spec: RoundSpec, state: ModelState, history: History, rng: np.random.Generator) -> ClientState:
        """The memory of a client that never took part and wants recommendations; nothing of it is sent."""

    def scores(self, state: ModelState, client_state: ClientState, history: History) -> NDArray[np.float32]:
        """A score for every item, float32 (items,): the higher, the better."""


@runtime_checkable
class ChecksHistory(Protocol):
    """A client half that cannot learn from every history, and says so before the first round."""

    def check(self, history: History) -> None:
        """Raise what `contribute` would raise for `history`."""
