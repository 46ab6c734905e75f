"""Paillier as a mechanism: the battery of all mechanisms, interoperability with phe, and the extra that it needs."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys

import numpy as np
import pytest
from phe import paillier

import protocols.sums.paillier
from protocols.codec import b64encode
from protocols.errors import ParameterError
from protocols.sums.paillier.mechanism import PAILLIER
from tests.protocols.sums.conformance import MechanismConformance
from tests.protocols.sums.paillier.cases import (
    LAYOUT,
    MadeUpKeys,
    body_of,
    ciphertexts,
    made_up_keyring,
    made_up_primes,
    phe_keys,
    some_vector,
)

P, Q = made_up_primes(3072)


class TestLongValues(MechanismConformance):
    mechanism = MadeUpKeys()
    parameters = {"key_bits": 2048, "value_bits": 48}


class TestShortValues(MechanismConformance):
    mechanism = MadeUpKeys()
    parameters = {"key_bits": 2048, "value_bits": 16}


class TestNamedKey(MechanismConformance):
    mechanism = MadeUpKeys()
    parameters = {"public_key": b64encode((P * Q).to_bytes(384, "big"))}


# --- a ciphertext written here opens in phe, and one that phe wrote adds up and opens here. The exponent is alw -------

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


# --- extra ------------------------------------------------------------------------------------------------------------


def test_a_missing_extra_is_named() -> None:
    code = """
import sys
sys.modules["gmpy2"] = None
from protocols.errors import ParameterError
from protocols.sums.registry import mechanism
mechanism("plain")
try:
    mechanism("paillier")
except ParameterError as error:
    sys.exit("hushrec[paillier]" not in str(error))
sys.exit(2)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


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


def test_the_package_refuses_to_be_imported_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ParameterError, match=r"hushrec\[paillier\]"):
        importlib.reload(protocols.sums.paillier)
