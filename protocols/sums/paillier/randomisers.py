"""Randomisers: uniform n-th residues r^n mod n^2, which hide the plaintext and dominate the cost of encryption.

Three methods:

    full    r uniform in Z_n*, r^n mod n^2. Needs only the public key, and no assumption beyond Paillier's.
    CRT     needs p and q. Modulo p^2 the n-th residues are the group of order p-1, and t -> t^p is a bijection of Z_p*
            onto it; the same for q. So (t^p mod p^2, u^q mod q^2), t and u uniform, is exactly r^n, r uniform.
    short   (h^n)^a mod n^2, h = -x^2 for a random x, a uniform of half the bits of n, from a table of powers of h^n
            (Damgard, Jurik and Nielsen 2010). Assumes that such powers are indistinguishable from uniform residues.

Damgard, Jurik and Nielsen publish one h with the key. Here every table has its own secret x, with the same
distribution, of which an attacker knows less.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any, Final

import gmpy2
from gmpy2 import mpz

from protocols.sums.paillier.keys import PublicKey, SecretKey

__all__ = [
    "Randomness",
    "ShortExponentTable",
    "crt_randomiser",
    "full_randomiser",
    "powmod_unlocked",
    "short_exponent_table",
    "uniform_unit",
]

Randomness = Callable[[int], bytes]
"""random(n) -> n secret random bytes; `secrets.token_bytes` except in tests."""

_WINDOW: Final = 6
"""Bits of the exponent per table lookup; 6 is fastest for a few dozen ciphertexts including the table."""


def powmod_unlocked(base: Any, exponent: Any, modulus: Any) -> Any:
    """Return base^exponent mod modulus; releases the GIL meanwhile."""
    with gmpy2.context(gmpy2.get_context(), allow_release_gil=True):
        return gmpy2.powmod(base, exponent, modulus)


def uniform_unit(modulus: Any, random: Randomness = secrets.token_bytes) -> Any:
    """Return a uniform element of Z_modulus*, by rejection sampling."""
    bits = modulus.bit_length()
    while True:
        candidate = mpz.from_bytes(random(ceil(bits / 8)), "big") >> (-bits % 8)
        if 0 < candidate < modulus and gmpy2.gcd(candidate, modulus) == 1:
            return candidate


def full_randomiser(key: PublicKey, random: Randomness = secrets.token_bytes) -> Any:
    """Return r^n mod n^2 for a uniform r in Z_n*."""
    return powmod_unlocked(uniform_unit(key.n, random), key.n, key.n_squared)


def crt_randomiser(key: SecretKey, random: Randomness = secrets.token_bytes) -> Any:
    """Return a randomiser with the distribution of `full_randomiser`, from the factors of n, several times as fast."""
    p_square, q_square = key.squares
    residue = powmod_unlocked(uniform_unit(key.p, random), key.p, p_square)
    other = powmod_unlocked(uniform_unit(key.q, random), key.q, q_square)
    return residue + (other - residue) * key.p_square_inverse % q_square * p_square


@dataclass(frozen=True, repr=False)
class ShortExponentTable:
    """Powers of one h^n: `rows[j][d]` = (h^n)^(d * 2^(6j)) mod n^2, so that (h^n)^a is one product per window.

    Fixed-base windows (Brickell, Gordon, McCurley and Wilson, EUROCRYPT 1992) with every digit's power stored: 256 rows
    of 64 powers for 3072 bits, 13 MB; 171 rows for 2048 bits, 6 MB.
    """

    key: PublicKey
    rows: tuple[tuple[Any, ...], ...]

    @classmethod
    def build(cls, key: PublicKey, random: Randomness = secrets.token_bytes) -> ShortExponentTable:
        """Return a table for a new h = -x^2 mod n, x uniform in Z_n*."""
        modulus = key.n_squared
        x = uniform_unit(key.n, random)
        base = powmod_unlocked(-x * x % key.n, key.n, modulus)
        rows = []
        for _ in range(ceil(key.n.bit_length() / 2 / _WINDOW)):
            row = [mpz(1)]
            for _ in range((1 << _WINDOW) - 1):
                row.append(row[-1] * base % modulus)
            rows.append(tuple(row))
            base = row[-1] * base % modulus
        return cls(key, tuple(rows))

    def randomiser(self, random: Randomness = secrets.token_bytes) -> Any:
        """Return (h^n)^a mod n^2 for a new uniform a of at least half the bits of n."""
        modulus, product = self.key.n_squared, mpz(1)
        for row, byte in zip(self.rows, random(len(self.rows)), strict=True):
            product = product * row[byte % (1 << _WINDOW)] % modulus
        return product


@lru_cache(maxsize=2)
def short_exponent_table(key: PublicKey) -> ShortExponentTable:
    """Return the table of a public key; tables of the two most recently used keys are cached."""
    return ShortExponentTable.build(key)
