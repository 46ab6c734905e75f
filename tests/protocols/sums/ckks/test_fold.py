"""The numpy fold equals SEAL's own addition, residue by residue; the form of contributions on the wire."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import CodecError, ContributionError
from protocols.layout import whole_route
from protocols.sums.ckks import mechanism
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.plan import COUNT_BYTES, PARAMETER_SETS, CkksPlan
from protocols.sums.ckks.seal_io import seal_context
from protocols.sums.ckks.wire import WireBuffer, check_expanded, check_range, join_planes, view_planes
from tests.protocols.sums.ckks.cases import (
    COMBINATIONS,
    FORMS,
    random_vector,
    residues_of,
    seal_ciphertexts,
    two_ciphertexts,
)


def folded_residues(plan: CkksPlan, partial: bytes) -> np.ndarray:
    return join_planes(view_planes(partial[COUNT_BYTES:], plan.parameter_set, plan.ciphertexts, 2, plan.degree))


@pytest.mark.parametrize(("form", "set_name", "degree"), COMBINATIONS)
def test_the_fold_equals_seals_own_add_and_opens(form: str, set_name: str, degree: int) -> None:
    plan = two_ciphertexts(form, set_name, degree)
    route, keyring = whole_route(plan.layout), CKKS.generate_keyring(plan)
    vectors = [random_vector(plan, seed) for seed in range(4)]
    bodies = [CKKS.seal(plan, route, [vector], keyring) for vector in vectors]
    partial = CKKS.fold(plan, None, [(route, body) for body in bodies])

    evaluator = seal_context(set_name, degree).evaluator
    totals = seal_ciphertexts(plan, bodies[0])
    for body in bodies[1:]:
        for total, ciphertext in zip(totals, seal_ciphertexts(plan, body), strict=True):
            evaluator.add_inplace(total, ciphertext)
    np.testing.assert_array_equal(folded_residues(plan, partial), residues_of(plan, totals))

    opened = CKKS.open(plan, CKKS.release(plan, partial), 4, keyring)
    assert np.abs(opened - np.sum(vectors, axis=0)).max() <= plan.predicted_error


def test_accumulators_never_overflow() -> None:
    """The largest residues, more often than one accumulator can hold without reducing."""
    for parameter_set in PARAMETER_SETS.values():
        top, times = parameter_set.modulus - 1, 33_000
        wire = WireBuffer.empty(parameter_set, 1, 4, seeded=False)
        wire.put(0, np.full(8, top, np.uint64))
        total = mechanism._Accumulator(parameter_set, (1, 2, 4))
        for _ in range(times):
            total.count()
            total.add(wire.planes, slice(0, 1), slice(0, 2), slice(0, 1))
        assert set(total.residues(0).tolist()) == {times * top % parameter_set.modulus}


SET = st.sampled_from(sorted(PARAMETER_SETS))


def buffer_of(set_name: str, residues: np.ndarray) -> WireBuffer:
    wire = WireBuffer.empty(PARAMETER_SETS[set_name], len(residues), residues.shape[2], seeded=residues.shape[1] == 1)
    for index, row in enumerate(residues):
        wire.put(index, np.ascontiguousarray(row))
    return wire


@settings(max_examples=40, deadline=None)
@given(SET, st.integers(0, 31), st.data())
def test_the_first_residue_out_of_range_is_found(set_name: str, position: int, data: st.DataObject) -> None:
    parameter_set = PARAMETER_SETS[set_name]
    widest = 1 << 8 * parameter_set.residue_bytes
    residues = np.full((2, 2, 8), parameter_set.modulus - 1, np.uint64)
    assert check_range(buffer_of(set_name, residues).planes, parameter_set.modulus) is None
    bad = data.draw(st.integers(parameter_set.modulus, widest - 1))
    residues.reshape(-1)[position] = bad
    assert check_range(buffer_of(set_name, residues).planes, parameter_set.modulus) == position // 16


def test_a_transparent_ciphertext_is_refused() -> None:
    residues = np.ones((3, 2, 8), np.uint64)
    residues[2, 1] = 0
    with pytest.raises(ContributionError, match="ciphertext 2 is transparent"):
        check_expanded(buffer_of("precise", residues).planes, PARAMETER_SETS["precise"].modulus)
    residues[2, 1, 7] = 1 << 50
    check_expanded(buffer_of("precise", residues).planes, PARAMETER_SETS["precise"].modulus)


@pytest.mark.parametrize("form", sorted(FORMS))
def test_check_names_the_ciphertext(form: str) -> None:
    plan = two_ciphertexts(form, "standard", 2048)
    route, polynomials = whole_route(plan.layout), 1 if plan.seeded else 2
    body = bytearray(CKKS.seal(plan, route, [random_vector(plan, 1)], CKKS.generate_keyring(plan)))
    CKKS.check(plan, route, body)
    residues = memoryview(body)[: 2 * polynomials * plan.degree * plan.parameter_set.residue_bytes]
    for plane in view_planes(residues, plan.parameter_set, 2, polynomials, plan.degree):
        plane[1, 0, 3] = np.iinfo(plane.dtype).max
    with pytest.raises(ContributionError, match="ciphertext 1 holds a residue that is not below the modulus"):
        CKKS.check(plan, route, body)
    with pytest.raises(CodecError, match="80 bytes of residues expected, got 79"):
        view_planes(bytes(79), PARAMETER_SETS["standard"], 1, 2, 8)
