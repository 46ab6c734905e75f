"""Bodies of Paillier sums: their wire form, encryption and decryption.

The fixed-length wire form: the modulus, then ciphertexts, every number big-endian at its full width.

    contribution    n (key_bits/8 bytes), ciphertexts (key_bits/4 bytes each), the blocks of the route in order; after
                    a head that names the blocks if contributions choose them (`protocols.sums.wire`)
    aggregate       n, the ciphertexts of every block
    partial         contributions so far (uint64, little-endian), then as an aggregate

n is zero in a partial sum without contributions, if the plan names no public key. A block without contributions
consists of ciphertexts 1, which encrypt zero.

Encryption of values to ciphertexts (1 + m n) r^n mod n^2 in wire form, and decryption of an aggregate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.crypto.keys import Keyring
from protocols.errors import CodecError, ContributionError, KeyringError, ParameterError
from protocols.layout import Route
from protocols.sums.base import Buffer
from protocols.sums.paillier.keys import SecretKey, crt_randomiser, load_secret_key, powmod_unlocked
from protocols.sums.paillier.plan import PaillierPlan
from protocols.sums.wire import name_blocks, read_blocks

__all__ = ["check_contribution", "read_numbers", "read_sum", "write_sum", "decrypt", "open_aggregate", "seal_blocks"]


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


def seal_blocks(
    plan: PaillierPlan,
    route: Route,
    blocks: Sequence[NDArray[np.float64]],
    keyring: Keyring | None,
    take: Callable[[int], Sequence[Any]] = lambda _count: (),
) -> bytes:
    """Return a contribution of `plan.contribution_bytes(route)` bytes; see `protocols.sums.base.OneMessage.seal`.

    take(n): at most n randomisers that were made ahead, each of which is used nowhere else; missing ones are made.
    """
    plan.layout.check_route(route)
    key = load_secret_key(plan, keyring)
    head = b""
    if plan.layout.chosen:
        head, rows = name_blocks(plan.layout, blocks)
        blocks, route = list(rows), ((0,),) * plan.layout.chosen  # all blocks have the packing of block 0
    if len(blocks) != len(route):
        raise ParameterError(f"the route has {len(route)} blocks, {len(blocks)} were given")
    plaintexts: list[int] = []
    for targets, values in zip(route, blocks, strict=True):
        plaintexts += plan.packings[targets[0]].pack(plan.layout.blocks[targets[0]], values)
    ready = list(take(len(plaintexts)))
    randomisers = ready + [crt_randomiser(key) for _ in range(len(plaintexts) - len(ready))]
    n, n_squared = key.n, key.n_squared
    sealed = ((1 + m * n) * r % n_squared for m, r in zip(plaintexts, randomisers, strict=True))
    return head + write_sum(plan, n, sealed)


def open_aggregate(plan: PaillierPlan, aggregate: Buffer, keyring: Keyring | None) -> NDArray[np.float64]:
    """Return the sum, float64 (layout.length,); see `protocols.sums.base.Mechanism.open`."""
    key = load_secret_key(plan, keyring)
    n, ciphertexts = read_sum(plan, aggregate, plan.ciphertexts, "an aggregate")
    if n not in (0, key.n):
        raise KeyringError("this keyring belongs to another public key than the sum")
    if not all(0 < ciphertext < key.n_squared for ciphertext in ciphertexts):
        raise CodecError("a ciphertext of the aggregate is not in the range from 1 to n^2 - 1")
    plaintexts = [decrypt(key, ciphertext) for ciphertext in ciphertexts]
    parts = [
        packing.unpack(block, plaintexts[start : start + packing.plaintexts])
        for block, packing, start in zip(plan.layout.blocks, plan.packings, plan.block_starts, strict=True)
    ]
    return np.concatenate(parts)


def decrypt(key: SecretKey, ciphertext: Any) -> int:
    """Return the signed plaintext, in (-n/2, n/2), by the Chinese remainder theorem (Paillier 1999, section 7)."""
    residues = []
    for prime, square, h in zip((key.p, key.q), key.squares, key.h, strict=True):
        power = powmod_unlocked(ciphertext % square, prime - 1, square)
        residues.append((power - 1) // prime * h % prime)
    m = residues[0] + (residues[1] - residues[0]) * key.p_inverse % key.q * key.p
    return int(m - key.n if 2 * m > key.n else m)
