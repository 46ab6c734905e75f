"""Vectors of encodings, domain separation, public random numbers and fixed point."""

from __future__ import annotations

from typing import Any

import numpy as np

from protocols.codec import b64decode, b64encode, pack
from protocols.crypto.domain import derive_key, digest, domain_tag
from protocols.crypto.public_random import normals, permutation, uniforms, words
from protocols.fixed_point import FixedPoint
from tests.vectors.common import SEED, error_of

__all__ = ["codec", "domain", "expand", "fixed_point"]


def codec() -> dict[str, Any]:
    """Length-prefixed packing and base64url."""
    chunks = [[], [b""], [b"", b""], [b"abc"], [b"\x00" * 9, b"\xff"]]
    bodies = [b"", b"\x00", b"\xfb\xff", bytes(range(20))]
    wrong = ["QQ==", "QR", "Q", "+/8", "Q Q"]
    return {
        "about": "pack: each chunk behind its length, uint64 LE. base64: url alphabet, no padding, canonical.",
        "pack": [{"chunks": [c.hex() for c in case], "packed": pack(*case).hex()} for case in chunks],
        "base64": [{"body": body.hex(), "text": b64encode(body)} for body in bodies]
        + [{"text": text, "error": error_of(lambda text=text: b64decode(text))} for text in wrong],
    }


def domain() -> dict[str, Any]:
    """Domain tags, digests and keys. Parts are written as [kind, value]."""
    contexts: list[list[str | int | bytes]] = [[], ["1"], [1], [b"1"], ["task", -7, b"\x00\x01"], ["ä"]]
    cases = []
    for context in contexts:
        shown = [[type(part).__name__, part.hex() if isinstance(part, bytes) else part] for part in context]
        cases.append(
            {
                "purpose": "test",
                "context": shown,
                "tag": domain_tag("test", *context).hex(),
                "digest": digest("test", *context).hex(),
                "key": derive_key(SEED, "test", *context, length=48).hex(),
            }
        )
    return {
        "about": "tag = 'hushrec/1' + pack(purpose, parts); a part is its kind (b, i, s) and its bytes or digits. "
        "digest = SHA-256(tag). key = HKDF-SHA256(secret, no salt, info = tag).",
        "secret": SEED.hex(),
        "cases": cases + [{"purpose": "", "context": [], "error": error_of(lambda: domain_tag(""))}],
    }


def expand() -> dict[str, Any]:
    """Public random numbers."""
    purposes = ["projection", "columns"]
    return {
        "about": "Philox4x64-10. key = first 16 bytes of digest(purpose, seed) as two uint64 LE, the first is key word "
        "0. The counter (256 bits, four words, lowest first) is incremented before each block of four words, as in "
        "NumPy, so the first block has the counter 1. uniform = ((word >> 11) + 1) * 2^-53. normals: u = an even "
        "number of uniforms, the first half gives radii sqrt(-2 ln u), the second angles 2 pi u; all radius * "
        "cos(angle), then all radius * sin(angle), cut to the count. permutation: indices of the words in ascending "
        "order (stable). Normals are exact to the last bits of the platform's log, cos and sin.",
        "seed": SEED.hex(),
        "cases": [
            {
                "purpose": purpose,
                "words": [str(word) for word in words(SEED, purpose, 9)],
                "uniforms": uniforms(SEED, purpose, 4).tolist(),
                "normals": normals(SEED, purpose, 5).tolist(),
                "permutation": permutation(SEED, purpose, 10).tolist(),
            }
            for purpose in purposes
        ],
    }


def fixed_point() -> dict[str, Any]:
    """Encodings, sums with intermediate wrap-around, and budgets that do not fit."""
    values = [0.0, 0.3, -0.3, 1.0, -1.0, 1.5, -0.00001]
    encodings, sums, refused = [], [], []
    for bits, scale in ((16, 2.0**10), (20, 2.0**15), (32, 2.0**24), (64, 2.0**40)):
        ring = FixedPoint(bits, 4.0, scale)
        elements, clipped = ring.encode(np.array(values), 1.0)
        encodings.append(
            {
                "bits": bits,
                "bound": 4.0,
                "scale": scale,
                "clip": 1.0,
                "values": values,
                "elements": [str(element) for element in elements],
                "clipped": clipped,
            }
        )
        rows = np.array([[3.5, -3.5], [3.5, -3.5], [-3.5, 3.25]])
        encoded = [ring.encode(row, 4.0)[0] for row in rows]
        total = ring.reduce(ring.reduce(encoded[0] + encoded[1]) + encoded[2])
        sums.append(
            {
                "bits": bits,
                "bound": 4.0,
                "scale": scale,
                "summands": [[str(e) for e in element] for element in encoded],
                "total": [str(e) for e in total],
                "decoded": ring.decode(total).tolist(),
            }
        )
    for bits, bound, scale in ((15, 1.0, 1.0), (65, 1.0, 1.0), (16, 3.0, 2.0**14), (64, 1.0, 2.0**63), (32, -1.0, 1.0)):
        name = error_of(lambda b=bits, o=bound, s=scale: FixedPoint(b, o, s))
        refused.append({"bits": bits, "bound": bound, "scale": scale, "error": name})
    return {
        "about": "element = round half to even(value * scale) mod 2^bits, values first held within +-clip.",
        "encode": encodings,
        "sum": sums,
        "budget": refused,
    }
