"""Controls that no model should lose to. A figure without them says little.

Popularity and chance need no word. The third ranks items by how seldom they would be drawn as a training negative and
learns nothing: under the clean protocol it is chance once more, and how far it rises above that under `paper_protocol`
is how far that protocol leaks (`client_sdk.evaluation.drawn`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.interactions import Interactions, LeaveOneOut
from client_sdk.evaluation.control_table import ControlRow, ControlTable
from client_sdk.evaluation.drawn import DrawnScores, NegativeDraws, drawn_as_negative_control
from client_sdk.evaluation.full_ranking import rank_all
from client_sdk.evaluation.leave_one_out import EvaluationResult, FullScorer, evaluate_full_scores, evaluate_scores

__all__ = [
    "controls",
    "popularity_control",
    "popularity_full_control",
    "random_control",
    "random_full_control",
    "ranking_controls",
]


def popularity_control(data: LeaveOneOut, candidates: NDArray[np.int32], k: int = 10) -> EvaluationResult:
    """Every user gets the items that most training users have; ties go against the held-out item."""
    degrees = data.train.item_degrees().astype(np.float64)
    return evaluate_scores(lambda _, items: degrees[items], data, candidates, k)


def popularity_full_control(data: LeaveOneOut, k: int = 10) -> EvaluationResult:
    """The same against all items outside the user's training items."""
    return evaluate_full_scores(_popularity(data.train), data, k)


def random_control(
    data: LeaveOneOut, candidates: NDArray[np.int32], rng: np.random.Generator, k: int = 10
) -> EvaluationResult:
    """Scores by lot: HR@k is about k / (negatives + 1)."""
    return evaluate_scores(lambda _, items: rng.random(items.shape), data, candidates, k)


def random_full_control(data: LeaveOneOut, rng: np.random.Generator, k: int = 10) -> EvaluationResult:
    """The same against all items outside the user's training items."""
    return evaluate_full_scores(_chance(data.train, rng), data, k)


def controls(
    data: LeaveOneOut,
    candidates: NDArray[np.int32],
    rng: np.random.Generator,
    k: int = 10,
    *,
    draws: NegativeDraws | None = None,
) -> ControlTable:
    """Popularity, random, and drawn as a negative under the clean and under the leaky protocol; each against the
    candidates and against all items.

    draws: how the training that is compared with draws negatives; PFedCLR's 100 rounds when None.
    """
    held_out = data.test_items[:, None]
    clean = drawn_as_negative_control(data, candidates, rng, k, draws=draws)
    leaky = drawn_as_negative_control(data, candidates, rng, k, draws=draws, excluded=held_out)
    found = {
        "popularity": (popularity_control(data, candidates, k), popularity_full_control(data, k)),
        "random": (random_control(data, candidates, rng, k), random_full_control(data, rng, k)),
        "drawn as a negative": clean,
        "drawn as a negative in paper_protocol": leaky,
    }
    rows = [
        ControlRow(name, result.protocol, result.users, (result.hr, result.ndcg))
        for name, results in found.items()
        for result in results
    ]
    return ControlTable((f"HR@{k}", f"NDCG@{k}"), tuple(rows))


def ranking_controls(
    train: Interactions,
    test: Interactions,
    rng: np.random.Generator,
    k: int = 20,
    *,
    draws: NegativeDraws | None = None,
    users: NDArray[np.intp] | None = None,
) -> ControlTable:
    """Popularity, random and drawn as a negative (clean) for splits with several test items, by full ranking.

    users: only these are ranked, as in `rank_all`.
    """
    scorers: dict[str, FullScorer] = {
        "popularity": _popularity(train),
        "random": _chance(train, rng),
        "drawn as a negative": DrawnScores(train, draws or NegativeDraws(), rng),
    }
    rows = []
    for name, scores in scorers.items():
        result = rank_all(scores, train, test, k, users=users)
        rows.append(ControlRow(name, "full ranking", result.users, (result.recall, result.ndcg)))
    return ControlTable((f"Recall@{k}", f"NDCG@{k}"), tuple(rows))


def _popularity(train: Interactions) -> FullScorer:
    degrees = train.item_degrees().astype(np.float64)
    return lambda users: np.broadcast_to(degrees, (users.size, degrees.size))


def _chance(train: Interactions, rng: np.random.Generator) -> FullScorer:
    return lambda users: rng.random((users.size, train.n_items))
