"""The control that shows a leak: rank items by how seldom they were drawn as a training negative. Nothing is learned.

Where negatives are drawn from everything outside the training items, the held-out item is drawn as often as any other,
and this control does no better than chance. Where the held-out item is spared (`paper_protocol`), it wins. A model that
stays below it there has shown nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.interactions import LeaveOneOut
from client_sdk.evaluation.leave_one_out import EvaluationResult, evaluate_full_scores, evaluate_scores
from client_sdk.training.negatives import negative_pool
from protocols.errors import ParameterError

__all__ = ["DrawnScores", "NegativeDraws", "drawn_as_negative_control", "drawn_as_negative_full_control"]


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
    alone, so both rankings below see the same ones. excluded: int32 (n_users, k) as `Federation` takes it.
    """

    def __init__(
        self,
        data: LeaveOneOut,
        draws: NegativeDraws,
        rng: np.random.Generator,
        excluded: NDArray[np.int32] | None = None,
    ) -> None:
        self.data, self.draws, self.excluded = data, draws, excluded
        self.seed = int(rng.integers(2**63))
        users = data.train.n_users
        asked = round(draws.participation * users)
        self.participations = np.zeros(users, dtype=np.int64)
        for _ in range(draws.rounds):
            self.participations[rng.permutation(users)[:asked]] += 1

    def sampled(self, users: NDArray[np.intp], items: NDArray[np.int32]) -> NDArray[np.floating]:
        """Scores of some items, float64 (u, m), for `evaluate_scores`."""
        return np.stack([self.of_user(int(user))[row] for user, row in zip(users, items, strict=True)])

    def full(self, users: NDArray[np.intp]) -> NDArray[np.floating]:
        """Scores of all items, float64 (u, n_items), for `evaluate_full_scores`."""
        return np.stack([self.of_user(int(user)) for user in users])

    def of_user(self, user: int) -> NDArray[np.float64]:
        """One user's scores of all items, float64 (n_items,)."""
        train, rng = self.data.train, np.random.default_rng([self.seed, user])
        positives = train.positives(user)
        pool = negative_pool(positives, train.n_items, None if self.excluded is None else self.excluded[user])
        count = int(self.participations[user]) * self.draws.negatives * positives.size
        scores = rng.random(train.n_items)
        scores[pool] -= np.bincount(rng.integers(0, pool.size, count, dtype=np.int32), minlength=pool.size)
        return scores


def drawn_as_negative_control(
    data: LeaveOneOut,
    candidates: NDArray[np.int32],
    rng: np.random.Generator,
    k: int = 10,
    *,
    draws: NegativeDraws | None = None,
    excluded: NDArray[np.int32] | None = None,
) -> EvaluationResult:
    """Scores are minus the times drawn, against the candidates; `excluded` tells which protocol drew (None: clean)."""
    scores = DrawnScores(data, draws or NegativeDraws(), rng, excluded)
    return evaluate_scores(scores.sampled, data, candidates, k)


def drawn_as_negative_full_control(
    data: LeaveOneOut,
    rng: np.random.Generator,
    k: int = 10,
    *,
    draws: NegativeDraws | None = None,
    excluded: NDArray[np.int32] | None = None,
) -> EvaluationResult:
    """The same against all items outside the user's training items."""
    scores = DrawnScores(data, draws or NegativeDraws(), rng, excluded)
    return evaluate_full_scores(scores.full, data, k)
