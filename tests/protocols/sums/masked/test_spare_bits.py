"""Bits of the ring that sums leave free, so that garbage shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from protocols.errors import BudgetError, CodecError, ParameterError
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.sums.masked.plan import MASKED, make_plan
from protocols.sums.ring import MOST_SPARE, spare_bits
from protocols.sums.wire import pack

LAYOUT = VectorLayout((Block("a", (Segment("v", 4000, 1.0), Segment("n", 2, 1.0, integral=True))),), sum_class=TRAINED)


def share_that_opens(spare: int) -> float:
    """The share of sums with garbage in one place alone that open."""
    plan, rng = make_plan({"spare": spare}, LAYOUT, 15), np.random.default_rng(1)
    opened = 0
    for value in rng.integers(0, 2**32, 2000, np.uint32):
        elements = np.zeros(4002, np.uint32)
        elements[7] = value
        try:
            MASKED.open(plan, pack(elements, 32), 15, None)
            opened += 1
        except CodecError:
            pass
    return opened / 2000


def test_garbage_in_one_value_passes_with_the_stated_probability() -> None:
    for spare, most in ((0, 1.0), (3, 2.0**-3), (8, 2.0**-8)):
        stated = make_plan({"spare": spare}, LAYOUT, 15).garbage_passes
        assert stated <= most
        assert share_that_opens(spare) == pytest.approx(stated, abs=0.06)


def test_sums_are_what_they_were_with_coarser_steps() -> None:
    wide, narrow = (make_plan({"spare": spare}, LAYOUT, 15) for spare in (0, 8))
    assert narrow.segment_scales == {"a/v": wide.segment_scales["a/v"] / 256, "a/n": 1.0}
    assert narrow.describe()["garbage_passes"] == narrow.garbage_passes < wide.garbage_passes
    values = np.concatenate([np.random.default_rng(2).uniform(-1, 1, 4000), [1.0, 0.0]])
    total = np.sum([narrow.encode(1, [values]) for _ in range(15)], axis=0, dtype=np.uint32)
    opened = MASKED.open(narrow, pack(total, 32), 15, None)
    np.testing.assert_allclose(opened, 15 * values, atol=narrow.predicted_error)
    assert opened[-2] == 15.0


def test_what_leaves_no_ring_is_refused() -> None:
    with pytest.raises(ParameterError, match="8 spare bits leave fewer than 16 of 20"):
        make_plan({"bits": 20, "spare": 8}, LAYOUT, 15)
    with pytest.raises(BudgetError, match="bits fit"):
        make_plan({"bits": 16}, VectorLayout((replace(LAYOUT.blocks[0], name="b"),), sum_class=TRAINED), 40_000)


def test_as_many_bits_are_spared_as_a_mean_can_do_without() -> None:
    assert [spare_bits(32, clients) for clients in (1, 100, 4000, 6040, 100_000)] == [MOST_SPARE, 8, 8, 7, 3]
    assert spare_bits(16, 100) == 0
