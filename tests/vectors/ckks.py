"""Vectors of CKKS encryption: seeds, encoding, keys, ciphertexts and opened sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.domain import digest
from protocols.crypto.keyring import Keyring
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.sums.ckks.encryption import load_secret_key, pack_blocks
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.plan import PARAMETER_SETS, CkksPlan
from protocols.sums.ckks.seal_io import MemoryFile, seal_context
from protocols.sums.ckks.wire import WireBuffer
from tests.vectors.ckks_lattice import Ring, expand_seed, noise, ternary
from tests.vectors.common import error_of

__all__ = ["ckks_keys", "ckks_seeds"]

LAYOUT: Final = VectorLayout(
    (Block("items", (Segment("update", 6, 0.5), Segment("touched", 3, 1.0, integral=True))),), sum_class=TRAINED
)
VALUES: Final = ((0.5, -0.25, 0.125, 0.0, -0.5, 0.3, 1, 0, 1), (0.1, 0.25, -0.125, 0.4, 0.0, 0.2, 1, 1, 0))


def _planes(residues: list[int], name: str) -> bytes:
    wire = WireBuffer.empty(PARAMETER_SETS[name], 1, len(residues), seeded=True)
    wire.put(0, np.array(residues, np.uint64))
    return bytes(wire.body[: len(residues) * PARAMETER_SETS[name].residue_bytes])


def _seed(label: str) -> bytes:
    return digest("vector ckks", label, 0) + digest("vector ckks", label, 1)


def ckks_seeds() -> dict[str, Any]:
    """The second polynomials that seeds stand for, and the roots of unity of each set."""
    cases, roots = [], []
    for name, chosen in PARAMETER_SETS.items():
        for degree in (2048, 4096, 8192):
            roots.append({"set": name, "degree": degree, "root": str(Ring(degree, chosen.modulus).root)})
            seed = _seed(f"{name} {degree}")
            found = expand_seed(seed, chosen.modulus, degree)
            limit = 2**64 - 1 - (2**64 - 1) % chosen.modulus - 1
            cases.append(
                {
                    "set": name,
                    "degree": degree,
                    "seed": seed.hex(),
                    "limit": str(limit),
                    "first": [str(residue) for residue in found[:4]],
                    "last": [str(residue) for residue in found[-4:]],
                    "digest": digest("vector", _planes(found, name)).hex(),
                }
            )
    return {
        "about": "Words of a seed: uint64 LE of blocks of 4096 bytes; block number k is BLAKE2Xb of length 4096 with "
        "the key `seed` (64 bytes) over k as 8 bytes LE. The first `degree` words; then, in order, each that is at "
        "least limit = M - M mod q - 1, M = 2^64 - 1, is replaced by the next word of the stream until one is below; "
        "modulo q. digest: digest('vector', planes of the residues). root: the smallest primitive root of order 2 "
        "degree.",
        "roots": roots,
        "cases": cases,
    }


def ckks_keys() -> dict[str, Any]:
    """A keyring, two contributions under it and their opened sum, for the shortest and the longest residues."""
    return {
        "about": "made up: ternary(label)[i] = byte i of digest('vector ckks', label, 0) || digest(..., label, 1) ... "
        "mod 3, minus 1; noise(label)[i] = ones in its low 4 bits minus ones in its high 4 bits. secret_key: planes of "
        "the residues of s = ternary('secret'). A contribution: one ciphertext, c0 = m + noise - c1 s in residues, c1 "
        "from its seed. coefficients: the first of m. opened: by SEAL, rounded to 3 decimals; counts are whole. "
        "refused: keys and bodies.",
        "layout": [
            {"name": s.name, "length": s.length, "clip": s.clip, "integral": s.integral}
            for s in LAYOUT.blocks[0].segments
        ],
        "cases": [_case(name) for name in ("compact", "precise")],
    }


def _case(name: str) -> dict[str, Any]:
    chosen, route = PARAMETER_SETS[name], whole_route(LAYOUT)
    plan = CKKS.plan({"set": name, "wire": "seeded", "degree": 2048}, LAYOUT, 4)
    ring, q = Ring(plan.degree, chosen.modulus), chosen.modulus
    secret = ring.residues(ternary("secret", plan.degree))
    state_key = digest("vector ckks", "state", 0)
    keyring = Keyring(plan.mechanism, plan.parameter_id, b"", _planes(secret, name), state_key)
    shown, bodies = [], []
    for client, values in enumerate(VALUES):
        coefficients = _encoded(ring, plan, np.array(values))
        seed = _seed(f"{name} client {client}")
        c1 = expand_seed(seed, q, plan.degree)
        errors = ring.residues(
            [m + e for m, e in zip(coefficients, noise(f"client {client}", plan.degree), strict=True)]
        )
        c0 = _combined(ring, errors, c1, secret, -1)
        body = _planes(c0, name) + seed
        bodies.append((route, body))
        CKKS.check(plan, route, body)
        first = [str(c) for c in coefficients[:8]]
        shown.append({"values": values, "coefficients": first, "seed": seed.hex(), "body": body.hex()})
    partial = CKKS.fold(plan, None, bodies)
    aggregate = CKKS.release(plan, partial)
    return {
        "set": name,
        "degree": plan.degree,
        "contributions": plan.max_contributions,
        "scale": plan.scale,
        "parameter_id": plan.parameter_id.hex(),
        "secret_key": keyring.secret_key.hex(),
        "clients": shown,
        "aggregate_digest": digest("vector", aggregate).hex(),
        "opened": (np.round(CKKS.open(plan, aggregate, 2, keyring), 3) + 0.0).tolist(),  # + 0.0: no negative zero
        "refused": _refused(plan, keyring, bodies[0][1], aggregate),
    }


def _encoded(ring: Ring, plan: CkksPlan, values: NDArray[np.float64]) -> list[int]:
    (slots,) = pack_blocks(LAYOUT.blocks, [values], plan.degree)
    return ring.encode(slots, plan.scale)


def _combined(ring: Ring, base: list[int], left: list[int], right: list[int], sign: int) -> list[int]:
    """Return base + sign * left * right, all residues."""
    return [(b + sign * x * y) % ring.modulus for b, x, y in zip(base, left, right, strict=True)]


def _refused(plan: CkksPlan, keyring: Keyring, body: bytes, aggregate: bytes) -> list[dict[str, Any]]:
    context, route = seal_context(plan.parameters.set, plan.degree), whole_route(LAYOUT)
    size = plan.degree * plan.parameter_set.residue_bytes
    high = b"\xff" * size + body[size:]
    bodies = {"short": body[:-1], "long": body + b"\0", "residues not below q": high}
    shown = [
        {"what": what, "body": len(wrong), "error": error_of(lambda wrong=wrong: CKKS.check(plan, route, wrong))}
        for what, wrong in bodies.items()
    ]
    keys = {"short": keyring.secret_key[:-1], "residues not below q": b"\xff" * size}
    with MemoryFile() as file:
        for what, key in keys.items():
            wrong = replace(keyring, secret_key=key)
            error = error_of(lambda wrong=wrong: load_secret_key(plan, context, file, wrong))
            shown.append({"what": f"a secret key, {what}", "error": error})
    transparent = aggregate[: len(aggregate) // 2] + bytes(len(aggregate) - len(aggregate) // 2)
    if len(plan.parameter_set.plane_dtypes) == 1:
        error = error_of(lambda: CKKS.open(plan, transparent, 2, keyring))
        shown.append({"what": "an aggregate whose second polynomial is zero", "error": error})
    return shown
