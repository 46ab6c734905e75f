"""Scales, budgets, dense contributions, packing; the streams of masks, and Shamir's shares of their secrets."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from itertools import combinations

import gmpy2
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocols.errors import BudgetError, CodecError, ContributionError, ParameterError
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.sums.masked import masks
from protocols.sums.masked.masks import Mask, add_masks
from protocols.sums.masked.plan import MASKED, MaskedPlan
from protocols.sums.masked.shamir import PRIME, SHARE_BYTES, combine, split
from protocols.sums.wire import pack, packed_bytes, ring_dtype, unpack
from tests.protocols.sums.conformance import one_block, opened

LAYOUT = VectorLayout(
    (
        Block("a", (Segment("values", 3, 0.5), Segment("counts", 2, 4.0, integral=True))),
        Block("b", (Segment("values", 3, 0.5, sum_bound=1.0), Segment("counts", 2, 4.0, integral=True))),
    ),
    sum_class=TRAINED,
)


def plan_of(layout: VectorLayout = LAYOUT, contributions: int = 100, **parameters: object) -> MaskedPlan:
    return MASKED.plan(parameters, layout, contributions)


def scales(plan: MaskedPlan) -> list[float]:
    return [ring.scale for places in plan.places for ring, _ in places]


def test_every_segment_has_the_finest_scale_that_fits_and_half_a_step_of_error_a_contribution() -> None:
    """100 contributions of 0.5 add up to 50, a proven bound of 1 leaves 50 times the room; counts have scale 1."""
    plan = plan_of(bits=32)
    assert scales(plan) == [2.0**25, 1.0, 2.0**30, 1.0]
    assert scales(plan_of(bits=16)) == [2.0**9, 1.0, 2.0**14, 1.0]
    assert [(s.start, s.stop) for places in plan.places for _, s in places] == [(0, 3), (3, 5), (5, 8), (8, 10)]
    assert plan.segment_errors["a/counts"] == 0.0
    assert plan.segment_errors["a/values"] == plan.predicted_error == pytest.approx(50 * 2.0**-25, rel=1e-6)
    assert plan.segment_errors["b/values"] == pytest.approx(50 * 2.0**-30, rel=1e-6)


@given(st.sampled_from([16, 20, 32, 50, 64]), st.sampled_from([None, 3.0, 0.01]), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_sums_are_off_by_no_more_than_predicted(bits: int, sum_bound: float | None, seed: int) -> None:
    """Values that may be far above the proven bound on the sum, and cancel in it: wrapping on the way does no harm."""
    layout = one_block(Segment("v", 4, 2.0, sum_bound=sum_bound))
    plan = plan_of(layout, 6, bits=bits)
    rng = np.random.default_rng(seed)
    rows = rng.uniform(-2, 2, (3, 4))
    limit = 6.0 * 2.0 if sum_bound is None else sum_bound
    vectors = np.clip(np.concatenate([rows, -rows]) + rng.uniform(-limit, limit, (6, 4)) / 6, -2, 2)
    if sum_bound is not None:
        vectors[3:] = -vectors[:3]
    bodies = [pack(plan.encode(whole_route(layout), [vector]), bits) for vector in vectors]
    exact = np.array([math.fsum(column) for column in vectors.T])  # numpy's own sum is off by more than the plan
    assert np.abs(opened(MASKED, plan, bodies) - exact).max() <= plan.predicted_error


def test_a_contribution_is_dense_whatever_its_route() -> None:
    plan = plan_of(bits=32)
    block = np.array([0.5, -0.25, 0.0, 3.0, 0.0])
    for route in range(3):
        assert plan.contribution_bytes(route) == 40
        assert plan.encode(route, [block] * route).shape == (10,)
    first, both = plan.encode(1, [block]), plan.encode(2, [block, block])
    assert not first[5:].any()
    assert (both[:5] == first[:5]).all()
    assert both[0] == 2**24
    assert both[5] == 2**29, "each block has the scale of its own bound"
    assert both[3] == both[8] == 3


def test_counts_are_whole_and_a_clip_done_in_float32_is_forgiven() -> None:
    for count in (0.5, -0.25, 3.999):
        with pytest.raises(ParameterError, match="'a' holds a count"):
            plan_of().encode(1, [np.array([0, 0, 0, 0, count])])
    over, plan = np.array([np.float32(0.1)], dtype=np.float64), plan_of(one_block(Segment("v", 1, 0.1)))
    assert over[0] > 0.1
    assert plan.encode(1, [over]) == plan.encode(1, [np.array([0.1])])


def test_a_budget_that_does_not_fit_says_what_does() -> None:
    for segment, bits, contributions, fits in (
        (Segment("n", 1, 1.0, integral=True), 16, 32768, "at most 32767 contributions fit, or 17 bits fit"),
        (Segment("n", 1, 400.0, integral=True), 16, 100, "at most 81 contributions fit, or 17 bits fit"),
        (Segment("n", 1, 2.0**61, integral=True), 64, 4, "at most 3 contributions fit"),
        (Segment("n", 1, 2.0**63, integral=True), 64, 3, "no ring fits"),
        (Segment("v", 1, 1.0), 16, 2**31, "no sum has over 2147483647 .* at most 16383 contributions fit"),
        (Segment("v", 1, 100.0), 16, 30000, "a ring step is"),
    ):
        with pytest.raises(BudgetError, match=fits):
            plan_of(one_block(segment), contributions, bits=bits)
    # a proven bound makes room: 30,000 contributions of up to 100 whose sum stays below 1
    plan_of(one_block(Segment("n", 1, 100.0, integral=True, sum_bound=32767.0)), 30000, bits=16)
    assert scales(plan_of(one_block(Segment("v", 1, 100.0, sum_bound=1.0)), 30000, bits=16)) == [2.0**11]


def test_parameters_are_checked() -> None:
    for name, value in (
        *(("bits", 15), ("bits", 65), ("bits", "many"), ("mode", "malicious")),
        *(("corrupt", 1.0), ("dropout", -0.1), ("sigma", 19), ("eta", 81)),
    ):
        with pytest.raises(ParameterError, match=name):
            plan_of(LAYOUT, 10, **{name: value})
    with pytest.raises(ParameterError, match="at least 3"):
        plan_of(LAYOUT, 2)


def test_the_plan_knows_the_neighbourhood_of_any_cohort() -> None:
    plan = plan_of(contributions=1000, corrupt=0.05, dropout=0.05, sigma=40)
    assert (plan.neighbourhood(1000).degree, plan.neighbourhood(1000).threshold) == (62, 43)
    facts = json.loads(json.dumps(plan.describe()))
    assert (facts["neighbourhood"]["degree"], facts["mode"], facts["bytes_per_value"]) == (62, "semi-malicious", 4.0)
    none = plan_of(LAYOUT, 100, corrupt=0.5, dropout=0.5)
    for ask in (none.describe, lambda: none.neighbourhood(100)):
        with pytest.raises(ParameterError, match="a dropout of at most"):
            ask()


def test_a_sum_whose_masks_did_not_cancel_is_refused() -> None:
    """100 contributions of a count of at most 4: a total of 401 has not been unmasked."""
    plan = plan_of(bits=32)
    step = 1.0 / scales(plan)[0]  # each of 100 values of at most its clip may be half a step too large
    most = round(100 * plan.layout.blocks[0].segments[0].clip / step) + 50
    for place, element, fine in (
        *((3, 400, True), (3, 401, False), (4, 2**32 - 401, False)),
        *((0, 2**31, False), (0, most, True), (0, most + 1, False)),
    ):
        total = np.zeros(10, np.uint32)
        total[place] = element
        refused = pytest.raises(CodecError, match="beyond the bound of a sum of 100 contributions")
        with nullcontext() if fine else refused:
            assert MASKED.open(plan, pack(total, 32), 100, None)[place] == element / (1 if place else 1 / step)
    with pytest.raises(CodecError, match="beyond the bound of a sum of 99"):
        MASKED.open(plan, pack(np.full(10, 400, np.uint32), 32), 99, None)


def by_hand(elements: list[int], bits: int) -> bytes:
    total = sum(element << i * bits for i, element in enumerate(elements))
    return total.to_bytes((len(elements) * bits + 7) // 8, "little")


@given(bits=st.integers(16, 64), data=st.data(), count=st.integers(0, 200))
@settings(max_examples=40, deadline=None)
def test_packing_is_one_long_integer(bits: int, data: st.DataObject, count: int) -> None:
    seed = data.draw(st.integers(0, 2**32 - 1))
    wide = np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64, endpoint=False)
    elements = (wide & np.uint64((1 << bits) - 1)).astype(ring_dtype(bits))
    body = pack(elements, bits)
    assert len(body) == packed_bytes(count, bits)
    assert body == by_hand(elements.tolist(), bits)
    read = unpack(memoryview(bytearray(body)), bits, count)
    assert read.dtype == ring_dtype(bits)
    assert (read == elements).all()


def test_elements_are_taken_modulo_the_ring_and_have_one_form() -> None:
    """Bodies of another length, or with unused bits, are refused; raw elements are neither copied nor written."""
    assert pack(np.array([2**20 + 5, 2**32 - 1], np.uint32), 20) == by_hand([5, 2**20 - 1], 20)
    for bits, count in ((17, 1), (20, 3), (33, 5), (63, 1), (32, 9)):
        body = pack(np.zeros(count, ring_dtype(bits)), bits)
        for wrong in (body[:-1], body + b"\0"):
            with pytest.raises(CodecError, match=f"{count} elements"):
                unpack(wrong, bits, count)
        for bit in range(count * bits % 8 or 8, 8):
            with pytest.raises(CodecError, match="unused bits"):
                unpack(body[:-1] + bytes([1 << bit]), bits, count)
    plan = plan_of(one_block(Segment("v", 3, 0.5)), bits=20)
    MASKED.check(plan, 1, bytes(8))
    with pytest.raises(ContributionError, match="unused bits"):
        MASKED.check(plan, 1, bytes(7) + b"\x10")
    for width in (0, 15, 65):
        with pytest.raises(ParameterError, match="16 to 64"):
            pack(np.zeros(1, np.uint32), width)
    with pytest.raises(ParameterError, match="uint32"):
        pack(np.zeros(1, np.uint64), 32)
    raw = bytearray(pack(np.arange(5, dtype=np.uint32), 32))
    read = unpack(raw, 32, 5)
    raw[0] = 9
    assert read[0] == 9 and not read.flags.writeable


KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
STEP = masks._STEP


@pytest.mark.parametrize(("dtype", "threads"), [(np.uint16, 1), (np.uint32, 2), (np.uint64, 3)])
def test_pieces_threads_and_steps_make_no_difference(dtype: type, threads: int) -> None:
    """Over the edges of steps."""
    width = np.dtype(dtype).itemsize
    count = 2 * STEP // width + 7
    plan: list[Mask] = [(KEY, b"a", 1), (OTHER, b"a", -1), (KEY, b"b", 1)]
    whole = np.zeros(count, dtype)
    for key, context, sign in plan:
        add_masks(whole, [(key, context, sign)])
    together = np.zeros(count, dtype)
    add_masks(together, plan, threads)
    assert (together == whole).all()
    pieces = np.zeros(count, dtype)
    edges = [0, 1, STEP // width - 1, STEP // width + 3, count - 1, count]
    for start, end in zip(edges, edges[1:], strict=False):
        add_masks(pieces[start:end], plan, threads, start)
    assert (pieces == whole).all()


def test_more_streams_than_a_batch() -> None:
    """1,100 streams, of which 1,098 cancel."""
    plan: list[Mask] = [(KEY, number.to_bytes(2, "big"), 1) for number in range(550)]
    plan += [(KEY, number.to_bytes(2, "big"), -1) for number in range(1, 550)] + [(OTHER, b"last", 1)]
    target = np.zeros(50, np.uint32)
    add_masks(target, plan)
    assert len(plan) > 2 * masks._BATCH
    add_masks(target, [(KEY, bytes(2), -1), (OTHER, b"last", -1)])
    assert not target.any()


def test_what_cannot_be_masked() -> None:
    good = np.zeros(4, np.uint32)
    for target in (np.zeros(4, np.int32), np.zeros(4, ">u4"), np.zeros((2, 2), np.uint32), np.zeros(8, np.uint32)[::2]):
        with pytest.raises(ParameterError, match="contiguous"):
            add_masks(target, [(KEY, b"", 1)])
    for key, sign in ((KEY[:31], 1), (KEY, 2)):
        with pytest.raises(ParameterError, match="32 bytes and the sign"):
            add_masks(good, [(key, b"", sign)])
    for threads, start in ((0, 0), (1, -1)):
        with pytest.raises(ParameterError, match="threads"):
            add_masks(good, [(KEY, b"", 1)], threads, start)
    add_masks(np.zeros(0, np.uint32), [(KEY, b"", 1)], 2)
    add_masks(good, [], 2)
    assert not good.any()


SECRET = bytes(range(32))


def shares_of(secret: bytes, threshold: int, points: list[int]) -> dict[int, bytes]:
    return dict(zip(points, split(secret, threshold, points), strict=True))


@given(secret=st.binary(min_size=32, max_size=32), threshold=st.integers(1, 6), extra=st.integers(0, 4))
@example(bytes(32), 3, 0)
@example(b"\xff" * 32, 3, 0)
@settings(max_examples=30, deadline=None)
def test_any_t_shares_give_the_secret(secret: bytes, threshold: int, extra: int) -> None:
    points = [3, 1, 7, 2**31 - 1, 10, 2, 100, 5, 6, 4][: threshold + extra]
    shares = shares_of(secret, threshold, points)
    assert all(len(share) == SHARE_BYTES for share in shares.values())
    for chosen in combinations(points, threshold):
        assert combine({point: shares[point] for point in chosen}, threshold) == secret
    assert combine(shares, threshold) == secret


def test_the_prime_is_the_least_above_every_secret() -> None:
    assert gmpy2.next_prime(2**256) == PRIME


def test_coefficients_are_uniform_and_fresh() -> None:
    """Candidates from 2^257 - 1 down are thrown away until one is below p: no modulo, no bias."""

    def drawing(*values: int) -> Callable[[int], bytes]:
        left = iter(values)
        return lambda length: (next(left) << 7 | 0x55).to_bytes(length, "little")

    for last in (PRIME - 1, 0):
        drawn = split(SECRET, 2, [1, 2], drawing(PRIME, PRIME + 1, 2**257 - 1, last))
        assert drawn == split(SECRET, 2, [1, 2], drawing(last)) != split(SECRET, 2, [1, 2], drawing(7))
    assert split(SECRET, 2, [1, 2]) != split(SECRET, 2, [1, 2])


def test_what_cannot_be_split_or_combined() -> None:
    """2^256 is in the field but does not fit 32 bytes."""
    for secret, threshold, points in (
        (SECRET[:31], 2, [1, 2]),
        *((SECRET, threshold, points) for threshold, points in ((0, [1, 2]), (3, [1, 2]), (1, []))),
        *((SECRET, 2, points) for points in ([1, 1], [0, 1], [1, 2**31], [-1, 1])),
    ):
        with pytest.raises(ParameterError):
            split(secret, threshold, points)
    shares = shares_of(SECRET, 3, [1, 2, 3, 4, 5])
    assert combine(shares | {4: bytes(33), 5: bytes(33)}, 3) == SECRET  # the lowest points are used
    assert combine(shares | {3: bytes(33)}, 3) != SECRET
    for share in (b"", bytes(32), bytes(34), PRIME.to_bytes(33, "little"), b"\xff" * 33):
        with pytest.raises(CodecError, match="point 2"):
            combine(shares | {2: share}, 3)
    with pytest.raises(CodecError, match="wrong"):
        combine({1: (2**256).to_bytes(SHARE_BYTES, "little")}, 1)
