"""The four server optimisers against a reference written straight from Reddi et al., Algorithm 2."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from protocols.recipes.arrays import ArraysState
from protocols.recipes.arrays_update import contribution
from protocols.recipes.state import state_as
from protocols.sums.plain import PLAIN
from protocols.sums.run import run_sum
from tests.protocols.recipes.arrays.cases import SEED, make

RATE, BETA_1, BETA_2, TAU, ROUNDS = 0.3, 0.8, 0.95, 0.01, 6
CHOICE: dict[str, Any] = {"server_rate": RATE, "momentum": BETA_1, "second_momentum": BETA_2, "adaptivity": TAU}


def reference(kind: str, x: float, updates: list[float]) -> float:
    """One value, in Python's own numbers."""
    m, v = 0.0, TAU**2
    for delta in updates:
        if kind == "mean":
            x += RATE * delta
            continue
        if kind == "momentum":
            m = BETA_1 * m + delta
            x += RATE * m
            continue
        m = BETA_1 * m + (1 - BETA_1) * delta
        if kind == "adam":
            v = BETA_2 * v + (1 - BETA_2) * delta**2
        else:
            v = v - (1 - BETA_2) * delta**2 * math.copysign(1.0, v - delta**2)
        x += RATE * m / (math.sqrt(v) + TAU)
    return x


@pytest.mark.parametrize("kind", ["mean", "momentum", "adam", "yogi"])
def test_optimiser_is_the_reference(kind: str) -> None:
    recipe = make(shapes={"w": [40]}, clips={}, rows=[], optimiser=kind, clip=1.0, **CHOICE)
    rng, plan = np.random.default_rng(1), PLAIN.plan({}, recipe.layout(), 2)
    state = recipe.initial_state(SEED)
    start, means = state.values.astype(float), []
    for number in range(1, ROUNDS + 1):
        made = [rng.uniform(-1, 1, 40) * rng.uniform(0, 1, 40) ** 4 for _ in range(2)]
        vectors = [contribution(recipe.parameters, {"w": update}).vector for update in made]
        total = run_sum(PLAIN, plan, vectors).total
        state = recipe.absorb(state, recipe.round_spec(SEED, number), total, 2)
        state = recipe.decode_state(number, recipe.encode_state(state))  # what the optimiser remembers is in it
        means.append((made[0] + made[1]) / 2)
    for place in range(40):
        expected = reference(kind, start[place], [float(mean[place]) for mean in means])
        assert state.values[place] == pytest.approx(expected, abs=2e-5)
    assert np.abs(state.values - start).max() > 0.05


def test_members_who_replay_and_who_load_a_snapshot_have_the_same_state() -> None:
    recipe = make(optimiser="yogi", std=0.1)
    rng, states = np.random.default_rng(2), [recipe.initial_state(SEED), recipe.initial_state(SEED)]
    for number in range(1, 5):
        total = rng.uniform(0, 0.5, recipe.layout().length)
        states = [recipe.absorb(state, recipe.round_spec(SEED, number), total, 3) for state in states]
        states[1] = state_as(recipe.decode_state(number, recipe.encode_state(states[1])), ArraysState)
    assert recipe.encode_state(states[0]) == recipe.encode_state(states[1])
