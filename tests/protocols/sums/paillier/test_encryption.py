"""Paillier as a mechanism: the battery of all mechanisms, interoperability with phe, keys, and randomisers."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import product
from math import gcd

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz
from phe import paillier

from protocols.codec import b64encode
from protocols.crypto.keys import Keyring, decode_keyring, encode_keyring
from protocols.errors import KeyringError, ParameterError
from protocols.sums.base import WorksAhead
from protocols.sums.paillier.keys import SecretKey, crt_randomiser, load_secret_key, uniform_unit
from protocols.sums.paillier.mechanism import PAILLIER, decrypt
from tests.protocols.sums.conformance import MechanismConformance
from tests.protocols.sums.paillier.cases import (
    LAYOUT,
    MadeUpKeys,
    body_of,
    ciphertexts,
    made_up_keyring,
    made_up_primes,
    phe_keys,
    small_plan,
    some_vector,
    under,
)

P, Q = made_up_primes(2048)


class TestNamedKey(MechanismConformance):
    mechanism = MadeUpKeys()
    parameters = {"key_bits": 2048, "value_bits": 48, "public_key": b64encode((P * Q).to_bytes(256, "big"))}


ROUTE = ((0,),)
BLOCK = LAYOUT.blocks[0]


@pytest.fixture(scope="module", params=[2048, 3072])
def plan(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    return PAILLIER.plan({"key_bits": request.param}, LAYOUT, 4)


def test_ours_and_their_sums_open_in_phe(plan) -> None:  # type: ignore[no-untyped-def]
    public, private = phe_keys(plan)
    keyring, vectors = made_up_keyring(plan), [-some_vector(1), some_vector(2)]
    bodies = [PAILLIER.seal(plan, ROUTE, [vector], keyring) for vector in vectors]
    plaintexts = plan.packings[0].pack(BLOCK, vectors[0])
    assert any(m < 0 for m in plaintexts)
    for number, plaintext in zip(ciphertexts(plan, bodies[0]), plaintexts, strict=True):
        assert private.decrypt(paillier.EncryptedNumber(public, number, 0)) == plaintext
    aggregate = PAILLIER.release(plan, PAILLIER.fold(plan, None, [(ROUTE, body) for body in bodies]))
    plaintexts = [private.decrypt(paillier.EncryptedNumber(public, c, 0)) for c in ciphertexts(plan, aggregate)]
    opened = plan.packings[0].unpack(BLOCK, plaintexts)
    assert np.abs(opened - np.sum(vectors, axis=0)).max() <= plan.predicted_error


def test_phes_add_up_and_open_here(plan) -> None:  # type: ignore[no-untyped-def]
    public, private = phe_keys(plan)
    keyring, vectors = made_up_keyring(plan), [some_vector(1), -some_vector(2), some_vector(3)]
    encrypted = [[public.encrypt(m) for m in plan.packings[0].pack(BLOCK, vector)] for vector in vectors[:2]]
    bodies = [body_of(plan, [number.ciphertext() for number in numbers], public.n) for numbers in encrypted]
    bodies.append(PAILLIER.seal(plan, ROUTE, [vectors[2]], keyring))
    for body in bodies:
        PAILLIER.check(plan, ROUTE, body)
    partial = PAILLIER.fold(plan, None, [(ROUTE, body) for body in bodies])
    opened = PAILLIER.open(plan, PAILLIER.release(plan, partial), 3, keyring)
    assert np.abs(opened - np.sum(vectors, axis=0)).max() <= plan.predicted_error


def test_folding_needs_no_phe() -> None:
    code = """
import sys
sys.modules["phe"] = None
from protocols.layout import Block, Segment, VectorLayout
from protocols.layout import TRAINED
from protocols.sums.registry import mechanism
paillier = mechanism("paillier")
plan = paillier.plan({}, VectorLayout((Block("b", (Segment("v", 3, 1.0),)),), sum_class=TRAINED), 2)
paillier.release(plan, paillier.fold(plan, None, []))
"""
    subprocess.run([sys.executable, "-c", code], check=True)


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
    body = PAILLIER.seal(PLAN, ROUTE, [vector], again)
    opened = PAILLIER.open(PLAN, PAILLIER.release(PLAN, PAILLIER.fold(PLAN, None, [(ROUTE, body)])), 1, again)
    assert np.abs(opened - vector).max() <= PLAN.predicted_error


def test_a_task_that_names_its_key_has_one(fresh: Keyring) -> None:
    named = under(PLAN, fresh.public_key)
    with pytest.raises(ParameterError, match="exists already"):
        PAILLIER.generate_keyring(named)
    with pytest.raises(KeyringError, match="another public key than the one that the task names"):
        PAILLIER.seal(named, ROUTE, [some_vector(1)], made_up_keyring(PLAN))
    PAILLIER.check(named, ROUTE, PAILLIER.seal(named, ROUTE, [some_vector(1)], fresh))


def test_missing_phe_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "phe", None)
    with pytest.raises(ParameterError, match=r"hushrec\[paillier\]"):
        PAILLIER.generate_keyring(PLAN)


def test_keys_of_other_tasks_and_malformed_ones_are_refused(fresh: Keyring) -> None:
    with pytest.raises(KeyringError, match="another ring degree, modulus or key size"):
        PAILLIER.seal(PAILLIER.plan({}, LAYOUT, 4), ROUTE, [some_vector(1)], fresh)
    body = PAILLIER.seal(PLAN, ROUTE, [some_vector(1)], made_up_keyring(PLAN))
    aggregate = PAILLIER.release(PLAN, PAILLIER.fold(PLAN, None, [(ROUTE, body)]))
    with pytest.raises(KeyringError, match="belongs to another public key than the sum"):
        PAILLIER.open(PLAN, aggregate, 1, fresh)
    for kind, good in (("secret", fresh.secret_key), ("public", fresh.public_key)):
        for wrong, text in (
            (good[:-1], f"{kind} key does not have the length"),
            (good[:-1] + bytes([good[-1] ^ 2]), "does not belong"),
            (bytes(len(good)), "odd number|does not belong"),
        ):
            with pytest.raises(KeyringError, match=text):
                load_secret_key(PLAN, replace(fresh, **{f"{kind}_key": wrong}))  # type: ignore[arg-type]
    half = made_up_primes(2048)[0].to_bytes(128, "big")  # two equal primes
    square = (int.from_bytes(half, "big") ** 2).to_bytes(256, "big")
    with pytest.raises(KeyringError, match="does not belong"):
        load_secret_key(PLAN, replace(fresh, secret_key=half * 2, public_key=square))


KEYRING = made_up_keyring(PLAN)
TOY_P, TOY_Q = 7, 11


def given_numbers(*numbers: int):  # type: ignore[no-untyped-def]
    """Randomness that is these numbers, each right-aligned to a whole byte's top bits as `uniform_unit` takes them."""
    left = list(numbers)
    return lambda length: left.pop(0).to_bytes(length, "big")


def test_a_uniform_unit_is_drawn_by_rejection() -> None:
    # 77 has 7 bits, so the top 7 bits of a byte are the candidate: 0, 77, 100, 7 and 22 are no units below 77
    draws = given_numbers(*(candidate << 1 for candidate in (0, 77, 100, 7, 22, 23)))
    assert uniform_unit(mpz(77), draws) == 23
    seen = {uniform_unit(mpz(77)) for _ in range(1000)}
    assert seen == {x for x in range(77) if gcd(x, 77) == 1}


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
    bodies = [PAILLIER.seal(PLAN, ((0,),), [some_vector(3)], KEYRING) for _ in range(2)]
    assert not set(ciphertexts(PLAN, bodies[0])) & set(ciphertexts(PLAN, bodies[1]))


def test_a_contribution_made_ahead_sums_like_any_other() -> None:
    assert isinstance(PAILLIER, WorksAhead)
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
    partial = PAILLIER.fold(PLAN, None, [(ROUTE, body) for body in bodies])
    opened = PAILLIER.open(PLAN, PAILLIER.release(PLAN, partial), 2, KEYRING)
    assert np.abs(opened - some_vector(0) - some_vector(1)).max() <= PLAN.predicted_error
