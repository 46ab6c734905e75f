from __future__ import annotations

import sys
from dataclasses import replace

import gmpy2
import numpy as np
import pytest

from protocols.crypto.keyring import Keyring, decode_keyring, encode_keyring
from protocols.errors import KeyringError, ParameterError
from protocols.sums.paillier.keys import load_secret_key
from protocols.sums.paillier.mechanism import PAILLIER
from tests.protocols.sums.paillier.cases import LAYOUT, made_up_keyring, small_plan, some_vector

PLAN = small_plan()
ROUTE = ((0,),)


@pytest.fixture(scope="module")
def fresh() -> Keyring:
    return PAILLIER.generate_keyring(PLAN)


def test_keys_are_phes(fresh: Keyring) -> None:
    assert (len(fresh.public_key), len(fresh.secret_key), len(fresh.state_key)) == (256, 256, 32)
    key = load_secret_key(PLAN, fresh)
    assert key.p * key.q == int.from_bytes(fresh.public_key, "big")
    assert gmpy2.is_prime(key.p) and gmpy2.is_prime(key.q) and key.p != key.q


def test_a_fresh_key_seals_and_opens(fresh: Keyring) -> None:
    again = decode_keyring(encode_keyring(fresh))
    vector = some_vector(1)
    body = PAILLIER.seal(PLAN, ROUTE, [vector], again)
    opened = PAILLIER.open(PLAN, PAILLIER.release(PLAN, PAILLIER.fold(PLAN, None, [(ROUTE, body)])), 1, again)
    assert np.abs(opened - vector).max() <= PLAN.predicted_error


def test_nothing_secret_is_shown(fresh: Keyring) -> None:
    key = load_secret_key(PLAN, fresh)
    for text in (repr(fresh), repr(key), str(key)):
        assert str(key.p)[:12] not in text and fresh.secret_key.hex()[:12] not in text


def test_a_task_that_names_its_key_has_one(fresh: Keyring) -> None:
    named = PLAN.with_public_key(fresh.public_key)
    with pytest.raises(ParameterError, match="exists already"):
        PAILLIER.generate_keyring(named)
    with pytest.raises(KeyringError, match="another public key than the one that the task names"):
        PAILLIER.seal(named, ROUTE, [some_vector(1)], made_up_keyring(PLAN))
    PAILLIER.check(named, ROUTE, PAILLIER.seal(named, ROUTE, [some_vector(1)], fresh))


def test_missing_phe_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "phe", None)
    with pytest.raises(ParameterError, match=r"hushrec\[paillier\]"):
        PAILLIER.generate_keyring(PLAN)


def test_keys_of_other_tasks_are_refused(fresh: Keyring) -> None:
    other = PAILLIER.plan({}, LAYOUT, 4)
    with pytest.raises(KeyringError, match="another key size"):
        PAILLIER.seal(other, ROUTE, [some_vector(1)], fresh)
    with pytest.raises(KeyringError, match="'ckks'"):
        PAILLIER.seal(PLAN, ROUTE, [some_vector(1)], replace(fresh, mechanism="ckks"))
    body = PAILLIER.seal(PLAN, ROUTE, [some_vector(1)], made_up_keyring(PLAN))
    aggregate = PAILLIER.release(PLAN, PAILLIER.fold(PLAN, None, [(ROUTE, body)]))
    with pytest.raises(KeyringError, match="belongs to another public key than the sum"):
        PAILLIER.open(PLAN, aggregate, 1, fresh)


@pytest.mark.parametrize("kind", ["secret", "public"])
def test_malformed_keys_are_refused(fresh: Keyring, kind: str) -> None:
    good = fresh.secret_key if kind == "secret" else fresh.public_key

    def use(body: bytes) -> None:
        load_secret_key(PLAN, replace(fresh, **{f"{kind}_key": body}))

    use(good)
    with pytest.raises(KeyringError, match=f"{kind} key does not have the length"):
        use(good[:-1])
    with pytest.raises(KeyringError, match="does not belong"):
        use(good[:-1] + bytes([good[-1] ^ 2]))
    with pytest.raises(KeyringError, match="odd number|does not belong"):
        use(bytes(len(good)))


def test_two_equal_primes_are_refused(fresh: Keyring) -> None:
    half = fresh.secret_key[:128]
    square = int.from_bytes(half, "big") ** 2
    if square.bit_length() == 2048:
        twice = replace(fresh, secret_key=half * 2, public_key=square.to_bytes(256, "big"))
        with pytest.raises(KeyringError, match="does not belong"):
            load_secret_key(PLAN, twice)
