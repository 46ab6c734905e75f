"""A federation of FAIR in one process, and the ranking of all users at once, for FAIR's table.

Training, weighting, views and the update of the model are the code of the recipe and of the client half. The buckets
that a client touched are added to the sum directly, because laying out, sealing, checking and folding 5.7 million
values per client would take longer than training. Tests on small data show that this equals the sum of contributions,
and that secure sums give the same model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.evaluation.full_ranking import RankingResult, rank_all
from client_sdk.training.fair import USER_VECTORS, FairConfig, FairHalf, layers_of
from protocols.crypto.domain import derive_seed
from protocols.recipes.fair import Fair, FairParameters, FairView, spaces_of
from protocols.recipes.weighted import weight_of

__all__ = ["FairFederation", "equal_groups", "rank_model"]

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
