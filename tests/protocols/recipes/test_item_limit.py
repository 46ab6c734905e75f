"""No row of the model of power iterations is longer than is usual for items of its degree: `item_limit`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from protocols.advice import parameters_for
from protocols.layout import Floats
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.registry import recipe
from protocols.recipes.state import state_as

SEED = bytes(range(32))
USERS, ITEMS, B = 80, 30, 0.3125
ROWS = np.random.default_rng(2).random((USERS, ITEMS)) < np.linspace(0.08, 0.6, ITEMS)
TARGET = 0


def make(**changes: Any) -> PriviRecK:
    given = {"items": ITEMS, "components": 8, "iterations": 3, "krylov": True, "min_owners": 1, "reveal_gram": True}
    made = recipe("privirec-k", {**given, "user_exponent": 0.25, "item_exponent": B, **changes})
    assert isinstance(made, PriviRecK)
    return made


def play(made: PriviRecK, lie: float = 0.0) -> PriviRecState:
    """The model, where a liar adds that its item is like what most have; lie: how much, by all that others add."""
    state = made.initial_state(SEED)
    degrees = ROWS.sum(0).astype(float)
    scaled = ROWS.sum(1)[:, None] ** -0.25 * ROWS * degrees**-B
    p, told = scaled.T @ scaled, np.sqrt(degrees / degrees.sum())
    told[TARGET] += 0.5
    p += lie * np.linalg.norm(p) * np.outer(told, told)
    while not made.is_done(state):
        spec = replace(made.round_spec(SEED, state.sum_index + 1), size=made.size_after(state))
        basis = made.basis_before(state, spec).astype(float)
        total = degrees if spec.sum_index == 1 else (p @ basis).ravel()
        state = state_as(made.absorb(state, spec, total, USERS), PriviRecState)
    return state


def by_degree(state: PriviRecState) -> Floats:
    """The diagonal of P in the model by what the degrees alone say of it."""
    own = np.square(state.basis.astype(float)) @ np.square(state.singular_values.astype(float))
    return np.asarray(own / state.item_degrees ** (1 - 2 * B))


def test_rows_of_honest_members_are_within_the_limit_and_the_model_is_the_same() -> None:
    without, limited = play(make()), play(make(item_limit=3.0))
    assert by_degree(without).max() < 2 * np.median(by_degree(without))
    assert make(item_limit=3.0).encode_state(limited) == make().encode_state(without)
    assert make(item_limit=3.0).report(limited)["items_at_limit"] == 0 and "items_at_limit" not in make().report(
        without
    )


@pytest.mark.parametrize("lie", [1.0, 10.0, 1000.0])
def test_a_liar_makes_no_row_longer_than_the_limit(lie: float) -> None:
    free, limited = by_degree(play(make(), lie)), play(made := make(item_limit=3.0), lie)
    found = by_degree(limited)
    assert free[TARGET] > 3.5 * np.median(free), "without the limit it does"
    assert found[TARGET] < 0.75 * free[TARGET]
    assert found.max() <= 3.0 * np.median(free) * 1.01
    np.testing.assert_allclose(limited.basis.T @ limited.basis, np.eye(24)[: limited.basis.shape[1]], atol=1e-4)
    assert made.report(limited)["items_at_limit"] == np.count_nonzero(found > 2.999 * np.median(found)) >= 1
    assert made.same_state(limited, made.decode_state(limited.sum_index, made.encode_state(limited)))


def test_a_limit_that_most_rows_are_at_keeps_what_is_similar_to_what() -> None:
    found = play(make(item_limit=1.0))
    ratio = by_degree(found)
    assert ratio.max() <= 1.01 * np.median(by_degree(play(make())))
    assert found.singular_values.all() and (np.diff(found.singular_values) <= 0).all()


def test_new_tasks_have_a_limit_where_their_model_is_made_from_all_sums() -> None:
    assert parameters_for("privirec-k", {"items": 900}, clients=2000)["item_limit"] == 3.0
    for given in ({"rayleigh_ritz": True}, {"krylov": False}):
        assert "item_limit" not in parameters_for("privirec-k", {"items": 900, **given}, clients=2000)
    assert "item_limit" not in parameters_for("privirec", {"items": 900, "reveal_gram": True}, clients=2000)
    assert "item_limit" not in parameters_for("privirec-k", {"items": 900}, clients=2000, noisy=True)
