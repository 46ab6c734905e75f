"""Plain sums; contributions that name their blocks, over plain and Paillier sums."""

from __future__ import annotations

import struct
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocols.errors import BudgetError, CodecError, ContributionError, ParameterError, RoutingError
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.sums.base import Mechanism, SumPlan
from protocols.sums.ckks.plan import make_plan as ckks_plan
from protocols.sums.masked.plan import make_plan as masked_plan
from protocols.sums.paillier.mechanism import PAILLIER
from protocols.sums.plain import PLAIN
from tests.protocols.sums.conformance import MechanismConformance, one_block
from tests.protocols.sums.paillier.cases import keyring_of, made_up_keyring, small_plan

LAYOUT = one_block(Segment("v", 3, 0.1), Segment("n", 2, 1.0, integral=True))
ROUTE = whole_route(LAYOUT)
PLAN = PLAIN.plan({}, LAYOUT, 100)


class TestConformance(MechanismConformance):
    mechanism = PLAIN


def test_a_mechanism_that_overrides_nothing_has_no_keys_and_makes_nothing_ahead() -> None:
    values = [np.array([0.1, 0.0, -0.1, 1.0, 0.0])]
    with pytest.raises(ParameterError, match="needs no keyring"):
        PLAIN.generate_keyring(PLAN)
    with pytest.raises(ParameterError, match="names no public key"):
        PLAIN.name_public_key({}, b"key")
    assert PLAIN.pieces(PLAN) == 0
    assert PLAN.other_bytes(100, 22) == (0, 0)
    with pytest.raises(ParameterError, match="makes no part of a contribution ahead"):
        PLAIN.make_piece(PLAN, made_up_keyring(small_plan()))
    taken = PLAIN.seal_ahead(PLAN, ROUTE, values, None, lambda n: pytest.fail(f"it takes {n} pieces"))
    assert taken == PLAIN.seal(PLAN, ROUTE, values, None)
    with pytest.raises(ParameterError, match="a plain contribution is one message"):
        PLAN.encode(ROUTE, values)


@given(st.lists(st.floats(-0.1, 0.1), min_size=2, max_size=40), st.randoms(use_true_random=False))
@settings(max_examples=20, deadline=None)
def test_neither_order_nor_batches_show_in_the_last_bit(values: list[float], random: Random) -> None:
    """Sums of floats usually do show it: 0.1 + 1e-9 - 0.1 is not 1e-9."""
    pieces = [(ROUTE, PLAIN.seal(PLAN, ROUTE, [np.array([value, -value, value / 3, 1, 0])], None)) for value in values]
    forward = PLAIN.fold(PLAN, None, pieces)
    cut = random.randint(0, len(pieces))
    random.shuffle(pieces)
    assert PLAIN.fold(PLAN, None, pieces) == forward
    halves = [PLAIN.fold(PLAN, None, pieces[:cut]), PLAIN.fold(PLAN, None, pieces[cut:])]
    assert PLAIN.merge(PLAN, halves) == forward


def test_the_grain_costs_no_more_than_it_says() -> None:
    """Against exact sums of the float32 values, to the largest values and the smallest cohort."""
    for contributions in (1, 2, 3, 4, 5, 300):
        rng = np.random.default_rng(contributions)
        sizes = 10.0 ** -rng.integers(0, 12, (contributions, 5))
        rows = (rng.uniform(-0.1, 0.1, (contributions, 5)) * sizes).astype("<f4")
        rows[0, :3], rows[:, 3:] = np.float32(0.1), 1.0
        partial = PLAIN.fold(PLAIN.plan({}, LAYOUT, contributions), None, [(ROUTE, row.tobytes()) for row in rows])
        sums = np.frombuffer(partial, "<f8", offset=8)
        exact = [float(sum(Fraction(float(value)) for value in column)) for column in rows.T]
        assert np.abs(sums - exact).max() <= 0.1 * contributions**2 * 2.0**-52
        assert sums[3:].tolist() == [contributions, contributions]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0.1, 1.0])), min_size=1, max_size=40),
    st.integers(0, 200),
    st.sampled_from([0.1, -0.1, 0.2, 1.0, -1.1, np.nan, np.inf, -np.inf]),
)
@example([(1, 0.1), (2, 1.0)] * 20, 31, 0.2)
@example([(1, 0.1), (2, 1.0)] * 20, 33, 0.2)
@example([(1, 0.1), (2, 1.0)] * 20, 33, np.nan)
@settings(max_examples=40, deadline=None)
def test_values_are_held_against_their_clip(segments: list[tuple[int, float]], place: int, value: float) -> None:
    """Whether the maxima of a few runs are compared, or, with many, all values."""
    blocks = (Block("b", tuple(Segment(f"s{n}", length, clip) for n, (length, clip) in enumerate(segments))),)
    plan = PLAIN.plan({}, VectorLayout(blocks, sum_class=TRAINED), 10)
    route = whole_route(plan.layout)
    bounds = plan.layout.contribution_bounds(route)
    values = np.zeros(bounds.size, "<f4")
    values[place % bounds.size] = value
    body, first = values.tobytes(), 4 * (bounds.size // 2)
    parts = ((0, body[:first]), (first, body[first:]))
    if abs(value) <= bounds[place % bounds.size]:
        PLAIN.check(plan, route, body)
        for start, part in parts:
            PLAIN.check_part(plan, route, start, part)
        return
    fault = f"value {place % bounds.size} is not finite or exceeds its clip"
    with pytest.raises(ContributionError, match=fault):
        PLAIN.check(plan, route, body)
    with pytest.raises(ContributionError, match=fault):
        for start, part in parts:
            PLAIN.check_part(plan, route, start, part)


def test_counts_are_exact_to_the_last_contribution() -> None:
    plan = PLAIN.plan({}, LAYOUT, 2**24)
    partial = struct.pack("<Q5d", 2**24 - 1, 0, 0, 0, 2**24 - 1, 1)
    body = PLAIN.seal(plan, ROUTE, [np.array([0, 0, 0, 1.0, 1.0])], None)
    total = PLAIN.open(plan, PLAIN.release(plan, PLAIN.fold(plan, partial, [(ROUTE, body)])), 2**24, None)
    assert total[3:].tolist() == [2**24, 2]
    with pytest.raises(BudgetError, match="at most 16777216 contributions"):
        PLAIN.plan({}, LAYOUT, 2**24 + 1)


def test_sums_that_no_sum_can_have_are_refused() -> None:
    with pytest.raises(CodecError, match="not finite"):
        PLAIN.open(PLAN, np.full(5, np.nan, "<f4").tobytes(), 1, None)
    for value in (np.nan, np.inf, 1e39):
        with pytest.raises(CodecError, match="not finite or exceeds float32"):
            PLAIN.release(PLAN, struct.pack("<Q5d", 1, 0, 0, value, 0, 0))
    long = PLAIN.plan({}, VectorLayout((Block("a", (Segment("v", 100_000, 1.0),)),), sum_class=TRAINED), 10)
    partial = bytearray(PLAIN.fold(long, None, []))
    struct.pack_into("<d", partial, len(partial) - 8, np.inf)  # values are looked at in pieces: the last one too
    with pytest.raises(CodecError, match="not finite or exceeds float32"):
        PLAIN.release(long, bytes(partial))


BLOCKS, CHOSEN, CLIENTS = 12, 4, 6
ENTRY = Block("entry", (Segment("update", 2, 0.5), Segment("touched", 1, 1.0, integral=True)))
CHOSEN_LAYOUT = VectorLayout((ENTRY,) * BLOCKS, chosen=CHOSEN, sum_class=TRAINED)
MECHANISMS: dict[str, tuple[Mechanism, dict[str, Any]]] = {
    "plain": (PLAIN, {}),
    "paillier": (PAILLIER, {"key_bits": 2048}),
}


def drawn(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.sort(rng.permutation(BLOCKS)[:CHOSEN])
    values = np.column_stack([rng.uniform(-0.5, 0.5, (CHOSEN, 2)), rng.integers(0, 2, CHOSEN)])
    return numbers, values


def planned(name: str) -> tuple[Mechanism, SumPlan, Any]:
    mechanism, parameters = MECHANISMS[name]
    plan = mechanism.plan(parameters, CHOSEN_LAYOUT, CLIENTS)
    return mechanism, plan, keyring_of(mechanism, plan)


def sealed(name: str, numbers: np.ndarray, values: np.ndarray) -> bytes:
    mechanism, plan, keyring = planned(name)
    return mechanism.seal(plan, 0, [numbers.astype(np.float64), values.ravel()], keyring)


@pytest.mark.parametrize("name", sorted(MECHANISMS))
@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(0, CLIENTS))
@settings(max_examples=2, deadline=None)
def test_every_contribution_is_added_where_it_says(name: str, seed: int, cut: int) -> None:
    mechanism, plan, keyring = planned(name)
    rng = np.random.default_rng(seed)
    expected, bodies = np.zeros((BLOCKS, 3)), []
    for _ in range(CLIENTS):
        numbers, values = drawn(rng)
        expected[numbers] += values
        bodies.append((0, sealed(name, numbers, values)))
        mechanism.check(plan, 0, bodies[-1][1])
        assert len(bodies[-1][1]) == plan.contribution_bytes(0)
    partial = mechanism.fold(plan, None, bodies[:cut])
    partial = mechanism.fold(plan, partial, bodies[cut:])
    assert partial == mechanism.fold(plan, None, bodies)
    total = mechanism.open(plan, mechanism.release(plan, partial), CLIENTS, keyring).reshape(BLOCKS, 3)
    np.testing.assert_allclose(total[:, :2], expected[:, :2], rtol=0, atol=plan.predicted_error)
    np.testing.assert_array_equal(total[:, 2], expected[:, 2])


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_lengths_heads_routes_and_values_are_checked(name: str) -> None:
    mechanism, plan, keyring = planned(name)
    numbers, values = drawn(np.random.default_rng(2))
    body = sealed(name, numbers, values)
    for wrong_numbers in ([0, 1, 1, 3], [1, 0, 2, 3], [0, 1, 2, BLOCKS]):
        wrong = np.array(wrong_numbers, "<u4").tobytes() + body[4 * CHOSEN :]
        for refuse in (mechanism.check, lambda plan, route, body: mechanism.fold(plan, None, [(route, body)])):
            with pytest.raises(ContributionError, match="ascending order"):
                refuse(plan, 0, wrong)
    for wrong in (body[:-1], body + b"\0", b""):
        with pytest.raises(ContributionError, match=f"{len(body)} bytes"):
            mechanism.check(plan, 0, wrong)
    for route in (1, CHOSEN):
        with pytest.raises(RoutingError, match="name their blocks"):
            plan.contribution_bytes(route)
        with pytest.raises(RoutingError, match="name their blocks"):
            mechanism.check(plan, route, body)
    too_large = values.copy()
    too_large[1, 1] = 0.51
    with pytest.raises(BudgetError, match="exceeds its clip"):
        sealed(name, numbers, too_large)
    for bad in (numbers[::-1], np.array([0.0, 1.5, 2, 3]), np.array([-1, 0, 1, 2]), np.array([0, 1, 2, np.nan])):
        with pytest.raises(ParameterError, match="ascending, each once"):
            sealed(name, bad, values)
    for parts in ([values.ravel()], [numbers.astype(float), values.ravel()[:-1]]):
        with pytest.raises(ParameterError):
            mechanism.seal(plan, 0, parts, keyring)


def test_a_value_over_its_clip_does_not_pass_the_plain_check() -> None:
    numbers, values = drawn(np.random.default_rng(3))
    body = bytearray(sealed("plain", numbers, values))
    body[4 * CHOSEN : 4 * CHOSEN + 4] = np.array(0.75, "<f4").tobytes()
    with pytest.raises(ContributionError, match="exceeds its clip"):
        PLAIN.check(PLAIN.plan({}, CHOSEN_LAYOUT, CLIENTS), 0, bytes(body))


def test_mechanisms_that_need_public_routes_say_so() -> None:
    for plan, parameters in ((ckks_plan, {"set": "standard"}), (masked_plan, {})):
        with pytest.raises(ParameterError, match="need public routes"):
            plan(parameters, CHOSEN_LAYOUT, CLIENTS)


def test_chosen_blocks_are_some_of_several_of_equal_shape() -> None:
    other = Block("other", (Segment("update", 3, 0.5),))
    for blocks, chosen in (((ENTRY, other), 1), ((ENTRY,), 2), ((ENTRY,), -1)):
        with pytest.raises(ParameterError, match="chosen|equal shapes"):
            VectorLayout(blocks, chosen=chosen, sum_class=TRAINED)
