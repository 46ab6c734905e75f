"""Made-up keys, plans and vectors that the Paillier tests share."""

from __future__ import annotations

from functools import cache
from typing import Any

import gmpy2
import numpy as np
from numpy.typing import NDArray

from protocols.crypto.keys import Keyring, derive_key, digest
from protocols.layout import Segment, VectorLayout
from protocols.sums.base import SumPlan
from protocols.sums.paillier.mechanism import PAILLIER, PaillierMechanism
from protocols.sums.paillier.plan import PaillierPlan, make_plan
from tests.protocols.sums.conformance import one_block

LAYOUT = one_block(Segment("values", 90, 0.1), Segment("touched", 40, 1.0, integral=True))


class MadeUpKeys(PaillierMechanism):
    """The mechanism with public, made-up keys, which are cheap to make."""

    def generate_keyring(self, plan: SumPlan) -> Keyring:
        return made_up_keyring(plan)


@cache
def made_up_primes(bits: int, name: str = "a key") -> tuple[int, int]:
    """Two primes of bits/2 bits from a name, with a product of exactly `bits` bits."""
    halves = derive_key(digest("made-up primes", name, bits), "made-up primes", length=bits // 8)
    p, q = (
        int(gmpy2.next_prime(int.from_bytes(half, "big") | 3 << (bits // 2 - 2)))
        for half in (halves[: bits // 16], halves[bits // 16 :])
    )
    return p, q


def made_up_keyring(plan: PaillierPlan, name: str = "a key") -> Keyring:
    """A keyring with made-up primes."""
    p, q = made_up_primes(plan.key_bits, name)
    public, half = (p * q).to_bytes(plan.modulus_bytes, "big"), plan.modulus_bytes // 2
    secret = p.to_bytes(half, "big") + q.to_bytes(half, "big")
    return Keyring(plan.mechanism, plan.parameter_id, public, secret, digest("made-up state key", name))


def keyring_of(summing: Any, plan: Any) -> Keyring | None:
    """A keyring where the mechanism needs one, made up where a real one takes long."""
    if isinstance(plan, PaillierPlan):
        return made_up_keyring(plan)
    keyring: Keyring | None = summing.generate_keyring(plan) if summing.needs_keyring else None
    return keyring


def small_plan(layout: VectorLayout = LAYOUT, contributions: int = 4, **parameters: Any) -> PaillierPlan:
    return make_plan({"key_bits": 2048, **parameters}, layout, contributions)


def under(plan: PaillierPlan, public_key: bytes) -> PaillierPlan:
    named = PAILLIER.name_public_key(plan.parameters.model_dump(), public_key)
    return make_plan(named, plan.layout, plan.max_contributions)


def some_vector(seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.uniform(-0.1, 0.1, 90), rng.integers(0, 2, 40)])


def ciphertexts(plan: PaillierPlan, body: bytes) -> list[int]:
    start, width = plan.modulus_bytes, plan.ciphertext_bytes
    return [int.from_bytes(body[at : at + width], "big") for at in range(start, len(body), width)]


def body_of(plan: PaillierPlan, numbers: list[int], n: int) -> bytes:
    parts = [n.to_bytes(plan.modulus_bytes, "big")]
    return b"".join(parts + [number.to_bytes(plan.ciphertext_bytes, "big") for number in numbers])
