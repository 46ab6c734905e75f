"""`privirec` whose Gram sums are of counts: how many clients have both of two items, in blocks, in a narrow ring."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from protocols.errors import CodecError, ParameterError
from protocols.exposure import exposures
from protocols.messages import Schedule
from protocols.recipes.base import Local, RoundSpec
from protocols.recipes.bounds import Reach
from protocols.recipes.privirec import PriviRec
from protocols.recipes.privirec_defaults import blocks_within, ring_bits
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.registry import recipe
from protocols.recipes.spectrum import triangle_length
from protocols.recipes.state import state_as
from protocols.sums.masked.plan import MASKED, MaskedPlan

TASK_SEED = bytes(range(32))
ITEMS, CLIENTS = 20, 60
ROWS = np.random.default_rng(5).random((CLIENTS, ITEMS)) < np.linspace(0.02, 0.6, ITEMS)


def make(**changes: Any) -> PriviRec:
    counted = {"user_exponent": 0.0, "item_exponent": 0.4, "iterations": 0, "reveal_gram": True, "min_owners": 3}
    made = recipe("privirec", {"items": ITEMS, "components": 7, "blocks": 3, **counted, **changes})
    assert isinstance(made, PriviRec)
    return made


def spec_after(made: PriviRec, state: PriviRecState) -> RoundSpec:
    return replace(made.round_spec(TASK_SEED, state.sum_index + 1), size=made.size_after(state))


def play(made: PriviRec, rows: np.ndarray, present: dict[int, int] | None = None) -> list[PriviRecState]:
    """All states of a task. present: how many of the clients, the first ones, are in a sum; all in the others."""
    states = [made.initial_state(TASK_SEED)]
    while states[-1].sum_index < made.last_gram and not made.is_done(states[-1]):
        spec = spec_after(made, states[-1])
        own = rows[: (present or {}).get(spec.sum_index, len(rows))]
        parts = [
            made.contribute(states[-1], spec, Local(np.flatnonzero(row).astype(np.int32))) for row in own if row.any()
        ]
        total = np.sum([part.vector for part in parts], axis=0)
        states.append(state_as(made.absorb(states[-1], spec, total, len(own)), PriviRecState))
    return states


@pytest.mark.parametrize("blocks", [1, 3, 4])
def test_blocks_are_the_triangle_of_all_counts_and_the_model_has_its_leading_vectors(blocks: int) -> None:
    made = make(blocks=blocks)
    states = play(made, ROWS)
    kept = np.flatnonzero(ROWS.sum(0) >= 3)
    own = ROWS[:, kept].astype(float)
    together = own.T @ own
    assert 3 < kept.size < ITEMS, "some items have too few owners"
    assert [state.sum_index for state in states] == list(range(blocks + 2)) and made.is_done(states[-1])
    np.testing.assert_array_equal(states[-1].pairs, together[np.triu_indices(kept.size)])
    np.testing.assert_array_equal(states[-1].pair_clients, [CLIENTS] * blocks)
    scales = np.diag(together) ** -0.4
    values, vectors = np.linalg.eigh(together * scales[:, None] * scales)
    found = made.spectrum(states[-1])
    np.testing.assert_allclose(found.eigenvalues, values[::-1][:7], atol=1e-9)
    np.testing.assert_allclose(np.abs(np.sum(found.vectors * vectors[:, ::-1][:, :7], axis=0)), 1.0, atol=1e-6)
    for state in states[1:]:
        body = made.encode_state(state)
        assert len(body) == made.state_bytes(state.sum_index, made.size_after(state)) <= made.longest_state_bytes()
        assert made.same_state(state, made.decode_state(state.sum_index, body))
    made.require_reachable(states[-1], Reach(10, CLIENTS, 100))
    assert made.report(states[-1]) == {"items_kept": kept.size, "columns": 7, "pairs_above_degree": 0}


def test_sums_have_a_ring_as_wide_as_counts_need_and_no_wider_than_the_task_says() -> None:
    made = make()
    lengths = [made.layout(sum_index).length for sum_index in (2, 3, 4)]
    assert sum(lengths) == triangle_length(ITEMS) and max(lengths) - min(lengths) <= 1
    assert made.longest_vector() == max(lengths)

    def plan(clients: int, **parameters: Any) -> MaskedPlan:
        return MASKED.plan({"corrupt": 0.0, **parameters}, made.layout(2), clients)

    assert [plan(clients).bits for clients in (60, 32_767, 32_768)] == [16, 16, 17]
    assert (plan(40_000, bits=64, spare=8).bits, plan(60, bits=16).bits) == (17, 16)
    assert plan(60).contribution_bytes(1) == 2 * lengths[0]
    assert MASKED.plan({"corrupt": 0.0}, made.layout(1), 60).bits == 32
    assert [blocks_within(3_000, clients, 5_000_000) for clients in (None, 900, 40_000)] == [4, 2, 2]
    assert [ring_bits(clients) for clients in (None, 32_767, 32_768)] == [32, 16, 17]
    assert blocks_within(3_000, 900, 1) == 100


def test_clients_that_leave_between_blocks_are_accounted_for() -> None:
    made = make(min_owners=1)
    alike = np.repeat(ROWS[:1] | ROWS[1:2], CLIENTS, axis=0)  # the same list for all, so that shares are exact
    whole, parted = (play(made, alike, present) for present in ({}, {3: 45}))
    np.testing.assert_array_equal(parted[-1].pair_clients, [60, 45, 60])
    assert (parted[-1].pairs < whole[-1].pairs).any()
    found = [made.spectrum(states[-1]).eigenvalues for states in (whole, parted)]
    np.testing.assert_allclose(found[0], found[1], atol=1e-9)
    other = made.spectrum(play(made, ROWS)[-1]).eigenvalues
    assert np.abs(other - found[1]).max() > 0.1, "a state of the same round of another task has a spectrum of its own"


def test_counts_above_a_degree_count_as_the_degree_and_are_reported() -> None:
    """Of a member whose list has grown since the sum of degrees, or a liar that left an item out of it."""
    made = make()
    states = play(made, ROWS)
    honest, kept = states[-1], made.kept(states[-1])
    row, item = int(np.flatnonzero(~ROWS[:, kept[1]] & ROWS[:, kept[0]])[0]), int(kept[1])
    grown = ROWS.copy()
    grown[row, item] = True
    state = states[1]
    for number in (2, 3, 4):
        spec = spec_after(made, state)
        parts = [
            made.contribute(state, spec, Local(np.flatnonzero(one).astype(np.int32))) for one in grown if one.any()
        ]
        state = state_as(made.absorb(state, spec, sum(part.vector for part in parts), CLIENTS), PriviRecState)
        assert made.same_state(state, made.decode_state(number, made.encode_state(state)))
    both = grown[:, kept].astype(float)
    upper, degrees = np.triu_indices(kept.size), ROWS[:, kept].sum(0)
    most = np.minimum(degrees[:, None], degrees)[upper]
    counts = (both.T @ both)[upper]
    above = np.flatnonzero(counts > most)
    np.testing.assert_array_equal(state.pairs, counts)
    np.testing.assert_array_equal(made.pairs_within(state), np.minimum(counts, most))
    assert above.size, "how many have the item itself, at least"
    assert (made.report(state)["pairs_above_degree"], made.report(honest)["pairs_above_degree"]) == (above.size, 0)
    as_degrees = replace(state, pairs=np.minimum(counts, most).astype(np.uint32))
    np.testing.assert_array_equal(made.spectrum(state).eigenvalues, made.spectrum(as_degrees).eigenvalues)
    liar = replace(honest, pairs=np.full_like(honest.pairs, CLIENTS))  # one that says of all pairs that all have both
    np.testing.assert_array_equal(made.pairs_within(liar), most)
    made.require_reachable(made.decode_state(4, made.encode_state(liar)), Reach(10, CLIENTS, 100))


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_no_owners_can_have_are_shrunk(seed: int) -> None:
    """Whatever a liar adds to the pairs of an item: the matrix that is used has the degrees on its diagonal."""
    made = make(components=ITEMS)
    honest, rng = play(made, ROWS)[-1], np.random.default_rng(seed)
    kept = made.kept(honest)
    own = honest.item_degrees[kept] ** (1.0 - 2 * 0.4)
    first, second = np.triu_indices(kept.size)
    target = int(honest.item_degrees[kept].argmin())
    lies = (first == target) | (second == target)
    pairs = np.where(lies, rng.integers(honest.pairs, CLIENTS + 1), honest.pairs).astype(np.uint32)
    used, told = (
        (found.vectors * found.eigenvalues) @ found.vectors.T
        for found in (made.spectrum(honest), made.spectrum(replace(honest, pairs=pairs)))
    )
    np.testing.assert_allclose(np.diag(used), own, err_msg="of honest members nothing is shrunk")
    assert (np.diag(told) <= own * (1 + 1e-5)).all()
    assert (told**2 <= np.outer(own, own) * (1 + 1e-5)).all()
    counts = made.pairs_within(replace(honest, pairs=pairs)).astype(float)
    counts[first == second] = honest.item_degrees[kept]
    scaled = np.zeros((kept.size, kept.size))
    scaled[first, second] = scaled[second, first] = counts
    scaled *= (honest.item_degrees[kept] ** -0.4)[:, None] * honest.item_degrees[kept] ** -0.4
    assert np.linalg.eigvalsh(scaled)[0] < -1e-3, "the lie is one that no lists give"
    others = np.delete(np.arange(kept.size), target)
    if seed:
        assert np.linalg.norm(told[target, others]) < 0.9 * np.linalg.norm(scaled[target, others])


@pytest.mark.parametrize("seed", range(5))
def test_counts_that_no_lists_give_are_refused_with_the_last_sum(seed: int) -> None:
    """What a member adds without regard to the lists of others; one item's pairs and absent members pass."""
    made, rng = make(), np.random.default_rng(seed)
    *_, before, honest = play(made, ROWS)
    play(made, ROWS, {2: 48, 3: 42, 4: 54})  # up to 30 % absent
    spec, start = spec_after(made, before), before.pairs.size
    first, second = (own[start:] for own in np.triu_indices(made.kept(honest).size))
    degrees = honest.item_degrees[made.kept(honest)]
    own, most = honest.pairs[start:].astype(float), np.minimum(degrees[first], degrees[second])
    target = int(rng.integers(degrees.size))
    of_one = np.where((first == target) | (second == target), most, own)
    assert state_as(made.absorb(before, spec, of_one, CLIENTS), PriviRecState).sum_index == made.last_gram
    earlier = np.minimum(np.full(start, CLIENTS, np.uint32), CLIENTS)
    with pytest.raises(CodecError, match="are above the degree of an item"):
        made.absorb(replace(before, pairs=earlier), spec, np.full(own.size, float(CLIENTS)), CLIENTS)
    drawn = np.where(rng.random(own.size) < 0.5, 0.0, most)
    before = replace(before, pairs=np.where(rng.random(start) < 0.5, 0, before.pairs).astype(np.uint32))
    with pytest.raises(CodecError, match="no lists give the counted pairs"):
        made.absorb(before, spec, drawn, CLIENTS)
    lied = replace(honest, pairs=np.concatenate([before.pairs, drawn.astype(np.uint32)]))
    for use in (made.spectrum, made.matrix):  # nor does a device use a model of them
        with pytest.raises(CodecError, match="no lists give the counted pairs"):
            use(lied)


def test_counts_above_the_clients_of_their_sum_are_refused() -> None:
    made = make()
    states = play(made, ROWS, {3: 45})
    last = states[-1]
    start, stop = made.span_of_pairs(3, made.kept(last).size)
    clients = made.clients_of_pairs(last.item_degrees, last.pair_clients)
    assert set(clients[start:stop]) == {45} and set(clients[:start]) | set(clients[stop:]) == {60}
    for place in (0, start, stop - 1, last.pairs.size - 1):
        pairs = clients.copy()
        assert made.decode_state(4, made.encode_state(replace(last, pairs=pairs)))
        pairs[place] += 1
        with pytest.raises(CodecError, match="more clients with two items than were in the sum"):
            made.decode_state(4, made.encode_state(replace(last, pairs=pairs)))
    with pytest.raises(CodecError, match="more clients than its degrees"):
        made.decode_state(4, made.encode_state(replace(last, pair_clients=last.pair_clients + np.uint32(1))))
    with pytest.raises(CodecError, match="fewer clients than a sum has"):
        made.require_reachable(replace(last, pair_clients=last.pair_clients - np.uint32(30)), Reach(40, CLIENTS, 100))
    with pytest.raises(ParameterError, match="has the size that the model before it says"):
        made.contribute(states[1], made.round_spec(TASK_SEED, 2), Local(np.arange(4, dtype=np.int32)))


def test_a_task_ends_where_fewer_pairs_remain_than_blocks() -> None:
    made = make(min_owners=CLIENTS, blocks=4)
    rows = ROWS.copy()
    rows[:, :2] = True
    states = play(made, rows)
    assert made.is_done(states[-1]) and states[-1].sum_index == 1


def test_all_blocks_together_say_what_the_matrix_says() -> None:
    schedule = Schedule(cohort_size=50, min_clients=25, rounds=4)
    (counts, pairs) = exposures(make(), schedule)
    assert (counts.kind, counts.determined, counts.sums) == ("once", False, 1)
    assert (pairs.sums, pairs.equations, pairs.determined) == (3, ITEMS, True)
    assert "everybody can solve for the items of single members" in pairs.text
    for slim, settings in ((False, 64), (True, 67)):
        warnings = make(validation=0.5, slim=slim).warnings()
        assert f"of each two items how many clients have both; and how well {settings} settings" in warnings[1]
    assert "how well" not in make().warnings()[1] and "come from exactly one user" in warnings[0]
