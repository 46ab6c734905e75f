"""Encryption of values to ciphertexts (1 + m n) r^n mod n^2 in wire form, and decryption of an aggregate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.keyring import Keyring
from protocols.errors import CodecError, KeyringError, ParameterError
from protocols.layout import Route
from protocols.sums.base import Buffer
from protocols.sums.chosen import name_blocks
from protocols.sums.paillier.keys import SecretKey, load_secret_key
from protocols.sums.paillier.planner import PaillierPlan
from protocols.sums.paillier.pool import take_pooled
from protocols.sums.paillier.randomisers import crt_randomiser, powmod_unlocked
from protocols.sums.paillier.wire import read_sum, write_sum

__all__ = ["decrypt", "open_aggregate", "seal_blocks"]


def seal_blocks(
    plan: PaillierPlan,
    route: Route,
    blocks: Sequence[NDArray[np.float64]],
    keyring: Keyring | None,
    randomiser: Callable[[], Any] | None = None,
) -> bytes:
    """Return a contribution of `plan.contribution_bytes(route)` bytes; see `protocols.sums.base.Mechanism.seal`.

    Randomisers come from this key's pool while it has any, then from `crt_randomiser`. randomiser: replaces both in
    test vectors.
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
    randomisers = [] if randomiser else take_pooled(key, len(plaintexts))
    make = randomiser or (lambda: crt_randomiser(key))
    randomisers += [make() for _ in range(len(plaintexts) - len(randomisers))]
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
