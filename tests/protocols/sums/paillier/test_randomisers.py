from __future__ import annotations

from collections import Counter
from itertools import product
from math import gcd

from gmpy2 import mpz

from protocols.sums.paillier.encryption import decrypt
from protocols.sums.paillier.keys import SecretKey, crt_randomiser, load_secret_key, uniform_unit
from protocols.sums.paillier.mechanism import PAILLIER
from tests.protocols.sums.paillier.cases import made_up_keyring, small_plan, some_vector

PLAN = small_plan()
KEYRING = made_up_keyring(PLAN)
SECRET = load_secret_key(PLAN, KEYRING)
TOY_P, TOY_Q = 7, 11


def given_numbers(*numbers: int):  # type: ignore[no-untyped-def]
    """Randomness that is these numbers, each right-aligned to a whole byte's top bits as `uniform_unit` takes them."""
    left = list(numbers)
    return lambda length: left.pop(0).to_bytes(length, "big")


def test_a_uniform_unit_is_drawn_by_rejection() -> None:
    # 77 has 7 bits, so the top 7 bits of a byte are the candidate: 0, 77, 100, 7 and 22 are no units below 77
    draws = given_numbers(*(candidate << 1 for candidate in (0, 77, 100, 7, 22, 23)))
    assert uniform_unit(mpz(77), draws) == 23
    seen = {uniform_unit(mpz(77)) for _ in range(2000)}
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


def test_every_randomiser_encrypts_zero_and_no_two_are_alike() -> None:
    drawn = [crt_randomiser(SECRET) for _ in range(4)]
    assert all(decrypt(SECRET, r) == 0 for r in drawn)
    assert len(set(drawn)) == 4


def test_two_seals_of_one_vector_share_nothing() -> None:
    bodies = [PAILLIER.seal(PLAN, ((0,),), [some_vector(3)], KEYRING) for _ in range(2)]
    width = PLAN.ciphertext_bytes
    pieces = [[b[at : at + width] for at in range(PLAN.modulus_bytes, len(b), width)] for b in bodies]
    assert not set(pieces[0]) & set(pieces[1])
