"""How many clients are asked at once, where they take turns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocols.cohorts import batch


@given(st.integers(0, 10_000), st.integers(1, 500))
def test_a_turn_has_as_few_batches_as_can_be_of_nearly_one_size(members: int, most: int) -> None:
    sizes, waiting = [], members
    while waiting:
        sizes.append(batch(waiting, most))
        waiting -= sizes[-1]
    assert sum(sizes) == members and len(sizes) == -(-members // most)
    assert sizes == sorted(sizes, reverse=True) and (not sizes or sizes[0] - sizes[-1] <= 1 and sizes[0] <= most)
    assert batch(0, most) == 0
