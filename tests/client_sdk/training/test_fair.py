"""The client side of FAIR: gradients, Adam over the used entries, and peak memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk.history import History
from client_sdk.training import client_side
from client_sdk.training.adam import Adam, TouchedAdam
from client_sdk.training.fair import USER_VECTORS, FairConfig, FairSide, layers_of, pair_gradients, scores
from client_sdk.training.mf import MFConfig
from protocols.errors import ParameterError
from protocols.recipes.base import MOVES_ALIKE
from protocols.recipes.fair import Fair, FairView, dense_length, spaces_of
from protocols.recipes.registry import recipe
from tests.support.measured import peak_of, slopes

TASK_SEED = bytes(range(32))
DIM = 4


WEIGHTS = {"max_interactions": 10_000, "reveal_weights": True}


def make(capacities: tuple[int, ...] = (0, 1), items: int = 120, **training: Any) -> tuple[Fair, FairSide]:
    chosen = recipe("fair", {"items": items, "dim": DIM, "capacities": list(capacities), "clip": 5.0, **WEIGHTS})
    return chosen, client_side(chosen, FairConfig(**training) if training else None)


# --- the model ---------------------------------------------------------------------------------------------------


def problem(seed: int, pairs: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random user, layers and rows in float64, large enough for gradients that differ clearly from zero."""
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((2, DIM)),
        rng.standard_normal(dense_length(DIM)),
        rng.standard_normal((2, 2 * pairs, DIM)),
    )


def loss_of(user: np.ndarray, dense: np.ndarray, rows: np.ndarray) -> float:
    found = scores(user, dense, rows)
    side = found.size // 2
    return float(np.mean(np.log1p(np.exp(-(found[:side] - found[side:])))))


def test_scores_equal_the_formula_of_the_model() -> None:
    user, dense, rows = problem(0)
    layers = layers_of(dense, DIM)
    for i, found in enumerate(scores(user, dense, rows)):
        inputs = np.concatenate([user[1], rows[1, i]])
        hidden = np.maximum(inputs @ np.vstack([layers.user_weights, layers.item_weights]) + layers.bias, 0)
        output = np.concatenate([layers.gmf_output, layers.mlp_output])
        assert found == pytest.approx(np.concatenate([user[0] * rows[0, i], hidden]) @ output)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=8, deadline=None)
def test_gradients_equal_finite_differences_of_the_loss(seed: int) -> None:
    parts = problem(seed)
    made = pair_gradients(*parts)
    assert made.loss == pytest.approx(loss_of(*parts))
    for part, gradient in zip(parts, (made.user, made.dense, made.rows), strict=True):
        np.testing.assert_allclose(gradient, slopes(lambda: loss_of(*parts), part), atol=1e-7)


# --- Adam over used entries --------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.sampled_from([40, 400]))
@settings(max_examples=4, deadline=None)
def test_touched_adam_equals_adam_over_all_entries(seed: int, steps: int) -> None:
    """In 400 steps the moments are rescaled. Places repeat within a step, and some are never used."""
    rng = np.random.default_rng(seed)
    start = rng.standard_normal(30).astype(np.float32)
    dense = start.copy()
    reference, ours = Adam([dense], [0.01]), TouchedAdam(start, 0.01, 25)
    for _ in range(steps):
        places = rng.integers(0, 25, 6)
        gradients = (10.0 ** rng.uniform(-5, 0) * rng.standard_normal(6)).astype(np.float32)
        whole = np.zeros(30, dtype=np.float32)
        np.add.at(whole, places, gradients)
        slots = ours.find(places)
        np.testing.assert_allclose(ours.values(slots), dense[places], atol=2e-5)
        reference.step([whole])
        ours.step(slots, gradients)
    places, changes = ours.changes()
    assert np.unique(places).size == places.size <= 25
    moved = start.copy()
    moved[places] += changes
    np.testing.assert_allclose(moved, dense, atol=2e-5 + 1e-6 * steps)


# --- a client's round --------------------------------------------------------------------------------------------


def reference_round(
    chosen: Fair, view: FairView, positives: np.ndarray, user: np.ndarray, config: FairConfig, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Psi, layers and user after a round, computed with the full S psi in every batch."""
    from client_sdk.training.mf import draw_negatives

    rng, elements = np.random.default_rng(seed), chosen.parameters.elements
    spaces = spaces_of(view.seed, elements, view.tables.shape[1])
    every = [space.places(np.arange(elements)) for space in spaces]
    psi, dense, user = view.tables.copy(), view.dense.copy(), user.copy()
    adam = Adam([psi, dense, user], [config.learning_rate] * 3)
    for _ in range(config.epochs):
        order = rng.permutation(positives)
        negatives = draw_negatives(positives, chosen.parameters.items, positives.size, rng)
        for start in range(0, order.size, config.batch_size):
            batch = slice(start, start + config.batch_size)
            items = np.concatenate([order[batch], negatives[batch]])
            tables = [(psi[t][places] * signs).reshape(-1, DIM) for t, (places, signs) in enumerate(every)]
            made = pair_gradients(user, dense, np.stack([table[items] for table in tables]))
            by_psi = np.zeros_like(psi)
            for t, (places, signs) in enumerate(every):
                by_table = np.zeros((chosen.parameters.items, DIM), dtype=np.float32)
                np.add.at(by_table, items, made.rows[t])
                np.add.at(by_psi[t], places, by_table.ravel() * signs)
            adam.step([by_psi, made.dense, made.user])
    return psi, dense, user


@pytest.mark.parametrize(("capacities", "batch"), [((0,), 7), ((1,), 512), ((3,), 7)])
def test_round_equals_adam_on_the_recovered_tables(capacities: tuple[int, ...], batch: int) -> None:
    chosen, side = make(capacities, learning_rate=0.01, epochs=3, batch_size=batch)
    view = chosen.initial_view(TASK_SEED, 0)
    positives = np.random.default_rng(5).permutation(120)[:20].astype(np.int32)
    client_state = side.initial_client_state(np.random.default_rng(6))
    spec = chosen.round_spec(TASK_SEED, 1)
    local = side.contribute(spec, "c_1", view, History(positives), client_state, np.random.default_rng(7))
    psi, dense, user = reference_round(chosen, view, positives, client_state[USER_VECTORS], side.training, 7)
    weight = 20 / chosen.parameters.max_interactions
    expected = weight * np.concatenate([(psi - view.tables).ravel(), dense - view.dense])
    np.testing.assert_allclose(local.blocks[0][:-1], expected, atol=1e-5 * weight)
    assert local.blocks[0][-1] == weight
    np.testing.assert_allclose(local.client_state[USER_VECTORS], user, atol=1e-5)
    assert np.isfinite(local.loss)


def test_scores_of_a_view_equal_those_of_its_recovered_tables() -> None:
    chosen, side = make((2,))
    view = chosen.initial_view(TASK_SEED, 0)
    client_state = side.initial_client_state(np.random.default_rng(0))
    spaces = spaces_of(view.seed, chosen.parameters.elements, view.tables.shape[1])
    whole = [s.recover(t, slice(0, 480)).reshape(-1, DIM) for s, t in zip(spaces, view.tables, strict=True)]
    expected = scores(client_state[USER_VECTORS], view.dense, np.stack(whole))
    np.testing.assert_allclose(side.scores(view, client_state, History(np.zeros(0, np.int32))), expected, atol=1e-7)


def test_mismatched_views_and_settings_are_refused() -> None:
    chosen, side = make((0, 1))
    history, view = History(np.arange(3, dtype=np.int32)), chosen.initial_view(TASK_SEED, 0)
    client_state = side.initial_client_state(np.random.default_rng(0))
    wrong: list[tuple[Any, History, str]] = [
        (view, History(np.zeros(0, np.int32)), "without interactions"),
        (chosen.initial_state(TASK_SEED), history, "FairView is needed"),
        (chosen.initial_view(TASK_SEED, 1), history, "values a table"),
        (replace(view, sum_index=1), history, "follows an earlier model, not that of sum 1"),
    ]
    for model, items, words in wrong:
        with pytest.raises(ParameterError, match=words):
            spec, rng = chosen.round_spec(TASK_SEED, 1), np.random.default_rng(0)
            side.contribute(spec, "c", model, items, client_state, rng)
    with pytest.raises(ParameterError, match="FairConfig"):
        client_side(chosen, MFConfig())
    for setting in ({"epochs": 0}, {"batch_size": 0}, {"learning_rate": 0.0}):
        with pytest.raises(ParameterError, match=next(iter(setting))):
            FairConfig(**setting)


# --- memory ------------------------------------------------------------------------------------------------------


def client_peak(p: int, items: int = 400_000) -> int:
    """Peak bytes allocated in a client's round, from the encoded view to the contribution."""
    chosen, side = make((p,), items=items, epochs=2, batch_size=128)
    body = chosen.encode_view(chosen.initial_view(TASK_SEED, 0), 0)
    history = History(np.arange(0, items, items // 400, dtype=np.int32))
    client_state, spec = side.initial_client_state(np.random.default_rng(0)), chosen.round_spec(TASK_SEED, 1)
    rng = np.random.default_rng(0)
    local, peak = peak_of(
        lambda: side.contribute(spec, "c", chosen.decode_view(0, body, 0), history, client_state, rng)
    )
    assert local.blocks[0].any()
    return peak


def test_peak_memory_is_proportional_to_the_devices_capacity() -> None:
    peaks = {p: client_peak(p) for p in (0, 4)}
    batches = 600_000  # a batch, chunks and the history, for any capacity
    assert peaks[4] - batches < peaks[0] / 2**4, peaks
    assert peaks[4] < peaks[0] / 10


def test_sums_of_many_rounds_are_equations_in_the_items_of_clients() -> None:
    """Adam from zero moments moves what a client has by nearly the same in each round: the task's warnings say so."""
    clients, cohort, items, kept, rounds = 12, 4, 60, 6, 40
    chosen, side = make((0,), items, epochs=5)
    rng = np.random.default_rng(1)
    histories = [History(np.sort(rng.choice(items, kept, replace=False)).astype(np.int32)) for _ in range(clients)]
    states = [side.initial_client_state(rng) for _ in range(clients)]
    state: Any = chosen.initial_state(TASK_SEED)
    cohorts, sums = np.zeros((rounds, clients)), np.zeros((rounds, chosen.layout().length))
    for place in range(rounds):
        spec, view = chosen.round_spec(TASK_SEED, place + 1), chosen.view(state, 0)
        for client in rng.choice(clients, cohort, replace=False):
            made = side.contribute(spec, "", view, histories[client], states[client], rng)
            states[client] = made.client_state
            cohorts[place, client], sums[place] = 1, sums[place] + made.contribution.vector
        state = chosen.absorb(state, spec, sums[place], cohort)
    changes = np.linalg.lstsq(cohorts, sums, rcond=None)[0][:, : 2 * items * DIM].reshape(clients, 2, items, DIM)
    moved = np.linalg.norm(changes - changes.mean(axis=0), axis=(1, 3))
    found = [set(np.argsort(-one)[:kept]) & set(own.items) for one, own in zip(moved, histories, strict=True)]
    assert sum(map(len, found)) > 0.8 * clients * kept
    assert MOVES_ALIKE in chosen.warnings()
