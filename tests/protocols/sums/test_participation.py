"""Which opened sums can be sums of honest contributions, and how many contributions had data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from protocols.errors import CodecError, ParameterError
from protocols.layout import TRAINED, Block, Route, Segment, VectorLayout
from protocols.sums.base import SumPlan
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.participation import (
    plan_of_task,
    require_participants,
    require_possible,
    with_participation,
    without_participation,
)
from protocols.sums.plain import PLAIN
from protocols.sums.registry import mechanism
from protocols.sums.run import run_sum
from tests.protocols.sums.paillier.cases import keyring_of

FLOOR = 3
LEVEL = (Segment("v", 2, 1.0),)
ONE = VectorLayout((Block("b", LEVEL),), sum_class=TRAINED)
TWO = VectorLayout((Block("low", LEVEL), Block("high", LEVEL)), sum_class=TRAINED)
CHOSEN = VectorLayout((Block("a", LEVEL), Block("b", LEVEL)), sum_class=TRAINED, chosen=1)
LOW: Route = ((0,),)
BOTH_LEVELS: Route = ((0,), (1,))
PARAMETERS: dict[str, dict[str, int]] = {"ckks": {}, "paillier": {"key_bits": 2048}}
KEYED = pytest.mark.parametrize("name", ["ckks", "paillier"])


def summed(name: str, layout: VectorLayout, contributions: list[tuple[Route, bool]]) -> tuple[SumPlan, np.ndarray]:
    """Return the plan and the opened sum of contributions of 0.5, or of zeros, along these routes."""
    how = mechanism(name)
    plan = plan_of_task(how, PARAMETERS[name], layout, 8)
    keyring = keyring_of(how, plan)
    bodies = []
    for route, participates in contributions:
        blocks = [np.full(2, 0.5 * participates) for _ in route]
        bodies.append((route, how.seal(plan, route, with_participation(plan, blocks, participates), keyring)))
    aggregate = how.release(plan, how.fold(plan, None, bodies))
    return plan, how.open(plan, aggregate, len(bodies), keyring)


@KEYED
def test_only_contributions_with_data_count_and_each_block_has_its_own_floor(name: str) -> None:
    """A block that no client's route reaches holds nobody's data."""
    for participants, enough in ((0, False), (2, False), (3, True)):
        plan, total = summed(name, ONE, [(LOW, client < participants) for client in range(5)])
        assert total[-1] == participants
        expect(plan, total, enough, f"^{participants} contributions .* min_clients, {FLOOR}")
        expected = 0.5 * participants
        np.testing.assert_allclose(without_participation(plan, total), expected, atol=plan.predicted_error + 1e-6)
    for high, enough in ((0, True), (2, False), (3, True)):
        routes = [BOTH_LEVELS if client < high else LOW for client in range(5)]
        plan, total = summed(name, TWO, [(route, True) for route in routes])
        expect(plan, total, enough, f"^{high} contributions")
        parts = [2.5, 2.5, 0.5 * high, 0.5 * high]
        np.testing.assert_allclose(without_participation(plan, total), parts, atol=plan.predicted_error + 1e-6)


def expect(plan: SumPlan, total: np.ndarray, enough: bool, text: str) -> None:
    if enough:
        return require_participants(plan, total, FLOOR)
    with pytest.raises(CodecError, match=text):
        require_participants(plan, total, FLOOR)
    return None


def test_a_later_sum_has_the_keys_of_the_main_one() -> None:
    long = VectorLayout((Block("b", (Segment("v", 8190, 1.0),)),), sum_class=TRAINED)  # 2 more with the count
    main = plan_of_task(CKKS, {}, long, 8)
    later = plan_of_task(CKKS, {}, ONE, 8, main=long)
    assert later.parameter_id == main.parameter_id != plan_of_task(CKKS, {}, ONE, 8).parameter_id


def test_other_sums_and_chosen_blocks_stay_as_they_are() -> None:
    for name, layout in (("masked", ONE), ("oneshot", ONE), ("plain", ONE), ("paillier", CHOSEN)):
        how, parameters, blocks = mechanism(name), PARAMETERS.get(name, {}), [np.ones(2)]
        plan = plan_of_task(how, parameters, layout, 5)
        assert plan == how.plan(parameters, layout, 5)
        assert with_participation(plan, blocks) == blocks
        require_participants(plan, np.zeros(layout.length), FLOOR)
        assert without_participation(plan, blocks[0]) is blocks[0]


LAYOUT = VectorLayout(
    (
        Block("items", (Segment("update", 3, 0.1), Segment("touched", 2, 1.0, integral=True))),
        Block("norm", (Segment("length", 1, 1.0, sum_bound=2.0),)),
    ),
    sum_class=TRAINED,
)
PLAN = PLAIN.plan({}, LAYOUT, 8)
GOOD = np.array([0.4, -0.4, 0.0, 4.0, 0.0, 2.0])


def test_possible_and_impossible_sums() -> None:
    for vector in (GOOD, -0.0 * GOOD, GOOD * [1, 1, 1, 0, 1, -1]):
        require_possible(PLAN, vector, 4)
    for place, value, where in (
        *((0, 0.41, "items/update"), (1, -0.41, "items/update"), (2, np.nan, "items/update"), (2, np.inf, "items/")),
        *((3, 5.0, "items/touched"), (4, -1.0, "items/touched"), (4, 0.5, "items/touched"), (5, 2.1, "norm/length")),
    ):
        vector = GOOD.copy()
        vector[place] = value
        with pytest.raises(CodecError, match=f"{where}.* of the opened sum .* no sum of 4 contributions"):
            require_possible(PLAN, vector, 4)
    with pytest.raises(ParameterError, match="6 values"):
        require_possible(PLAN, GOOD[:-1], 4)
    block = Block("row", (Segment("update", 2, 0.1),))
    plan = PLAIN.plan({}, VectorLayout((block, block, block), chosen=1, sum_class=TRAINED), 8)
    rows = np.array([0.3, -0.3, 0.0, 0.0, 0.1, 0.2])
    require_possible(plan, rows, 3)
    with pytest.raises(CodecError, match="row/update"):
        require_possible(plan, np.roll(rows * 1.1, 3), 3)


def test_honest_encrypted_sums_at_their_bounds() -> None:
    """Full cohorts whose every value is at its clip, with counts of all or of none."""
    for form in ({"wire": "seeded"}, {"wire": "expanded"}):
        layout = replace(LAYOUT, blocks=LAYOUT.blocks[:1])
        plan = CKKS.plan(form, layout, 8)
        vectors = [np.array([0.1, -0.1, 0.0, 1.0, 0.0])] * 8
        require_possible(plan, run_sum(CKKS, plan, vectors).total, 8)
