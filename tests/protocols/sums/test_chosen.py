"""Contributions that name their blocks: over plain and Paillier sums, refused where routes must be public."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import BudgetError, ContributionError, ParameterError, RoutingError
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.sums.base import Mechanism, SumPlan
from protocols.sums.ckks.plan import make_plan as ckks_plan
from protocols.sums.masked.plan import make_plan as masked_plan
from protocols.sums.plain import PLAIN
from tests.protocols.sums.paillier.cases import MadeUpKeys

BLOCKS, CHOSEN, CLIENTS = 12, 4, 6
ENTRY = Block("entry", (Segment("update", 2, 0.5), Segment("touched", 1, 1.0, integral=True)))
LAYOUT = VectorLayout((ENTRY,) * BLOCKS, chosen=CHOSEN, sum_class=TRAINED)
MECHANISMS: dict[str, tuple[Mechanism, dict[str, Any]]] = {
    "plain": (PLAIN, {}),
    "paillier": (MadeUpKeys(), {"key_bits": 2048}),
}


def drawn(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.sort(rng.permutation(BLOCKS)[:CHOSEN])
    values = np.column_stack([rng.uniform(-0.5, 0.5, (CHOSEN, 2)), rng.integers(0, 2, CHOSEN)])
    return numbers, values


def planned(name: str) -> tuple[Mechanism, SumPlan, Any]:
    mechanism, parameters = MECHANISMS[name]
    plan = mechanism.plan(parameters, LAYOUT, CLIENTS)
    return mechanism, plan, mechanism.generate_keyring(plan) if mechanism.needs_keyring else None


def sealed(name: str, numbers: np.ndarray, values: np.ndarray) -> bytes:
    mechanism, plan, keyring = planned(name)
    return mechanism.seal(plan, (), [numbers.astype(np.float64), values.ravel()], keyring)


@pytest.mark.parametrize("name", sorted(MECHANISMS))
@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(0, CLIENTS))
@settings(max_examples=10, deadline=None)
def test_every_contribution_is_added_where_it_says(name: str, seed: int, cut: int) -> None:
    mechanism, plan, keyring = planned(name)
    rng = np.random.default_rng(seed)
    expected, bodies = np.zeros((BLOCKS, 3)), []
    for _ in range(CLIENTS):
        numbers, values = drawn(rng)
        expected[numbers] += values
        bodies.append(((), sealed(name, numbers, values)))
        mechanism.check(plan, (), bodies[-1][1])
        assert len(bodies[-1][1]) == plan.contribution_bytes(())
    partial = mechanism.fold(plan, None, bodies[:cut])
    partial = mechanism.fold(plan, partial, bodies[cut:])
    assert partial == mechanism.fold(plan, None, bodies)
    total = mechanism.open(plan, mechanism.release(plan, partial), CLIENTS, keyring).reshape(BLOCKS, 3)
    np.testing.assert_allclose(total[:, :2], expected[:, :2], rtol=0, atol=plan.predicted_error)
    np.testing.assert_array_equal(total[:, 2], expected[:, 2])


@pytest.mark.parametrize("name", sorted(MECHANISMS))
@pytest.mark.parametrize("numbers", [[0, 1, 1, 3], [1, 0, 2, 3], [0, 1, 2, BLOCKS], [0, 1, 2, 2**32 - 1]])
def test_a_head_that_names_no_four_blocks_in_order_is_refused(name: str, numbers: list[int]) -> None:
    mechanism, plan, _ = planned(name)
    body = sealed(name, *drawn(np.random.default_rng(1)))
    wrong = np.array(numbers, "<u4").tobytes() + body[4 * CHOSEN :]
    with pytest.raises(ContributionError, match="ascending order"):
        mechanism.check(plan, (), wrong)
    with pytest.raises(ContributionError, match="ascending order"):
        mechanism.fold(plan, None, [((), wrong)])


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_lengths_routes_and_values_are_checked(name: str) -> None:
    mechanism, plan, keyring = planned(name)
    numbers, values = drawn(np.random.default_rng(2))
    body = sealed(name, numbers, values)
    for wrong in (body[:-1], body + b"\0", b""):
        with pytest.raises(ContributionError, match=f"{len(body)} bytes"):
            mechanism.check(plan, (), wrong)
    for route in (((0,),), tuple((n,) for n in range(CHOSEN))):
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
            mechanism.seal(plan, (), parts, keyring)


def test_a_value_over_its_clip_does_not_pass_the_plain_check() -> None:
    numbers, values = drawn(np.random.default_rng(3))
    body = bytearray(sealed("plain", numbers, values))
    body[4 * CHOSEN : 4 * CHOSEN + 4] = np.array(0.75, "<f4").tobytes()
    with pytest.raises(ContributionError, match="exceeds its clip"):
        PLAIN.check(PLAIN.plan({}, LAYOUT, CLIENTS), (), bytes(body))


def test_mechanisms_that_need_public_routes_say_so() -> None:
    for plan, parameters in ((ckks_plan, {"set": "standard"}), (masked_plan, {})):
        with pytest.raises(ParameterError, match="need public routes"):
            plan(parameters, LAYOUT, CLIENTS)


def test_layouts_of_chosen_blocks() -> None:
    assert whole_route(LAYOUT) == ()
    assert LAYOUT.length == 3 * BLOCKS
    assert LAYOUT.contribution_bounds(()).tolist() == [0.5, 0.5, 1.0] * CHOSEN
    assert LAYOUT.integral_mask().tolist() == [False, False, True] * BLOCKS
    assert hash(LAYOUT) == hash(VectorLayout((ENTRY,) * BLOCKS, chosen=CHOSEN, sum_class=TRAINED))
    assert VectorLayout((ENTRY,) * BLOCKS, chosen=CHOSEN + 1, sum_class=TRAINED) != LAYOUT
    other = Block("other", (Segment("update", 3, 0.5),))
    for blocks, chosen in (((ENTRY, other), 1), ((ENTRY,), 2), ((ENTRY,), -1)):
        with pytest.raises(ParameterError, match="chosen|equal shapes"):
            VectorLayout(blocks, chosen=chosen, sum_class=TRAINED)
