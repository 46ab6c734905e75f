"""The client side of PFedCLR: step 1 trains the items and sends them, step 2 personalises (Algorithm 1).

Step 2 is `LocalResult.finish`: it runs after the contribution has been sent, while the server sums, so the contribution
cannot depend on it. Both steps train on the same samples with binary cross entropy, the mean over a batch, and Adam,
whose moments begin at zero in each step of each round.

For recommendations, a client adds A_u B_u to the newest shared Q. The paper adds it to Q_u of the client's last round,
which would have to be stored; the results show no difference (docs/recipes.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.store.states import ClientState
from client_sdk.training.adam import Adam, Array, OuterAdam
from client_sdk.training.base import ClientSide, LocalResult, Rng, TrainingConfig, task_training
from client_sdk.training.factors import USER_FACTOR, count_items, counted, logit_offsets, user_factor
from client_sdk.training.mf import NegativeSampler, Samples, check_shapes, draw_negatives, draw_samples
from protocols.recipes.base import FactorState, Local, ModelState, RoundSpec, Update
from protocols.recipes.factors import item_biases
from protocols.recipes.pfedclr import PFedCLR
from protocols.recipes.spectral_start import projects
from protocols.recipes.state import state_as

BUFFER_ROWS: Final = "buffer_rows"
"""Key in the client state of variant clr: A, float32 (items, rank)."""
BUFFER_BASIS: Final = "buffer_basis"
"""Key in the client state of variant clr: B, float32 (rank, dim)."""
BUFFER: Final = "buffer"
"""Key in the client state of variants af and cf: W, float32 (items, dim)."""


@dataclass(frozen=True)
class PFedCLRConfig(TrainingConfig):
    """How a client trains. The defaults are the paper's (appendix C.3)."""

    learning_rate: float = 0.01
    """eta, the learning rate of p and Q."""
    buffer_learning_rate: float = 0.01
    """beta, the learning rate of A and B, or of W."""
    epochs: int = 10
    """E, passes over the samples in each of the two steps."""
    batch_size: int = 256
    """Samples in one step."""
    negatives: int = 4
    """Negatives drawn for each positive, anew in each round that the client takes part in, and used in both steps."""


class FrozenUser:
    """The model p . (base_i + rows_i) in which only `rows` (k, d) are trained. base: (k, d), or None for zero."""

    def __init__(self, base: Array | None, rows: Array, user: Array, rate: float) -> None:
        self.rows, self.user = rows.copy(), user
        self._fixed = None if base is None else base @ user
        self._adam = OuterAdam(self.rows, user, rate)

    def logits(self) -> Array:
        own: Array = self.rows @ self.user
        return own if self._fixed is None else own + self._fixed

    def step(self, residuals: Array) -> None:
        self._adam.step(residuals)


class _Flat:
    """Copies of several arrays and their gradients as views of two buffers, so that Adam runs once over all entries."""

    def __init__(self, base: Array | None, arrays: Sequence[Array], rates: Sequence[float]) -> None:
        self._base = base
        flat = np.concatenate([array.ravel() for array in arrays])
        self._gradient = np.zeros_like(flat)
        self._adam = Adam([flat], [np.repeat(np.array(rates, flat.dtype), [array.size for array in arrays])])
        edges = np.cumsum([array.size for array in arrays])[:-1]
        self._values, self._gradients = (
            [part.reshape(array.shape) for part, array in zip(np.split(buffer, edges), arrays, strict=True)]
            for buffer in (flat, self._gradient)
        )

    def step(self, residuals: Array) -> None:
        self.gradients(residuals)
        self._adam.step([self._gradient])

    def gradients(self, residuals: Array) -> list[Array]:
        """Return the gradients of the arrays, which `step` overwrites."""
        raise NotImplementedError


class FreeUser(_Flat):
    """The model p . (base_i + rows_i) in which `rows` (k, d) and p (d,) are trained. base: (k, d), or None for zero."""

    def __init__(self, base: Array | None, rows: Array, user: Array, rates: Sequence[float]) -> None:
        super().__init__(base, (rows, user), rates)
        self.rows, self.user = self._values

    def logits(self) -> Array:
        own: Array = self.rows @ self.user
        return own if self._base is None else own + self._base @ self.user

    def gradients(self, residuals: Array) -> list[Array]:
        grad_rows, grad_user = self._gradients
        np.multiply.outer(residuals, self.user, out=grad_rows)
        np.matmul(residuals, self.rows, out=grad_user)
        if self._base is not None:
            grad_user += residuals @ self._base
        return self._gradients


class LowRank(_Flat):
    """The model p . (base_i + a_i B) in which A (k, r), B (r, d) and p (d,) are trained."""

    _base: Array

    def __init__(self, base: Array, rows: Array, basis: Array, user: Array, rates: Sequence[float]) -> None:
        super().__init__(base, (rows, basis, user), rates)
        self.rows, self.basis, self.user = self._values

    def logits(self) -> Array:
        shared: Array = self._base @ self.user
        shared += self.rows @ (self.basis @ self.user)
        return shared

    def gradients(self, residuals: Array) -> list[Array]:
        grad_rows, grad_basis, grad_user = self._gradients
        folded = residuals @ self.rows
        np.multiply.outer(residuals, self.basis @ self.user, out=grad_rows)
        np.multiply.outer(folded, self.user, out=grad_basis)
        np.add(residuals @ self._base, folded @ self.basis, out=grad_user)
        return self._gradients


Model = FrozenUser | FreeUser | LowRank
"""What a step trains, for the k items of the samples.

logits: p . (q_i + w_i) of each item, (k,). step: takes one step of Adam with the residuals (k,), of each item the sum
of sigmoid - label over its samples in the batch, divided by the batch size: d loss / d logit of the mean loss.
"""


def descend(
    model: Model, samples: Samples, config: PFedCLRConfig, rng: Rng, offsets: NDArray[np.float32] | None = None
) -> float:
    """Train `model` for `config.epochs` epochs over the shuffled samples; return the mean loss of the last epoch.

    offsets: added to the logit of each item of `samples`, float32 (k,); None for zeros.
    """
    losses: list[float] = []
    for epoch in range(config.epochs):
        order = rng.permutation(samples.rows.size)
        for start in range(0, order.size, config.batch_size):
            batch = order[start : start + config.batch_size]
            rows, labels = samples.rows[batch], samples.labels[batch]
            logits = model.logits()[rows]
            if offsets is not None:
                logits += offsets[rows]
            residuals = (0.5 + 0.5 * np.tanh(0.5 * logits) - labels) / batch.size  # sigmoid(x) = (1 + tanh(x/2)) / 2
            if epoch == config.epochs - 1:
                losses.append(float(np.mean(np.logaddexp(0.0, logits) - labels * logits)))
            model.step(np.bincount(rows, weights=residuals, minlength=samples.items.size).astype(np.float32))
    return float(np.mean(losses))


@dataclass(frozen=True)
class PFedCLRSide(ClientSide):
    """Steps 1 and 2 of a client."""

    recipe: PFedCLR
    training: PFedCLRConfig = field(default_factory=PFedCLRConfig)
    entropy: Callable[[int], bytes] = os.urandom
    """Source of random bytes for the noise of tasks with local differential privacy."""
    draw: NegativeSampler = draw_negatives
    """Draws the training negatives."""

    def initial_client_state(self, rng: Rng) -> ClientState:
        """Return p and B from N(0, 1), equal for all clients or the client's own, and A or W zero.

        In a task that starts from a spectrum p is zeros, which `user_factor` replaces.
        """
        p = self.recipe.parameters
        user, basis = self.recipe.shared_start()
        if projects(p):
            user = np.zeros_like(user)
        if p.start == "own":
            user = rng.standard_normal(p.dim).astype(np.float32) if not projects(p) else user
            basis = rng.standard_normal((p.rank, p.dim)).astype(np.float32)
        client_state: dict[str, NDArray[np.generic]] = {USER_FACTOR: user}
        if p.variant == "clr":
            client_state[BUFFER_ROWS] = np.zeros((p.items, p.rank), np.float32)
            client_state[BUFFER_BASIS] = basis
        elif p.variant != "fedmf":
            client_state[BUFFER] = np.zeros((p.items, p.dim), np.float32)
        return client_state

    def contribute(
        self, spec: RoundSpec, client_id: str, state: ModelState, history: History, client_state: ClientState, rng: Rng
    ) -> LocalResult:
        """Return the client's item counts, or run step 1 and return its contribution; `finish` then runs step 2."""
        if spec.sum_index <= self.recipe.parameters.counting:
            return count_items(self.recipe.parameters.items, history, client_state)
        first = self._train_items(state, history, client_state, rng)
        update = Update(first.samples.items, first.rows - first.start)
        made = self.recipe.contribute(state, spec, Local(update, client_id, len(history), self.entropy))
        return LocalResult(
            made, first.client_state, first.loss, first.samples.rows.size, lambda: self._personalise(first, rng)
        )

    def prepare(self, spec: RoundSpec, state: ModelState, history: History, rng: Rng) -> ClientState:
        return self._personalise(self._train_items(state, history, self.initial_client_state(rng), rng), rng)

    def scores(self, state: ModelState, client_state: ClientState, history: History) -> NDArray[np.float32]:
        """Return the logits p . (q_i + w_i), where w_i is a_i B or a row of W, plus b_i with item biases."""
        user = user_factor(self.recipe.parameters, state, client_state, history)
        scores = state_as(state, FactorState).item_factors @ user
        if BUFFER in client_state:
            scores += client_state[BUFFER] @ user
        if BUFFER_ROWS in client_state:
            scores += client_state[BUFFER_ROWS] @ (client_state[BUFFER_BASIS] @ user)
        biases = item_biases(state)
        return np.asarray(scores if biases is None else scores + biases, dtype=np.float32)

    def known(self, state: ModelState) -> NDArray[np.bool_] | None:
        return counted(state)

    def _train_items(self, state: ModelState, history: History, client_state: ClientState, rng: Rng) -> _FirstStep:
        """Run step 1: train Q from the shared model. p is frozen except in variants af and fedmf."""
        p, config = self.recipe.parameters, self.training
        factors, user = state_as(state, FactorState).item_factors, user_factor(p, state, client_state, history).copy()
        check_shapes(factors, user, p.items)
        samples = draw_samples(history.items, p.items, config.negatives, rng, self.draw)
        start, eta = factors[samples.items], config.learning_rate
        frozen = p.variant in ("clr", "cf")
        model = FrozenUser(None, start, user, eta) if frozen else FreeUser(None, start, user, [eta] * 2)
        offsets = logit_offsets(state, config.negatives)
        fixed = None if offsets is None else offsets[samples.items]
        loss = descend(model, samples, config, rng, fixed)
        return _FirstStep(samples, start, model.rows, {**client_state, USER_FACTOR: model.user.copy()}, loss, fixed)

    def _personalise(self, first: _FirstStep, rng: Rng) -> ClientState:
        """Run step 2 with Q_u frozen: train p, A and B (clr), p and W (cf), W (af), or nothing (fedmf)."""
        variant, config, client_state = self.recipe.parameters.variant, self.training, first.client_state
        if variant == "fedmf":
            return client_state
        name, user = BUFFER_ROWS if variant == "clr" else BUFFER, client_state[USER_FACTOR]
        beta, eta, rows = config.buffer_learning_rate, config.learning_rate, client_state[name][first.samples.items]
        model: Model
        if variant == "af":
            model = FrozenUser(first.rows, rows, user, beta)
        elif variant == "cf":
            model = FreeUser(first.rows, rows, user, [beta, eta])
        else:
            model = LowRank(first.rows, rows, client_state[BUFFER_BASIS], user, [beta, beta, eta])
        descend(model, first.samples, config, rng, first.offsets)
        whole = client_state[name].copy()
        whole[first.samples.items] = model.rows
        kept = {**client_state, USER_FACTOR: model.user.copy(), name: whole}
        return kept | {BUFFER_BASIS: model.basis.copy()} if isinstance(model, LowRank) else kept


@dataclass(frozen=True)
class _FirstStep:
    """The result of step 1: the samples, the rows (k, d) of Q and of Q_u, the client state, the loss and the logit
    offsets (k,), if any."""

    samples: Samples
    start: NDArray[np.float32]
    rows: NDArray[np.float32]
    client_state: ClientState
    loss: float
    offsets: NDArray[np.float32] | None


def client_side(recipe: PFedCLR, training: TrainingConfig | None = None, graph_filter: str | None = None) -> ClientSide:
    return PFedCLRSide(recipe, task_training(recipe, training, PFedCLRConfig, graph_filter))
