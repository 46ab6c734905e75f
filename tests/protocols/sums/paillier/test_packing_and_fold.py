"""Plans and packing of Paillier sums; the fold of contributions, and their form on the wire."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.codec import b64encode
from protocols.errors import BudgetError, CodecError, ContributionError, KeyringError, ParameterError
from protocols.layout import CLIP_SLACK, TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.sums.base import NamesPublicKey
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.paillier.mechanism import PAILLIER
from protocols.sums.paillier.packing import MAX_SUM, BlockPacking, SegmentCode
from protocols.sums.paillier.plan import make_plan
from tests.protocols.sums.paillier.cases import (
    LAYOUT,
    body_of,
    ciphertexts,
    made_up_keyring,
    made_up_primes,
    small_plan,
    some_vector,
    under,
)

PLAN = small_plan()
ROUTE = ((0,),)
KEYRING = made_up_keyring(PLAN)
BODIES = [PAILLIER.seal(PLAN, ROUTE, [some_vector(seed)], KEYRING) for seed in range(3)]
N = int.from_bytes(KEYRING.public_key, "big")


def test_a_contribution_under_another_key_is_refused_not_added() -> None:
    other = PAILLIER.seal(PLAN, ROUTE, [some_vector(9)], made_up_keyring(PLAN, "another key"))
    for first, second in ((BODIES[0], other), (other, BODIES[0])):
        with pytest.raises(ContributionError, match="another public key"):
            PAILLIER.fold(PLAN, None, [(ROUTE, first), (ROUTE, second)])
        with pytest.raises(ContributionError, match="another public key"):
            PAILLIER.fold(PLAN, PAILLIER.fold(PLAN, None, [(ROUTE, first)]), [(ROUTE, second)])
        with pytest.raises(ContributionError, match="another public key"):
            PAILLIER.merge(PLAN, [PAILLIER.fold(PLAN, None, [(ROUTE, body)]) for body in (first, second)])


def test_a_partial_of_something_names_its_modulus() -> None:
    empty = PAILLIER.fold(PLAN, None, [])
    assert empty[8:264] == bytes(256)
    with pytest.raises(CodecError, match="must name their modulus"):
        PAILLIER.release(PLAN, (1).to_bytes(8, "little") + empty[8:])
    named = under(PLAN, KEYRING.public_key)
    assert PAILLIER.fold(named, None, [])[8:264] == KEYRING.public_key


P, Q = made_up_primes(2048)
BODY = PAILLIER.seal(PLAN, ROUTE, [some_vector(0)], KEYRING)
GOOD = ciphertexts(PLAN, BODY)


def test_the_ciphertext_that_must_not_enter_is_named() -> None:
    PAILLIER.check(PLAN, ROUTE, BODY)
    for place, (bad, text) in enumerate(
        (
            *((bad, "not in the range") for bad in (0, N * N, N * N + 1, (1 << 4096) - 1)),
            *((bad, "not invertible") for bad in (P, N, Q * Q)),
            *((bad, "transparent") for bad in (1, 1 + 5 * N)),
        )
    ):
        numbers = [*GOOD]
        numbers[place % len(GOOD)] = bad
        with pytest.raises(ContributionError, match=f"ciphertext {place % len(GOOD)} is {text}"):
            PAILLIER.check(PLAN, ROUTE, body_of(PLAN, numbers, N))
    for n in (0, 1, N - 1, N >> 1 | 1):
        with pytest.raises(ContributionError, match="modulus"):
            PAILLIER.check(PLAN, ROUTE, body_of(PLAN, GOOD, n))


def test_a_plan_that_names_its_key_refuses_every_other() -> None:
    named = under(PLAN, KEYRING.public_key)
    PAILLIER.check(named, ROUTE, BODY)
    other = PAILLIER.seal(PLAN, ROUTE, [some_vector(0)], made_up_keyring(PLAN, "another key"))
    PAILLIER.check(PLAN, ROUTE, other)
    with pytest.raises(ContributionError, match="public key that the task names"):
        PAILLIER.check(named, ROUTE, other)
    with pytest.raises(CodecError, match="public key that the task names"):
        PAILLIER.fold(named, None, [(ROUTE, other)])
    with pytest.raises(CodecError, match="public key that the task names"):
        PAILLIER.fold(named, PAILLIER.fold(PLAN, None, [(ROUTE, other)]), [])


def test_aggregates_of_another_form_are_refused() -> None:
    aggregate = PAILLIER.release(PLAN, PAILLIER.fold(PLAN, None, [(ROUTE, BODY)]))
    assert aggregate == BODY  # of one contribution
    for bad in (0, N * N):
        with pytest.raises(CodecError, match="range"):
            PAILLIER.open(PLAN, body_of(PLAN, [bad, *GOOD[1:]], N), 1, KEYRING)
    with pytest.raises(CodecError, match="odd modulus"):
        PAILLIER.open(PLAN, body_of(PLAN, GOOD, N - 1), 1, KEYRING)
    with pytest.raises(KeyringError, match="another public key"):
        PAILLIER.open(PLAN, body_of(PLAN, GOOD, N - 2), 1, KEYRING)


def test_what_overflows_its_slots_does_not_open() -> None:
    huge = (1 + (1 << 2046) * N) * GOOD[0] % (N * N)
    with pytest.raises(CodecError, match="overflows its slots"):
        PAILLIER.open(PLAN, body_of(PLAN, [huge, *GOOD[1:]], N), 1, KEYRING)


SEGMENTS = st.lists(
    st.tuples(st.integers(1, 150), st.sampled_from([1e-3, 0.1, 1.0, 7.0, 300.0]), st.booleans()), min_size=1, max_size=4
)


class Packing:
    """A packing and the one block that it is used for."""

    def __init__(self, packing: BlockPacking, block: Block) -> None:
        self.packing, self.block = packing, block
        self.codes, self.runs, self.plaintexts = packing.codes, packing.runs, packing.plaintexts

    def pack(self, values: np.ndarray) -> list[int]:
        return self.packing.pack(self.block, values)

    def unpack(self, plaintexts: list[int]) -> np.ndarray:
        return self.packing.unpack(self.block, plaintexts)


def packing_of(shape: list[tuple[int, float, bool]], value_bits: int, contributions: int, bits: int) -> Packing:
    segments = tuple(
        Segment(f"s{i}", length, max(clip, 1.0) if integral else clip, integral)
        for i, (length, clip, integral) in enumerate(shape)
    )
    codes = tuple(SegmentCode.of(segment, value_bits, contributions) for segment in segments)
    return Packing(BlockPacking(segments, codes, bits), Block("b", segments))


def vectors_within(packing: Packing, count: int, seed: int) -> list[np.ndarray]:
    """Half of the values at the edge of the clip, and all of one sign in one vector of three."""
    rng = np.random.default_rng(seed)
    bounds, whole = packing.block.bounds(), packing.block.integral_mask()
    out = []
    for index in range(count):
        values = bounds * (np.clip(rng.uniform(-2, 2, bounds.size), -1, 1) if index % 3 else rng.choice([-1, 1]))
        out.append(np.where(whole, np.rint(values), values))
    return out


@settings(deadline=None, max_examples=40)
@given(
    SEGMENTS, st.sampled_from([8, 20, 32, 45]), st.integers(1, 9), st.sampled_from([2048, 3072]), st.integers(0, 999)
)
def test_sums_of_plaintexts_are_sums_of_values(
    shape: list[tuple[int, float, bool]], value_bits: int, contributions: int, bits: int, seed: int
) -> None:
    """Exactly: every value rounded to its grid, added as whole numbers."""
    packing = packing_of(shape, value_bits, contributions, bits)
    vectors = vectors_within(packing, contributions, seed)
    plaintexts = [sum(column) for column in zip(*(packing.pack(v) for v in vectors), strict=True)]
    scales = np.repeat([code.scale for code in packing.codes], [s.length for s in packing.block.segments])
    truth = sum(np.rint(v * scales).astype(np.int64) for v in vectors) / scales
    assert packing.unpack(plaintexts).tolist() == truth.tolist()
    assert all(abs(m) < 1 << (bits - 3) for m in plaintexts)  # below n/4: phe reads the sign, too


@settings(deadline=None, max_examples=40)
@given(st.integers(8, 48), st.integers(1, 2**20), st.floats(1e-6, 1e6), st.booleans())
def test_a_slot_holds_the_largest_sum_and_no_bit_more(
    value_bits: int, contributions: int, clip: float, integral: bool
) -> None:
    code = SegmentCode.of(Segment("s", 1, clip, integral), value_bits, contributions)
    assert contributions * code.largest < 1 << (code.width - 1)
    assert contributions * code.largest >= 1 << (code.width - 2)
    assert np.rint(clip * CLIP_SLACK * code.scale) <= code.largest
    if not integral:
        assert 1 << (value_bits - 3) < code.largest < 1 << (value_bits - 1)


def test_codes_of_counts_and_clips_without_a_scale() -> None:
    assert SegmentCode.of(Segment("touched", 1, 1.0, integral=True), 32, 60).width == 7
    assert SegmentCode.of(Segment("weight", 1, 500.0, integral=True), 32, 100).width == 17
    for clip in (1.7976931e308, 1e-310):
        with pytest.raises(BudgetError, match="no scale"):
            SegmentCode.of(Segment("s", 1, clip), 32, 2)
    with pytest.raises(ParameterError, match="'s1' holds a count"):
        packing_of([(1, 0.1, False), (2, 1.0, True)], 32, 1, 2048).pack(np.array([0.0, 1.0, 0.5]))


def test_plaintexts_that_nothing_adds_up_to_are_refused() -> None:
    packing = packing_of([(60, 0.1, False)], 32, 100, 2048)
    good = packing.pack(np.zeros(60))
    packing.unpack(good)
    for bad in (1 << 2047, -(1 << 2046), 1 << 2046):
        with pytest.raises(CodecError, match="overflows"):
            packing.unpack([bad, good[1]])
    with pytest.raises(CodecError, match="overflows"):
        packing.unpack([good[0], good[1] + 1])  # below the last slot


def test_the_largest_sum_is_exact_in_float64() -> None:
    assert float(MAX_SUM) == MAX_SUM
    packing = packing_of([(2, 1.0, True)], 8, MAX_SUM, 2048)
    one, minus = packing.pack(np.array([1.0, -1.0]))[0], packing.pack(np.array([-1.0, 1.0]))[0]
    assert packing.unpack([one * MAX_SUM]).tolist() == [MAX_SUM, -MAX_SUM]
    assert packing.unpack([minus * MAX_SUM]).tolist() == [-MAX_SUM, MAX_SUM]


VECTOR = VectorLayout((Block("b", (Segment("values", 3706, 0.1),)),), sum_class=TRAINED)


def test_slots_lengths_and_errors_of_plans() -> None:
    """Values of 32 bits and 8 of headroom; counts are packed closer, 292 slots of 7 bits."""
    route = whole_route(VECTOR)
    for bits, slots, count in ((2048, 51, 73), (3072, 76, 49)):
        plan = make_plan({"key_bits": bits}, VECTOR, 256)
        (packing,) = plan.packings
        assert (packing.codes[0].width, packing.runs[0].slots, plan.ciphertexts) == (40, slots, count)
        assert plan.contribution_bytes(route) == plan.aggregate_bytes == bits // 8 + count * bits // 4
    counts = VectorLayout((Block("b", (Segment("touched", 3706, 1.0, integral=True),)),), sum_class=TRAINED)
    assert make_plan({"key_bits": 2048}, counts, 60).ciphertexts == 13
    plan = small_plan(contributions=60)
    scale = plan.packings[0].codes[0].scale
    assert plan.segment_errors == {"b/values": 30 / scale, "b/touched": 0.0}
    assert plan.predicted_error == 30 / scale < 60 * 0.1 * 2.0**-30
    assert small_plan(contributions=60, value_bits=33).predicted_error == plan.predicted_error / 2


def test_the_defaults_are_128_bits_of_security() -> None:
    facts = make_plan({}, LAYOUT, 3).describe()
    assert (facts["key_bits"], facts["security_bits"]) == (3072, 128)
    assert facts["max_contributions"] == 3
    assert facts["values_per_ciphertext"] == LAYOUT.length / facts["ciphertexts"]
    assert make_plan({"key_bits": 2048}, LAYOUT, 3).describe()["security_bits"] == 112


def test_parameters_that_make_no_sense_are_refused() -> None:
    odd = "odd number of 3072 bits"
    keys = ("", b64encode(b"\xff" * 256), b64encode(b"\xff" * 383 + b"\xfe"), b64encode(b"\x7f" + b"\xff" * 383))
    for parameters, text in (
        *(({name: value}, name) for name, value in (("key_bits", 1024), ("mode", "shared"), ("value_bits", 7))),
        *(({"value_bits": 49}, "value_bits"), ({"public_key": "!"}, "base64url")),
        *(({"public_key": key}, odd) for key in keys),
    ):
        with pytest.raises(ParameterError, match=text):
            make_plan(parameters, LAYOUT, 3)


def test_a_refusal_says_what_fits() -> None:
    with pytest.raises(BudgetError, match=r"at most 5242878 contributions fit, or value_bits of at most 31 fit"):
        small_plan(contributions=6_000_000)
    small_plan(contributions=5_242_878)
    small_plan(contributions=6_000_000, value_bits=31)
    heavy = VectorLayout((Block("b", (Segment("weight", 1, 2.0**52, integral=True),)),), sum_class=TRAINED)
    with pytest.raises(BudgetError, match="at most 1 contributions fit$"):
        small_plan(heavy, 2)
    heavier = VectorLayout((Block("b", (Segment("weight", 1, 2.0**60, integral=True),)),), sum_class=TRAINED)
    with pytest.raises(BudgetError, match="no number of contributions fits these counts"):
        small_plan(heavier, 1)


def test_a_task_names_one_public_key_for_good() -> None:
    first, second = (p * q for p, q in (made_up_primes(2048), made_up_primes(2048, "another key")))
    plan, parameters = small_plan(), {"key_bits": 2048}
    assert isinstance(PAILLIER, NamesPublicKey)
    assert not isinstance(CKKS, NamesPublicKey)
    named = PAILLIER.name_public_key(parameters, first.to_bytes(256, "big"))
    assert "public_key" not in parameters
    assert PAILLIER.name_public_key(named, first.to_bytes(256, "big")) == named
    by_plan = under(plan, first.to_bytes(256, "big"))
    assert (plan.modulus, by_plan.modulus, make_plan(named, LAYOUT, 4).modulus) == (None, first, first)
    assert by_plan.contribution_bytes(((0,),)) == plan.contribution_bytes(((0,),))
    with pytest.raises(ParameterError, match="names another public key"):
        PAILLIER.name_public_key(named, second.to_bytes(256, "big"))
    for wrong in (b"", first.to_bytes(257, "big"), (first + 1).to_bytes(256, "big")):
        with pytest.raises(ParameterError, match="odd number of 2048 bits"):
            PAILLIER.name_public_key(parameters, wrong)
    with pytest.raises(ParameterError, match="value_bits"):
        PAILLIER.name_public_key({"value_bits": 1}, first.to_bytes(256, "big"))
