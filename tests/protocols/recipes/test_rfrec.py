"""RFRec and RFRecF: which sums follow which, noise, parameters, coin tosses in stretches, and item means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk.history import History
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.federation import Federation
from client_sdk.training import client_side
from protocols.errors import ParameterError
from protocols.recipes.base import Local
from protocols.recipes.registry import recipe
from protocols.recipes.rfrec import RFRec, item_means, rating_offsets
from protocols.recipes.rfrec_parameters import Moves, Stretch, stretches, tosses

SEED = bytes(range(32))
ITEMS, DIM = 12, 3


def make(name: str, **changes: Any) -> RFRec:
    return recipe(name, {"items": ITEMS, "dim": DIM, "variant": "paper", **changes})


def test_an_abandoned_sum_changes_nothing() -> None:
    made = make("rfrec")
    state = made.absorb(made.initial_state(SEED), made.round_spec(SEED, 1), np.zeros(ITEMS * DIM), 3)
    after = made.absorb(state, made.round_spec(SEED, 5, 3), np.full(ITEMS * DIM, 6.0), 3)
    assert (after.round_number, after.sum_index) == (5, 3)
    np.testing.assert_allclose(after.item_factors, state.item_factors + 2.0, atol=1e-6)


def test_noise_is_on_the_clipped_difference_and_drawn_for_each_value() -> None:
    made = make("rfrec", items=4000, clip=9.0, ldp={"clip": 0.2, "scale": 0.04})
    state = made.initial_state(SEED)
    own = Local(state.item_factors + np.float32(0.3), entropy=np.random.default_rng(1).bytes)
    sent = made.contribute(state, made.round_spec(SEED, 1), own)
    noise = sent.vector - 0.2
    assert sent.clipped == noise.size
    assert np.unique(noise).size > 0.9 * noise.size
    assert abs(float(noise.std()) / (0.04 * np.sqrt(2)) - 1) < 0.05
    assert made.layout().blocks[0].bounds()[0] == made.parameters.ldp.bound != 9.0


def test_rfrecf_is_done_when_its_coins_are_used_up() -> None:
    made = make("rfrecf", iterations=40)
    state = made.initial_state(SEED)
    in_all = len(made.stretches(state))
    assert 1 < in_all <= 20
    for number in range(1, in_all + 1):
        assert not made.is_done(state)
        state = made.absorb(state, made.round_spec(SEED, number), np.zeros(ITEMS * DIM), 2)
    assert made.is_done(state)
    assert made.report(state) == {"iterations": 40.0, "sums": in_all, "sums_in_all": in_all}
    assert made.stretch(state, in_all + 1) == Stretch(0, 0, 40)  # if the last sum was abandoned
    with pytest.raises(ParameterError, match="there is no sum"):
        made.stretch(state, 0)


def test_coins_that_never_train_are_refused_when_the_task_is_made() -> None:
    made = make("rfrecf", iterations=1, probability=0.999)
    with pytest.raises(ParameterError, match="no iteration of this task trains"):
        made.initial_state(SEED)


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("rfrec", {}, (0.05, False, 10.0, 0.2, 0.0)),
        ("rfrec", {"variant": "released"}, (0.1, True, 20.0, 0.2, 0.0)),
        ("rfrecf", {}, (0.05, False, 0.0, 0.2, 0.5)),
        ("rfrecf", {"variant": "released"}, (0.1, True, 0.0, 0.1, 1.0)),
        ("rfrecf", {"variant": "released", "user_norm": "squared"}, (0.1, True, 0.0, 0.2, 1.0)),
        ("rfrecf", {"learning_rate": 0.01, "probability": 0.2}, (0.0125, False, 0.0, 0.2, 0.5)),
    ],
)
def test_rules(name: str, changes: dict[str, Any], expected: tuple[Any, ...]) -> None:
    rule = make(name, **changes).parameters.rule
    assert (rule.rate, rule.released, rule.pull, rule.decay, rule.move) == pytest.approx(expected)


# --- coin tosses in stretches against tosses one by one ---------------------------------------------------------------


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
@settings(max_examples=25, deadline=None)
@given(seed=st.binary(min_size=32, max_size=32), iterations=st.integers(1, 60), probability=st.floats(0.1, 0.9))
def test_one_sum_a_stretch_gives_what_an_average_in_every_iteration_gives(
    moves: Moves, seed: bytes, iterations: int, probability: float
) -> None:
    found = stretches(seed, iterations, probability, moves)
    assert all(stretch.local for stretch in found), "no sum without training"
    for ours, theirs in zip(
        by_stretches(found), toss_by_toss(tosses(seed, iterations, probability), moves), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


# --- RFRec with item means: the first sums are of ratings, and predictions begin with shrunk user and item mean -------

RATED_ITEMS = 6
CHOSEN = {"items": RATED_ITEMS, "dim": 2, "item_bias": "means"}


def test_the_first_sum_gives_every_items_mean() -> None:
    rng = np.random.default_rng(3)
    owners, items = np.array([(user, item) for user in range(9) for item in rng.permutation(RATED_ITEMS)[:4]]).T
    train = Interactions.from_pairs(owners, items, n_items=RATED_ITEMS, ratings=rng.integers(1, 6, owners.size))
    made = Federation(train, "rfrec", CHOSEN, "masked", {"dropout": 0.0}, cohort_size=train.n_users)
    list(made.run(2))
    totals = made.state.item_totals
    np.testing.assert_array_equal(np.rint(totals[0]), train.item_degrees())
    above = (train.ratings - 1) / 4 - 0.5
    np.testing.assert_allclose(totals[1], np.bincount(train.items, above, RATED_ITEMS), atol=1e-3)
    assert made.recipe.report(made.state) == {"iterations": 1.0}


def test_means_are_shrunk_and_offsets_are_their_logits() -> None:
    means = item_means(np.array([[10.0, 0.0], [2.0, 0.0]]))
    assert means.overall == pytest.approx(0.7)
    assert means.deviations == pytest.approx([0.0, 0.0])
    offsets = rating_offsets(means, np.array([0], np.int32), np.array([1.0]))
    expected = 0.7 + 0.3 / 6
    assert offsets == pytest.approx([np.log(expected / (1 - expected))] * 2, rel=1e-5)
    assert item_means(np.zeros((2, 3))).overall == 0.5


def test_a_device_that_never_took_part_predicts_the_means() -> None:
    chosen = recipe("rfrec", CHOSEN)
    total = np.concatenate([np.full(RATED_ITEMS, 50.0), np.linspace(-20, 20, RATED_ITEMS)])
    state = chosen.absorb(chosen.initial_state(SEED), chosen.round_spec(SEED, 1), total, 50)
    side, history = client_side(chosen), History(np.array([0, 5], np.int32), np.array([1.0, 5.0], np.float32))
    prepared = side.prepare(chosen.round_spec(SEED, 2), state, history, np.random.default_rng(0))
    scores = side.scores(state, prepared, history)
    assert (np.diff(scores) > 0).all()
    assert scores.min() >= 1 and scores.max() <= 5
