from __future__ import annotations

import numpy as np
import pytest

from protocols.errors import ParameterError
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.sums.plain import PLAIN
from protocols.sums.run import run_sum, split_along

LAYOUT = VectorLayout((Block("a", (Segment("v", 3, 1.0),)), Block("b", (Segment("w", 2, 1.0),))), sum_class=TRAINED)
PLAN = PLAIN.plan({}, LAYOUT, 4)


def test_a_vector_is_split_along_its_route() -> None:
    blocks = split_along(PLAN, ((1,), (0,)), np.arange(5.0))
    assert [block.tolist() for block in blocks] == [[0, 1], [2, 3, 4]]


def test_a_vector_of_another_length_than_its_route_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"2 values, got shape \(3,\)"):
        split_along(PLAN, ((1,),), np.zeros(3))


def test_every_vector_needs_a_route() -> None:
    with pytest.raises(ParameterError, match="2 vectors but 1 routes"):
        run_sum(PLAIN, PLAN, [np.zeros(5)] * 2, [((0,), (1,))])


def test_the_transcript_holds_what_was_sent_and_the_sum() -> None:
    transcript = run_sum(PLAIN, PLAN, [np.full(3, 0.5), np.full(2, 0.25)], [((0,),), ((1,),)])
    assert [len(body) for body in transcript.contributions] == [12, 8]
    assert transcript.total.tolist() == [0.5, 0.5, 0.5, 0.25, 0.25]
