"""The control that shows a leak: rank items by how seldom they were drawn as a training negative. Nothing is learned.

Where negatives are drawn from everything outside the training items, the held-out item is drawn as often as any other,
and this control does no better than chance. Where the held-out item is spared (`paper_protocol`), it wins. A model that
stays below it there has shown nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.interactions import Interactions, LeaveOneOut
from client_sdk.evaluation.leave_one_out import EvaluationResult, evaluate_full_scores, evaluate_scores
from client_sdk.training.negatives import negative_pool
from protocols.errors import ParameterError

__all__ = ["DrawnControl", "DrawnScores", "NegativeDraws", "drawn_as_negative_control"]


@dataclass(frozen=True)
class NegativeDraws:
    """How training would draw negatives; the defaults are PFedCLR's."""

    rounds: int = 100
    """Rounds of training."""
    participation: float = 0.6
    """Share of the users that take part in each round, drawn anew every time."""
    negatives: int = 4
    """Negatives a positive at each participation."""

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.negatives < 1 or not 0 < self.participation <= 1:
            raise ParameterError(
                "rounds and negatives must be at least 1 and participation in (0, 1], got "
                f"{self.rounds}, {self.negatives} and {self.participation}"
            )


class DrawnScores:
    """Minus the number of times that each user drew each item, with less than 1 by lot to break ties.

    Every single draw is made, all rounds of a user at once: each round a random share of the users draws, uniformly
    and with repetition, from the pool that training draws from. A user's draws follow from `rng`'s state and the user
    alone. excluded: int32 (n_users, k) as `Federation` takes it.
    """

    def __init__(
        self,
        train: Interactions,
        draws: NegativeDraws,
        rng: np.random.Generator,
        excluded: NDArray[np.int32] | None = None,
    ) -> None:
        self.train, self.draws, self.excluded = train, draws, excluded
        self.seed = int(rng.integers(2**63))
        asked = round(draws.participation * train.n_users)
        self.participations = np.zeros(train.n_users, dtype=np.int64)
        for _ in range(draws.rounds):
            self.participations[rng.permutation(train.n_users)[:asked]] += 1

    def __call__(self, users: NDArray[np.intp]) -> NDArray[np.floating]:
        """Scores of all items, float64 (u, n_items); a `FullScorer`."""
        return np.stack([self._of_user(int(user)) for user in users])

    def _of_user(self, user: int) -> NDArray[np.float64]:
        rng, positives = np.random.default_rng([self.seed, user]), self.train.positives(user)
        pool = negative_pool(positives, self.train.n_items, None if self.excluded is None else self.excluded[user])
        count = int(self.participations[user]) * self.draws.negatives * positives.size
        scores = rng.random(self.train.n_items)
        scores[pool] -= np.bincount(rng.integers(0, pool.size, count, dtype=np.int32), minlength=pool.size)
        return scores


class DrawnControl(NamedTuple):
    """The control's figures from one simulation."""

    sampled: EvaluationResult
    """Against the candidates."""
    full: EvaluationResult
    """Against all items outside the user's training items."""


def drawn_as_negative_control(
    data: LeaveOneOut,
    candidates: NDArray[np.int32],
    rng: np.random.Generator,
    k: int = 10,
    *,
    draws: NegativeDraws | None = None,
    excluded: NDArray[np.int32] | None = None,
) -> DrawnControl:
    """Rank by how seldom an item was drawn. `excluded` tells which protocol drew; None is the clean one."""
    scores = DrawnScores(data.train, draws or NegativeDraws(), rng, excluded)
    listed = np.column_stack([data.test_items, candidates]).astype(np.int64)
    kept = np.zeros(listed.shape)

    def full(users: NDArray[np.intp]) -> NDArray[np.floating]:
        found = scores(users)
        kept[users] = np.take_along_axis(found, listed[users], axis=1)
        return found

    ranked = evaluate_full_scores(full, data, k)
    return DrawnControl(evaluate_scores(lambda users, _: kept[users], data, candidates, k), ranked)
