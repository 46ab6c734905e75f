from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from protocols.crypto.keyring import Keyring, decode_keyring, encode_keyring
from protocols.errors import KeyringError
from protocols.layout import Block, Segment, VectorLayout, whole_route
from protocols.sum_classes import TRAINED
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.parameters import PARAMETER_SETS

LAYOUT = VectorLayout((Block("b", (Segment("v", 9, 0.1),)),), sum_class=TRAINED)
ROUTE = whole_route(LAYOUT)
SHARED = CKKS.plan({}, LAYOUT, 4)
PUBLIC = CKKS.plan({"mode": "public", "set": "standard", "flood_bits": 8}, LAYOUT, 4)
ZERO = [np.zeros(9)]


@pytest.fixture(scope="module")
def shared() -> Keyring:
    return CKKS.generate_keyring(SHARED)


@pytest.fixture(scope="module")
def public() -> Keyring:
    return CKKS.generate_keyring(PUBLIC)


def test_keys_are_fixed_length_and_travel(shared: Keyring, public: Keyring) -> None:
    one = SHARED.degree * PARAMETER_SETS["standard"].residue_bytes
    assert (len(shared.secret_key), shared.public_key) == (one, b"")
    assert (len(public.secret_key), len(public.public_key)) == (one, 2 * one)
    again = decode_keyring(encode_keyring(public))
    assert again == public
    body = CKKS.seal(PUBLIC, ROUTE, ZERO, again.without_secret_key())
    assert np.abs(CKKS.open(PUBLIC, CKKS.fold(PUBLIC, None, [(ROUTE, body)])[8:], 1, again)).max() < 1e-2


def test_nothing_secret_is_shown(shared: Keyring) -> None:
    assert shared.secret_key.hex()[:16] not in repr(shared)
    assert shared.state_key.hex()[:16] not in repr(shared)


def test_two_keyrings_never_share_a_key() -> None:
    rings = [CKKS.generate_keyring(SHARED) for _ in range(3)]
    assert len({ring.secret_key for ring in rings}) == len({ring.state_key for ring in rings}) == 3


def test_keys_of_other_parameters_are_refused(shared: Keyring) -> None:
    other = CKKS.plan({"set": "precise"}, LAYOUT, 4)
    with pytest.raises(KeyringError, match="another ring degree or modulus"):
        CKKS.seal(other, ROUTE, ZERO, shared)
    with pytest.raises(KeyringError, match="another ring degree or modulus"):
        CKKS.open(other, bytes(other.aggregate_bytes), 1, shared)
    with pytest.raises(KeyringError, match="'paillier'"):
        CKKS.seal(SHARED, ROUTE, ZERO, replace(shared, mechanism="paillier"))


def test_missing_keys_are_named(shared: Keyring, public: Keyring) -> None:
    with pytest.raises(KeyringError, match="no secret key"):
        CKKS.seal(SHARED, ROUTE, ZERO, shared.without_secret_key())
    with pytest.raises(KeyringError, match="no public key"):
        CKKS.seal(PUBLIC, ROUTE, ZERO, shared)
    with pytest.raises(KeyringError, match="no secret key"):
        CKKS.open(PUBLIC, bytes(PUBLIC.aggregate_bytes), 1, public.without_secret_key())
    with pytest.raises(KeyringError, match="needs the task's keyring"):
        CKKS.seal(SHARED, ROUTE, ZERO, None)


@pytest.mark.parametrize("kind", ["secret", "public"])
def test_malformed_keys_are_refused(public: Keyring, kind: str) -> None:
    def broken(body: bytes) -> Keyring:
        return replace(public, secret_digest=b"", **{f"{kind}_key": body})

    def use(keyring: Keyring) -> None:
        if kind == "secret":
            CKKS.open(PUBLIC, bytes(PUBLIC.aggregate_bytes), 0, keyring)
        else:
            CKKS.seal(PUBLIC, ROUTE, ZERO, keyring)

    good = public.secret_key if kind == "secret" else public.public_key
    with pytest.raises(KeyringError, match=f"{kind} key does not have the length"):
        use(broken(good[:-1]))
    with pytest.raises(KeyringError, match=f"{kind} key has residues"):
        use(broken(b"\xff" * len(good)))


def test_another_tasks_key_opens_nothing(shared: Keyring) -> None:
    vector = np.full(9, 0.1)
    body = CKKS.seal(SHARED, ROUTE, [vector], shared)
    aggregate = CKKS.release(SHARED, CKKS.fold(SHARED, None, [(ROUTE, body)]))
    assert np.abs(CKKS.open(SHARED, aggregate, 1, shared) - vector).max() <= SHARED.predicted_error
    assert np.abs(CKKS.open(SHARED, aggregate, 1, CKKS.generate_keyring(SHARED)) - vector).max() > 1e-3


def test_public_mode_has_round_keys_of_a_known_length() -> None:
    assert CKKS.round_key_bytes(PUBLIC) == len(CKKS.generate_keyring(PUBLIC).public_key)
    assert CKKS.round_key_bytes(CKKS.plan({}, LAYOUT, 4)) is None
