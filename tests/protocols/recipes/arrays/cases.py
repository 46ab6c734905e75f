"""A small model with all kinds of arrays, and updates of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from protocols.recipes.arrays import Arrays
from protocols.recipes.arrays_update import Rows, Update
from protocols.recipes.registry import recipe

SEED = bytes(range(32))
SHAPES: dict[str, list[int]] = {"layer.weight": [4, 3], "bias": [3], "table": [7, 2, 2], "scale": []}
BASE: dict[str, Any] = {"shapes": SHAPES, "clip": 0.5, "clips": {"bias": 2.0}, "rows": ["table"], "reveal_rows": True}
CLIENTS = 5


def make(**changes: Any) -> Arrays:
    made = recipe("arrays", {**BASE, **changes})
    assert isinstance(made, Arrays)
    return made


def updates(seed: int = 0) -> list[dict[str, Any]]:
    """One update a client, within the clips; no client touches row 6 of the table, and client 0 no row at all."""
    rng, made = np.random.default_rng(seed), []
    for client in range(CLIENTS):
        rows = rng.permutation(6)[:client]
        made.append(
            {
                "layer.weight": rng.uniform(-0.5, 0.5, (4, 3)).astype(np.float32),
                "bias": rng.uniform(-2, 2, 3),
                "table": Rows(rows, rng.uniform(-0.5, 0.5, (rows.size, 2, 2))),
                "scale": np.array(rng.uniform(-0.5, 0.5), np.float32),
            }
        )
    return made


def dense(update: Update) -> dict[str, Any]:
    """The update with a whole table, and in "touched" which rows it has."""
    table, touched, rows = np.zeros((7, 2, 2)), np.zeros(7), update["table"]
    assert isinstance(rows, Rows)
    table[rows.indices], touched[rows.indices] = rows.values, 1.0
    return {**update, "table": table, "touched": touched}


def expected_mean(made: list[dict[str, Any]], weights: list[float]) -> dict[str, Any]:
    """The weighted mean of the updates, written with numpy alone."""
    whole, total = [dense(update) for update in made], float(sum(weights))
    mean = {
        name: sum(w * update[name] for w, update in zip(weights, whole, strict=True)) / total
        for name in SHAPES
        if name != "table"
    }
    touched = sum(w * update["touched"] for w, update in zip(weights, whole, strict=True))
    table = sum(w * update["table"] for w, update in zip(weights, whole, strict=True))
    mean["table"] = np.where(touched > 0, 1 / np.maximum(touched, 1e-9), 0.0)[:, None, None] * table
    return mean
