"""Controls: rankings without a model, which every model should exceed.

There are three: popularity, random scores, and items ranked by how seldom training would draw them as a negative. The
third is no better than random under the clean protocol. The amount by which it is better under `paper_protocol` is the
size of that protocol's leak (`client_sdk.evaluation.drawn`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.interactions import Interactions, LeaveOneOut
from client_sdk.evaluation.control_table import ControlRow, ControlTable
from client_sdk.evaluation.drawn import DrawnScores, NegativeDraws, drawn_as_negative_control
from client_sdk.evaluation.full_ranking import rank_all
from client_sdk.evaluation.leave_one_out import EvaluationResult, FullScorer, evaluate_full_scores, evaluate_scores
from protocols.errors import ParameterError

__all__ = [
    "controls",
    "popularity_control",
    "popularity_full_control",
    "random_control",
    "random_full_control",
    "ranking_controls",
]


def popularity_control(data: LeaveOneOut, candidates: NDArray[np.int32], k: int = 10) -> EvaluationResult:
    """Evaluate ranking by popularity, the number of training users of an item, against `candidates`.

    candidates: int32 (n_users, n), from `candidates_of`. A tie counts against the held-out item.
    """
    degrees = data.train.item_degrees().astype(np.float64)
    return evaluate_scores(lambda _, items: degrees[items], data, candidates, k)


def popularity_full_control(data: LeaveOneOut, k: int = 10) -> EvaluationResult:
    """Evaluate ranking by popularity against all items outside the user's training items."""
    return evaluate_full_scores(_popularity(data.train), data, k)


def random_control(
    data: LeaveOneOut, candidates: NDArray[np.int32], rng: np.random.Generator, k: int = 10
) -> EvaluationResult:
    """Evaluate random scores against `candidates`, int32 (n_users, n). HR@k is about k / (n + 1)."""
    return evaluate_scores(lambda _, items: rng.random(items.shape), data, candidates, k)


def random_full_control(data: LeaveOneOut, rng: np.random.Generator, k: int = 10) -> EvaluationResult:
    """Evaluate random scores against all items outside the user's training items."""
    return evaluate_full_scores(_random(data.train, rng), data, k)


def controls(
    data: LeaveOneOut,
    candidates: NDArray[np.int32] | None,
    rng: np.random.Generator,
    k: int = 10,
    *,
    draws: NegativeDraws | None = None,
    leaks: bool = True,
) -> ControlTable:
    """Return controls, each against `candidates`, if any, and against all items: popularity and random.

    leaks: with the controls drawn as a negative too, under the clean and under the leaky protocol. candidates: int32
    (n_users, n), from `candidates_of`; None where users have too few items. draws: how the training to compare with
    draws negatives; by default PFedCLR's 100 rounds. Raises `ParameterError` for leak controls without candidates.
    """
    found: dict[str, tuple[EvaluationResult, ...]] = {
        "popularity": (popularity_full_control(data, k),),
        "random": (random_full_control(data, rng, k),),
    }
    if candidates is not None:
        found["popularity"] = (popularity_control(data, candidates, k), *found["popularity"])
        found["random"] = (random_control(data, candidates, rng, k), *found["random"])
    if leaks:
        if candidates is None:
            raise ParameterError("the controls of leaks rank against sampled items, and users have too few")
        held_out = data.test_items[:, None]
        found["drawn as a negative"] = drawn_as_negative_control(data, candidates, rng, k, draws=draws)
        found["drawn as a negative in paper_protocol"] = drawn_as_negative_control(
            data, candidates, rng, k, draws=draws, excluded=held_out
        )
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
    leaks: bool = True,
) -> ControlTable:
    """Return the controls popularity and random for splits with several test items.

    leaks: with the control drawn as a negative (clean) too. All are evaluated by full ranking. draws: as in `controls`.
    users: evaluate only these, as in `rank_all`.
    """
    scorers: dict[str, FullScorer] = {
        "popularity": _popularity(train),
        "random": _random(train, rng),
    }
    if leaks:
        scorers["drawn as a negative"] = DrawnScores(train, draws or NegativeDraws(), rng)
    rows = []
    for name, scores in scorers.items():
        result = rank_all(scores, train, test, k, users=users)
        rows.append(ControlRow(name, "full ranking", result.users, (result.recall, result.ndcg)))
    return ControlTable((f"Recall@{k}", f"NDCG@{k}"), tuple(rows))


def _popularity(train: Interactions) -> FullScorer:
    degrees = train.item_degrees().astype(np.float64)
    return lambda users: np.broadcast_to(degrees, (users.size, degrees.size))


def _random(train: Interactions, rng: np.random.Generator) -> FullScorer:
    return lambda users: rng.random((users.size, train.n_items))
