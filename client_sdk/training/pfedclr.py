"""The client half of PFedCLR: train the items and send them, then personalise what is kept (Algorithm 1).

Step 1 is what a contribution waits for. Step 2 is `LocalResult.finish`: it runs while the server sums, and nothing of
it can be in what was sent. Both train on the same samples with binary cross entropy, the mean over a batch, and Adam,
whose moments begin anew in each step of each round.

To recommend, a client adds A_u B_u to the newest shared Q. The paper adds it to Q_u of the client's last round, which
would have to be kept; measured side by side, the difference is not to be seen (docs/pfedclr.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.history import History
from client_sdk.training.adam import Adam
from client_sdk.training.base import LocalResult, Memory, TrainingConfig
from client_sdk.training.factors import USER_FACTOR
from client_sdk.training.mf import Samples, check_shapes, draw_samples
from protocols.errors import ParameterError
from protocols.recipes.base import ModelState, RoundSpec, Update
from protocols.recipes.factors import factors_of
from protocols.recipes.pfedclr import PFedCLR

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
    """What a step trains, over the k items that take part in the round."""

    def parameters(self) -> list[NDArray[np.float32]]:
        """The arrays to be moved."""

    def logits(self) -> NDArray[np.float32]:
        """p . (q_i + w_i) of every item, float32 (k,)."""

    def gradients(self, residuals: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Of the mean loss of a batch: `residuals` (k,) sums sigmoid - label over each item's samples, / batch size."""


@dataclass
class FullRows(Trainable):
    """p . (base_i + rows_i): trains `rows` (k, d), and `user` (d,) where it is not frozen."""

    base: NDArray[np.float32] | None
    rows: NDArray[np.float32]
    user: NDArray[np.float32]
    frozen: bool

    def parameters(self) -> list[NDArray[np.float32]]:
        return [self.rows] if self.frozen else [self.rows, self.user]

    def logits(self) -> NDArray[np.float32]:
        own = self.rows @ self.user
        return own if self.base is None else own + self.base @ self.user

    def gradients(self, residuals: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        made = [np.multiply.outer(residuals, self.user)]
        if not self.frozen:
            made.append(residuals @ self.rows if self.base is None else residuals @ self.rows + residuals @ self.base)
        return made


@dataclass
class LowRankRows(Trainable):
    """p . (base_i + a_i B): trains A (k, r), B (r, d) and p (d,)."""

    base: NDArray[np.float32]
    rows: NDArray[np.float32]
    basis: NDArray[np.float32]
    user: NDArray[np.float32]

    def parameters(self) -> list[NDArray[np.float32]]:
        return [self.rows, self.basis, self.user]

    def logits(self) -> NDArray[np.float32]:
        return self.base @ self.user + self.rows @ (self.basis @ self.user)

    def gradients(self, residuals: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        folded = residuals @ self.rows
        return [
            np.multiply.outer(residuals, self.basis @ self.user),
            np.multiply.outer(folded, self.user),
            residuals @ self.base + folded @ self.basis,
        ]


def descend(
    model: Trainable, rates: list[float], samples: Samples, config: PFedCLRConfig, rng: np.random.Generator
) -> float:
    """Train `model` in place over `config.epochs` shuffles of the samples; the mean loss of the last one's batches."""
    adam = Adam(model.parameters(), rates)
    losses: list[float] = []
    for epoch in range(config.epochs):
        order = rng.permutation(samples.rows.size)
        for start in range(0, order.size, config.batch_size):
            batch = order[start : start + config.batch_size]
            rows, labels = samples.rows[batch], samples.labels[batch]
            logits = model.logits()[rows]
            residuals = 0.5 + 0.5 * np.tanh(0.5 * logits) - labels  # sigmoid(x) = (1 + tanh(x/2)) / 2
            sums = np.bincount(rows, weights=residuals, minlength=samples.items.size) / batch.size
            if epoch == config.epochs - 1:
                losses.append(float(np.mean(np.logaddexp(0.0, logits) - labels * logits)))
            adam.step(model.gradients(sums.astype(np.float32)))
    return float(np.mean(losses))


@dataclass(frozen=True)
class PFedCLRHalf:
    """Steps 1 and 2 of a client. `entropy` is for the noise of tasks with local differential privacy."""

    recipe: PFedCLR
    training: PFedCLRConfig = field(default_factory=PFedCLRConfig)
    entropy: Callable[[int], bytes] = os.urandom

    def first_memory(self, rng: np.random.Generator) -> Memory:
        """p and B from N(0, 1), everyone's alike or this client's own; A or W zero."""
        p = self.recipe.parameters
        user, basis = self.recipe.shared_start()
        if p.start == "own":
            user = rng.standard_normal(p.dim).astype(np.float32)
            basis = rng.standard_normal((p.rank, p.dim)).astype(np.float32)
        memory: dict[str, NDArray[np.generic]] = {
            USER_FACTOR: user,
        }
        if p.variant == "clr":
            memory[BUFFER_ROWS] = np.zeros((p.items, p.rank), np.float32)
            memory[BUFFER_BASIS] = basis
        elif p.variant != "fedmf":
            memory[BUFFER] = np.zeros((p.items, p.dim), np.float32)
        return memory

    def contribute(
        self,
        spec: RoundSpec,
        client_id: str,
        state: ModelState,
        history: History,
        memory: Memory,
        rng: np.random.Generator,
        excluded: NDArray[np.int32] | None = None,
    ) -> LocalResult:
        """Step 1, laid out to be sent; step 2 is left as `finish`."""
        first = self._train_items(state, history, memory, rng, excluded)
        update = Update(first.samples.items, first.rows - first.start)
        blocks, clipped = self.recipe.contribute(update, len(history), self.entropy)
        return LocalResult(
            blocks, clipped, first.memory, first.loss, first.samples.rows.size, lambda: self._personalise(first, rng)
        )

    def prepare(self, spec: RoundSpec, state: ModelState, history: History, rng: np.random.Generator) -> Memory:
        """Both steps, of which nothing is sent."""
        return self._personalise(self._train_items(state, history, self.first_memory(rng), rng, None), rng)

    def scores(self, state: ModelState, memory: Memory, history: History) -> NDArray[np.float32]:
        """The logits p . (q_i + w_i), w_i = a_i B or from W."""
        user = memory[USER_FACTOR]
        scores = factors_of(state).item_factors @ user
        if BUFFER in memory:
            scores += memory[BUFFER] @ user
        if BUFFER_ROWS in memory:
            scores += memory[BUFFER_ROWS] @ (memory[BUFFER_BASIS] @ user)
        return np.asarray(scores, dtype=np.float32)

    def _train_items(
        self,
        state: ModelState,
        history: History,
        memory: Memory,
        rng: np.random.Generator,
        excluded: NDArray[np.int32] | None,
    ) -> _FirstStep:
        """Step 1: Q from the shared model; p is frozen except in variants af and fedmf."""
        p, config = self.recipe.parameters, self.training
        factors, user = factors_of(state).item_factors, np.array(memory[USER_FACTOR], dtype=np.float32)
        check_shapes(factors, user, p.items)
        samples = draw_samples(history.items, p.items, config.negatives, rng, excluded)
        start = factors[samples.items]
        model = FullRows(None, start.copy(), user, frozen=p.variant in ("clr", "cf"))
        loss = descend(model, [config.learning_rate] * len(model.parameters()), samples, config, rng)
        return _FirstStep(samples, start, model.rows, {**memory, USER_FACTOR: user}, loss)

    def _personalise(self, first: _FirstStep, rng: np.random.Generator) -> Memory:
        """Step 2: with Q_u frozen, p and A, B; or p and W; or W alone; or nothing."""
        variant, config, items, memory = (
            self.recipe.parameters.variant,
            self.training,
            first.samples.items,
            first.memory,
        )
        if variant == "fedmf":
            return memory
        user, eta, beta = memory[USER_FACTOR].copy(), config.learning_rate, config.buffer_learning_rate
        whole = memory[BUFFER_ROWS if variant == "clr" else BUFFER].copy()
        rows = whole[items]
        if variant == "clr":
            basis = memory[BUFFER_BASIS].copy()
            descend(LowRankRows(first.rows, rows, basis, user), [beta, beta, eta], first.samples, config, rng)
            whole[items] = rows
            return {**memory, USER_FACTOR: user, BUFFER_ROWS: whole, BUFFER_BASIS: basis}
        model = FullRows(first.rows, rows, user, frozen=variant == "af")
        descend(model, [beta, eta][: len(model.parameters())], first.samples, config, rng)
        whole[items] = rows
        return {**memory, USER_FACTOR: user, BUFFER: whole}


@dataclass(frozen=True)
class _FirstStep:
    """What step 1 leaves: the samples, the rows (k, d) of Q and of Q_u, and the memory with them in it."""

    samples: Samples
    start: NDArray[np.float32]
    rows: NDArray[np.float32]
    memory: Memory
    loss: float
