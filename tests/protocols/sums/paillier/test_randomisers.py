from __future__ import annotations

from collections import Counter
from itertools import product
from math import gcd

import pytest
from gmpy2 import mpz

from protocols.sums.paillier import pool
from protocols.sums.paillier.encryption import decrypt
from protocols.sums.paillier.keys import PublicKey, SecretKey, load_public_key, load_secret_key
from protocols.sums.paillier.mechanism import PAILLIER
from protocols.sums.paillier.randomisers import (
    ShortExponentTable,
    crt_randomiser,
    full_randomiser,
    short_exponent_table,
    uniform_unit,
)
from tests.protocols.sums.paillier.cases import made_up_keyring, small_plan, some_vector

PLAN = small_plan(mode="public")
KEYRING = made_up_keyring(PLAN)
PUBLIC, SECRET = load_public_key(PLAN, KEYRING), load_secret_key(PLAN, KEYRING)
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
    full = Counter(int(full_randomiser(PublicKey(mpz(n)), given_numbers(r << 1))) for r in range(n) if gcd(r, n) == 1)
    key = SecretKey(mpz(TOY_P), mpz(TOY_Q))
    pairs = product(range(1, TOY_P), range(1, TOY_Q))
    crt = Counter(int(crt_randomiser(key, given_numbers(t << 5, u << 4))) for t, u in pairs)
    assert crt == full
    assert set(crt.values()) == {1}
    assert all(0 < r < n * n for r in crt)


@pytest.mark.parametrize("way", ["full", "crt", "short"])
def test_every_randomiser_encrypts_zero_and_no_two_are_alike(way: str) -> None:
    make = {
        "full": lambda: full_randomiser(PUBLIC),
        "crt": lambda: crt_randomiser(SECRET),
        "short": lambda: short_exponent_table(PUBLIC).randomiser(),
    }[way]
    drawn = [make() for _ in range(4)]
    assert all(decrypt(SECRET, r) == 0 for r in drawn)
    assert len(set(drawn)) == 4


def test_the_table_is_a_power_of_minus_a_square() -> None:
    x, n, n2 = 12345, int(PUBLIC.n), int(PUBLIC.n) ** 2
    table = ShortExponentTable.build(PUBLIC, given_numbers(x))
    assert len(table.rows) * 6 >= 1024 > (len(table.rows) - 1) * 6  # half the bits of n
    digits = [(7 * j + 3) % 256 for j in range(len(table.rows))]
    exponent = sum((digit % 64) << 6 * j for j, digit in enumerate(digits))
    expected = pow(pow(-x * x % n, n, n2), exponent, n2)
    assert table.randomiser(lambda length: bytes(digits[:length])) == expected
    assert decrypt(SECRET, table.rows[0][1]) == 0


def test_tables_differ_and_few_are_kept() -> None:
    assert ShortExponentTable.build(PUBLIC).rows[0][1] != ShortExponentTable.build(PUBLIC).rows[0][1]
    assert short_exponent_table(PUBLIC) is short_exponent_table(PublicKey(mpz(PUBLIC.n)))
    assert short_exponent_table.cache_info().maxsize == 2


@pytest.mark.parametrize("randomiser", ["short", "strict"])
@pytest.mark.parametrize("holds_secret", [True, False])
def test_who_makes_randomisers_how(randomiser: str, holds_secret: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    for name in ("crt_randomiser", "full_randomiser", "short_exponent_table"):
        real = getattr(pool, name)
        monkeypatch.setattr(pool, name, lambda key, name=name, real=real: used.append(name) or real(key))
    plan = small_plan(mode="public", randomiser=randomiser)
    keyring = KEYRING if holds_secret else KEYRING.without_secret_key()
    PAILLIER.seal(plan, ((0,),), [some_vector(3)], keyring)
    expected = "crt_randomiser" if holds_secret else {"short": "short_exponent_table", "strict": "full_randomiser"}
    assert set(used) == {expected if isinstance(expected, str) else expected[randomiser]}
    assert len(used) == plan.ciphertexts


def test_two_seals_of_one_vector_share_nothing() -> None:
    bodies = [PAILLIER.seal(PLAN, ((0,),), [some_vector(3)], KEYRING.without_secret_key()) for _ in range(2)]
    width = PLAN.ciphertext_bytes
    pieces = [[b[at : at + width] for at in range(PLAN.modulus_bytes, len(b), width)] for b in bodies]
    assert not set(pieces[0]) & set(pieces[1])
