"""FedHM on item tables, a baseline that needs plain sums: low memory by low rank instead of hashing.

Yao et al., "FedHM: Efficient Federated Learning for Heterogeneous Models via Low-rank Factorization" (2021), as the
FAIR paper applies it: a device that can hold a share alpha of a table (n, d) gets its best factors A (n, r), B (r, d)
of rank r = int(n d alpha / (n + d)) and trains them; the server multiplies them and averages. Every round the server
factorises the new tables, exactly, by the d x d Gram matrix; the released code uses a randomised SVD. A product of two
sums is not the sum of products, so no secure sum over factors gives this mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench.systems.fair_federation import FairFederation
from client_sdk.lab.data.interactions import Interactions
from client_sdk.training.adam import Adam, TouchedAdam
from client_sdk.training.fair import USER_VECTORS, FairConfig, batches, pair_gradients
from protocols.errors import ParameterError
from protocols.recipes.fair import FairParameters

__all__ = ["FedHMFederation", "factors", "rank_of"]


def rank_of(items: int, dim: int, halvings: int) -> int:
    """r for alpha = 1 / 2^halvings; `ParameterError` if rank 1 does not fit (N/A in the paper)."""
    rank = int(items * dim / 2**halvings / (items + dim))
    if not rank:
        raise ParameterError(f"FedHM cannot hold a table of width {dim} in 1/{2**halvings} of its memory")
    return rank


def factors(table: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """A (n, r) and B (r, d), float32, of the best approximation of `table` (n, d); singular values split evenly."""
    values, vectors = np.linalg.eigh(table.astype(np.float64).T @ table)
    right = vectors[:, ::-1][:, :rank]
    halves = np.maximum(values[::-1][:rank], 1e-30) ** 0.25
    return (table @ (right / halves)).astype(np.float32), (halves[:, None] * right.T).astype(np.float32)


@dataclass(frozen=True)
class _Factored:
    """The result of a low-rank device: user vectors, layers, and the two tables as products."""

    user: np.ndarray
    dense: np.ndarray
    tables: np.ndarray
    loss: float


class FedHMFederation(FairFederation):
    """Device group 0 trains full tables, group 1 factors of the rank for `halvings`; both in every turn."""

    def __init__(
        self,
        train: Interactions,
        parameters: FairParameters,
        training: FairConfig,
        device_groups: np.ndarray,
        cohorts: tuple[int, int],
        halvings: int,
        seed: int = 0,
    ) -> None:
        super().__init__(train, parameters, training, np.zeros_like(device_groups), (sum(cohorts),), seed)
        self.ranked = [
            members[device_groups[members] == device_group] for device_group in (0, 1) for members in self.orders
        ]
        self.shares, self.rank_kept = cohorts, rank_of(parameters.items, parameters.dim, halvings)

    def run(self, turns: int) -> Iterator[int]:
        """Run turns and yield their numbers from 1."""
        for turn in range(1, turns + 1):
            self.loss = self._turn(turn)
            yield turn

    def _turn(self, turn: int) -> float:
        state, p = self.state, self.recipe.parameters
        spec = self.recipe.round_spec(self.task_seed, turn)
        view = self.recipe.view(state, 0)
        shape = (2, p.items, p.dim)
        parts = [factors(table, self.rank_kept) for table in state.tables.reshape(shape)]
        total, losses, every = np.zeros(self.recipe.layout().length), [], slice(state.tables.size)
        for device_group, (members, cohort) in enumerate(zip(self.ranked, self.shares, strict=True)):
            for place in range((turn - 1) * cohort, turn * cohort):
                user = int(members[place % members.size])
                rng = np.random.default_rng([self.seed, 2, user, turn])
                history, client_state = self.train.history(user), self.client_states[user]
                if device_group == 0:
                    made = self.half.train(view, history, client_state, rng)
                    places, changes = made.places, made.changes
                else:
                    made = self._train_factors(parts, state.dense, history.items, client_state[USER_VECTORS], rng)
                    places, changes = every, (made.tables - state.tables).ravel()
                self.add(total, places, changes, made.dense - state.dense, len(history))
                self.client_states[user] = {USER_VECTORS: made.user}
                losses.append(made.loss)
        self.state = self.recipe.absorb(state, spec, total, sum(self.shares))
        return float(np.mean(losses))

    def _train_factors(
        self,
        parts: list[tuple[np.ndarray, np.ndarray]],
        dense: np.ndarray,
        positives: np.ndarray,
        user: np.ndarray,
        rng: np.random.Generator,
    ) -> _Factored:
        """Train as `FairHalf` does, where a row of a table is a row of A times B."""
        p, config, rank = self.recipe.parameters, self.half.training, self.rank_kept
        user, dense = user.copy(), dense.copy()
        right = np.stack([b for _, b in parts])
        left = np.concatenate([a.ravel() for a, _ in parts])
        own = Adam([user, dense, right], [config.learning_rate] * 3)
        tables = TouchedAdam(left, config.learning_rate, left.size)
        losses = []
        for items in batches(positives, p.items, config, rng):
            places = (items.astype(np.int64)[:, None] * rank + np.arange(rank)).ravel()
            slots = tables.find(np.concatenate([places, places + p.items * rank]))
            rows = tables.values(slots).reshape(2, items.size, rank)
            made = pair_gradients(user, dense, rows @ right)
            tables.step(slots, (made.rows @ right.transpose(0, 2, 1)).ravel())
            own.step([made.user, made.dense, rows.transpose(0, 2, 1) @ made.rows])
            losses.append(made.loss)
        places, changes = tables.changes()
        left[places] += changes
        last = -(-positives.size // config.batch_size)
        whole = left.reshape(2, p.items, rank) @ right
        return _Factored(user, dense, whole.reshape(2, -1), float(np.mean(losses[-last:])))
