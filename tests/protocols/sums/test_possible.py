"""Which opened sums are possible: honest ones are, at every bound, and what one lying member adds is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import CodecError, ParameterError
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.messages.privacy import Privacy
from protocols.privacy.noise import skellam
from protocols.recipes.base import Local, Update
from protocols.recipes.private import Private, with_privacy
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.registry import recipe
from protocols.sums.masked.plan import MASKED
from protocols.sums.plain import PLAIN
from protocols.sums.possible import order_of_triangle, require_possible, require_possible_parts
from tests.protocols.sums.conformance import one_block
from tests.vectors.common import drawn_for

SEED: Final = bytes(32)


def plan_of(layout: VectorLayout, clients: int = 12, bits: int = 32) -> Any:
    return MASKED.plan({"bits": bits, "corrupt": 0.0}, layout, clients)


@given(st.integers(0, 2**32), st.sampled_from([24, 32]))
def test_honest_sums_of_rows_pass_as_encoded(seed: int, bits: int) -> None:
    """Each client's update is as long as is allowed; all are in one direction, or each in its own."""
    rng, made = np.random.default_rng(seed), recipe("fedmf", {"items": 5, "dim": 3, "row_clip": 0.7})
    spec, state = made.round_spec(SEED, 1), made.initial_state(SEED)
    alike = rng.standard_normal((5, 3))
    vectors = []
    for client in range(12):
        values = (alike if seed % 2 else rng.standard_normal((5, 3))) * 9.0
        update = Update(np.arange(5, dtype=np.int32), values.astype(np.float32))
        vectors.append(made.contribute(state, spec, Local(update, str(client))).vector)
    plan = plan_of(made.layout(), bits=bits)
    scale = plan.segment_scales["items/update"]
    total = np.sum([np.rint(vector * scale) for vector in vectors], axis=0) / scale
    require_possible(plan, total, 12)
    with pytest.raises(CodecError, match="items/update of the opened sum holds values of a norm"):
        require_possible(plan, total * (12 * 0.7 * np.sqrt(5) / np.linalg.norm(total) * 1.02), 12)


@given(st.integers(0, 2**32))
def test_honest_sums_of_power_iterations_and_gram_matrices_pass(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parameters = {"items": 8, "components": 2, "iterations": 1, "reveal_gram": True, "min_owners": 1}
    scales: dict[str, Any] = {"user_exponent": 0.25, "item_exponent": 0.3125} if seed % 2 else {}
    made = recipe("privirec", parameters | scales)
    lists = [rng.choice(8, rng.integers(1, 8), replace=False) for _ in range(12)]
    state = made.initial_state(SEED)
    for number in (1, 2, 3):
        spec = replace(made.round_spec(SEED, number), size=made.size_after(state))
        plan = plan_of(made.layout(number, spec.size))
        parts = [made.contribute(state, spec, Local(one.astype(np.int32))).vector for one in lists]
        (scale,) = plan.segment_scales.values()
        total = np.sum([np.rint(part * scale) for part in parts], axis=0) / scale
        require_possible(plan, total, 12)
        if number == 3:
            lied = total.copy()
            lied[1] += 4.0 * max(total[0], 0.1)  # one product far above the root of its squares
            with pytest.raises(CodecError, match="holds a (product|value) that"):
                require_possible(plan, lied, 12)
        state = made.absorb(state, spec, total, 12)
    assert isinstance(made, PriviRecK)


def test_noise_of_a_privacy_block_passes_and_a_longer_sum_does_not() -> None:
    privacy = Privacy(epsilon=4.0, delta=1e-6, clip=1.0, quantile=None)
    made = with_privacy(recipe("fedmf", {"items": 40, "dim": 4}, noisy=True), privacy, 3, 100, 100)
    assert isinstance(made, Private)
    noise, plan, draws = made.noise(1), plan_of(made.layout(1), 100), drawn_for("possible", "noise")
    segment = plan.layout.blocks[0].segments[0]
    total = sum(skellam(160, noise.share, draws) for _ in range(100)).astype(np.float64)
    require_possible(plan, total, 100)
    with pytest.raises(CodecError, match="values of a norm"):
        require_possible(plan, np.full(160, np.ceil(segment.norm_of_sum(100) / np.sqrt(160))), 100)


def test_parts_of_a_sum_are_checked_like_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A norm that only all pieces together exceed."""
    monkeypatch.setattr("protocols.sums.possible._PIECE", 3)
    plan, asked = plan_of(one_block(Segment("v", 10, 1.0, norm=1.0))), list[tuple[int, int]]()
    total = np.full(10, 12 / np.sqrt(10))

    def part(start: int, stop: int) -> Any:
        asked.append((start, stop))
        return total[start:stop]

    require_possible_parts(plan, part, 12)
    assert asked == [(0, 3), (3, 6), (6, 9), (9, 10)]
    total[:] *= 1.001
    with pytest.raises(CodecError, match="values of a norm that no sum of 12"):
        require_possible_parts(plan, part, 12)
    block = Block("row", (Segment("update", 2, 0.1), Segment("sent", 1, 1.0, integral=True)))
    chosen = PLAIN.plan({}, VectorLayout((block,) * 4, chosen=1, sum_class=TRAINED), 8)
    rows = np.tile([0.3, -0.3, 3.0], 4)
    require_possible(chosen, rows, 3)
    for place, value in ((10, 0.4), (11, 0.5), (11, -1.0), (11, 4.0)):
        wrong = rows.copy()
        wrong[place] = value
        with pytest.raises(CodecError, match="row/"):
            require_possible(chosen, wrong, 3)


def test_a_triangle_has_a_length() -> None:
    assert [order_of_triangle(n * (n + 1) // 2) for n in (1, 2, 3, 3706)] == [1, 2, 3, 3706]
    for length in (2, 4, 5, 3706 * 3707 // 2 + 1):
        with pytest.raises(ParameterError, match="no triangle"):
            order_of_triangle(length)
    for field in ("norm", "sum_norm"):
        with pytest.raises(ParameterError, match=f"{field} must be finite"):
            Segment("s", 1, 1.0, **{field: np.inf})
