"""What recipes say of the norm of a contribution, against contributions; and which recipes cannot have noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import ParameterError
from protocols.messages import Evaluation
from protocols.recipes.base import Local, Recipe, Sensitivity
from protocols.recipes.evaluated import Evaluated, with_evaluation
from protocols.recipes.registry import OWN, recipe

SEED, ITEMS, USERS = bytes(range(32)), 12, 30
PRIVATE: dict[str, dict[str, Any]] = {
    "arrays": {"shapes": {"w": [3]}},
    "colr": {"items": ITEMS, "dim": 4, "rank": 2},
    "fedmf": {"items": ITEMS, "dim": 4},
    "privirec": {"items": ITEMS, "components": 3, "iterations": 2, "reveal_gram": True},
    "privirec-k": {"items": ITEMS, "components": 3, "iterations": 2},
}
OTHERS: dict[str, dict[str, Any]] = {
    "fair": {"items": ITEMS},
    "pfedclr": {"items": ITEMS, "dim": 4, "rank": 2},
    "rfrec": {"items": ITEMS, "dim": 4},
    "rfrecf": {"items": ITEMS, "dim": 4},
    "scolr": {"items": ITEMS, "dim": 4, "rank": 2},
    "svd": {"items": ITEMS, "dim": 4, "rank": 2},
    "topk": {"items": ITEMS, "dim": 4},
}


def make(name: str, **changes: Any) -> Recipe:
    return recipe(name, {**PRIVATE, **OTHERS}[name] | changes)


def test_every_recipe_is_of_one_kind() -> None:
    assert sorted(PRIVATE | OTHERS) == sorted(OWN)


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_recipes_without_a_bound_refuse_and_name_those_that_have_one(name: str) -> None:
    with pytest.raises(ParameterError, match=f"recipe '{name}' cannot be .*choose one of {', '.join(sorted(PRIVATE))}"):
        make(name).sensitivity(1)


def test_sums_of_counts_and_of_changes() -> None:
    for name in ("colr", "fedmf"):
        values = 5 * {"colr": 2, "fedmf": 4}[name]  # of an item and its 4 negatives
        assert make(name).sensitivity(1) == Sensitivity(per_item=values)
        counted = make(name, item_bias="counts", count_sums=2)
        assert [counted.sensitivity(number) for number in (1, 2, 3)] == [
            Sensitivity(counts=True),
            Sensitivity(counts=True),
            Sensitivity(per_item=values),
        ]
    assert make("arrays").sensitivity(1) == Sensitivity()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), exponents=st.tuples(st.floats(0.5, 1), st.floats(0, 0.5)))
def test_no_part_of_privirec_is_longer_than_its_bound(seed: int, exponents: tuple[float, float]) -> None:
    chosen = make("privirec", user_exponent=exponents[0], item_exponent=exponents[1])
    rng = np.random.default_rng(seed)
    rows = (rng.random((USERS, ITEMS)) < rng.uniform(0.1, 0.9)).astype(float)
    rows[np.arange(USERS), rng.integers(0, ITEMS, USERS)] = 1
    state = chosen.initial_state(SEED)
    for number in range(1, 5):
        parts = [
            chosen.contribute(state, chosen.round_spec(SEED, number), Local(np.flatnonzero(row))).vector for row in rows
        ]
        bound = chosen.sensitivity(number)
        if number == 1:
            assert bound == Sensitivity(counts=True)
            assert set(np.concatenate(parts)) <= {0.0, 1.0}
        else:
            assert bound == (Sensitivity(l2=1.0, per_item=3) if number < 4 else Sensitivity(l2=pytest.approx(0.5**0.5)))
            assert max(map(np.linalg.norm, parts)) <= 1 + 1e-6  # float32 columns of Q
        state = chosen.absorb(state, chosen.round_spec(SEED, number), np.sum(parts, axis=0), USERS)


def test_a_client_with_one_item_reaches_the_bound_of_privirec() -> None:
    chosen = make("privirec-k", components=ITEMS, item_exponent=0.0)
    state = chosen.absorb(chosen.initial_state(SEED), chosen.round_spec(SEED, 1), np.ones(ITEMS), 5)
    part = chosen.contribute(state, chosen.round_spec(SEED, 2), Local(np.array([4])))
    assert np.linalg.norm(part.vector) == pytest.approx(1.0)


@pytest.mark.parametrize("count", [1, 2, ITEMS])
def test_a_part_of_the_gram_sum_is_the_nearer_to_its_bound_the_more_items_it_has(count: int) -> None:
    chosen = make("privirec", iterations=1, item_exponent=0.0)
    state = chosen.initial_state(SEED)
    for number in (1, 2):
        total = np.ones(chosen.layout(number).length)
        state = chosen.absorb(state, chosen.round_spec(SEED, number), total, 5)
    part = chosen.contribute(state, chosen.round_spec(SEED, 3), Local(np.arange(count)))
    assert np.linalg.norm(part.vector) == pytest.approx(chosen.sensitivity(3).l2 * (1 + 1 / count) ** 0.5)


def test_rows_that_can_be_longer_than_1_are_refused() -> None:
    chosen = make("privirec-k", user_exponent=0.25, item_exponent=0.3)
    with pytest.raises(ParameterError, match=r"choose user_exponent >= 0\.5, not 0\.25"):
        chosen.sensitivity(2)


def test_a_measurement_has_the_norm_of_its_values() -> None:
    made = with_evaluation(make("fedmf", item_bias="counts"), Evaluation(every=2), 8)
    assert isinstance(made, Evaluated)
    found = {number: made.sensitivity(number) for number in range(1, 6)}
    assert found[1] == Sensitivity(counts=True)
    assert found[3] == found[4] == Sensitivity(per_item=20)
    for number in (2, 5):
        values = made.layout(number).length - 1
        part = made.contribute(made.initial_state(SEED), made.round_spec(SEED, number), Local(np.ones(values)))
        assert found[number] == Sensitivity(l2=pytest.approx(float(np.linalg.norm(part.vector))))
    assert made.layout(2).length > made.layout(5).length
