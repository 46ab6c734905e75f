"""FedHM on item tables, a baseline that needs plain sums: low memory by low rank instead of hashing.

Yao et al., "FedHM: Efficient Federated Learning for Heterogeneous Models via Low-rank Factorization" (2021), as the
FAIR paper applies it: a device that can hold a share alpha of a table (n, d) gets its best factors A (n, r), B (r, d)
of rank r = int(n d alpha / (n + d)) and trains them; the server multiplies them and averages. Every round the server
factorises the new tables, exactly, by the d x d Gram matrix; the released code uses a randomised SVD. A product of two
sums is not the sum of products, so no secure sum over factors gives this mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.evaluation.full_ranking import RankingResult, rank_all
from client_sdk.training.adam import Adam, TouchedAdam
from client_sdk.training.fair import USER_VECTORS, FairConfig, FairHalf, batches, layers_of, pair_gradients
from protocols.crypto.domain import derive_seed
from protocols.errors import ParameterError
from protocols.recipes.fair import Fair, FairParameters, FairView, spaces_of
from protocols.recipes.weighted import weight_of

__all__ = ["FairFederation", "FedHMFederation", "equal_groups", "factors", "rank_model", "rank_of"]


# --- A federation of FAIR in one process, and the ranking of all users at once, for FAIR's table

SCORE_ITEMS = 16_384


def equal_groups(users: int, device_groups: int) -> np.ndarray:
    """The device group of every user, int (users,): ids in order, in groups of equal size, as in the paper."""
    return np.repeat(np.arange(device_groups), [part.size for part in np.array_split(np.arange(users), device_groups)])


class FairFederation:
    """One model, trained by devices of the recipe's capacities.

    device_groups (users,): the group of each user, -1 for a user that takes no part. cohorts: clients per sum, by
    group. Each group's members take part in the order of one shuffle, so nobody has a second turn before everyone had
    the first. The released code draws a round's clients with replacement, whatever their capacity.
    """

    def __init__(
        self,
        train: Interactions,
        parameters: FairParameters,
        training: FairConfig,
        device_groups: np.ndarray,
        cohorts: Sequence[int],
        seed: int = 0,
    ) -> None:
        self.train, self.seed, self.cohorts = train, seed, tuple(cohorts)
        self.recipe = Fair(parameters)
        self.half = FairHalf(self.recipe, training)
        self.task_seed = derive_seed(str(seed).encode(), "simulation task")
        self.state = self.recipe.initial_state(self.task_seed)
        draws = np.random.default_rng([seed, 1])
        self.client_states = [self.half.initial_client_state(draws) for _ in range(train.n_users)]
        order = np.random.default_rng([seed, 42]).permutation(train.n_users)
        self.orders = [order[device_groups[order] == device_group] for device_group in range(self.recipe.device_groups)]
        self.clipped = 0
        self.loss = float("nan")

    def run(self, turns: int) -> Iterator[int]:
        """Run turns and yield their numbers from 1: one sum of each group; the model is updated after the last sum."""
        for turn in range(1, turns + 1):
            losses = [self._sum(turn) for _ in range(self.recipe.device_groups)]
            self.loss = float(np.mean(losses))
            yield turn

    def _sum(self, turn: int) -> float:
        number = self.state.round_number + 1
        spec = self.recipe.round_spec(self.task_seed, number)
        device_group = self.recipe.device_group_of(spec.sum_index)
        view, members, cohort = (
            self.recipe.view(self.state, device_group),
            self.orders[device_group],
            self.cohorts[device_group],
        )
        places = np.arange((turn - 1) * cohort, (turn - 1) * cohort + min(cohort, members.size))
        total, losses = np.zeros(self.recipe.layout(spec.sum_index).length), []
        for user in members[places % members.size]:
            rng = np.random.default_rng([self.seed, 2, int(user), turn])
            history = self.train.history(int(user))
            made = self.half.train(view, history, self.client_states[user], rng)
            self.add(total, made.places, made.changes, made.dense - view.dense, len(history))
            self.client_states[user] = {USER_VECTORS: made.user}
            losses.append(made.loss)
        self.state = self.recipe.absorb(self.state, spec, total, places.size)
        return float(np.mean(losses))

    def add(
        self, total: np.ndarray, places: np.ndarray, changes: np.ndarray, dense: np.ndarray, interactions: int
    ) -> None:
        """Add a contribution to `total`, in the layout of `Fair.contribute`."""
        clip = self.recipe.parameters.clip
        weight = weight_of(self.recipe.parameters, interactions)
        layers = slice(-1 - dense.size, -1)
        total[places] += weight * np.clip(changes, -clip, clip, dtype=np.float64)
        total[layers] += weight * np.clip(dense, -clip, clip, dtype=np.float64)
        total[-1] += weight
        self.clipped += int(np.count_nonzero(np.abs(changes) > clip) + np.count_nonzero(np.abs(dense) > clip))

    @property
    def users(self) -> np.ndarray:
        """The users' own vectors, float32 (users, 2, dim)."""
        return np.stack([client_state[USER_VECTORS] for client_state in self.client_states])

    def rank(self, test: Interactions) -> RankingResult:
        """NDCG@20 and Recall@20 of the server's model with every user's own vectors."""
        return rank_model(self.users, self.state.tables, self.state.dense, self.train, test)

    def rank_on_devices(self, test: Interactions, device_groups: np.ndarray) -> dict[str, float]:
        """NDCG@20 by device group, scored with the view that its devices hold."""
        found = {}
        for device_group in range(self.recipe.device_groups):
            view = self.recipe.view(self.state, device_group)
            tables = whole_tables(self.recipe, view)
            members = np.flatnonzero(device_groups == device_group)
            found[str(device_group)] = rank_model(self.users, tables, view.dense, self.train, test, members).ndcg
        return found


def whole_tables(recipe: Fair, view: FairView) -> np.ndarray:
    """The recovered tables S psi of a view, float32 (2, n). A device never holds them; the benchmark does."""
    elements = recipe.parameters.elements
    spaces = spaces_of(view.seed, elements, view.tables.shape[1])
    sum_index = 2**18
    return np.stack(
        [
            np.concatenate(
                [space.recover(row, slice(a, min(a + sum_index, elements))) for a in range(0, elements, sum_index)]
            )
            for space, row in zip(spaces, view.tables, strict=True)
        ]
    )


def rank_model(
    users: np.ndarray,
    tables: np.ndarray,
    dense: np.ndarray,
    train: Interactions,
    test: Interactions,
    members: np.ndarray | None = None,
) -> RankingResult:
    """Full ranking outside the training items, as a mean over users.

    (The released code takes the mean over batches of ten users, so its last batch, of nine, has the same weight.)
    """
    dim = users.shape[2]
    layers = layers_of(dense, dim)
    gmf, hidden = tables[0].reshape(-1, dim), tables[1].reshape(-1, dim) @ layers.item_weights

    def scores(asked: np.ndarray) -> np.ndarray:
        found = np.empty((asked.size, len(gmf)), dtype=np.float32)
        scaled = users[asked, 0] * layers.gmf_output
        shifts = users[asked, 1] @ layers.user_weights + layers.bias
        for start in range(0, len(gmf), SCORE_ITEMS):
            part = slice(start, start + SCORE_ITEMS)
            found[:, part] = scaled @ gmf[part].T
            for row, shift in zip(found, shifts, strict=True):
                row[part] += np.maximum(hidden[part] + shift, 0) @ layers.mlp_output
        return found

    return rank_all(scores, train, test, k=20, users=members)


# ---


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
