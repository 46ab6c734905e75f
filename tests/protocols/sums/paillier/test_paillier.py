"""Paillier as a mechanism: interoperability with phe, keys, randomisers, packing, the fold and its form on the wire."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from itertools import product
from math import gcd

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given, settings
from hypothesis import strategies as st
from phe import paillier

from protocols.codec import b64encode
from protocols.crypto.keys import Keyring, decode_keyring, encode_keyring
from protocols.errors import BudgetError, CodecError, ContributionError, KeyringError, ParameterError
from protocols.layout import CLIP_SLACK, Block, Segment, whole_route
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.paillier.mechanism import (
    PAILLIER,
    SecretKey,
    crt_randomiser,
    decrypt,
    load_secret_key,
    uniform_unit,
)
from protocols.sums.paillier.packing import MAX_SUM, BlockPacking, SegmentCode
from protocols.sums.paillier.plan import make_plan
from tests.protocols.sums.conformance import MechanismConformance, one_block, opened
from tests.protocols.sums.paillier.cases import (
    LAYOUT,
    MadeUpKeys,
    body_of,
    ciphertexts,
    made_up_keyring,
    made_up_primes,
    small_plan,
    some_vector,
    under,
)

P, Q = made_up_primes(2048)


class TestNamedKey(MechanismConformance):
    mechanism = MadeUpKeys()
    parameters = {"key_bits": 2048, "value_bits": 48, "public_key": b64encode((P * Q).to_bytes(256, "big"))}


ROUTE = 1
BLOCK = LAYOUT.blocks[0]


@pytest.mark.parametrize("bits", [2048, 3072])
def test_our_contributions_and_phes_add_up_and_open_in_both(bits: int) -> None:
    plan = PAILLIER.plan({"key_bits": bits}, LAYOUT, 4)
    p, q = made_up_primes(bits)
    public, keyring, packing = paillier.PaillierPublicKey(p * q), made_up_keyring(plan), plan.packings[0]
    private = paillier.PaillierPrivateKey(public, p, q)
    vectors = [-some_vector(1), some_vector(2), some_vector(3)]
    ours = [PAILLIER.seal(plan, ROUTE, [vector], keyring) for vector in vectors[:2]]
    theirs = [public.encrypt(m).ciphertext() for m in packing.pack(BLOCK, vectors[2])]
    bodies = [*ours, body_of(plan, theirs, public.n)]
    for body, vector in zip(bodies, vectors, strict=True):
        PAILLIER.check(plan, ROUTE, body)
        read = [private.decrypt(paillier.EncryptedNumber(public, number, 0)) for number in ciphertexts(plan, body)]
        assert read == packing.pack(BLOCK, vector)
    assert any(m < 0 for m in packing.pack(BLOCK, vectors[0]))
    aggregate = PAILLIER.release(plan, PAILLIER.fold(plan, None, [(ROUTE, body) for body in bodies]))
    read = [private.decrypt(paillier.EncryptedNumber(public, c, 0)) for c in ciphertexts(plan, aggregate)]
    for found in (packing.unpack(BLOCK, read), PAILLIER.open(plan, aggregate, 3, keyring)):
        assert np.abs(found - np.sum(vectors, axis=0)).max() <= plan.predicted_error


PLAN = small_plan()


@pytest.fixture(scope="module")
def fresh() -> Keyring:
    return PAILLIER.generate_keyring(PLAN)


def test_fresh_keys_are_phes_travel_and_are_not_shown(fresh: Keyring) -> None:
    assert (len(fresh.public_key), len(fresh.secret_key), len(fresh.state_key)) == (256, 256, 32)
    key = load_secret_key(PLAN, fresh)
    assert key.p * key.q == int.from_bytes(fresh.public_key, "big")
    assert gmpy2.is_prime(key.p) and gmpy2.is_prime(key.q) and key.p != key.q
    for text in (repr(fresh), repr(key), str(key)):
        assert str(key.p)[:12] not in text and fresh.secret_key.hex()[:12] not in text
    again, vector = decode_keyring(encode_keyring(fresh)), some_vector(1)
    total = opened(PAILLIER, PLAN, [PAILLIER.seal(PLAN, ROUTE, [vector], again)], again)
    assert np.abs(total - vector).max() <= PLAN.predicted_error


def test_missing_phe_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "phe", None)
    with pytest.raises(ParameterError, match="the extra `paillier`"):
        PAILLIER.generate_keyring(PLAN)


def test_keys_of_other_tasks_and_malformed_ones_are_refused(fresh: Keyring) -> None:
    with pytest.raises(KeyringError, match="belongs to another public key than the sum"):
        opened(PAILLIER, PLAN, [PAILLIER.seal(PLAN, ROUTE, [some_vector(1)], made_up_keyring(PLAN))], fresh)
    for kind, good in (("secret", fresh.secret_key), ("public", fresh.public_key)):
        for wrong, text in (
            (good[:-1], f"{kind} key does not have the length"),
            (good[:-1] + bytes([good[-1] ^ 2]), "does not belong"),
            (bytes(len(good)), "odd number|does not belong"),
        ):
            with pytest.raises(KeyringError, match=text):
                load_secret_key(PLAN, replace(fresh, **{f"{kind}_key": wrong}))
    half = made_up_primes(2048)[0].to_bytes(128, "big")  # two equal primes
    square = (int.from_bytes(half, "big") ** 2).to_bytes(256, "big")
    with pytest.raises(KeyringError, match="does not belong"):
        load_secret_key(PLAN, replace(fresh, secret_key=half * 2, public_key=square))


KEYRING = made_up_keyring(PLAN)
TOY_P, TOY_Q = 7, 11


def given_numbers(*numbers: int):
    """Randomness that is these numbers, each right-aligned to a whole byte's top bits as `uniform_unit` takes them."""
    left = list(numbers)
    return lambda length: left.pop(0).to_bytes(length, "big")


def test_a_uniform_unit_is_drawn_by_rejection() -> None:
    # 77 has 7 bits, so the top 7 bits of a byte are the candidate: 0, 77, 100, 7 and 22 are no units below 77
    draws = given_numbers(*(candidate << 1 for candidate in (0, 77, 100, 7, 22, 23)))
    assert uniform_unit(mpz(77), draws) == 23
    assert {uniform_unit(mpz(77)) for _ in range(1000)} == {x for x in range(77) if gcd(x, 77) == 1}


def test_crt_gives_every_nth_residue_equally_often() -> None:
    """Over all inputs of a toy key, not over a sample: both ways are uniform over the same group."""
    n = TOY_P * TOY_Q
    full = Counter(pow(r, n, n * n) for r in range(n) if gcd(r, n) == 1)
    key = SecretKey(mpz(TOY_P), mpz(TOY_Q))
    pairs = product(range(1, TOY_P), range(1, TOY_Q))
    crt = Counter(int(crt_randomiser(key, given_numbers(t << 5, u << 4))) for t, u in pairs)
    assert crt == full
    assert set(crt.values()) == {1}
    assert all(0 < r < n * n for r in crt)


def test_two_seals_of_one_vector_share_nothing() -> None:
    bodies = [PAILLIER.seal(PLAN, 1, [some_vector(3)], KEYRING) for _ in range(2)]
    assert not set(ciphertexts(PLAN, bodies[0])) & set(ciphertexts(PLAN, bodies[1]))


def test_a_contribution_made_ahead_sums_like_any_other() -> None:
    assert PAILLIER.pieces(PLAN) == PLAN.ciphertexts
    ready = [PAILLIER.make_piece(PLAN, KEYRING) for _ in range(PLAN.ciphertexts - 1)]
    assert all(decrypt(load_secret_key(PLAN, KEYRING), piece) == 0 for piece in ready)

    def take(wanted: int) -> list[object]:
        taken, ready[:] = ready[:wanted], ready[wanted:]
        return taken

    bodies = [PAILLIER.seal_ahead(PLAN, ROUTE, [some_vector(seed)], KEYRING, take) for seed in range(2)]
    assert not ready  # one is missing, and made
    for body in bodies:
        PAILLIER.check(PLAN, ROUTE, body)
    total = opened(PAILLIER, PLAN, bodies, KEYRING)
    assert np.abs(total - some_vector(0) - some_vector(1)).max() <= PLAN.predicted_error


N = int.from_bytes(KEYRING.public_key, "big")
BODY = PAILLIER.seal(PLAN, ROUTE, [some_vector(0)], KEYRING)
GOOD = ciphertexts(PLAN, BODY)


def test_a_contribution_under_another_key_is_refused_not_added() -> None:
    other = PAILLIER.seal(PLAN, ROUTE, [some_vector(9)], made_up_keyring(PLAN, "another key"))
    for first, second in ((BODY, other), (other, BODY)):
        one, two = (PAILLIER.fold(PLAN, None, [(ROUTE, body)]) for body in (first, second))
        for refuse in (
            lambda pair=(first, second): PAILLIER.fold(PLAN, None, [(ROUTE, body) for body in pair]),
            lambda one=one, second=second: PAILLIER.fold(PLAN, one, [(ROUTE, second)]),
            lambda pair=(one, two): PAILLIER.merge(PLAN, pair),
        ):
            with pytest.raises(ContributionError, match="another public key"):
                refuse()


def test_a_partial_of_something_names_its_modulus() -> None:
    empty = PAILLIER.fold(PLAN, None, [])
    assert empty[8:264] == bytes(256)
    full = PAILLIER.fold(PLAN, None, [(ROUTE, BODY)])
    assert PAILLIER.merge(PLAN, [full, empty]) == PAILLIER.merge(PLAN, [empty, full]) == full
    with pytest.raises(CodecError, match="must name their modulus"):
        PAILLIER.release(PLAN, (1).to_bytes(8, "little") + empty[8:])
    assert PAILLIER.fold(under(PLAN, KEYRING.public_key), None, [])[8:264] == KEYRING.public_key


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
    named, another = under(PLAN, KEYRING.public_key), made_up_keyring(PLAN, "another key")
    PAILLIER.check(named, ROUTE, PAILLIER.seal(named, ROUTE, [some_vector(0)], KEYRING))
    with pytest.raises(ParameterError, match="exists already"):
        PAILLIER.generate_keyring(named)
    with pytest.raises(KeyringError, match="another public key than the one that the task names"):
        PAILLIER.seal(named, ROUTE, [some_vector(0)], another)
    other = PAILLIER.seal(PLAN, ROUTE, [some_vector(0)], another)
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


SEGMENTS = st.lists(
    st.tuples(st.integers(1, 150), st.sampled_from([1e-3, 0.1, 1.0, 7.0, 300.0]), st.booleans()), min_size=1, max_size=4
)


def packing_of(
    shape: list[tuple[int, float, bool]], value_bits: int, contributions: int, bits: int
) -> tuple[BlockPacking, Block]:
    segments = tuple(
        Segment(f"s{i}", length, max(clip, 1.0) if integral else clip, integral)
        for i, (length, clip, integral) in enumerate(shape)
    )
    codes = tuple(SegmentCode.of(segment, value_bits, contributions) for segment in segments)
    return BlockPacking(segments, codes, bits), Block("b", segments)


def vectors_within(block: Block, count: int, seed: int) -> list[np.ndarray]:
    """Half of the values at the edge of the clip, and all of one sign in one vector of three."""
    rng, bounds, out = np.random.default_rng(seed), block.bounds(), []
    for index in range(count):
        values = bounds * (np.clip(rng.uniform(-2, 2, bounds.size), -1, 1) if index % 3 else rng.choice([-1, 1]))
        out.append(np.where(block.integral_mask(), np.rint(values), values))
    return out


@settings(deadline=None, max_examples=25)
@given(
    SEGMENTS, st.sampled_from([8, 20, 32, 45]), st.integers(1, 9), st.sampled_from([2048, 3072]), st.integers(0, 999)
)
def test_sums_of_plaintexts_are_sums_of_values(
    shape: list[tuple[int, float, bool]], value_bits: int, contributions: int, bits: int, seed: int
) -> None:
    """Exactly: every value rounded to its grid, added as whole numbers."""
    packing, block = packing_of(shape, value_bits, contributions, bits)
    vectors = vectors_within(block, contributions, seed)
    plaintexts = [sum(column) for column in zip(*(packing.pack(block, v) for v in vectors), strict=True)]
    scales = np.repeat([code.scale for code in packing.codes], [s.length for s in block.segments])
    truth = sum(np.rint(v * scales).astype(np.int64) for v in vectors) / scales
    assert packing.unpack(block, plaintexts).tolist() == truth.tolist()
    assert all(abs(m) < 1 << (bits - 3) for m in plaintexts)  # below n/4: phe reads the sign, too


@settings(deadline=None, max_examples=40)
@given(st.integers(8, 48), st.integers(1, 2**20), st.floats(1e-6, 1e6), st.booleans())
def test_a_slot_holds_the_largest_sum_exactly(value_bits: int, contributions: int, clip: float, integral: bool) -> None:
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
        packing, block = packing_of([(1, 0.1, False), (2, 1.0, True)], 32, 1, 2048)
        packing.pack(block, np.array([0.0, 1.0, 0.5]))


def test_plaintexts_that_nothing_adds_up_to_are_refused() -> None:
    packing, block = packing_of([(60, 0.1, False)], 32, 100, 2048)
    good = packing.pack(block, np.zeros(60))
    packing.unpack(block, good)
    firsts = (1 << 2048, 1 << 2047, 1 << 2046, -(1 << 2046))
    for bad in (*([first, good[1]] for first in firsts), [good[0], good[1] + 1]):
        with pytest.raises(CodecError, match="overflows"):  # the last one below the last slot
            packing.unpack(block, bad)


def test_the_largest_sum_is_exact_in_float64() -> None:
    assert float(MAX_SUM) == MAX_SUM
    packing, block = packing_of([(2, 1.0, True)], 8, MAX_SUM, 2048)
    for values in (np.array([1.0, -1.0]), np.array([-1.0, 1.0])):
        (plaintext,) = packing.pack(block, values)
        assert packing.unpack(block, [plaintext * MAX_SUM]).tolist() == (values * MAX_SUM).tolist()


VECTOR = one_block(Segment("values", 3706, 0.1))


def test_slots_lengths_and_errors_of_plans() -> None:
    """Values of 32 bits and 8 of headroom; counts are packed closer, 292 slots of 7 bits."""
    route = whole_route(VECTOR)
    for bits, slots, count in ((2048, 51, 73), (3072, 76, 49)):
        plan = make_plan({"key_bits": bits}, VECTOR, 256)
        (packing,) = plan.packings
        assert (packing.codes[0].width, packing.runs[0].slots, plan.ciphertexts) == (40, slots, count)
        assert plan.contribution_bytes(route) == plan.aggregate_bytes == bits // 8 + count * bits // 4
    counts = one_block(Segment("touched", 3706, 1.0, integral=True))
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
    for contributions in (6_000_000, 2**22 + 1, 2**23, 2**30 - 1, 2**40):
        with pytest.raises(BudgetError) as told:
            small_plan(contributions=contributions, value_bits=48)
        hint = int(str(told.value).rpartition("value_bits of at most ")[2].split()[0])
        small_plan(contributions=contributions, value_bits=hint)
    heavy = one_block(Segment("weight", 1, 2.0**52, integral=True))
    with pytest.raises(BudgetError, match="at most 1 contributions fit$"):
        small_plan(heavy, 2)
    heavier = one_block(Segment("weight", 1, 2.0**60, integral=True))
    with pytest.raises(BudgetError, match="no number of contributions fits these counts"):
        small_plan(heavier, 1)


def test_a_task_names_one_public_key_for_good() -> None:
    first, second = (p * q for p, q in (made_up_primes(2048), made_up_primes(2048, "another key")))
    plan, parameters = small_plan(), {"key_bits": 2048}
    assert PAILLIER.names_public_key and not CKKS.names_public_key
    named = PAILLIER.name_public_key(parameters, first.to_bytes(256, "big"))
    assert "public_key" not in parameters
    assert PAILLIER.name_public_key(named, first.to_bytes(256, "big")) == named
    by_plan = under(plan, first.to_bytes(256, "big"))
    assert (plan.modulus, by_plan.modulus, make_plan(named, LAYOUT, 4).modulus) == (None, first, first)
    assert by_plan.contribution_bytes(1) == plan.contribution_bytes(1)
    with pytest.raises(ParameterError, match="names another public key"):
        PAILLIER.name_public_key(named, second.to_bytes(256, "big"))
    for wrong in (b"", first.to_bytes(257, "big"), (first + 1).to_bytes(256, "big")):
        with pytest.raises(ParameterError, match="odd number of 2048 bits"):
            PAILLIER.name_public_key(parameters, wrong)
    with pytest.raises(ParameterError, match="value_bits"):
        PAILLIER.name_public_key({"value_bits": 1}, first.to_bytes(256, "big"))
