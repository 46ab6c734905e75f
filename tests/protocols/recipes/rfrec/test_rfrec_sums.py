"""RFRec's sums: coin tosses in stretches against tosses one by one; ratings and the means of items."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.history import History
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.federation import Federation
from client_sdk.training import client_half
from protocols.advice import parameters_for
from protocols.errors import CodecError, ParameterError
from protocols.recipes.registry import recipe
from protocols.recipes.rfrec import item_means, rating_offsets
from protocols.recipes.rfrec_parameters import Moves, Stretch, stretches, tosses

SEED = bytes(range(32))
MOVE, RATE = 0.3, 0.1


def targets(clients: int) -> np.ndarray:
    """Client i's loss is 1/2 |x_i - target_i|^2, so that training is a step towards its target."""
    return np.random.default_rng(1).standard_normal((clients, 4))


def toss_by_toss(coins: tuple[bool, ...], moves: Moves) -> tuple[np.ndarray, np.ndarray]:
    """Return all clients' x and the average at the end, averaging in every iteration that needs it."""
    wanted = targets(5)
    x, average, before = np.zeros_like(wanted), np.zeros(4), False
    for k, averages in enumerate(coins):
        if moves == "coin" and averages:
            average = x.mean(axis=0)
            x = x + MOVE * (average - x)
        elif averages:  # Algorithm 2, line 16
            average = x.mean(axis=0)
        elif moves == "run" and before and k:  # line 12
            x = x + MOVE * (average - x)
        else:  # line 10
            x = x + RATE * (wanted - x)
        before = averages
    return x, x.mean(axis=0)


def by_stretches(found: tuple[Stretch, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the same with one average per stretch."""
    wanted = targets(5)
    x, average = np.zeros_like(wanted), np.zeros(4)
    for stretch in found:
        for _ in range(stretch.local):
            x = x + RATE * (wanted - x)
        average = x.mean(axis=0)
        x = average + (1 - MOVE) ** stretch.moves * (x - average)
    return x, average


@pytest.mark.parametrize("moves", ["coin", "run"])
@given(seed=st.binary(min_size=32, max_size=32), iterations=st.integers(1, 60), probability=st.floats(0.1, 0.9))
def test_one_sum_a_stretch_gives_what_an_average_in_every_iteration_gives(
    moves: Moves, seed: bytes, iterations: int, probability: float
) -> None:
    found = stretches(seed, iterations, probability, moves)
    for ours, theirs in zip(
        by_stretches(found), toss_by_toss(tosses(seed, iterations, probability), moves), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


@given(seed=st.binary(min_size=32, max_size=32), iterations=st.integers(1, 200))
def test_stretches_account_for_every_toss_and_for_no_sum_without_training(seed: bytes, iterations: int) -> None:
    coins, found = tosses(seed, iterations, 0.5), stretches(seed, iterations, 0.5, "coin")
    assert sum(stretch.local for stretch in found) == coins.count(False)
    lead = next((k for k, averages in enumerate(coins) if not averages), iterations)
    assert sum(stretch.moves for stretch in found) == coins.count(True) - lead
    assert all(stretch.local for stretch in found)
    assert all(stretch.moves for stretch in found[:-1])
    assert len(found) == sum(not averages for averages, _ in groupby(coins))
    assert [s.until for s in found] == sorted({s.until for s in found})
    assert not found or found[-1].until == iterations


def test_sums_are_about_p_times_one_minus_p_of_the_iterations() -> None:
    assert abs(len(stretches(SEED, 40_000, 0.8, "coin")) / 40_000 - 0.16) < 0.005
    assert abs(np.mean(tosses(SEED, 40_000, 0.8)) - 0.8) < 0.01


def test_another_seed_tosses_other_coins() -> None:
    assert tosses(SEED, 100, 0.5) == tosses(SEED, 100, 0.5) != tosses(SEED[::-1], 100, 0.5)


# --- RFRec with item means: the first sums are of ratings, and predictions begin with shrunk user and item mean -------

ITEMS = 6
CHOSEN = {"items": ITEMS, "dim": 2, "item_bias": "means"}


def rated(users: int = 9) -> Interactions:
    rng = np.random.default_rng(3)
    pairs = [(user, item) for user in range(users) for item in rng.permutation(ITEMS)[:4]]
    owners, items = np.array(pairs).T
    return Interactions.from_pairs(owners, items, n_items=ITEMS, ratings=rng.integers(1, 6, owners.size))


@pytest.mark.parametrize(("mechanism", "parameters"), [("plain", {}), ("ckks", {}), ("masked", {"dropout": 0.0})])
def test_the_first_sum_gives_every_items_mean(mechanism: str, parameters: dict[str, float]) -> None:
    train = rated()
    made = Federation(train, "rfrec", CHOSEN, mechanism, parameters, cohort_size=train.n_users)
    list(made.run(2))
    totals = made.state.item_totals
    np.testing.assert_array_equal(np.rint(totals[0]), train.item_degrees())
    above = (train.ratings - 1) / 4 - 0.5
    np.testing.assert_allclose(totals[1], np.bincount(train.items, above, ITEMS), atol=1e-3)
    assert made.recipe.report(made.state) == {"iterations": 1.0}


def test_ratings_are_counted_once() -> None:
    train = rated()
    made = Federation(train, "rfrec", {**CHOSEN, "count_sums": 2}, "plain", {}, cohort_size=6)
    list(made.run(5))
    np.testing.assert_array_equal(made.state.item_totals[0], train.item_degrees())


def test_means_are_shrunk_and_offsets_are_their_logits() -> None:
    totals = np.array([[10.0, 0.0], [2.0, 0.0]])
    means = item_means(totals)
    assert means.overall == pytest.approx(0.7)
    assert means.deviations == pytest.approx([0.0, 0.0])
    offsets = rating_offsets(means, np.array([0], np.int32), np.array([1.0]))
    expected = 0.7 + 0.3 / 6
    assert offsets == pytest.approx([np.log(expected / (1 - expected))] * 2, rel=1e-5)
    assert item_means(np.zeros((2, 3))).overall == 0.5


def test_a_device_that_never_took_part_predicts_the_means() -> None:
    chosen = recipe("rfrec", CHOSEN)
    total = np.concatenate([np.full(ITEMS, 50.0), np.linspace(-20, 20, ITEMS)])
    state = chosen.absorb(chosen.initial_state(SEED), chosen.round_spec(SEED, 1), total, 50)
    half, history = client_half(chosen), History(np.array([0, 5], np.int32), np.array([1.0, 5.0], np.float32))
    prepared = half.prepare(chosen.round_spec(SEED, 2), state, history, np.random.default_rng(0))
    scores = half.scores(state, prepared, history)
    assert (np.diff(scores) > 0).all()
    assert scores.min() >= 1 and scores.max() <= 5


def test_the_state_keeps_its_totals() -> None:
    chosen = recipe("rfrec", CHOSEN)
    total = np.arange(2.0 * ITEMS)
    state = chosen.absorb(chosen.initial_state(SEED), chosen.round_spec(SEED, 1), total, 50)
    body = chosen.encode_state(state)
    assert len(body) == chosen.state_bytes(1)
    np.testing.assert_array_equal(chosen.decode_state(1, body).item_totals.ravel(), total)
    damaged = body[:4] + np.full(2 * ITEMS, np.nan, "<f4").tobytes() + body[4 + 8 * ITEMS :]
    with pytest.raises(CodecError, match="not finite"):
        chosen.decode_state(1, damaged)


def test_only_rfrec_as_released_without_noise_has_means() -> None:
    for bad in ({"variant": "paper"}, {"ldp": {"clip": 1.0, "scale": 1.0}}):
        with pytest.raises(ParameterError, match="item_bias"):
            recipe("rfrec", {**CHOSEN, **bad})
    with pytest.raises(ParameterError, match="no item means"):
        recipe("rfrecf", CHOSEN)
    assert parameters_for("rfrec", {"items": 3})["item_bias"] == "means"
    assert parameters_for("rfrec", {"items": 3, "variant": "paper"}) == {"items": 3, "variant": "paper"}
