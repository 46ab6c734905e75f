"""The JavaScript client in Node: what it refuses and repeats, and that it trains as the SDK does."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.training.mf import MFConfig, train_full, train_lowrank
from tests.support.needs import required

ROOT = Path(__file__).parents[2]
_TRAIN = """
    import { biases, train } from "./examples/web/hushrec/training.js";
    const given = JSON.parse(process.argv[1]);
    console.log(JSON.stringify({ ...train({ ...given, uniform: Math.random }), biases: biases(given.state.counts) }));
"""


def node(*arguments: str) -> str:
    """Run Node in the repository and return what it printed."""
    command = [required("node"), *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    return ran.stdout


@pytest.mark.parametrize("name", ["client", "masked"])
def test_what_the_client_refuses_and_repeats(name: str) -> None:
    assert "# fail 0" in node("--test", "--test-reporter=tap", f"tests/web/{name}.test.mjs")


@pytest.mark.parametrize("recipe", ["colr", "fedmf"])
@pytest.mark.parametrize("counted", [False, True])
def test_training_is_that_of_the_sdk(recipe: str, counted: bool) -> None:
    """With one item that is not liked, every draw of negatives is the same, so both programs have one result."""
    rng, items, dim = np.random.default_rng(5), 4, 6
    factors, user = rng.normal(0, 0.4, (items, dim)).astype(np.float32), rng.normal(0, 0.4, dim).astype(np.float32)
    projection = rng.normal(0, 0.6, (2, dim)).astype(np.float32)
    config = MFConfig(learning_rate=0.7, epochs=7, batch_size=64, weight_decay=0.01, negatives=3)
    liked, counts = [0, 1, 3], rng.integers(0, 9, items)
    bias = np.log((counts + 1) / (counts.mean() + 1))
    offsets = (bias - np.log(3)).astype(np.float32) if counted else None
    positives = np.array(liked, np.int32)
    if recipe == "colr":
        ours = train_lowrank(factors, user, projection, positives, items, config, rng, offsets)
    else:
        ours = train_full(factors, user, positives, items, config, rng, offsets)
    given: dict[str, Any] = {
        "state": {"factors": factors.tolist(), "counts": counts.tolist() if counted else None},
        "projection": projection.tolist() if recipe == "colr" else None,
        "user": user.tolist(),
        "liked": liked,
        "settings": vars(config),
    }
    theirs = json.loads(node("--input-type=module", "--eval", _TRAIN, json.dumps(given)))
    assert theirs["items"] == ours.items.tolist()
    np.testing.assert_allclose(theirs["rows"], ours.values, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(theirs["user"], ours.user_factor, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(theirs["loss"], ours.loss, rtol=1e-5)
    assert theirs["samples"] == ours.samples
    assert (theirs["biases"] is not None) == counted
    if counted:
        np.testing.assert_allclose(theirs["biases"], bias, rtol=1e-6)
