"""What a device measures for the sum of validation, beside the definitions, and what is recommended after it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from client_sdk.history import History
from client_sdk.lab.data.interactions import Interactions, interaction_rows
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import Federation
from client_sdk.training import client_side
from client_sdk.training.graph_filters import Components, Ease, user_row
from client_sdk.training.privirec import DRAWN, components_of
from client_sdk.training.validation import measured
from protocols.messages.privacy import Privacy
from protocols.recipes.spectrum import chosen_weight
from protocols.recipes.validation import SETTINGS, Setting

CLIENTS, ITEMS = 300, 60


@pytest.fixture(scope="module")
def train() -> Interactions:
    return synthetic(SyntheticConfig(users=CLIENTS, items=ITEMS, positives=10, clusters=3, affinity=6.0))


def federation(train: Interactions, rounds: int = 99, **changes: Any) -> Federation:
    given = {"items": ITEMS, "components": 12, "user_exponent": 0.25, "item_exponent": 0.3125, "krylov": True}
    given |= {"iterations": 3, "validation": 0.5, **changes}
    made = Federation(train, "privirec-k", given, cohort_size=CLIENTS, seed=1, masks=False)
    list(made.run(rounds))
    return made


@pytest.mark.parametrize("setting", SETTINGS)
def test_scores_of_a_setting_are_those_of_its_matrix(train: Interactions, setting: Setting) -> None:
    made = federation(train)
    found = components_of(made.recipe, made.state)
    used = int(np.count_nonzero(found.singular_values)) // 4 if setting.part == 4 else found.singular_values.size
    vectors, values = found.vectors[:, :used].astype(float), found.singular_values[:used].astype(float)
    weight = setting.weight * chosen_weight(values, True)
    inverse = np.linalg.inv((vectors * values**2) @ vectors.T + weight * np.eye(ITEMS))
    model = -inverse / np.diag(inverse) if setting.zero else np.eye(ITEMS) - weight * inverse
    if setting.zero:
        np.fill_diagonal(model, 0.0)
    row, degrees = user_row([3, 7, 20], ITEMS), found.item_degrees
    has = degrees > 0
    expected = np.zeros(ITEMS)
    scaled = np.where(has, row[0] * np.where(has, degrees, 1) ** -0.3125, 0.0)
    expected[has] = (scaled @ model)[has] * degrees[has] ** (0.3125 + setting.shift)
    np.testing.assert_allclose(Ease(setting=setting).scores(found, row)[0], expected, atol=2e-4)


def test_a_held_out_item_ranks_below_items_with_its_score_and_own_items_do_not_count() -> None:
    # of one vector: scores are those of the vector, which tie for items 0 to 24, and item 25 has the largest
    vector = np.full((30, 1), 0.1, np.float32)
    vector[25] = 0.5
    vector /= np.linalg.norm(vector)
    components = Components(np.full(30, 9.0), vector, np.array([2.0], np.float32), None, 0.25, 0.3125, True)
    rows = np.concatenate([user_row([1, 2], 30)] * 2)
    found = measured(components, rows, np.array([25, 4]))
    np.testing.assert_allclose(found[0], 1.0)
    assert not found[1].any(), "27 items are not below it"
    rows = user_row([*range(1, 12), 25], 30)
    np.testing.assert_allclose(measured(components, rows, np.array([12])), 1 / np.log2(19), rtol=1e-6)


def test_the_item_is_in_no_sum_and_a_device_measures_it_alone(train: Interactions) -> None:
    made = federation(train, rounds=0)
    side, history = client_side(made.recipe), History(np.array([3, 30, 7], np.int32))
    kept, out = {DRAWN: np.array([0.49, 0.5])}, {DRAWN: np.array([0.5, 0.5])}
    for number in range(1, 6):
        state = made.state
        spec = made.recipe.round_spec(made.task_seed, number)
        without, rest, whole = (
            side.contribute(spec, "c", state, History(np.array(items, np.int32)), own, np.random.default_rng(0))
            for items, own in (([3, 30, 7], kept), ([3, 30], out), ([3, 30, 7], out))
        )
        np.testing.assert_array_equal(without.blocks[0], rest.blocks[0])
        assert (without.blocks[0] != whole.blocks[0]).any() and without.client_state == kept
        next(made.run(1))
    spec, before = made.recipe.round_spec(made.task_seed, 6), made.state
    rng = np.random.default_rng(0)
    sent = side.contribute(spec, "c", before, history, kept, rng).blocks[0]
    expected = measured(components_of(made.recipe, before), user_row([3, 30], ITEMS), np.array([7]))[0]
    np.testing.assert_array_equal(sent, [1, *expected])
    assert not side.contribute(spec, "c", before, history, out, rng).blocks[0].any()
    drawn = side.initial_client_state(np.random.default_rng(1))[DRAWN]
    assert drawn.shape == (2,) and ((drawn >= 0) & (drawn < 1)).all()


def test_members_choose_what_ranks_better_and_scores_are_made_with_it(train: Interactions) -> None:
    made = federation(train, validation=1.0)
    state = made.state
    means = state.measured[1:] / state.measured[0]
    assert state.measured[0] == train.active_users.size and 0.1 < means[0] < 1
    assert state.setting in (0, int(means.argmax()))
    users, rows = np.arange(5), interaction_rows(train)[:5]
    components = components_of(made.recipe, state)
    np.testing.assert_array_equal(made.scores(users), Ease(setting=SETTINGS[state.setting]).scores(components, rows))
    other = client_side(made.recipe, graph_filter="ease")
    own = other.scores(state, {}, train.history(0))
    np.testing.assert_allclose(own, Ease().scores(components, rows[:1])[0], atol=1e-5)


def test_a_sum_of_validation_with_noise_is_near_the_one_without(train: Interactions) -> None:
    given = {
        "items": ITEMS,
        "components": 4,
        "iterations": 1,
        "degrees": False,
        "item_exponent": 0.0,
        "validation": 1.0,
    }
    privacy = Privacy(epsilon=20.0, delta=1e-3)
    made = Federation(
        train, "privirec-k", given, "masked", cohort_size=CLIENTS, seed=1, masks=False, privacy=privacy,
        schedule_rounds=2,
    )  # fmt: skip
    list(made.run(9))
    state = made.state
    assert state.sum_index == 2 and state.measured[0] == pytest.approx(train.active_users.size, rel=0.1)
    held = made._held
    exact = measured(
        components_of(made.recipe.own, state), interaction_rows(train.where(train.items != held[train.users])), held
    )
    np.testing.assert_allclose(state.measured[1:], exact.sum(axis=0), atol=0.1 * CLIENTS)
