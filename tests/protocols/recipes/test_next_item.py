"""The sum of next items of a PriviRec task: what a client sends, beside the definitions, and the model of the sum."""

from __future__ import annotations

from math import exp
from typing import Any

import numpy as np
import pytest

from protocols.advice import choose, parameters_for
from protocols.errors import CodecError, ParameterError
from protocols.exposure import check_equations, exposures
from protocols.messages import Schedule
from protocols.privacy.equations import most_equations
from protocols.recipes.base import Local
from protocols.recipes.bounds import Reach
from protocols.recipes.next_item import model_of, next_equations, next_length, places, trail, transitions
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.registry import recipe
from protocols.recipes.validation import SETTINGS, settings_of
from tests.protocols.recipes.spectra import ITEMS, TASK_SEED, after_iterations

FADES = exp(-1 / 3)


def own_places(length: int, vectors: int = 4) -> np.ndarray:
    return np.random.default_rng(length).normal(size=(length, vectors))


def split(sent: np.ndarray, vectors: int) -> tuple[np.ndarray, np.ndarray]:
    """A and C of what is sent."""
    upper = vectors * (vectors + 1) // 2
    before = np.zeros((vectors, vectors))
    before[np.triu_indices(vectors)] = sent[:upper]
    return before + np.triu(before, 1).T, sent[upper:].reshape(vectors, vectors)


@pytest.mark.parametrize("length", [2, 3, 4, 9])
def test_what_is_sent_is_the_definition_divided_by_its_norm(length: int) -> None:
    x = own_places(length)
    z = [sum(FADES ** (t - s) * x[s] for s in range(t + 1)) for t in range(length)]
    y = [sum(FADES ** (s - t - 1) * x[s] for s in range(t + 1, min(t + 4, length))) for t in range(length)]
    before = sum(np.outer(z[t], z[t]) for t in range(length - 1))
    after = sum(np.outer(z[t], y[t]) for t in range(length - 1))
    norm = np.sqrt((before**2).sum() + (after**2).sum())
    sent = transitions(x)
    assert sent.size == next_length(4) == 26 and np.linalg.norm(sent) <= 1
    for found, expected in zip(split(sent, 4), (before / norm, after / norm), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(trail(x), z)


def test_one_item_or_none_and_items_without_a_place_send_zeros() -> None:
    for x in (own_places(0), own_places(1), np.zeros((5, 4))):
        assert not transitions(x).any() and transitions(x).size == 26


def test_places_are_scaled_rows_and_zero_where_vectors_are_missing() -> None:
    vectors = np.arange(6, dtype=np.float32).reshape(3, 2)
    found = places(np.array([1.0, 2.0, 0.0]), vectors, 3)
    np.testing.assert_array_equal(found, [[0, 1, 0], [4, 6, 0], [0, 0, 0]])
    np.testing.assert_array_equal(places(np.ones(3), vectors, 1)[:, 0], vectors[:, 0])


def test_the_model_is_ridge_regression_over_all_clients() -> None:
    total = sum(transitions(own_places(length)) for length in range(2, 40))
    before, after = split(total, 4)
    ridge = 0.03 * np.trace(before) / 4
    expected = np.linalg.solve(before + ridge * np.eye(4), after)
    np.testing.assert_allclose(model_of(total, 4, np.ones(4, bool)), expected, rtol=1e-5)
    some = np.array([True, True, False, True])
    found = model_of(total, 4, some)
    assert not found[2].any() and not found[:, 2].any() and found[0].any()
    assert not model_of(np.zeros(26), 4, np.ones(4, bool)).any()


def test_noise_makes_the_ridge_larger() -> None:
    total = sum(transitions(own_places(length)) for length in range(2, 40))
    noisy = total + np.random.default_rng(0).normal(0, 50, 26)
    found = model_of(noisy, 4, np.ones(4, bool), 50.0)
    assert 0 < np.linalg.norm(found, 2) < 2 < np.linalg.norm(model_of(noisy, 4, np.ones(4, bool)), 2)


# --- as a sum of a task -----------------------------------------------------------------------------------------------


def make(**changes: Any) -> PriviRecK:
    whole = {"reveal_gram": True, "min_owners": 1, "components": 3, "iterations": 2, "krylov": True, "next_vectors": 4}
    return recipe("privirec-k", {"items": ITEMS, **whole, **changes})


@pytest.mark.parametrize("krylov", [False, True])
@pytest.mark.parametrize("validation", [0.0, 0.5])
def test_it_comes_after_the_iterations_and_the_state_holds_the_model(krylov: bool, validation: float) -> None:
    chosen = make(krylov=krylov, validation=validation)
    kinds = [chosen.sum_of(index) for index in range(1, chosen.steps + 1)]
    assert kinds == ["degrees", "iteration", "iteration", "next", *["validation"] * (validation > 0)]
    assert chosen.sum_kinds() == ((1, 2, 4, 5) if validation else (1, 2, 4))
    state, spec = after_iterations(chosen), chosen.round_spec(TASK_SEED, 4)
    assert not chosen.is_done(state)
    orders = [np.array(one, np.int32) for one in ([3, 7, 1], [9, 2, 4, 20], [], [5])]
    sent = [chosen.contribute(state, spec, Local(order)).vector for order in orders]
    scale, used = state.item_degrees**-0.5, slice(None) if krylov else slice(3)
    own = places(scale, state.basis[:, used], 4)
    np.testing.assert_allclose(sent[0], transitions(own[[3, 7, 1]]))
    assert not sent[2].any() and not sent[3].any() and chosen.layout(4).length == 26 == sent[0].size
    other = chosen.contribute(state, spec, Local(orders[0][::-1])).vector
    assert (other != sent[0]).any(), "order counts"
    after = chosen.absorb(state, spec, np.sum(sent, axis=0), 4)
    values = np.zeros(4, bool)
    values[: min(4, state.singular_values.size)] = (state.singular_values[:4] > 0)[:4]
    values[3:] &= krylov
    np.testing.assert_array_equal(after.transitions, model_of(np.sum(sent, axis=0), 4, values))
    assert chosen.is_done(after) == (not validation) and after.transitions.any()
    body = chosen.encode_state(after)
    assert len(body) == chosen.state_bytes(4, chosen.size_after(after)) <= chosen.longest_state_bytes()
    again = chosen.decode_state(4, body)
    assert chosen.encode_state(again) == body and chosen.same_state(after, again)
    with pytest.raises(CodecError):
        chosen.decode_state(4, body[:-4])
    if validation:
        values = np.linspace(0, 1, len(settings_of(True)))
        last = chosen.round_spec(TASK_SEED, 5)
        done = chosen.absorb(after, last, chosen.contribute(after, last, Local(values)).vector, 1)
        assert done.setting == 51 and chosen.settings[done.setting].share == 1 and chosen.is_done(done)
        np.testing.assert_array_equal(done.transitions, after.transitions)
        chosen.require_reachable(chosen.decode_state(5, chosen.encode_state(done)), Reach(5, 1, 40))


def test_items_without_rows_are_left_out_of_the_order() -> None:
    chosen = make(min_owners=12)
    state, spec = after_iterations(chosen), chosen.round_spec(TASK_SEED, 4)
    kept = chosen.kept(state)
    others = np.setdiff1d(np.arange(ITEMS), kept)
    assert kept.size > 3 and others.size
    order = kept[:3]
    mixed = np.array([others[0], order[0], order[1], others[-1], order[2]])
    np.testing.assert_array_equal(
        chosen.contribute(state, spec, Local(mixed)).vector, chosen.contribute(state, spec, Local(order)).vector
    )


def test_settings_with_next_items_begin_with_the_others() -> None:
    found = settings_of(True)
    assert found[: len(SETTINGS)] == SETTINGS == settings_of(False) and len(set(found)) == len(found) == 52
    assert {one.share for one in found} == {0.0, 0.2, 0.5, 0.75, 1.0}
    assert found[32].text.endswith("and 20% of what follows the last items")
    assert found[-1].text == "what follows the last items with b -0.1"


def test_what_it_needs_and_what_a_block_has_to_hide() -> None:
    with pytest.raises(ParameterError, match="leave out tolerance"):
        make(tolerance=0.01, krylov=False)
    noisy = recipe(
        "privirec-k",
        {"items": 50, "components": 4, "degrees": False, "item_exponent": 0, "next_vectors": 2},
        noisy=True,
    )
    assert noisy.sensitivity(noisy.steps).l2 == 1.0 and noisy.sum_of(noisy.steps) == "next"


def test_its_values_count_as_equations() -> None:
    chosen = make(components=2, iterations=2)
    assert chosen.equations == 4 + next_equations(4, ITEMS) == 4 + 1
    given = {"items": 400, "components": 6, "iterations": 3, "krylov": True, "user_exponent": 0.25}
    given |= {"item_exponent": 0.3125}
    schedule = Schedule(cohort_size=400, min_clients=360, rounds=9)
    assert most_equations(400, 400) == 50
    check_equations(recipe("privirec-k", {**given, "components": 14, "next_vectors": 40}), schedule)
    with pytest.raises(ParameterError, match="14 columns and 64 next_vectors are 58 equations.*components=11,"):
        check_equations(recipe("privirec-k", {**given, "components": 14, "next_vectors": 64}), schedule)
    state = PriviRecState(1, 1, np.full(400, 100.0), 400)
    wide, narrow = (recipe("privirec-k", {**given, "components": 20, "next_vectors": n}) for n in (0, 64))
    assert (wide.size_after(state)[1], narrow.size_after(state)[1]) == (1, 1), "before the lists"
    lists = PriviRecState(2, 2, np.full(400, 100.0), 400, np.full(400, 4000.0))
    assert (wide.size_after(lists)[1], narrow.size_after(lists)[1]) == (16, 11)
    said = exposures(narrow, schedule)
    assert said[-1].sums == 5 and "up to 76 equations" in said[-1].text
    assert "6,176 values of which items follow which" in narrow.warnings()[0]


def test_tasks_of_data_with_times_have_it_where_equations_are_left() -> None:
    def of(items: int = 1682, clients: int = 943, **more: Any) -> dict[str, Any]:
        return parameters_for("privirec-k", {"items": items}, clients=clients, mean_items=100.0, ordered=True, **more)

    assert of()["next_vectors"] == 32 and of()["components"] == 38
    assert of(clients=3088)["next_vectors"] == 64
    assert of(items=60, clients=900)["next_vectors"] == 0
    assert of(items=200, clients=900)["next_vectors"] == 16
    assert of(budget=2_000)["next_vectors"] == 16
    assert "next_vectors" not in of(noisy=True)
    assert "next_vectors" not in parameters_for("privirec-k", {"items": 1682}, clients=943, mean_items=100.0)
    choice = choose(1682, 943, 100_000, ordered=True)
    assert choice.rounds == 7 and any("1,552 values says what follows what" in one for one in choice.why)
    assert choose(1682, 943, 100_000).rounds == 6
