"""Vectors of what masked sums are built from: mask streams, packed ring elements, Shamir shares, neighbour graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from protocols.crypto.domain import digest
from protocols.sums.masked.masks import add_mask, add_masks
from protocols.sums.masked.parameters import choose_neighbourhood
from protocols.sums.masked.roster import neighbours
from protocols.sums.masked.shamir import PRIME, SHARE_BYTES, combine, split
from protocols.sums.ring import pack, ring_dtype, unpack
from tests.vectors.common import SEED, error_of

__all__ = ["masks", "shamir"]

CONTEXT: Final = b"task 1, round 1"
STARTS: Final = (0, 1, 7, 8, 1000, 2**33)


def masks() -> dict[str, Any]:
    """Streams in each ring, from several places; elements packed; neighbour graphs and parameters."""
    streams, packed, refused = [], [], []
    for bits in (16, 32, 64):
        for start in STARTS:
            elements = np.zeros(5, ring_dtype(bits))
            add_mask(elements, SEED, CONTEXT, 1, start)
            streams.append({"bits": bits, "start": start, "elements": [str(e) for e in elements]})
    for bits in (16, 17, 20, 24, 32, 33, 48, 63, 64):
        largest = (1 << bits) - 1
        values = [0, 1, largest, largest // 3, 0x0102030405060708 & largest]
        body = pack(np.array(values, ring_dtype(bits)), bits)
        packed.append({"bits": bits, "elements": [str(v) for v in values], "body": body.hex()})
        refused.append(_refused_body(bits, body + b"\0", "long"))
        refused.append(_refused_body(bits, body[:-1], "short"))
        if bits % 8:
            refused.append(_refused_body(bits, body[:-1] + bytes([body[-1] | 0x80]), "an unused bit is set"))
    target = np.zeros(2, np.uint32)
    return {
        "about": "stream: AES-128-CTR from counter block 0 (16 bytes, big-endian) under key = HKDF of domain.json for "
        "(secret, 'masked sum mask', context), 16 bytes; element i is bytes i*w to (i+1)*w, little-endian, w = bits / "
        "8. packed: element i takes bits i*bits to (i+1)*bits, lowest first, unused bits 0.",
        "secret": SEED.hex(),
        "context": CONTEXT.hex(),
        "streams": streams,
        "packed": packed,
        "refused": refused
        + [
            {"what": "a secret of 31 bytes", "error": error_of(lambda: add_mask(target, SEED[:31], CONTEXT, 1))},
            {"what": "the sign 0", "error": error_of(lambda: add_masks(target, [(SEED, CONTEXT, 0)]))},  # type: ignore[list-item]
            {"what": "a negative start", "error": error_of(lambda: add_mask(target, SEED, CONTEXT, 1, -1))},
        ],
        "graphs": [
            {"clients": n, "degree": k, "seed": SEED.hex(), "neighbours": neighbours(n, k, SEED).tolist()}
            for n, k in ((3, 2), (4, 3), (7, 4), (12, 6))
        ],
        "neighbourhoods": [
            choose_neighbourhood(100, 0.05, 0.05, "curious").describe(),
            choose_neighbourhood(100, 0.05, 0.05).describe(),
            choose_neighbourhood(5, 0.2, 0.2).describe(),
        ],
    }


def _refused_body(bits: int, body: bytes, what: str) -> dict[str, Any]:
    return {
        "bits": bits,
        "count": 5,
        "what": what,
        "body": body.hex(),
        "error": error_of(lambda: unpack(body, bits, 5)),
    }


def _stream(name: str) -> Callable[[int], bytes]:
    """Made-up randomness: digests of a counter, cut to length."""
    calls = iter(range(10**6))

    def random(length: int) -> bytes:
        part = next(calls)
        return (digest(name, part, 0) + digest(name, part, 1))[:length]

    return random


def shamir() -> dict[str, Any]:
    """Shares made with known randomness, secrets put together, wrong shares named, and what is refused."""
    points = [1, 2, 3, 5, 8, 2**31 - 1]
    shares = dict(zip(points, split(SEED, 3, points, _stream("vector coefficients")), strict=True))
    outside = PRIME.to_bytes(SHARE_BYTES, "little")
    beyond = shares | {1: outside}
    few = {point: shares[point] for point in (2, 8)}
    return {
        "about": "Field of p = 2^256 + 297. Integers are little-endian, secrets 32 bytes, shares 33: the polynomial's "
        "value at the point, the secret is its constant. Coefficients x, x^2, ... are drawn in this order: 33 random "
        "bytes as an integer, shifted right by 7, drawn again unless below p. random(n), call i from 0: the first n "
        "bytes of digest('vector coefficients', i, 0) + digest(..., i, 1) of domain.json.",
        "prime": str(PRIME),
        "split": [{"secret": SEED.hex(), "threshold": 3, "shares": _shown(shares)}],
        "combine": [
            {"threshold": 3, "shares": _shown(shares), "secret": combine(shares, 3).hex()},
            {"threshold": 3, "shares": _shown(few), "error": error_of(lambda: combine(few, 3))},
            {"threshold": 3, "shares": _shown(beyond), "error": error_of(lambda: combine(beyond, 3))},
        ],
    }


def _shown(shares: dict[int, bytes]) -> dict[str, str]:
    return {str(point): share.hex() for point, share in sorted(shares.items())}
