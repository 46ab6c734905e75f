"""Recipes under a privacy block: bounds, noise, layouts, states, the bound that adapts, and what needs no consent."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocols.errors import CodecError, ParameterError
from protocols.layout import TRAINED, VectorLayout
from protocols.messages import Evaluation
from protocols.messages.privacy import Privacy
from protocols.privacy.noise import epsilon_of, within_steps
from protocols.recipes.base import Contribution, Local, ModelState, Recipe
from protocols.recipes.colr import FedMF
from protocols.recipes.evaluated import with_evaluation
from protocols.recipes.private import FAILED_SUMS, Private, with_privacy
from protocols.recipes.registry import recipe

SEED, ITEMS, CLIENTS, ROUNDS = bytes(range(32)), 12, 20, 6
RECIPES: dict[str, dict[str, Any]] = {
    "arrays": {"shapes": {"v": [2, 3], "w": [5]}, "rows": ["v"], "max_weight": 10},
    "colr": {"items": ITEMS, "dim": 4, "rank": 2, "item_bias": "counts", "normalise": "touched"},
    "fedmf": {"items": ITEMS, "dim": 4},
    "privirec": {"items": ITEMS, "components": 3, "iterations": 2},
    "privirec-k": {"items": ITEMS, "components": 3, "iterations": 2},
}
QUIET = Privacy(epsilon=30, delta=1e-5)
MANY = 1_000_000
"""Honest clients whose single share of the noise at epsilon 1000 is next to nothing."""


def private(name: str, privacy: Privacy | None = None, clients: int = CLIENTS, **changes: Any) -> Private:
    chosen = "colr" if name == "measured" else name
    inner = recipe(chosen, {**RECIPES[chosen], **changes}, noisy=True)
    if name == "measured":
        inner = with_evaluation(inner, Evaluation(every=2), ROUNDS)
    return with_privacy(inner, privacy or Privacy(epsilon=4, delta=1e-5), ROUNDS, clients, clients)


def quiet(name: str, **changes: Any) -> Private:
    privacy = QUIET.model_copy(update={key: changes.pop(key) for key in ("most_items", "clip") if key in changes})
    return private(name, privacy, MANY, **changes)


ALL = {name: private(name) for name in (*RECIPES, "measured")}


def norm(values: NDArray[Any]) -> float:
    return float(np.linalg.norm(values))


# --- layouts and noise ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ALL))
def test_sums_are_of_whole_numbers_with_room_for_bound_and_noise(name: str) -> None:
    made = ALL[name]
    for number in made.inner.sum_kinds():
        layout, noise = made.layout(number), made.noise(number)
        segments = [segment for block in layout.blocks for segment in block.segments]
        assert all(segment.integral and segment.signed and segment.clip == noise.largest for segment in segments)
        assert layout.length <= made.longest_vector()
        spec = made.round_spec(SEED, number)
        assert spec == made.inner.round_spec(SEED, number)
        assert made.route(spec, "c") == len(layout.blocks)
        zeros = made.zeros(spec, "c")
        assert [block.size for block in zeros.blocks] == [block.length for block in made.inner.layout(number).blocks]
        assert not zeros.vector.any(), "before noise"
    assert made.layer(Private) is made and made.inner.layer(Private) is None
    assert made.own is made.inner.own
    assert with_privacy(made.inner, None, ROUNDS, CLIENTS, CLIENTS) is made.inner


@pytest.mark.parametrize("name", sorted(ALL))
def test_the_honest_shares_in_all_sums_of_the_task_cost_the_budget(name: str) -> None:
    made = ALL[name]
    curves = [made.noise(number).curve(made.terms.honest) for number in made.inner.sum_kinds()]
    assert 3.99 < epsilon_of(made.terms.sums * np.max(curves, axis=0), 1e-5) <= 4
    assert made.terms.honest == CLIENTS - 2
    (warning,) = made.warnings()
    assert "epsilon 4 at delta 1e-05, if at least 18 clients" in warning
    for number in made.inner.sum_kinds():
        assert made.noise(number).share == pytest.approx((made.multiplier * made.noise(number).bound) ** 2 / 18)


def test_fewer_paid_rounds_need_less_noise() -> None:
    terms = [private("fedmf", Privacy(epsilon=4, delta=1e-5, rounds=rounds)).terms for rounds in (None, 2, 2 * ROUNDS)]
    assert [each.sums for each in terms] == [ROUNDS + FAILED_SUMS, 2, 2 * ROUNDS]
    assert private("fedmf", Privacy(epsilon=4, delta=1e-5, rounds=1)).multiplier < private("fedmf").multiplier


@pytest.mark.parametrize(("rounds", "sums"), [(None, 3 + FAILED_SUMS), (2, 2), (5, 5)])
def test_a_recipe_that_ends_by_itself_has_no_noise_for_sums_that_it_never_has(rounds: int | None, sums: int) -> None:
    inner = recipe("privirec-k", RECIPES["privirec-k"], noisy=True)
    assert inner.ends_after == 3
    made = with_privacy(inner, Privacy(epsilon=4, delta=1e-5, rounds=rounds), 100, CLIENTS, CLIENTS)
    assert made.terms.sums == sums
    assert made.ends_after == 3
    assert recipe("fedmf", RECIPES["fedmf"]).ends_after is None


def test_zeros_carry_noise_of_the_planned_variance() -> None:
    made = ALL["colr"]
    number = made.main_sum
    spec, state = made.round_spec(SEED, number), made.initial_state(SEED)
    zeros = Contribution([np.zeros(made.inner.layout(number).length)])
    sent = np.array([made.noised(state, spec, zeros, np.random.default_rng(n).bytes).vector for n in range(400)])
    values = sent[:, : zeros.values].ravel()
    share = made.noise(number).share
    assert abs(float(np.mean(values**2)) / share - 1) < 5 * math.sqrt((2 + 1 / share) / values.size)
    assert abs(values.mean()) < 5 * math.sqrt(share / values.size)
    assert np.array_equal(values, np.rint(values))
    assert np.abs(sent).max() <= made.noise(number).largest


# --- contributions --------------------------------------------------------------------------------------------------


@given(scale=st.sampled_from([1e-6, 0.1, 1.0, 7.0, 1e9]), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_no_contribution_is_longer_than_its_bound(scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for made in (quiet("fedmf"), quiet("arrays"), quiet("privirec-k")):
        number = 2 if made.name == "privirec-k" else made.main_sum
        spec, state = made.round_spec(SEED, number), made.initial_state(SEED)
        vector = scale * rng.standard_normal(made.inner.layout(number).length)
        sent = made.noised(state, spec, Contribution([vector]), rng.bytes)
        noise = made.noise(number)
        assert norm(sent.vector[: vector.size]) <= made.l2_bound(number) + 5
        assert norm(sent.vector) <= noise.bound + 5
        assert np.abs(sent.vector).sum() <= noise.l1 + 50
        assert (sent.scaled < 1) == (scale >= 1)
        if made.name != "privirec-k":
            says = sent.vector[-1]
            assert abs(says - within_steps(made.l2_bound(number)) * (norm(vector) <= 1)) <= 3


def test_a_basis_with_long_columns_or_false_degrees_adds_no_more_than_the_bound() -> None:
    """What a malicious server's model gives is cut to the same norm as an honest one's."""
    made = quiet("privirec-k")
    first = made.absorb(made.initial_state(SEED), made.round_spec(SEED, 1), np.full(ITEMS, 9.0), 20)
    spec = made.round_spec(SEED, 2)
    rng = np.random.default_rng(3)
    for wrong in (
        replace(first, basis=np.full((ITEMS, 3), 1e6, np.float32)),
        replace(first, item_degrees=np.full(ITEMS, 1e-12)),
        replace(
            first, basis=rng.standard_normal((ITEMS, 3)).astype(np.float32) * 1e3, item_degrees=np.full(ITEMS, 1e-6)
        ),
    ):
        sent = made.contribute(wrong, spec, Local(np.arange(ITEMS), entropy=rng.bytes))
        assert sent.scaled < 1
        assert norm(sent.vector) <= made.noise(2).bound + 5


def test_sums_and_the_weights_that_they_are_divided_by_are_scaled_alike() -> None:
    made = quiet("arrays")
    update = {"v": np.full((2, 3), 1.0, np.float32), "w": np.linspace(-1, 1, 5, dtype=np.float32)}
    spec, state = made.round_spec(SEED, 1), made.initial_state(SEED)
    plain = made.inner.contribute(state, spec, Local(update, examples=5)).vector
    assert plain[-1] == 0.5
    for clip, scale in ((1.2 * norm(plain), 1.0), (norm(plain) / 3, 1 / 3)):
        at_clip = replace(state, l2_clip=clip)
        sent = [made.noised(at_clip, spec, Contribution([plain]), os.urandom) for _ in range(400)]
        assert sent[0].scaled == pytest.approx(scale, rel=0.05)
        total = np.sum([each.vector for each in sent], axis=0)
        mean = made.in_own_units(at_clip, spec, total, 400)[0] / 400
        assert mean[-1] == pytest.approx(0.5 * scale, rel=0.06)
        np.testing.assert_allclose(mean / mean[-1], plain / 0.5, atol=0.05)


def test_the_sum_is_right_in_the_mean_and_absorb_is_told_the_noise() -> None:
    made = private("fedmf", clients=200)
    spec, state = made.round_spec(SEED, 1), made.initial_state(SEED)
    rng = np.random.default_rng(8)
    given_ = rng.standard_normal((200, made.inner.layout(1).length))
    given_ *= 0.8 / np.linalg.norm(given_, axis=1, keepdims=True)
    total = np.sum([made.noised(state, spec, Contribution([v]), rng.bytes).vector for v in given_], axis=0)
    values, noisy = made.in_own_units(state, spec, total, 200)
    unit = 1.0 / made.l2_bound(1)
    assert noisy.noise == pytest.approx(math.sqrt(200 * made.noise(1).share) * unit)
    rounding = math.sqrt(200 / 4) * unit
    error = (values - given_.sum(axis=0)) / math.hypot(noisy.noise, rounding)
    assert np.abs(error).max() < 5
    assert 0.6 < error.std() < 1.4


def test_counts_are_limited_to_a_random_choice_all_alike() -> None:
    from scipy import stats

    made = quiet("colr", most_items=3)
    spec, state = made.round_spec(SEED, 1), made.initial_state(SEED)
    ones = np.zeros(ITEMS)
    ones[:8] = 1
    sent = [made.noised(state, spec, Contribution([ones], clipped=1), os.urandom) for _ in range(800)]
    kept = np.rint(np.sum([each.vector for each in sent], axis=0))
    assert {each.clipped for each in sent} == {1 + 5}
    assert abs(kept.sum() - 3 * 800) <= 30
    assert np.abs(kept[8:]).max() <= 10
    assert ((kept[:8] - 300) ** 2 / (800 * 3 / 8 * 5 / 8)).sum() < stats.chi2.isf(1e-9, 8)
    whole = made.noised(state, spec, Contribution([np.eye(ITEMS)[2]]), os.urandom)
    assert (whole.clipped, whole.scaled) == (0, 1.0)
    for wrong in (2.0, 0.5, -1.0):
        with pytest.raises(ParameterError, match="neither 0 nor 1"):
            made.noised(state, spec, Contribution([np.full(ITEMS, wrong)]), os.urandom)


# --- the bound that adapts ------------------------------------------------------------------------------------------


def test_the_bound_moves_to_the_quantile_of_the_updates() -> None:
    quantile, start, clients = 0.3, 15.0, 50
    privacy = Privacy(epsilon=30, delta=1e-5, clip=start, quantile=quantile)
    made = with_privacy(recipe("arrays", {"shapes": {"w": [6]}}), privacy, 60, clients, clients)
    rng, state = np.random.default_rng(2), made.initial_state(SEED)
    assert state.l2_clip == start
    norms = np.exp(rng.standard_normal(clients))
    for number in range(1, 61):
        spec, total = made.round_spec(SEED, number), np.zeros(made.layout(number).length)
        for length in norms:
            vector = rng.standard_normal(6)
            vector *= length / norm(vector)
            total += made.noised(state, spec, Contribution([vector]), rng.bytes).vector
        state = made.absorb(state, spec, total, clients)
        assert state.l2_clip == np.float32(state.l2_clip)
    assert abs((norms <= state.l2_clip).mean() - quantile) < 0.1
    assert made.report(state)["l2_clip"] == state.l2_clip


def test_a_step_of_the_bound_by_hand_and_its_limits() -> None:
    """Noise gives no share of clients below 0 or above 1."""
    made = private("arrays")
    first = state = made.initial_state(SEED)
    all_say = 10 * within_steps(made.l2_bound(1))

    def step(state: ModelState, number: int, said: float) -> ModelState:
        total = np.zeros(made.layout(1).length)
        total[-1] = said
        return made.absorb(state, made.round_spec(SEED, number), total, 10)

    for said, power in ((all_say, -0.1), (0, 0.1), (1e9, -0.1), (-1e9, 0.1)):
        assert step(first, 1, said).l2_clip == pytest.approx(math.exp(power), rel=1e-6)
    for number in range(1, 320):
        state = step(state, number, 0)
    assert state.l2_clip == 2.0**40
    made.decode_state(319, made.encode_state(state))
    assert step(replace(state, l2_clip=2.0**-40), 320, all_say).l2_clip == 2.0**-40


def test_without_a_quantile_the_bound_stays() -> None:
    made = private("fedmf", Privacy(epsilon=4, delta=1e-5, clip=0.25, quantile=None))
    assert made.layout(1).length == made.inner.layout(1).length
    state = made.initial_state(SEED)
    state = made.absorb(state, made.round_spec(SEED, 1), np.ones(made.layout(1).length), 10)
    assert state.l2_clip == 0.25
    assert "l2_clip" not in made.report(state)
    assert not made.is_done(state)


# --- states ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ALL))
def test_states_survive_encoding_with_their_bound(name: str) -> None:
    made = ALL[name]
    state = made.initial_state(SEED)
    assert state.l2_clip == 1.0
    body = made.encode_state(state)
    assert body == made.inner.encode_state(state)
    assert made.decode_state(0, body).l2_clip == 1.0
    last = made.inner.steps if name.startswith("privirec") else 4
    for number in range(1, last + 1):
        total = np.rint(np.random.default_rng(number).random(made.layout(number).length) * 10)
        state = made.absorb(state, made.round_spec(SEED, number), total, 20)
        body = made.encode_state(state)
        assert len(body) == made.state_bytes(number) <= made.longest_state_bytes()
        assert body[-8:] == np.float64(state.l2_clip).tobytes()
        again = made.decode_state(number, body)
        assert again.l2_clip == state.l2_clip
        assert made.encode_state(again) == body
        assert made.encode_view(made.view(state, 0), 0) == body
    assert (state.l2_clip == 1.0) == name.startswith("privirec")
    assert made.is_done(state) == made.inner.is_done(state)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, math.inf, 2.0**41, 2.0**-41])
def test_a_bound_that_no_task_has_is_refused(clip: float) -> None:
    made = ALL["fedmf"]
    body = made.encode_state(replace(made.initial_state(SEED), round_number=1))
    with pytest.raises(CodecError, match="a bound that no task with this privacy block has"):
        made.decode_state(1, body[:-8] + np.float64(clip).tobytes())
    with pytest.raises(CodecError, match="ends with the bound, 8 bytes"):
        made.decode_state(1, body[:7])
    with pytest.raises(CodecError):
        made.decode_state(1, body[:-8])


# --- what is refused, and what needs no consent ---------------------------------------------------------------------


class Choosing(FedMF):
    """A recipe whose contributions choose their blocks."""

    def layout(self, sum_index: int = 1, size: tuple[int, ...] = ()) -> VectorLayout:
        return VectorLayout(super().layout(sum_index).blocks, sum_class=TRAINED, chosen=1)


def test_chosen_blocks_are_refused() -> None:
    plain = recipe("fedmf", RECIPES["fedmf"])
    made = with_privacy(Choosing(plain.parameters), Privacy(epsilon=4, delta=1e-5), ROUNDS, CLIENTS, CLIENTS)
    with pytest.raises(ParameterError, match="contributions that choose their blocks reveal the choice"):
        made.layout(1)


def test_noise_that_cannot_be_drawn_is_refused_when_the_task_is_made() -> None:
    with pytest.raises(ParameterError, match="raise epsilon or min_clients"):
        private("fedmf", Privacy(epsilon=0.03, delta=1e-9))
    with pytest.raises(ParameterError, match=r"no noise gives epsilon 0.001 at delta 1e-09 .* above 0\.0"):
        private("fedmf", Privacy(epsilon=0.001, delta=1e-9))
    with pytest.raises(ParameterError, match="leaves no client whose noise can be counted on"):
        with_privacy(recipe("fedmf", RECIPES["fedmf"]), Privacy(epsilon=4, delta=1e-5), ROUNDS, 100, 10)


CONSENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "reveal_touched": ("colr", {"items": ITEMS, "dim": 4, "rank": 2, "normalise": "touched"}),
    "reveal_weights": ("arrays", {"shapes": {"w": [3]}, "max_weight": 10}),
    "reveal_rows": ("arrays", {"shapes": {"w": [3, 2]}, "rows": ["w"]}),
    "reveal_gram": ("privirec", RECIPES["privirec"]),
}


@pytest.mark.parametrize("consent", sorted(CONSENTS))
def test_the_number_stands_for_a_consent(consent: str) -> None:
    name, parameters = CONSENTS[consent]
    with pytest.raises(ParameterError, match=f"{consent}=true"):
        recipe(name, parameters)
    covered: Recipe = recipe(name, parameters, noisy=True)
    consented = recipe(name, {**parameters, consent: True})
    assert covered.layout(1) == replace(consented.layout(1), in_groups=None), "each group would have to reach epsilon"
    assert with_privacy(covered, Privacy(epsilon=4, delta=1e-5), ROUNDS, CLIENTS, CLIENTS).layout(1)
