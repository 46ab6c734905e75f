"""The leaky protocol leaks the held-out item and nothing else, warns of it, and the control measures it."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.experiments.leaks import (
    LEAK_WARNING,
    DrawnScores,
    NegativeDraws,
    drawn_as_negative_control,
    draws_without,
    exclude,
    negative_pool,
    paper_protocol,
)
from client_sdk.lab.data.interactions import Interactions, LeaveOneOut, leave_one_out
from client_sdk.lab.evaluation.leave_one_out import candidates_of
from client_sdk.lab.federation import Federation
from protocols.errors import ParameterError

USERS, ITEMS = 300, 200


def random_data(seed: int = 0) -> LeaveOneOut:
    """Users with 1 to 39 items each; some have no held-out item."""
    rng = np.random.default_rng(seed)
    lists = [rng.choice(ITEMS, rng.integers(1, 40), replace=False) for _ in range(USERS)]
    who = np.repeat(np.arange(USERS), [len(mine) for mine in lists])
    return leave_one_out(Interactions.from_pairs(who, np.concatenate(lists), n_users=USERS, n_items=ITEMS), seed)


def test_only_the_held_out_item_is_excluded_and_a_warning_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    data = random_data()
    with caplog.at_level(logging.WARNING):
        excluded = paper_protocol(data)
    assert (excluded.dtype, excluded.shape) == (np.int32, (USERS, 1))
    assert caplog.messages == [LEAK_WARNING]
    for user, held in enumerate(data.test_items):
        positives = data.train.positives(user)
        clean, leaky = negative_pool(positives, ITEMS), negative_pool(positives, ITEMS, excluded[user])
        assert set(clean) - set(leaky) == ({held} if held >= 0 else set())
        assert set(clean) == set(range(ITEMS)) - set(positives)


def test_control_measures_the_leak_and_is_random_without_it() -> None:
    data = random_data()
    candidates = candidates_of(data, np.random.default_rng(0)).negatives
    excluded = paper_protocol(data)

    def both(**protocol) -> tuple[float, float]:
        sampled, full = drawn_as_negative_control(data, candidates, np.random.default_rng(1), **protocol)
        assert (sampled.users, full.users) == (data.tested_users.size,) * 2
        return sampled.hr, full.hr

    leaky, clean = both(excluded=excluded), both()
    assert leaky[0] > 0.9
    assert leaky[1] > 0.9
    assert clean[0] < 0.16  # 0.1 by chance, deviation 0.018
    assert clean[1] < 0.11  # 10 of about 180 by chance, deviation 0.013
    assert both(excluded=excluded, draws=NegativeDraws(rounds=2))[0] < leaky[0], "few draws, little to remember"


def test_excluding_all_hundred_items_as_colr_does_favours_none() -> None:
    data = random_data()
    candidates = candidates_of(data, np.random.default_rng(0)).negatives
    everything = np.column_stack([data.test_items, candidates])
    found = drawn_as_negative_control(data, candidates, np.random.default_rng(1), excluded=everything)
    assert found.sampled.hr < 0.16


def test_every_draw_is_counted() -> None:
    data, draws = random_data(), NegativeDraws(rounds=7, participation=0.5, negatives=3)
    scores = DrawnScores(data.train, draws, np.random.default_rng(5), paper_protocol(data))
    assert scores.participations.sum() == 7 * USERS // 2
    assert scores.participations.max() <= 7
    for user in range(0, USERS, 17):
        row = scores(np.array([user]))[0]
        drawn = np.ceil(-row).astype(int)  # the random part is less than 1
        assert drawn.sum() == scores.participations[user] * 3 * data.train.positives(user).size
        assert drawn[data.train.positives(user)].sum() == 0
        assert drawn[data.test_items[user]] == 0 or data.test_items[user] < 0
        np.testing.assert_array_equal(scores(np.array([5, user]))[1], row)


def test_draws_have_the_distribution_of_training_negatives() -> None:
    positives = np.arange(0, 12, dtype=np.int32)
    train = Interactions.from_pairs(np.zeros(12, int), positives, n_users=1, n_items=20)
    rounds, repeats = 5, 400
    counts = np.zeros((2, 20))
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        scores = DrawnScores(train, NegativeDraws(rounds, 1.0, 4), rng, np.array([[15]], dtype=np.int32))
        counts[0] += np.ceil(-scores(np.array([0]))[0])
        for _ in range(rounds):
            drawn = draws_without(np.array([15], dtype=np.int32))(positives, 20, 48, rng)
            counts[1] += np.bincount(drawn, minlength=20)
    expected = np.where(np.isin(np.arange(20), [*range(12), 15]), 0, repeats * rounds * 48 / 7)
    assert np.all(np.abs(counts - expected) <= 5 * np.sqrt(expected))


@given(st.integers(0, 2**32 - 1), st.integers(2, 60))
def test_draws_equal_those_from_the_pool(seed: int, n_items: int) -> None:
    rng = np.random.default_rng(seed)
    positives = rng.permutation(n_items)[: rng.integers(0, n_items - 1)].astype(np.int32)
    excluded = np.append(positives[:2], np.int32(-1))
    if seed % 2 and positives.size < n_items - 1:
        excluded = np.append(excluded, np.setdiff1d(np.arange(n_items, dtype=np.int32), positives)[:1])
    pool = negative_pool(positives, n_items, excluded)
    drawn = draws_without(excluded)(positives, n_items, 30, np.random.default_rng(seed))
    np.testing.assert_array_equal(drawn, pool[np.random.default_rng(seed).integers(0, pool.size, 30)])
    assert drawn.dtype == np.int32


def test_excluded_items_are_never_drawn_and_padding_is_ignored() -> None:
    draw = draws_without(np.array([2, -1], np.int32))
    assert set(draw(np.array([0], np.int32), 4, 200, np.random.default_rng(0)).tolist()) == {1, 3}


def test_client_for_whom_nothing_is_left_has_no_negatives() -> None:
    with pytest.raises(ParameterError, match="has all"):
        draws_without(np.array([4], np.int32))(np.arange(4, dtype=np.int32), 5, 1, np.random.default_rng(0))


def test_each_user_of_a_federation_leaves_out_its_own_row() -> None:
    data = random_data()
    parameters = {"items": ITEMS, "dim": 4, "clip": 1.0}
    federation = Federation(data.train, "fedmf", parameters, cohort_size=10)
    everything = np.tile(np.arange(ITEMS, dtype=np.int32), (USERS, 1))
    for user in range(USERS):  # each may draw one item only, its last one outside the training items
        free = np.setdiff1d(np.arange(ITEMS), data.train.positives(user))[-1]
        everything[user, free] = -1
    exclude(federation, everything)
    (done,) = federation.run(1)
    assert done.survivors == 10
    changed = np.flatnonzero((federation.state.item_factors != first_factors(parameters, data)).any(axis=1))
    took_part = np.flatnonzero(federation.took_part)
    rows = [np.append(data.train.positives(user), everything[user].argmin()) for user in took_part]
    assert set(changed.tolist()) == set(np.concatenate(rows).tolist())


def first_factors(parameters: dict, data: LeaveOneOut) -> np.ndarray:
    return Federation(data.train, "fedmf", parameters, cohort_size=10).state.item_factors


def test_a_recipe_without_negatives_is_refused() -> None:
    federation = Federation(random_data().train, "privirec-k", {"items": ITEMS, "components": 4}, cohort_size=10)
    with pytest.raises(TypeError, match="no negatives"):
        exclude(federation, np.zeros((USERS, 1), np.int32))
