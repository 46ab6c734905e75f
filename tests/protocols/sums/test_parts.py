"""Long vectors are checked, folded, unmasked, opened and absorbed in parts: the results and the memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocols.errors import CodecError, ContributionError, ParameterError
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.sums.base import ChecksByParts, Mechanism, OpensByParts, SumPlan
from protocols.sums.masked.plan import MASKED
from protocols.sums.oneshot import mechanism as oneshot_fold
from protocols.sums.oneshot.mechanism import ONESHOT
from protocols.sums.oneshot.member import candidates
from protocols.sums.plain import PLAIN
from protocols.sums.wire import BytesBuilder, pack, packed_bytes, unpack, unpack_part
from tests.protocols.sums.conformance import one_block, vector_along
from tests.protocols.sums.oneshot.rounds import Round, small_plan
from tests.support.measured import peak_of

LAYOUT = VectorLayout(
    (
        Block("a", (Segment("v", 1000, 0.1), Segment("n", 77, 1.0, integral=True))),
        Block("b", (Segment("w", 500, 2.0),)),
    ),
    sum_class=TRAINED,
)
ROUTE = whole_route(LAYOUT)
PLACES = [(0, 1577), (0, 1), (63, 65), (64, 128), (999, 1078), (1576, 1577), (3, 3), (1100, 1577)]


VECTORS = [vector_along(ROUTE, np.random.default_rng(seed), LAYOUT) for seed in range(3)]


def aggregate_of(summing: Mechanism, parameters: dict[str, Any]) -> tuple[SumPlan, bytes]:
    """The aggregate of three contributions: for mechanisms with masks, of the ring elements without masks."""
    plan = summing.plan(parameters, LAYOUT, 10)
    made = [LAYOUT.split(vector) for vector in VECTORS]
    if summing.name == "plain":
        partial = PLAIN.fold(plan, None, ((ROUTE, PLAIN.seal(plan, ROUTE, parts, None)) for parts in made))
        return plan, PLAIN.release(plan, partial)
    ring = MASKED.plan({"bits": parameters["bits"]}, LAYOUT, 10)
    return plan, pack(sum((ring.encode(ROUTE, parts) for parts in made), np.zeros(1577, ring.dtype)), ring.bits)


@pytest.mark.parametrize(("summing", "parameters"), [(PLAIN, {}), (MASKED, {"bits": 23}), (ONESHOT, {"bits": 32})])
def test_a_part_of_a_sum_is_that_of_the_whole(summing: Mechanism, parameters: dict[str, Any]) -> None:
    plan, aggregate = aggregate_of(summing, parameters)
    assert isinstance(summing, OpensByParts)
    whole = summing.open(plan, aggregate, 3, None)
    np.testing.assert_allclose(whole, np.sum(VECTORS, axis=0), atol=plan.predicted_error)
    for start, stop in PLACES:
        np.testing.assert_array_equal(summing.open_part(plan, aggregate, 3, start, stop), whole[start:stop])
    with pytest.raises(CodecError):
        summing.open_part(plan, aggregate[:-1], 3, 0, 1)


def test_values_beyond_the_bound_are_found_in_the_part_that_has_them() -> None:
    plan, aggregate = aggregate_of(MASKED, {"bits": 32})
    elements = np.frombuffer(aggregate, np.uint32).copy()
    elements[1300] = 2**31 - 1
    MASKED.open_part(plan, elements.tobytes(), 3, 0, 1300)
    with pytest.raises(CodecError, match="beyond the bound"):
        MASKED.open_part(plan, elements.tobytes(), 3, 1300, 1301)


@pytest.mark.parametrize("length", [16, 1600])
def test_parts_of_a_contribution_check_what_the_whole_does(length: int) -> None:
    def by_parts(summing: Mechanism, plan: SumPlan, body: bytes) -> None:
        assert isinstance(summing, ChecksByParts)
        for start in range(0, len(body), length):
            summing.check_part(plan, ROUTE, start, body[start : start + length])

    plain = PLAIN.plan({}, LAYOUT, 10)
    body = PLAIN.seal(plain, ROUTE, LAYOUT.split(VECTORS[0]), None)
    by_parts(PLAIN, plain, body)
    for place in (0, 999, 1100, 1576):
        values = np.frombuffer(body, "<f4").copy()
        values[place] = 3.0
        with pytest.raises(ContributionError, match=f"value {place} "):
            by_parts(PLAIN, plain, values.tobytes())
    shot = ONESHOT.plan({}, LAYOUT, 10)
    residues = np.zeros((len(shot.ring.primes), shot.coefficients), "<u4")
    by_parts(ONESHOT, shot, residues.tobytes())
    for plane, prime in enumerate(shot.ring.primes):
        for place in (0, shot.coefficients - 1):
            wrong = residues.copy()
            wrong[plane, place] = prime
            with pytest.raises(ContributionError, match=f"plane {plane} "):
                by_parts(ONESHOT, shot, wrong.tobytes())


def test_masks_come_off_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks, and a last one that is cut: as if the masks came off the whole sum at once."""
    played = Round(small_plan(values=30_000)).contribute()
    points = played.points(played.summed())
    ((secret, _),) = candidates(points, played.plan.threshold, played.plan.ring.primes[0], len(played.names))
    partial, binding, plan = played.partial(), played.context.binding, played.plan
    expected = oneshot_fold.release_unmasked(plan, partial, binding, secret)  # in one block
    np.testing.assert_array_equal(ONESHOT.open(plan, expected, len(played.names), None), played.truth(played.names))
    monkeypatch.setattr(oneshot_fold, "_BLOCK", plan.ring.degree)
    assert oneshot_fold.release_unmasked(plan, partial, binding, secret) == expected
    assert plan.polynomials > 1
    with pytest.raises(CodecError):
        oneshot_fold.release_unmasked(plan, partial, binding, secret + 1)
    with pytest.raises(ParameterError, match="a sum of secrets"):
        oneshot_fold.release_unmasked(plan, partial, binding, secret[1:])


LONG = one_block(Segment("v", 1_000_000, 0.1))


@pytest.mark.parametrize(("summing", "vectors_of_4_bytes"), [(PLAIN, 2), (MASKED, 1), (ONESHOT, 1.2)])
def test_a_fold_needs_the_memory_of_its_result(summing: Mechanism, vectors_of_4_bytes: float) -> None:
    plan = summing.plan({}, LONG, 10)
    bodies = [(whole_route(LONG), bytes(plan.contribution_bytes(whole_route(LONG))))] * 3
    partial = summing.fold(plan, None, bodies)
    _, peak = peak_of(lambda: summing.fold(plan, partial, bodies))
    assert len(partial) <= peak < 4_000_000 * vectors_of_4_bytes + 1_500_000


def test_a_draft_is_not_copied_and_not_changed_afterwards() -> None:
    _, peak = peak_of(lambda: BytesBuilder(4_000_000).finish())
    assert 4_000_000 <= peak < 4_100_000
    builder = BytesBuilder(8)
    held = np.frombuffer(builder.body, "<u4")
    made = builder.finish()
    held += 1
    assert made == bytes(8)


def test_long_vectors_are_packed_and_folded_in_pieces() -> None:
    for count in (2**18, 2**18 + 1, 2**19 + 77):
        elements = np.random.default_rng(2).integers(0, 2**22, count).astype(np.uint32)
        body = pack(elements, 23)
        assert len(body) == packed_bytes(count, 23)
        np.testing.assert_array_equal(unpack(body, 23, count), elements)
        np.testing.assert_array_equal(unpack_part(body, 23, count, count - 5, count), elements[-5:])
    plan = MASKED.plan({"bits": 23}, one_block(Segment("v", count, 1.0)), 3)
    assert MASKED.release(plan, MASKED.fold(plan, None, [(1, body)] * 2)) == pack(2 * elements, 23)
    with pytest.raises(ParameterError, match="not 3 to"):
        unpack_part(body, 23, count, 3, count + 1)


def test_contributions_that_name_their_blocks_are_not_checked_in_parts() -> None:
    entry = Block("entry", (Segment("update", 2, 0.5),))
    layout = VectorLayout((entry,) * 4, chosen=2, sum_class=TRAINED)
    with pytest.raises(ParameterError, match="as a whole"):
        PLAIN.check_part(PLAIN.plan({}, layout, 3), whole_route(LAYOUT), 0, bytes(16))
