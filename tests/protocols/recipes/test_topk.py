"""Top-K: what clients send and recipes absorb, against sums computed by hand; supports and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.combinations import check_combination
from protocols.errors import CombinationError, ParameterError
from protocols.recipes.base import Contribution, Local, ModelState, Update
from protocols.recipes.registry import recipe
from protocols.recipes.topk import (
    OwnTopK,
    SharedTopK,
    TopKRecipe,
    TopKState,
    first_units,
    renewed_units,
    strongest_first,
)

TASK_SEED = bytes(range(32))
ITEMS, DIM, CLIENTS = 30, 8, 7
SHARE = 1 / 6
OWN: dict[str, Any] = {"support": "own", "reveal_indices": True}
TOUCHED: dict[str, Any] = {"normalise": "touched", "reveal_touched": True}
MODES: dict[str, dict[str, Any]] = {
    "aggregate": TOUCHED,
    "clients": {},
    "feedback": {"error_feedback": True, **TOUCHED},
    "vote": {"support_from": "vote", **TOUCHED},
    "own": OWN,
}


def make(mode: str, **changes: Any) -> TopKRecipe:
    chosen = recipe("topk", {"items": ITEMS, "dim": DIM, "clip": 2.0, "share": SHARE, **MODES[mode], **changes})
    assert isinstance(chosen, OwnTopK if mode == "own" else SharedTopK)
    return chosen


def drawn_update(rng: np.random.Generator, fewest: int = 1, most: int = ITEMS, size: float = 1.0) -> Update:
    items = np.sort(rng.permutation(ITEMS)[: rng.integers(fewest, most)]).astype(np.int32)
    return Update(items, rng.uniform(-size, size, (items.size, DIM)).astype(np.float32))


def summed(chosen: TopKRecipe, sendings: list[list[np.ndarray]]) -> np.ndarray:
    """Return the sum as a server computes it."""
    if isinstance(chosen, SharedTopK):
        return np.sum([blocks[0] for blocks in sendings], axis=0)
    total = np.zeros((ITEMS * DIM, 2))
    for places, pairs in sendings:
        total[places.astype(int)] += pairs.reshape(-1, 2)
    return total.ravel()


def sent_by(chosen: TopKRecipe, state: ModelState, update: Update, rng: np.random.Generator) -> Contribution:
    return chosen.contribute(state, chosen.round_spec(TASK_SEED, 1), Local(update, rng=rng))


@pytest.mark.parametrize("mode", sorted(MODES))
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_absorb_moves_each_entry_by_its_mean_over_those_who_count(mode: str, seed: int) -> None:
    chosen, rng = make(mode), np.random.default_rng(seed)
    before = chosen.initial_state(TASK_SEED)
    change, counts, sendings = np.zeros((ITEMS, DIM)), np.zeros((ITEMS, DIM)), []
    for _ in range(CLIENTS):
        update = drawn_update(rng)
        sending = sent_by(chosen, before, update, rng)
        change[update.items] += sending.sent
        counts[update.items] += 1.0 if isinstance(chosen, SharedTopK) else sending.sent != 0
        sendings.append(sending.blocks)
    spec = chosen.round_spec(TASK_SEED, 3)
    after = chosen.absorb(before, spec, summed(chosen, sendings), CLIENTS)
    assert after.round_number == 3
    gain = chosen.gain if isinstance(chosen, SharedTopK) else 1.0
    expected = before.item_factors + gain * change / (CLIENTS if mode == "clients" else np.maximum(counts, 1))
    np.testing.assert_allclose(after.item_factors, expected, atol=1e-5)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_own_support_takes_the_largest_entries_and_fills_up_with_others(seed: int) -> None:
    chosen, rng = make("own"), np.random.default_rng(seed)
    update = drawn_update(rng)
    sending = sent_by(chosen, chosen.initial_state(TASK_SEED), update, rng)
    places = sending.blocks[0]
    assert places.size == chosen.kept == 40
    assert (np.diff(places) > 0).all()
    assert 0 <= places[0] < places[-1] < ITEMS * DIM
    left = np.abs(update.values[sending.sent == 0]).max(initial=0.0)
    assert np.abs(sending.sent[sending.sent != 0]).min() >= left


def test_what_fills_an_own_support_is_drawn_anew_and_counts_for_nothing() -> None:
    chosen = make("own")
    state, update = chosen.initial_state(TASK_SEED), Update(np.array([3], np.int32), np.ones((1, DIM), np.float32))
    first, second = (sent_by(chosen, state, update, np.random.default_rng(seed)) for seed in (1, 2))
    trained = set(range(3 * DIM, 4 * DIM))
    assert set(first.blocks[0].tolist()) & set(second.blocks[0].tolist()) >= trained
    assert set(first.blocks[0].tolist()) != set(second.blocks[0].tolist())
    assert first.blocks[1].reshape(-1, 2).sum(axis=0).tolist() == [DIM, DIM]


@pytest.mark.parametrize("mode", ["aggregate", "clients", "feedback", "vote"])
def test_a_shared_support_says_nothing_about_a_client(mode: str) -> None:
    """The positions follow from the state alone: clients with different data send the same positions and lengths."""
    chosen, rng = make(mode), np.random.default_rng(5)
    state = chosen.initial_state(TASK_SEED)
    few = Update(np.array([0], np.int32), rng.uniform(-1, 1, (1, DIM)).astype(np.float32))
    many = Update(np.arange(5, 29, dtype=np.int32), rng.uniform(-1, 1, (24, DIM)).astype(np.float32))
    one, other = sent_by(chosen, state, few, rng), sent_by(chosen, state, many, rng)
    assert one.blocks[0].shape == other.blocks[0].shape == (chosen.layout().length,)
    assert (
        chosen.route(chosen.round_spec(TASK_SEED, 1), "c_1")
        == chosen.route(chosen.round_spec(TASK_SEED, 9), "c_2")
        == ((0,),)
    )
    assert any("which items each client has" in text for text in chosen.warnings()) == (mode != "clients")
    assert "in the clear" in make("own").warnings()[0]


@settings(max_examples=40)
@given(units=st.integers(1, 200), data=st.data())
def test_supports_hold_as_many_units_as_asked_each_once(units: int, data: st.DataObject) -> None:
    kept = data.draw(st.integers(1, units))
    first = first_units(TASK_SEED, units, kept)
    strength = np.array(data.draw(st.lists(st.floats(0, 9), min_size=kept, max_size=kept)))
    strongest = strongest_first(first, strength)
    assert strongest.size == np.count_nonzero(strength)
    following = renewed_units(strongest, b"\x07" * 32, units, kept)
    for support in (first, following):
        assert support.size == kept
        assert (np.diff(support) > 0).all()
        assert 0 <= support[0] <= support[-1] < units
    assert set(strongest[: kept // 2].tolist()) <= set(following.tolist())


def test_every_entry_gets_its_turn() -> None:
    """Drawn entries let every entry be sent eventually, even with sums of zeros."""
    chosen = make("aggregate")
    state, seen = chosen.initial_state(TASK_SEED), set()
    for number in range(1, 120):
        assert isinstance(state, TopKState)
        seen |= set(state.support.tolist())
        total = np.zeros(chosen.layout().length)
        total[0] = 1.0
        state = chosen.absorb(state, chosen.round_spec(TASK_SEED, number), total, CLIENTS)
    assert len(seen) == ITEMS * DIM


@pytest.mark.parametrize("mode", ["aggregate", "own"])
def test_updates_that_cannot_be_are_refused(mode: str) -> None:
    chosen, rng = make(mode), np.random.default_rng(0)
    state, row = chosen.initial_state(TASK_SEED), np.ones((1, DIM), np.float32)
    for items, values, problem in [
        ([0, 0], np.ones((2, DIM), np.float32), "twice"),
        ([ITEMS], row, "outside"),
        ([1], row[:, 1:], "rows"),
        ([1], row * np.nan, "diverged"),
    ]:
        with pytest.raises(ParameterError, match=problem):
            sent_by(chosen, state, Update(np.array(items, np.int32), values), rng)


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"support": "own"}, "shows the server which entries .* reveal_indices=true"),
        ({"reveal_indices": True}, "support 'shared' reveals no indices"),
        ({"support_from": "vote"}, "support_from 'vote' shows how many .* reveal_touched=true, or leave support_from"),
        ({"reveal_touched": True}, "no sum of this task shows touched items"),
        ({**OWN, "item_bias": "counts"}, "own support has no item counts"),
        ({"share": 0.0}, "share"),
        ({"share": 1.1}, "share"),
        ({"support_from": "dice"}, "support_from"),
    ],
)
def test_wrong_parameters_name_what_is_wrong(parameters: dict[str, Any], problem: str) -> None:
    with pytest.raises(ParameterError, match=problem):
        recipe("topk", {"items": ITEMS, "dim": DIM, **parameters})


def test_shares_are_of_all_entries() -> None:
    def kept(share: float, **more: Any) -> int:
        chosen = recipe("topk", {"items": 3706, "dim": 64, "share": share, **more})
        assert isinstance(chosen, TopKRecipe)
        return chosen.kept

    assert [kept(n / 64) for n in (1, 2, 16)] == [kept(n / 64, **OWN) for n in (1, 2, 16)] == [3706, 7412, 59296]
    assert kept(1 / 64, support_from="vote", reveal_touched=True) == 58 * 64
    assert kept(1e-9) == 1
    gains = {mode: getattr(make(mode), "gain", 1.0) for mode in MODES}
    assert gains == {"aggregate": 6.0, "clients": 6.0, "vote": 6.0, "feedback": 1.0, "own": 1.0}


def test_combinations_look_at_the_support_and_the_size() -> None:
    for mode in MODES:
        check_combination(make(mode), "plain")
        check_combination(make(mode), "paillier")
    check_combination(make("vote"), "masked")
    with pytest.raises(CombinationError, match="choose their positions, .* 'shared'"):
        check_combination(make("own"), "masked")
    with pytest.raises(CombinationError, match="appendix C"):
        check_combination(make("aggregate"), "ckks")
    with pytest.raises(CombinationError, match="open problem"):
        check_combination("svd", "paillier")
    large = {"items": 3706, "dim": 64}
    check_combination(recipe("topk", {**large, "share": 16 / 64}), "paillier")
    check_combination(recipe("colr", {**large, "rank": 4}), "paillier")
    with pytest.raises(CombinationError, match="237,184 values; Paillier is for small sums"):
        check_combination(recipe("fedmf", large), "paillier")
    with pytest.raises(CombinationError, match="237,184 blocks"):
        check_combination(recipe("topk", {**large, **OWN}), "paillier")
