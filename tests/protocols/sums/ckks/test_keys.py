from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from protocols.crypto.keyring import Keyring, decode_keyring, encode_keyring
from protocols.errors import KeyringError
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.plan import PARAMETER_SETS

LAYOUT = VectorLayout((Block("b", (Segment("v", 9, 0.1),)),), sum_class=TRAINED)
ROUTE = whole_route(LAYOUT)
PLAN = CKKS.plan({}, LAYOUT, 4)
ZERO = [np.zeros(9)]


@pytest.fixture(scope="module")
def shared() -> Keyring:
    return CKKS.generate_keyring(PLAN)


def test_keys_are_fixed_length_and_travel(shared: Keyring) -> None:
    one = PLAN.degree * PARAMETER_SETS["standard"].residue_bytes
    assert (len(shared.secret_key), shared.public_key) == (one, b"")
    again = decode_keyring(encode_keyring(shared))
    assert again == shared
    body = CKKS.seal(PLAN, ROUTE, ZERO, again)
    assert np.abs(CKKS.open(PLAN, CKKS.fold(PLAN, None, [(ROUTE, body)])[8:], 1, again)).max() < 1e-2


def test_nothing_secret_is_shown(shared: Keyring) -> None:
    assert shared.secret_key.hex()[:16] not in repr(shared)
    assert shared.state_key.hex()[:16] not in repr(shared)


def test_two_keyrings_never_share_a_key() -> None:
    rings = [CKKS.generate_keyring(PLAN) for _ in range(3)]
    assert len({ring.secret_key for ring in rings}) == len({ring.state_key for ring in rings}) == 3


def test_keys_of_other_parameters_are_refused(shared: Keyring) -> None:
    other = CKKS.plan({"set": "precise"}, LAYOUT, 4)
    with pytest.raises(KeyringError, match="another ring degree or modulus"):
        CKKS.seal(other, ROUTE, ZERO, shared)
    with pytest.raises(KeyringError, match="another ring degree or modulus"):
        CKKS.open(other, bytes(other.aggregate_bytes), 1, shared)
    with pytest.raises(KeyringError, match="'paillier'"):
        CKKS.seal(PLAN, ROUTE, ZERO, replace(shared, mechanism="paillier"))


def test_a_missing_keyring_is_named() -> None:
    with pytest.raises(KeyringError, match="needs the task's keyring"):
        CKKS.seal(PLAN, ROUTE, ZERO, None)


def test_malformed_keys_are_refused(shared: Keyring) -> None:
    good = shared.secret_key
    for body in (b"", good[:-1]):
        with pytest.raises(KeyringError, match="secret key does not have the length"):
            CKKS.open(PLAN, bytes(PLAN.aggregate_bytes), 0, replace(shared, secret_key=body))
    with pytest.raises(KeyringError, match="secret key has residues"):
        CKKS.seal(PLAN, ROUTE, ZERO, replace(shared, secret_key=b"\xff" * len(good)))


def test_another_tasks_key_opens_nothing(shared: Keyring) -> None:
    vector = np.full(9, 0.1)
    body = CKKS.seal(PLAN, ROUTE, [vector], shared)
    aggregate = CKKS.release(PLAN, CKKS.fold(PLAN, None, [(ROUTE, body)]))
    assert np.abs(CKKS.open(PLAN, aggregate, 1, shared) - vector).max() <= PLAN.predicted_error
    assert np.abs(CKKS.open(PLAN, aggregate, 1, CKKS.generate_keyring(PLAN)) - vector).max() > 1e-3
