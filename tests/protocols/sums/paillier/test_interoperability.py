"""A ciphertext written here opens in phe, and one that phe wrote adds up and opens here. The exponent is always 0."""

from __future__ import annotations

import numpy as np
import pytest
from phe import paillier

from protocols.sums.paillier.mechanism import PAILLIER
from tests.protocols.sums.paillier.cases import LAYOUT, body_of, ciphertexts, made_up_keyring, phe_keys, some_vector

ROUTE = ((0,),)
BLOCK = LAYOUT.blocks[0]


@pytest.fixture(scope="module", params=[2048, 3072])
def plan(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    return PAILLIER.plan({"key_bits": request.param}, LAYOUT, 4)


def test_ours_open_in_phe(plan) -> None:  # type: ignore[no-untyped-def]
    public, private = phe_keys(plan)
    body = PAILLIER.seal(plan, ROUTE, [-some_vector(1)], made_up_keyring(plan))
    plaintexts = plan.packings[0].pack(BLOCK, -some_vector(1))
    assert any(m < 0 for m in plaintexts)
    for number, plaintext in zip(ciphertexts(plan, body), plaintexts, strict=True):
        assert private.raw_decrypt(number) == plaintext % public.n
        assert private.decrypt(paillier.EncryptedNumber(public, number, 0)) == plaintext


def test_sums_of_ours_open_in_phe(plan) -> None:  # type: ignore[no-untyped-def]
    public, private = phe_keys(plan)
    keyring, vectors = made_up_keyring(plan), [some_vector(seed) for seed in range(4)]
    bodies = [PAILLIER.seal(plan, ROUTE, [vector], keyring) for vector in vectors]
    aggregate = PAILLIER.release(plan, PAILLIER.fold(plan, None, [(ROUTE, body) for body in bodies]))
    plaintexts = [private.decrypt(paillier.EncryptedNumber(public, c, 0)) for c in ciphertexts(plan, aggregate)]
    opened = plan.packings[0].unpack(BLOCK, plaintexts)
    assert np.abs(opened - np.sum(vectors, axis=0)).max() <= plan.predicted_error


def test_phes_add_up_and_open_here(plan) -> None:  # type: ignore[no-untyped-def]
    public, private = phe_keys(plan)
    keyring, vectors = made_up_keyring(plan), [some_vector(1), -some_vector(2), some_vector(3)]
    encrypted = [[public.encrypt(m) for m in plan.packings[0].pack(BLOCK, vector)] for vector in vectors[:2]]
    assert all(number.exponent == 0 for numbers in encrypted for number in numbers)
    bodies = [body_of(plan, [number.ciphertext() for number in numbers], public.n) for numbers in encrypted]
    bodies.append(PAILLIER.seal(plan, ROUTE, [vectors[2]], keyring))
    for body in bodies:
        PAILLIER.check(plan, ROUTE, body)
    partial = PAILLIER.fold(plan, None, [(ROUTE, body) for body in bodies])
    opened = PAILLIER.open(plan, PAILLIER.release(plan, partial), 3, keyring)
    assert np.abs(opened - np.sum(vectors, axis=0)).max() <= plan.predicted_error
    added = [a + b for a, b in zip(*encrypted, strict=True)]
    ours = PAILLIER.open(plan, body_of(plan, [number.ciphertext() for number in added], public.n), 2, keyring)
    assert ours.tolist() == plan.packings[0].unpack(BLOCK, [private.decrypt(number) for number in added]).tolist()
