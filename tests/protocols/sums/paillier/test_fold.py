"""The fold of Paillier contributions, and their form on the wire."""

from __future__ import annotations

import pytest

from protocols.errors import CodecError, ContributionError, KeyringError
from protocols.sums.paillier.mechanism import PAILLIER
from tests.protocols.sums.paillier.cases import (
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
