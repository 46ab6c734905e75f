"""Controls that no model should lose to: popularity, and chance. A figure without them says little."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.interactions import LeaveOneOut
from client_sdk.evaluation.leave_one_out import EvaluationResult, evaluate_full_scores, evaluate_scores

__all__ = ["popularity_control", "popularity_full_control", "random_control"]


def popularity_control(data: LeaveOneOut, candidates: NDArray[np.int32], k: int = 10) -> EvaluationResult:
    """Every user gets the items that most training users have; ties go against the held-out item."""
    degrees = data.train.item_degrees().astype(np.float64)
    return evaluate_scores(lambda _, items: degrees[items], data, candidates, k)


def popularity_full_control(data: LeaveOneOut, k: int = 10) -> EvaluationResult:
    """The same against all items outside the user's training items."""
    degrees = data.train.item_degrees().astype(np.float64)
    return evaluate_full_scores(lambda users: np.broadcast_to(degrees, (users.size, degrees.size)), data, k)


def random_control(
    data: LeaveOneOut, candidates: NDArray[np.int32], rng: np.random.Generator, k: int = 10
) -> EvaluationResult:
    """Scores by lot: HR@k is about k / (negatives + 1)."""
    return evaluate_scores(lambda _, items: rng.random(items.shape), data, candidates, k)
