"""Randomisers: uniform n-th residues r^n mod n^2, which hide the plaintext and dominate the cost of encryption.

Every client knows p and q. Modulo p^2 the n-th residues are the group of order p-1, and t -> t^p is a bijection of Z_p*
onto it; the same for q. So (t^p mod p^2, u^q mod q^2), t and u uniform, is exactly r^n, r uniform.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from math import ceil
from typing import Any

import gmpy2
from gmpy2 import mpz

from protocols.sums.paillier.keys import SecretKey

__all__ = ["Randomness", "crt_randomiser", "powmod_unlocked", "uniform_unit"]

Randomness = Callable[[int], bytes]
"""random(n) -> n secret random bytes; `secrets.token_bytes` except in tests."""


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


def crt_randomiser(key: SecretKey, random: Randomness = secrets.token_bytes) -> Any:
    """Return r^n mod n^2 for a uniform r in Z_n*, several times as fast as without p and q."""
    p_square, q_square = key.squares
    residue = powmod_unlocked(uniform_unit(key.p, random), key.p, p_square)
    other = powmod_unlocked(uniform_unit(key.q, random), key.q, q_square)
    return residue + (other - residue) * key.p_square_inverse % q_square * p_square
