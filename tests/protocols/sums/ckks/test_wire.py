from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import CodecError, ContributionError
from protocols.layout import whole_route
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.plan import PARAMETER_SETS
from protocols.sums.ckks.wire import WireBuffer, check_expanded, check_range, join_planes, view_planes
from tests.protocols.sums.ckks.cases import FORMS, random_vector, two_ciphertexts

SET = st.sampled_from(sorted(PARAMETER_SETS))


def buffer_of(set_name: str, residues: np.ndarray) -> WireBuffer:
    wire = WireBuffer.empty(PARAMETER_SETS[set_name], len(residues), residues.shape[2], seeded=residues.shape[1] == 1)
    for index, row in enumerate(residues):
        wire.put(index, np.ascontiguousarray(row))
    return wire


@given(SET, st.integers(1, 3), st.integers(1, 2), st.integers(0, 2**32 - 1))
def test_planes_round_trip(set_name: str, ciphertexts: int, polynomials: int, seed: int) -> None:
    parameter_set = PARAMETER_SETS[set_name]
    shape = (ciphertexts, polynomials, 16)
    residues = np.random.default_rng(seed).integers(0, parameter_set.modulus, shape, dtype=np.uint64)
    wire = buffer_of(set_name, residues)
    body = bytes(wire.body)[: residues.size * parameter_set.residue_bytes]
    planes = view_planes(body, parameter_set, *shape)
    np.testing.assert_array_equal(join_planes(planes), residues)
    assert check_range(planes, parameter_set.modulus) is None


def test_planes_are_little_endian_lowest_first() -> None:
    wire = buffer_of("standard", np.array([[[0x0102030405, 0x0607080900]]], np.uint64))
    assert bytes(wire.body)[:10].hex() == "05040302" + "00090807" + "0106"


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
@pytest.mark.parametrize("set_name", sorted(PARAMETER_SETS))
def test_check_names_the_ciphertext(form: str, set_name: str) -> None:
    plan = two_ciphertexts(form, set_name, 2048)
    route = whole_route(plan.layout)
    body = bytearray(CKKS.seal(plan, route, [random_vector(plan, 1)], CKKS.generate_keyring(plan)))
    CKKS.check(plan, route, body)
    polynomials = 1 if plan.seeded else 2
    residues = 2 * polynomials * plan.degree
    planes = view_planes(
        memoryview(body)[: residues * plan.parameter_set.residue_bytes], plan.parameter_set, 2, polynomials, plan.degree
    )
    for plane in planes:
        plane[1, 0, 3] = np.iinfo(plane.dtype).max
    with pytest.raises(ContributionError, match="ciphertext 1 holds a residue that is not below the modulus"):
        CKKS.check(plan, route, body)


def test_planes_of_another_length_are_refused() -> None:
    with pytest.raises(CodecError, match="80 bytes of residues expected, got 79"):
        view_planes(bytes(79), PARAMETER_SETS["standard"], 1, 2, 8)
