"""Central baselines on the same rows: EASE, exact GF-CF, and ALS and BPR of the `implicit` library, if installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

import numpy as np
from scipy.sparse import csr_array, csr_matrix, diags_array
from scipy.sparse.linalg import svds

from bench.quality_parts.sets import Split
from client_sdk.lab.data.interactions import Interactions, interaction_rows
from client_sdk.lab.evaluation.leave_one_out import FullScorer
from client_sdk.training.graph_filters import GFCF, Components

__all__ = ["BASELINES", "best_of", "scorer_of"]

BASELINES: Final[Mapping[str, tuple[dict[str, Any], ...]]] = {
    "ease": tuple({"weight": weight} for weight in (10.0, 30.0, 100.0, 300.0, 1000.0)),
    "gf-cf": tuple({"alpha": alpha} for alpha in (0.0, 0.3, 1.0)),
    "als": (
        {"factors": 64, "regularization": 10.0, "alpha": 1.0},
        {"factors": 64, "regularization": 1.0, "alpha": 5.0},
        {"factors": 64, "regularization": 10.0, "alpha": 10.0},
        {"factors": 128, "regularization": 10.0, "alpha": 1.0},
        {"factors": 128, "regularization": 30.0, "alpha": 10.0},
        {"factors": 128, "regularization": 100.0, "alpha": 10.0},
    ),
    "bpr": (
        {"factors": 32, "learning_rate": 0.05, "regularization": 0.01},
        {"factors": 64, "learning_rate": 0.02, "regularization": 0.02},
        {"factors": 128, "learning_rate": 0.05, "regularization": 0.02},
    ),
}
"""Settings to choose from, on validation rows."""

_CLASSES: Final = {"als": "AlternatingLeastSquares", "bpr": "BayesianPersonalizedRanking"}
_MOST_ITEMS: Final = 15_000
"""Items up to which a dense items x items matrix is inverted."""


def scorer_of(name: str, settings: Mapping[str, Any], split: Split, seed: int) -> FullScorer | None:
    """Return the baseline's scores of all items, trained on the split; None if it cannot be had.

    EASE is not computed for more than 15,000 items; `als` and `bpr` need the library.
    """
    train = split.data.train
    if name == "ease":
        return _ease(train, settings["weight"]) if train.n_items <= _MOST_ITEMS else None
    if name == "gf-cf":
        return _gf_cf(train, settings["alpha"])
    try:
        kind = getattr(import_module(f"implicit.{name}"), _CLASSES[name])
    except ModuleNotFoundError:
        return None
    model = kind(iterations=60 if name == "bpr" else 20, random_state=seed, num_threads=1, **settings)
    model.fit(csr_matrix(interaction_rows(train)), show_progress=False)
    users, items = np.asarray(model.user_factors), np.asarray(model.item_factors)
    return lambda asked: users[asked] @ items.T


def best_of(name: str, score: Callable[[Mapping[str, Any]], float | None]) -> Mapping[str, Any]:
    """Return the settings of the baseline with the best `score`, the first of equals."""
    return max(BASELINES[name], key=lambda settings: score(settings) or 0.0)


def _ease(train: Interactions, weight: float) -> FullScorer:
    """EASE (Steck, WWW 2019): B = I - P diag(1 / diag P), P = (R^T R + weight I)^-1."""
    rows = interaction_rows(train)
    gram = np.asarray((rows.T @ rows).todense(), dtype=np.float64)
    gram[np.diag_indices_from(gram)] += weight
    inverse = np.linalg.inv(gram)
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    learned = weights.astype(np.float32)
    return lambda users: np.asarray(rows[users] @ learned)


def _gf_cf(train: Interactions, alpha: float) -> FullScorer:
    """GF-CF (Shen et al., CIKM 2021) with the whole item-item matrix and its 256 exact leading vectors."""
    rows = interaction_rows(train)
    by_user, by_item = (np.maximum(found, 1).astype(np.float64) ** -0.5 for found in _degrees(train))
    scaled = csr_array(diags_array(by_user) @ rows @ diags_array(by_item))
    count = min(256, min(scaled.shape) - 1)
    _, values, vectors = svds(scaled, k=count, random_state=0)
    order = np.argsort(-values)
    components = Components(
        train.item_degrees().astype(np.float64),
        vectors[order].T.astype(np.float32),
        values[order].astype(np.float32),
        csr_array(scaled.T @ scaled).astype(np.float32),
    )
    return lambda users: GFCF(alpha=alpha).scores(components, rows[users])


def _degrees(train: Interactions) -> tuple[Any, Any]:
    return train.user_degrees(), train.item_degrees()
