"""Central baselines on the same rows: EASE, and implicit ALS and BPR of the `implicit` library, if it is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from bench.quality_parts.sets import Split
from client_sdk.data.interactions import Interactions
from client_sdk.evaluation.leave_one_out import EvaluationResult, evaluate, evaluate_scores

__all__ = ["BASELINES", "best_of", "measure"]

BASELINES: Final[Mapping[str, tuple[dict[str, Any], ...]]] = {
    "ease": ({"weight": 100.0}, {"weight": 300.0}, {"weight": 1000.0}),
    "als": (
        {"factors": 32, "regularization": 0.1, "alpha": 5.0},
        {"factors": 64, "regularization": 1.0, "alpha": 5.0},
        {"factors": 64, "regularization": 10.0, "alpha": 10.0},
    ),
    "bpr": (
        {"factors": 32, "learning_rate": 0.05, "regularization": 0.01},
        {"factors": 64, "learning_rate": 0.02, "regularization": 0.02},
    ),
}
"""Settings to choose from, on validation rows."""


def measure(name: str, settings: Mapping[str, Any], split: Split, seed: int) -> EvaluationResult | None:
    """Return the baseline's figures on the split; None if it needs a library that is not installed."""
    if name == "ease":
        return _ease(split, settings["weight"])
    try:
        kind = getattr(import_module(f"implicit.{name}"), _CLASSES[name])
    except ModuleNotFoundError:
        return None
    model = kind(iterations=60 if name == "bpr" else 20, random_state=seed, num_threads=1, **settings)
    model.fit(_matrix(split.data.train), show_progress=False)
    return evaluate(np.asarray(model.user_factors), np.asarray(model.item_factors), split.data, split.candidates)


def best_of(name: str, score: Callable[[Mapping[str, Any]], float | None]) -> Mapping[str, Any]:
    """Return the settings of the baseline with the best `score`, the first of equals."""
    return max(BASELINES[name], key=lambda settings: score(settings) or 0.0)


_CLASSES: Final = {"als": "AlternatingLeastSquares", "bpr": "BayesianPersonalizedRanking"}


def _matrix(train: Interactions) -> csr_matrix:
    """Return the training rows as a binary matrix (users, items)."""
    return csr_matrix(
        (np.ones(train.size, np.float32), train.items, train.indptr), shape=(train.n_users, train.n_items)
    )


def _ease(split: Split, weight: float) -> EvaluationResult:
    """Return the figures of EASE (Steck, WWW 2019): B = I - P diag(1 / diag P), P = (R^T R + weight I)^-1."""
    rows = _matrix(split.data.train)
    gram = np.asarray((rows.T @ rows).todense(), dtype=np.float64)
    gram[np.diag_indices_from(gram)] += weight
    inverse = np.linalg.inv(gram)
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    learned = weights.astype(np.float32)

    def scores(users: NDArray[np.intp], items: NDArray[np.int32]) -> NDArray[np.floating]:
        return np.take_along_axis(np.asarray(rows[users] @ learned), items.astype(np.intp), axis=1)

    return evaluate_scores(scores, split.data, split.candidates)
