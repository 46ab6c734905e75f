"""The client side of FAIR: NeuMF, trained on a compressed form psi of the item tables that fits the device.

Only the rows of a batch are recovered from theta = S psi. Their gradients are added to the buckets of psi (eq. 6 of the
paper). The user's two vectors stay on the device. The released code is different: it sends the user tables of all
clients and averages them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.store.states import ClientState
from client_sdk.training.adam import Adam, Array, TouchedAdam
from client_sdk.training.base import ClientSide, LocalResult, Rng, TrainingConfig, task_training
from client_sdk.training.mf import NegativeSampler, draw_negatives
from protocols.errors import ParameterError
from protocols.recipes.base import Local, ModelState, RoundSpec
from protocols.recipes.fair import TABLES, Fair, FairChange, FairView, spaces_of
from protocols.recipes.state import state_as
from protocols.recipes.subspaces import CHUNK, Subspace

USER_VECTORS: Final = "user_vectors"
"""Key in the client state: float32 (2, dim), the vectors for GMF and for the MLP."""
_INITIAL_SCALE: Final = 0.01


@dataclass(frozen=True)
class FairConfig(TrainingConfig):
    """How a client trains. All defaults but the learning rate are the paper's for Goodreads-100 (table 7)."""

    learning_rate: float = 1e-3
    """Learning rate of Adam. The moments begin at zero in every round."""
    epochs: int = 5
    """E, passes over the positives in one round."""
    batch_size: int = 512
    """Positives in one step, each with one negative. Negatives are drawn anew in every epoch."""


@dataclass(frozen=True)
class FairSide(ClientSide):
    """The client side of FAIR. The view of the model determines the capacity of the device."""

    recipe: Fair
    training: FairConfig = field(default_factory=FairConfig)
    draw: NegativeSampler = draw_negatives

    def initial_client_state(self, rng: Rng) -> ClientState:
        """Return random user vectors, N(0, 0.01^2)."""
        shape = (len(TABLES), self.recipe.parameters.dim)
        return {USER_VECTORS: (_INITIAL_SCALE * rng.standard_normal(shape)).astype(np.float32)}

    def contribute(
        self, spec: RoundSpec, client_id: str, state: ModelState, history: History, client_state: ClientState, rng: Rng
    ) -> LocalResult:
        view = state_as(state, FairView)
        if view.sum_index >= spec.sum_index:
            raise ParameterError(f"sum {spec.sum_index} follows an earlier model, not that of sum {view.sum_index}")
        buckets = self.recipe.buckets[self.recipe.device_group_of(spec.sum_index)]
        if view.tables.shape[1] != buckets:
            raise ParameterError(
                f"sum {spec.sum_index} is for devices with {buckets} values a table, not {view.tables.shape[1]}"
            )
        user, change, loss = self.train(view, history, client_state, rng)
        made = self.recipe.contribute(view, spec, Local(change, client_id, len(history)))
        return LocalResult(made, {USER_VECTORS: user}, loss, 2 * len(history))

    def prepare(self, spec: RoundSpec, state: ModelState, history: History, rng: Rng) -> ClientState:
        return {USER_VECTORS: self.train(state_as(state, FairView), history, self.initial_client_state(rng), rng)[0]}

    def scores(self, state: ModelState, client_state: ClientState, history: History) -> NDArray[np.float32]:
        """Return s(i) for every item. Rows are recovered in chunks of a few thousand."""
        view, p = state_as(state, FairView), self.recipe.parameters
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
        self, view: FairView, history: History, client_state: ClientState, rng: Rng
    ) -> tuple[NDArray[np.float32], FairChange, float]:
        """Train for one round on the compressed tables of `view`.

        Returns the user's vectors, float32 (2, dim), the change of the buckets that were used and of the small layers,
        and the mean loss of the last epoch. Raises `ParameterError` without interactions.
        """
        p, config = self.recipe.parameters, self.training
        if not len(history):
            raise ParameterError("a client without interactions has nothing to train on")
        spaces, buckets = self._subspaces(view), view.tables.shape[1]
        user, dense = np.array(client_state[USER_VECTORS], dtype=np.float32), view.dense.copy()
        own = Adam([user, dense], [config.learning_rate] * 2)
        most = min(p.items, len(history) * (1 + config.epochs)) * p.dim * len(TABLES)
        tables = TouchedAdam(view.tables.reshape(-1), config.learning_rate, most)
        losses: list[float] = []
        for _ in range(config.epochs):
            order = rng.permutation(history.items)
            negatives = self.draw(history.items, p.items, order.size, rng)
            for start in range(0, order.size, config.batch_size):
                batch = slice(start, start + config.batch_size)
                items = np.concatenate([order[batch], negatives[batch]])
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
        return user, FairChange(*tables.changes(), dense - view.dense), float(np.mean(losses[-last:]))


def client_side(recipe: Fair, training: TrainingConfig | None = None, graph_filter: str | None = None) -> ClientSide:
    return FairSide(recipe, task_training(recipe, training, FairConfig, graph_filter))


# --- neuMF with one MLP layer, its BPR loss and its gradients, for one user at a time --------------------------------
# He et al., "Neural Collaborative Filtering" (WWW 2017), with the layers of the released FAIR code. A user has two
# vectors u_g and u_m (d,), an item two rows v_g and v_m, and
#
#     h(i) = relu(W_u^T u_m + W_v^T v_m + b),      s(i) = w_g . (u_g * v_g) + w_h . h(i)
#     loss = mean over pairs (i, j) of -log sigmoid(s(i) - s(j))                      (BPR, Rendle et al., UAI 2009)
#
# The bias of the prediction is left out, because it is the same for every item. The L2 term of 1e-6 in the released
# code is left out too: by mistake, it applies to the user's MLP vector only.


@dataclass(frozen=True, eq=False)
class Layers:
    """The small layers, in order: W_u (d, d), W_v (d, d), b (d,), w_g (d,), w_h (d,)."""

    user_weights: Array
    item_weights: Array
    bias: Array
    gmf_output: Array
    mlp_output: Array


def layers_of(dense: Array, dim: int) -> Layers:
    """Return the layers as views of one vector (2 d^2 + 3 d,): MLP weights row-major, bias, prediction weights."""
    square = dim * dim
    user, item, bias, gmf, mlp = np.split(dense, np.cumsum([square, square, dim, dim]))
    return Layers(user.reshape(dim, dim), item.reshape(dim, dim), bias, gmf, mlp)


def scores(user: Array, dense: Array, rows: Array) -> Array:
    """Return s(i) (k,) of the items with `rows` (2, k, d) for a user (2, d). The first axis is GMF, MLP.

    dense: the small layers as one vector, see `layers_of`.
    """
    layers = layers_of(dense, user.shape[1])
    hidden = _hidden(user, layers, rows)
    return np.asarray(rows[0] @ (user[0] * layers.gmf_output) + hidden @ layers.mlp_output)


def _hidden(user: Array, layers: Layers, rows: Array) -> Array:
    """Return h(i), (k, d)."""
    hidden: Array = rows[1] @ layers.item_weights
    hidden += user[1] @ layers.user_weights + layers.bias
    return np.maximum(hidden, 0, out=hidden)


@dataclass(frozen=True, eq=False)
class PairGradients:
    """The mean loss of a batch of pairs, and its gradients by `rows` (2, 2p, d), `user` (2, d) and `dense`."""

    loss: float
    rows: Array
    user: Array
    dense: Array


def pair_gradients(user: Array, dense: Array, rows: Array) -> PairGradients:
    """Return BPR loss and gradients for p pairs.

    user: (2, d). dense: the small layers as one vector. rows: (2, 2p, d), the p positives followed by their p
    negatives.
    """
    dim, pairs = user.shape[1], rows.shape[1] // 2
    layers = layers_of(dense, dim)
    grad_user = np.empty_like(user)
    grad_dense = np.empty_like(dense)
    grad_layers = layers_of(grad_dense, dim)
    scaled_user = user[0] * layers.gmf_output
    hidden = _hidden(user, layers, rows)
    found = rows[0] @ scaled_user + hidden @ layers.mlp_output
    margins = found[:pairs] - found[pairs:]
    slopes = (0.5 * np.tanh(0.5 * margins) - 0.5) / pairs  # d(-log sigmoid(x)) = sigmoid(x) - 1
    grad_scores = np.concatenate([slopes, -slopes]).astype(rows.dtype, copy=False)
    grad_rows = np.empty_like(rows)
    np.multiply(grad_scores[:, None], scaled_user, out=grad_rows[0])
    grad_scaled = grad_scores @ rows[0]
    grad_user[0] = grad_scaled * layers.gmf_output
    grad_layers.gmf_output[:] = grad_scaled * user[0]
    grad_layers.mlp_output[:] = grad_scores @ hidden
    grad_hidden = grad_scores[:, None] * layers.mlp_output
    grad_hidden *= hidden > 0
    np.matmul(grad_hidden, layers.item_weights.T, out=grad_rows[1])
    grad_layers.item_weights[:] = rows[1].T @ grad_hidden
    grad_layers.bias[:] = grad_hidden.sum(axis=0)
    grad_layers.user_weights[:] = np.outer(user[1], grad_layers.bias)
    grad_user[1] = layers.user_weights @ grad_layers.bias
    return PairGradients(float(np.mean(np.logaddexp(0.0, -margins))), grad_rows, grad_user, grad_dense)
