"""The client half of PFedCLR: train the items and send them, then personalise what is kept (Algorithm 1).

Step 1 is what a contribution waits for. Step 2 is `LocalResult.finish`: it runs while the server sums, and nothing of
it can be in what was sent. Both train on the same samples with binary cross entropy, the mean over a batch, and Adam,
whose moments begin anew in each step of each round.

To recommend, a client adds A_u B_u to the newest shared Q. The paper adds it to Q_u of the client's last round, which
would have to be kept; measured side by side, the difference is not to be seen (docs/pfedclr.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.local_state.client_state import ClientState
from client_sdk.training.adam import Adam, OuterAdam
from client_sdk.training.base import LocalResult, TrainingConfig
from client_sdk.training.factors import USER_FACTOR
from client_sdk.training.mf import Samples, check_shapes, draw_samples
from protocols.errors import ParameterError
from protocols.recipes.base import ModelState, RoundSpec, Update
from protocols.recipes.factors import factors_of
from protocols.recipes.pfedclr import PFedCLR

Array = NDArray[np.floating[Any]]

__all__ = ["BUFFER", "BUFFER_BASIS", "BUFFER_ROWS", "PFedCLRConfig", "PFedCLRHalf"]

BUFFER_ROWS: Final = "buffer_rows"
"""Name in the memory of variant clr: A, float32 (items, rank)."""
BUFFER_BASIS: Final = "buffer_basis"
"""Name in the memory of variant clr: B, float32 (rank, dim)."""
BUFFER: Final = "buffer"
"""Name in the memory of variants af and cf: W, float32 (items, dim)."""


@dataclass(frozen=True)
class PFedCLRConfig(TrainingConfig):
    """How a client trains; the defaults are the paper's (appendix C.3)."""

    learning_rate: float = 0.01
    """eta: of p and Q."""
    buffer_learning_rate: float = 0.01
    """beta: of A and B, or W."""
    epochs: int = 10
    """E: passes over the samples, in step 1 and again in step 2."""
    batch_size: int = 256
    """Samples a step."""
    negatives: int = 4
    """Negatives drawn for each positive, anew at each participation; both steps use the same."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "negatives"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "buffer_learning_rate"):
            if not getattr(self, name) > 0:
                raise ParameterError(f"{name} must be positive, got {getattr(self, name)}")


class Trainable(Protocol):
    """What a step trains, over the k items that take part in the round.

    Residuals (k,) hold, for each item, sigmoid - label summed over its samples in a batch, divided by the batch size:
    d loss / d logit of the mean loss.
    """

    def logits(self) -> Array:
        """p . (q_i + w_i) of every item, (k,)."""

    def step(self, residuals: Array) -> None:
        """One step of Adam."""


class _Flat:
    """Copies of several arrays as views of one buffer, and of their gradients: Adam in one run over all entries."""

    def __init__(self, arrays: Sequence[Array], rates: Sequence[float]) -> None:
        flat = np.concatenate([array.ravel() for array in arrays])
        self._gradient = np.zeros_like(flat)
        self._adam = Adam([flat], [np.repeat(np.array(rates, flat.dtype), [array.size for array in arrays])])
        edges = np.cumsum([array.size for array in arrays])[:-1]
        self.values, self.gradients = (
            [part.reshape(array.shape) for part, array in zip(np.split(buffer, edges), arrays, strict=True)]
            for buffer in (flat, self._gradient)
        )

    def step(self) -> None:
        """One step down `gradients`, which is written over."""
        self._adam.step([self._gradient])


class FrozenUser:
    """p . (base_i + rows_i): trains `rows` (k, d) alone. `base` None is zero."""

    def __init__(self, base: Array | None, rows: Array, user: Array, rate: float) -> None:
        self.rows, self.user = rows.copy(), user
        self._fixed = None if base is None else base @ user
        self._adam = OuterAdam(self.rows, user, rate)

    def logits(self) -> Array:
        own: Array = self.rows @ self.user
        return own if self._fixed is None else own + self._fixed

    def step(self, residuals: Array) -> None:
        self._adam.step(residuals)


class FreeUser:
    """p . (base_i + rows_i): trains `rows` (k, d) and p (d,). `base` None is zero."""

    def __init__(self, base: Array | None, rows: Array, user: Array, rates: Sequence[float]) -> None:
        self._base, self._flat = base, _Flat((rows, user), rates)
        self.rows, self.user = self._flat.values

    def logits(self) -> Array:
        own: Array = self.rows @ self.user
        return own if self._base is None else own + self._base @ self.user

    def step(self, residuals: Array) -> None:
        self.gradients(residuals)
        self._flat.step()

    def gradients(self, residuals: Array) -> list[Array]:
        """Of rows and p."""
        for_rows, for_user = self._flat.gradients
        np.multiply.outer(residuals, self.user, out=for_rows)
        np.matmul(residuals, self.rows, out=for_user)
        if self._base is not None:
            for_user += residuals @ self._base
        return self._flat.gradients


class LowRank:
    """p . (base_i + a_i B): trains A (k, r), B (r, d) and p (d,)."""

    def __init__(self, base: Array, rows: Array, basis: Array, user: Array, rates: Sequence[float]) -> None:
        self._base, self._flat = base, _Flat((rows, basis, user), rates)
        self.rows, self.basis, self.user = self._flat.values

    def logits(self) -> Array:
        shared: Array = self._base @ self.user
        shared += self.rows @ (self.basis @ self.user)
        return shared

    def step(self, residuals: Array) -> None:
        self.gradients(residuals)
        self._flat.step()

    def gradients(self, residuals: Array) -> list[Array]:
        """Of A, B and p."""
        for_rows, for_basis, for_user = self._flat.gradients
        folded = residuals @ self.rows
        np.multiply.outer(residuals, self.basis @ self.user, out=for_rows)
        np.multiply.outer(folded, self.user, out=for_basis)
        np.add(residuals @ self._base, folded @ self.basis, out=for_user)
        return self._flat.gradients


def descend(model: Trainable, samples: Samples, config: PFedCLRConfig, rng: np.random.Generator) -> float:
    """Train `model` over `config.epochs` shuffles of the samples; the mean loss of the last one's batches."""
    losses: list[float] = []
    for epoch in range(config.epochs):
        order = rng.permutation(samples.rows.size)
        for start in range(0, order.size, config.batch_size):
            batch = order[start : start + config.batch_size]
            rows, labels = samples.rows[batch], samples.labels[batch]
            logits = model.logits()[rows]
            residuals = (0.5 + 0.5 * np.tanh(0.5 * logits) - labels) / batch.size  # sigmoid(x) = (1 + tanh(x/2)) / 2
            if epoch == config.epochs - 1:
                losses.append(float(np.mean(np.logaddexp(0.0, logits) - labels * logits)))
            model.step(np.bincount(rows, weights=residuals, minlength=samples.items.size).astype(np.float32))
    return float(np.mean(losses))


@dataclass(frozen=True)
class PFedCLRHalf:
    """Steps 1 and 2 of a client. `entropy` is for the noise of tasks with local differential privacy."""

    recipe: PFedCLR
    training: PFedCLRConfig = field(default_factory=PFedCLRConfig)
    entropy: Callable[[int], bytes] = os.urandom

    def initial_client_state(self, rng: np.random.Generator) -> ClientState:
        """p and B from N(0, 1), everyone's alike or this client's own; A or W zero."""
        p = self.recipe.parameters
        user, basis = self.recipe.shared_start()
        if p.start == "own":
            user = rng.standard_normal(p.dim).astype(np.float32)
            basis = rng.standard_normal((p.rank, p.dim)).astype(np.float32)
        client_state: dict[str, NDArray[np.generic]] = {
            USER_FACTOR: user,
        }
        if p.variant == "clr":
            client_state[BUFFER_ROWS] = np.zeros((p.items, p.rank), np.float32)
            client_state[BUFFER_BASIS] = basis
        elif p.variant != "fedmf":
            client_state[BUFFER] = np.zeros((p.items, p.dim), np.float32)
        return client_state

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
        """Step 1, laid out to be sent; step 2 is left as `finish`."""
        first = self._train_items(state, history, client_state, rng, excluded)
        update = Update(first.samples.items, first.rows - first.start)
        blocks, clipped = self.recipe.contribute(update, len(history), self.entropy)
        return LocalResult(
            blocks,
            clipped,
            first.client_state,
            first.loss,
            first.samples.rows.size,
            lambda: self._personalise(first, rng),
        )

    def prepare(self, spec: RoundSpec, state: ModelState, history: History, rng: np.random.Generator) -> ClientState:
        """Both steps, of which nothing is sent."""
        return self._personalise(self._train_items(state, history, self.initial_client_state(rng), rng, None), rng)

    def scores(self, state: ModelState, client_state: ClientState, history: History) -> NDArray[np.float32]:
        """The logits p . (q_i + w_i), w_i = a_i B or from W."""
        user = client_state[USER_FACTOR]
        scores = factors_of(state).item_factors @ user
        if BUFFER in client_state:
            scores += client_state[BUFFER] @ user
        if BUFFER_ROWS in client_state:
            scores += client_state[BUFFER_ROWS] @ (client_state[BUFFER_BASIS] @ user)
        return np.asarray(scores, dtype=np.float32)

    def _train_items(
        self,
        state: ModelState,
        history: History,
        client_state: ClientState,
        rng: np.random.Generator,
        excluded: NDArray[np.int32] | None,
    ) -> _FirstStep:
        """Step 1: Q from the shared model; p is frozen except in variants af and fedmf."""
        p, config = self.recipe.parameters, self.training
        factors, user = factors_of(state).item_factors, np.array(client_state[USER_FACTOR], dtype=np.float32)
        check_shapes(factors, user, p.items)
        samples = draw_samples(history.items, p.items, config.negatives, rng, excluded)
        start = factors[samples.items]
        eta = config.learning_rate
        model = (
            FrozenUser(None, start, user, eta) if p.variant in ("clr", "cf") else FreeUser(None, start, user, [eta] * 2)
        )
        loss = descend(model, samples, config, rng)
        return _FirstStep(samples, start, model.rows, {**client_state, USER_FACTOR: model.user.copy()}, loss)

    def _personalise(self, first: _FirstStep, rng: np.random.Generator) -> ClientState:
        """Step 2: with Q_u frozen, p and A, B; or p and W; or W alone; or nothing."""
        variant, config, client_state = self.recipe.parameters.variant, self.training, first.client_state
        if variant == "fedmf":
            return client_state
        name, user = BUFFER_ROWS if variant == "clr" else BUFFER, client_state[USER_FACTOR]
        beta, eta, rows = config.buffer_learning_rate, config.learning_rate, client_state[name][first.samples.items]
        model: FrozenUser | FreeUser | LowRank
        if variant == "af":
            model = FrozenUser(first.rows, rows, user, beta)
        elif variant == "cf":
            model = FreeUser(first.rows, rows, user, [beta, eta])
        else:
            model = LowRank(first.rows, rows, client_state[BUFFER_BASIS], user, [beta, beta, eta])
        descend(model, first.samples, config, rng)
        whole = client_state[name].copy()
        whole[first.samples.items] = model.rows
        kept = {**client_state, USER_FACTOR: model.user.copy(), name: whole}
        return kept | {BUFFER_BASIS: model.basis.copy()} if isinstance(model, LowRank) else kept


@dataclass(frozen=True)
class _FirstStep:
    """What step 1 leaves: the samples, the rows (k, d) of Q and of Q_u, and the memory with them in it."""

    samples: Samples
    start: NDArray[np.float32]
    rows: NDArray[np.float32]
    client_state: ClientState
    loss: float
