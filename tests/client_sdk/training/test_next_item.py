"""What a device of a PriviRec task does with the times of its items: the sum of next items, and scores by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from client_sdk.history import History
from client_sdk.lab.data.interactions import Interactions, interaction_rows
from client_sdk.lab.federation import Federation
from client_sdk.training import client_side
from client_sdk.training.graph_filters import Ease, user_row
from client_sdk.training.privirec import DRAWN, PriviRecSide, components_of, held_item, in_order, trails
from client_sdk.training.validation import measured
from protocols.errors import ParameterError
from protocols.messages.privacy import Privacy
from protocols.recipes.base import Local
from protocols.recipes.privirec import PriviRecK

CLIENTS, ITEMS, LENGTH = 200, 40, 12


@pytest.fixture(scope="module")
def train() -> Interactions:
    """Each user walks a circle of items from a start of its own, 1 to 3 items a step."""
    rng = np.random.default_rng(0)
    starts, steps = rng.integers(ITEMS, size=CLIENTS), rng.integers(1, 4, size=(CLIENTS, LENGTH))
    items = (starts[:, None] + np.cumsum(steps, axis=1)) % ITEMS
    users = np.repeat(np.arange(CLIENTS), LENGTH)
    times = np.tile(np.arange(LENGTH) * 10, CLIENTS)
    return Interactions.from_pairs(users, items.ravel(), n_items=ITEMS, timestamps=times)


def federation(train: Interactions, mechanism: str = "plain", rounds: int = 99, **changes: Any) -> Federation:
    given = {"items": ITEMS, "components": 6, "user_exponent": 0.25, "item_exponent": 0.3125, "krylov": True}
    given |= {"iterations": 3, "validation": 0.5, "next_vectors": 12, "reveal_gram": True, **changes}
    made = Federation(train, "privirec-k", given, mechanism, cohort_size=CLIENTS, seed=1, masks=False)
    list(made.run(rounds))
    return made


def test_what_follows_is_found_where_there_is_an_order_and_only_there(train: Interactions) -> None:
    made = federation(train)
    recipe, state = made.recipe, made.state
    assert isinstance(recipe, PriviRecK)
    assert recipe.settings[state.setting].share > 0
    users = np.arange(CLIENTS)
    following = (train.items[train.indptr[1:] - 1] + 1) % ITEMS
    scores, others = made.scores(users), interaction_rows(train)[users]
    filtered = Ease().scores(components_of(recipe, state), others)
    rank, before = ((found > found[users, following][:, None]).sum(axis=1).mean() for found in (scores, filtered))
    assert rank < 0.5 * before
    rng = np.random.default_rng(3)
    mixed = replace(train, timestamps=rng.permutation(train.timestamps))
    assert federation(Interactions.from_pairs(mixed.users, mixed.items, timestamps=mixed.timestamps)).state.setting < 32


@pytest.mark.parametrize("mechanism", ["plain", "masked"])
def test_the_sum_at_once_is_that_of_the_devices(train: Interactions, mechanism: str) -> None:
    made = federation(train, mechanism, rounds=4)
    before, spec = made.state, made.recipe.round_spec(made.task_seed, 5)
    parts = []
    for user in range(CLIENTS):
        history, kept = train.history(user), made.client_states[user]
        sent = made.client_side.contribute(spec, "c", before, history, kept, np.random.default_rng(0))
        order = in_order(made.recipe, history, kept)
        assert order is not None
        own = order[:-1] if held_item(made.recipe, history, kept) is not None else order
        np.testing.assert_array_equal(sent.blocks[0], made.recipe.contribute(before, spec, Local(own)).vector)
        parts.append(sent.blocks[0])
    next(made.run(1))
    expected = made.recipe.absorb(before, spec, np.sum(parts, axis=0), CLIENTS)
    np.testing.assert_allclose(made.state.transitions, expected.transitions, atol=1e-4)


def test_without_times_a_device_sends_zeros_and_has_the_filters_scores(train: Interactions) -> None:
    made = federation(train, rounds=4)
    device, kept = made.client_side, {DRAWN: np.array([0.9, 0.2])}
    spec = made.recipe.round_spec(made.task_seed, 5)
    plain = History(train.positives(0))
    timed = History(plain.items, times=np.arange(plain.items.size, dtype=float))
    rng = np.random.default_rng(0)
    assert not device.contribute(spec, "c", made.state, plain, kept, rng).blocks[0].any()
    assert device.contribute(spec, "c", made.state, timed, kept, rng).blocks[0].any()
    list(made.run(9))
    assert isinstance(device, PriviRecSide) and isinstance(made.recipe, PriviRecK)
    setting = made.recipe.settings[made.state.setting]
    components, row = components_of(made.recipe, made.state), user_row(plain.items, ITEMS)
    np.testing.assert_allclose(
        device.scores(made.state, kept, plain) / np.std(device.scores(made.state, kept, plain)),
        Ease(setting=setting).scores(components, row)[0] / np.std(Ease(setting=setting).scores(components, row)[0]),
        rtol=1e-4,
        atol=1e-4,
    )
    assert (device.scores(made.state, kept, plain) != device.scores(made.state, kept, timed)).any()
    without = replace(made.state, transitions=np.zeros((0, 0), np.float32))
    with pytest.raises(ParameterError, match="no sum of next items"):
        PriviRecSide(made.recipe, None).scores_of(without, row, [timed.items])


def test_the_last_item_is_kept_out_and_equal_times_have_an_order_that_stays(train: Interactions) -> None:
    recipe = federation(train, rounds=0).recipe
    basket = History(np.array([4, 9, 2, 7, 1], np.int32), times=np.array([5.0, 5.0, 1.0, 5.0, 3.0]))
    seen = set()
    for draw in np.random.default_rng(0).random((60, 2)):
        order = in_order(recipe, basket, {DRAWN: draw})
        assert order is not None and list(order[:2]) == [2, 1] and set(order[2:]) == {4, 9, 7}
        np.testing.assert_array_equal(order, in_order(recipe, basket, {DRAWN: draw}))
        held = held_item(recipe, basket, {DRAWN: draw})
        assert held == (order[-1] if draw[0] < 0.5 else None)
        seen.add(tuple(order[2:]))
    assert len(seen) == 6
    untimed = History(basket.items)
    assert in_order(recipe, untimed, {DRAWN: draw}) is None
    assert held_item(recipe, untimed, {DRAWN: np.array([0.1, 0.0])}) == 1, "any one, by its number"
    assert client_side(recipe).initial_client_state(np.random.default_rng(0))[DRAWN].shape == (2,)


def test_members_measure_with_the_order_of_their_other_items(train: Interactions) -> None:
    made = federation(train, rounds=5)
    assert isinstance(made.recipe, PriviRecK)
    spec, history, kept = made.recipe.round_spec(made.task_seed, 6), train.history(0), {DRAWN: np.array([0.1, 0.1])}
    sent = made.client_side.contribute(spec, "c", made.state, history, kept, np.random.default_rng(0)).blocks[0]
    own, row = history.items[:-1], user_row(history.items[:-1], ITEMS)
    ends = trails(made.recipe, made.state, [own])
    expected = measured(components_of(made.recipe, made.state), row, history.items[-1:], made.recipe.settings, ends)
    np.testing.assert_array_equal(sent, [1, *expected[0]])


def test_a_sum_with_noise_is_near_the_one_without(train: Interactions) -> None:
    given = {"items": ITEMS, "components": 4, "iterations": 1, "degrees": False, "item_exponent": 0.0}
    privacy = Privacy(epsilon=50.0, delta=1e-3)
    made = Federation(
        train, "privirec-k", given | {"next_vectors": 3}, "masked", cohort_size=CLIENTS, seed=1, masks=False,
        privacy=privacy, schedule_rounds=2,
    )  # fmt: skip
    next(made.run(1))
    recipe, before = made.recipe.own, made.state
    spec = recipe.round_spec(made.task_seed, 2)
    exact = sum(recipe.contribute(before, spec, Local(train.positives(user))).vector for user in range(CLIENTS))
    next(made.run(1))
    expected = recipe.absorb(before, spec, exact, CLIENTS)
    assert made.state.transitions.shape == (3, 3)
    assert np.corrcoef(made.state.transitions.ravel(), expected.transitions.ravel())[0, 1] > 0.9
