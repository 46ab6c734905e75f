"""The two-tower example: gradients against differences, and a small run over a real server."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from examples.two_tower_numpy import two_tower
from examples.two_tower_numpy.run import run


def loss_of(arrays: two_tower.Arrays, history: np.ndarray, candidates: np.ndarray) -> float:
    mean = arrays["items"][history].mean(axis=0)
    user = arrays["user.weight"] @ mean + arrays["user.bias"]
    logits = (arrays["items"][candidates] @ arrays["item.weight"].T + arrays["item.bias"]) @ user
    return float(np.log(np.exp(logits).sum()) - logits[0])


def test_gradients_are_those_of_the_loss() -> None:
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(0, 0.5, shape) for name, shape in two_tower.shapes(9, 3).items()}
    history, candidates, rate = np.array([1, 2, 5]), np.array([3, 0, 7]), 1e-6
    new = {name: array.copy() for name, array in arrays.items()}
    two_tower._step(new, history, candidates, rate)
    for name, array in arrays.items():
        place = tuple(rng.integers(0, side) for side in array.shape) if name != "items" else (5, 1)
        moved = {other: values.copy() for other, values in arrays.items()}
        moved[name][place] += 1e-5
        slope = (loss_of(moved, history, candidates) - loss_of(arrays, history, candidates)) / 1e-5
        step = (array[place] - new[name][place]) / rate
        np.testing.assert_allclose(step, slope, rtol=1e-2, atol=1e-4, err_msg=name)


def test_the_example_learns_over_masked_sums(tmp_path: Path) -> None:
    popularity, initial, *trained = run(tmp_path / "server", clients=16, items=60, rounds=6)
    assert len(trained) == 3
    assert trained[-1] > initial + 0.15 and popularity < 0.9
