"""The client side of FAIR: NeuMF, trained on a compressed form psi of the item tables that fits the device.

Only the rows of a batch are recovered from theta = S psi. Their gradients are added to the buckets of psi (eq. 6 of the
paper). The user's two vectors stay on the device. The released code is different: it sends the user tables of all
clients and averages them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.local_state.client_state import ClientState
from client_sdk.training.adam import Adam
from client_sdk.training.base import ClientHalf, LocalResult, TrainingConfig, refuse_settings, training_for
from client_sdk.training.negatives import draw_negatives
from client_sdk.training.neumf import pair_gradients, scores
from client_sdk.training.touched import TouchedAdam
from protocols.errors import ParameterError
from protocols.recipes.base import ModelState, RoundSpec
from protocols.recipes.fair.recipe import Fair
from protocols.recipes.fair.state import TABLES, FairView, fair_view, spaces_of
from protocols.recipes.fair.subspaces import CHUNK, Subspace

__all__ = ["USER_VECTORS", "FairConfig", "FairHalf", "FairUpdate", "batches", "half"]

USER_VECTORS: Final = "user_vectors"
"""Key in the client state: float32 (2, dim), the vectors for GMF and for the MLP."""
_INITIAL_SCALE: Final = 0.01


@dataclass(frozen=True)
class FairConfig(TrainingConfig):
    """How a client trains. All defaults but the learning rate are the paper's for Goodreads-100 (table 7).

    Raises `ParameterError` for values out of range.
    """

    learning_rate: float = 1e-3
    """Learning rate of Adam. The moments begin at zero in every round."""
    epochs: int = 5
    """E, passes over the positives in one round."""
    batch_size: int = 512
    """Positives in one step, each with one negative. Negatives are drawn anew in every epoch."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.learning_rate > 0:
            raise ParameterError(f"learning_rate must be positive, got {self.learning_rate}")


@dataclass(frozen=True)
class FairUpdate:
    """The result of local training.

    user: float32 (2, dim), the user's vectors. dense: float32, the small layers. places, changes: indices into psi and
    their changes, see `TouchedAdam.changes`. loss: mean loss of the last epoch.
    """

    user: NDArray[np.float32]
    dense: NDArray[np.float32]
    places: NDArray[np.int32]
    changes: NDArray[np.float32]
    loss: float


@dataclass(frozen=True)
class FairHalf:
    """The client side of FAIR. The view of the model determines the capacity of the device."""

    recipe: Fair
    training: FairConfig = field(default_factory=FairConfig)

    def initial_client_state(self, rng: np.random.Generator) -> ClientState:
        """Return random user vectors, N(0, 0.01^2)."""
        shape = (len(TABLES), self.recipe.parameters.dim)
        return {USER_VECTORS: (_INITIAL_SCALE * rng.standard_normal(shape)).astype(np.float32)}

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
        """Train; contribute the weighted changes of the buckets that were used and of the small layers."""
        view = fair_view(state)
        if view.sum_index >= spec.sum_index:
            raise ParameterError(f"sum {spec.sum_index} follows an earlier model, not that of sum {view.sum_index}")
        buckets = self.recipe.buckets[self.recipe.device_group_of(spec.sum_index)]
        if view.tables.shape[1] != buckets:
            raise ParameterError(
                f"sum {spec.sum_index} is for devices with {buckets} values a table, not {view.tables.shape[1]}"
            )
        trained = self.train(view, history, client_state, rng, excluded)
        blocks, clipped = self.recipe.contribute(
            spec, trained.places, trained.changes, trained.dense - view.dense, len(history)
        )
        return LocalResult(blocks, clipped, {USER_VECTORS: trained.user}, trained.loss, 2 * len(history))

    def prepare(self, spec: RoundSpec, state: ModelState, history: History, rng: np.random.Generator) -> ClientState:
        """Return user vectors from local training."""
        return {USER_VECTORS: self.train(fair_view(state), history, self.initial_client_state(rng), rng).user}

    def scores(self, state: ModelState, client_state: ClientState, history: History) -> NDArray[np.float32]:
        """Return s(i) for every item. Rows are recovered in chunks of a few thousand."""
        view, p = fair_view(state), self.recipe.parameters
        spaces = self._subspaces(view)
        found = np.empty(p.items, dtype=np.float32)
        step = max(1, CHUNK // p.dim)
        for start in range(0, p.items, step):
            stop = min(start + step, p.items)
            rows = [
                space.recover(table, slice(start * p.dim, stop * p.dim)).reshape(-1, p.dim)
                for space, table in zip(spaces, view.tables, strict=True)
            ]
            found[start:stop] = scores(client_state[USER_VECTORS], view.dense, np.stack(rows))
        return found

    def _subspaces(self, view: FairView) -> tuple[Subspace, Subspace]:
        return spaces_of(view.seed, self.recipe.parameters.elements, view.tables.shape[1])

    def train(
        self,
        view: FairView,
        history: History,
        client_state: ClientState,
        rng: np.random.Generator,
        excluded: NDArray[np.int32] | None = None,
    ) -> FairUpdate:
        """Train for one round on the compressed tables of `view`. Raises `ParameterError` without interactions."""
        p, config = self.recipe.parameters, self.training
        if not len(history):
            raise ParameterError("a client without interactions has nothing to train on")
        spaces, buckets = self._subspaces(view), view.tables.shape[1]
        user, dense = np.array(client_state[USER_VECTORS], dtype=np.float32), view.dense.copy()
        own = Adam([user, dense], [config.learning_rate] * 2)
        most = min(p.items, len(history) * (1 + config.epochs)) * p.dim * len(TABLES)
        tables = TouchedAdam(view.tables.reshape(-1), config.learning_rate, most)
        losses: list[float] = []
        for items in batches(history.items, p.items, config, rng, excluded):
            elements = (items.astype(np.int64)[:, None] * p.dim + np.arange(p.dim)).ravel()
            found = [space.places(elements) for space in spaces]
            slots = tables.find(np.concatenate([places + t * buckets for t, (places, _) in enumerate(found)]))
            signs = np.concatenate([signs for _, signs in found])
            rows = (tables.values(slots) * signs).reshape(len(TABLES), items.size, p.dim)
            gradients = pair_gradients(user, dense, rows)
            tables.step(slots, gradients.rows.ravel() * signs)
            own.step([gradients.user, gradients.dense])
            losses.append(gradients.loss)
        last = -(-len(history) // config.batch_size)
        return FairUpdate(user, dense, *tables.changes(), float(np.mean(losses[-last:])))


def batches(
    positives: NDArray[np.int32],
    n_items: int,
    config: FairConfig,
    rng: np.random.Generator,
    excluded: NDArray[np.int32] | None,
) -> Iterator[NDArray[np.int32]]:
    """Yield the items of each step, int32 (2p,): p shuffled positives, followed by p negatives."""
    for _ in range(config.epochs):
        order = rng.permutation(positives)
        negatives = draw_negatives(positives, n_items, positives.size, rng, excluded)
        for start in range(0, order.size, config.batch_size):
            batch = slice(start, start + config.batch_size)
            yield np.concatenate([order[batch], negatives[batch]])


def half(recipe: Fair, training: TrainingConfig | None = None, graph_filter: str | None = None) -> ClientHalf:
    """Return the client half; `ParameterError` for settings that the recipe does not have."""
    refuse_settings(recipe, graph_filter=graph_filter)
    return FairHalf(recipe, training_for(recipe.name, training, FairConfig))
