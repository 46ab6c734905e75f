"""The fixed-length wire form: the modulus, then ciphertexts, every number big-endian at its full width.

    contribution    n (key_bits/8 bytes), ciphertexts (key_bits/4 bytes each), the blocks of the route in order; after
                    a head that names the blocks if contributions choose them (`protocols.sums.chosen`)
    aggregate       n, the ciphertexts of every block
    partial         contributions so far (uint64, little-endian), then as an aggregate

n is zero in a partial sum without contributions, if the plan names no public key. A block without contributions
consists of ciphertexts 1, which encrypt zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gmpy2
from gmpy2 import mpz

from protocols.codec import exact
from protocols.errors import CodecError, ContributionError
from protocols.layout import Route
from protocols.sums.base import Buffer
from protocols.sums.chosen import read_blocks
from protocols.sums.paillier.planner import PaillierPlan

__all__ = ["check_contribution", "read_numbers", "read_sum", "write_sum"]


def read_numbers(body: memoryview, width: int) -> list[Any]:
    """Return the big-endian numbers of `width` bytes each in `body`."""
    return [mpz.from_bytes(body[start : start + width], "big") for start in range(0, len(body), width)]


def read_sum(plan: PaillierPlan, body: Buffer, ciphertexts: int, what: str) -> tuple[Any, list[Any]]:
    """Return n and the ciphertexts after it; `CodecError` for another length, an n of another size or another n."""
    view = exact(body, plan.modulus_bytes + ciphertexts * plan.ciphertext_bytes, what)
    n = mpz.from_bytes(view[: plan.modulus_bytes], "big")
    if n and (n.bit_length() != plan.key_bits or n % 2 == 0):
        raise CodecError(f"{what} must be under an odd modulus of {plan.key_bits} bits")
    if plan.modulus not in (None, n):
        raise CodecError(f"{what} must be under the public key that the task names")
    return n, read_numbers(view[plan.modulus_bytes :], plan.ciphertext_bytes)


def write_sum(plan: PaillierPlan, n: Any, ciphertexts: Iterable[Any]) -> bytes:
    """Return n and the ciphertexts as bytes that `read_sum` decodes."""
    width = plan.ciphertext_bytes
    return b"".join((n.to_bytes(plan.modulus_bytes, "big"), *(c.to_bytes(width, "big") for c in ciphertexts)))


def check_contribution(plan: PaillierPlan, route: Route, body: Buffer) -> None:
    """Raise `ContributionError` unless every ciphertext is in [1, n^2), invertible modulo n^2, and randomised.

    Invertible modulo n^2 means coprime to n, which one gcd checks for the product of all. c = 1 mod n has no
    randomiser: anyone can read its plaintext (c - 1)/n.
    """
    expected = plan.route_ciphertexts(route)
    if plan.layout.chosen:
        body = read_blocks(plan, body)[1]
    try:
        n, ciphertexts = read_sum(plan, body, expected, "a contribution along this route")
    except CodecError as error:
        raise ContributionError(str(error)) from None
    if not n:
        raise ContributionError("a contribution must name its modulus")
    n_squared, product = n * n, mpz(1)
    for index, ciphertext in enumerate(ciphertexts):
        if not 0 < ciphertext < n_squared:
            raise ContributionError(f"ciphertext {index} is not in the range from 1 to n^2 - 1")
        residue = ciphertext % n
        if residue == 1:
            raise ContributionError(f"ciphertext {index} is transparent: it has no randomiser")
        product = product * residue % n
    if gmpy2.gcd(product, n) != 1:
        wrong = next(index for index, c in enumerate(ciphertexts) if gmpy2.gcd(c, n) != 1)
        raise ContributionError(f"ciphertext {wrong} is not invertible modulo n^2")
