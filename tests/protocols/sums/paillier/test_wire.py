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
)

PLAN = small_plan()
ROUTE = ((0,),)
P, Q = made_up_primes(2048)
N = P * Q
KEYRING = made_up_keyring(PLAN)
BODY = PAILLIER.seal(PLAN, ROUTE, [some_vector(0)], KEYRING)
GOOD = ciphertexts(PLAN, BODY)


def test_a_body_is_n_and_numbers_at_full_width() -> None:
    assert body_of(PLAN, GOOD, N) == BODY
    assert len(BODY) == 256 + 512 * PLAN.ciphertexts
    PAILLIER.check(PLAN, ROUTE, BODY)


@pytest.mark.parametrize("place", range(PLAN.ciphertexts))
@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (0, "not in the range"),
        (N * N, "not in the range"),
        (N * N + 1, "not in the range"),
        ((1 << 4096) - 1, "not in the range"),
        (P, "not invertible"),
        (N, "not invertible"),
        (Q * Q, "not invertible"),
        (1, "transparent"),
        (1 + 5 * N, "transparent"),
    ],
)
def test_the_ciphertext_that_must_not_enter_is_named(place: int, bad: int, text: str) -> None:
    numbers = [*GOOD]
    numbers[place] = bad
    with pytest.raises(ContributionError, match=f"ciphertext {place} is {text}"):
        PAILLIER.check(PLAN, ROUTE, body_of(PLAN, numbers, N))


@pytest.mark.parametrize("n", [0, 1, N - 1, N >> 1 | 1])
def test_a_modulus_of_another_form_is_refused(n: int) -> None:
    with pytest.raises(ContributionError, match="modulus"):
        PAILLIER.check(PLAN, ROUTE, body_of(PLAN, GOOD, n))


def test_a_plan_that_names_its_key_refuses_every_other() -> None:
    named = PLAN.with_public_key(KEYRING.public_key)
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
