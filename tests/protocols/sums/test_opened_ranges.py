"""Which opened sums can be sums of honest contributions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from protocols.errors import CodecError, ParameterError
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.sums.base import require_possible
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.plain import PLAIN
from protocols.sums.run import run_sum

LAYOUT = VectorLayout(
    (
        Block("items", (Segment("update", 3, 0.1), Segment("touched", 2, 1.0, integral=True))),
        Block("norm", (Segment("length", 1, 1.0, sum_bound=2.0),)),
    ),
    sum_class=TRAINED,
)
PLAN = PLAIN.plan({}, LAYOUT, 8)
GOOD = np.array([0.4, -0.4, 0.0, 4.0, 0.0, 2.0])


@pytest.mark.parametrize("vector", [GOOD, -0.0 * GOOD, GOOD * [1, 1, 1, 0, 1, -1]])
def test_possible_sums(vector: np.ndarray) -> None:
    require_possible(PLAN, vector, 4)


@pytest.mark.parametrize(
    ("place", "value", "where"),
    [
        (0, 0.41, "items/update"),
        (1, -0.41, "items/update"),
        (2, np.nan, "items/update"),
        (2, np.inf, "items/update"),
        (3, 5.0, "items/touched"),
        (4, -1.0, "items/touched"),
        (4, 0.5, "items/touched"),
        (5, 2.1, "norm/length"),
    ],
)
def test_impossible_sums(place: int, value: float, where: str) -> None:
    vector = GOOD.copy()
    vector[place] = value
    with pytest.raises(CodecError, match=f"{where} of the opened sum .* no sum of 4 contributions"):
        require_possible(PLAN, vector, 4)


def test_sums_of_chosen_blocks() -> None:
    block = Block("row", (Segment("update", 2, 0.1),))
    layout = VectorLayout((block, block, block), chosen=1, sum_class=TRAINED)
    plan = PLAIN.plan({}, layout, 8)
    vector = np.array([0.3, -0.3, 0.0, 0.0, 0.1, 0.2])
    require_possible(plan, vector, 3)
    with pytest.raises(CodecError, match="row/update"):
        require_possible(plan, np.roll(vector * 1.1, 3), 3)


def test_another_shape() -> None:
    with pytest.raises(ParameterError, match="6 values"):
        require_possible(PLAN, GOOD[:-1], 4)


def test_honest_encrypted_sums_at_their_bounds() -> None:
    """Full cohorts whose every value is at its clip, with counts of all or of none."""
    for form in ({"wire": "seeded"}, {"wire": "expanded"}):
        layout = replace(LAYOUT, blocks=LAYOUT.blocks[:1])
        plan = CKKS.plan(form, layout, 8)
        vectors = [np.array([0.1, -0.1, 0.0, 1.0, 0.0])] * 8
        require_possible(plan, run_sum(CKKS, plan, vectors).total, 8)
