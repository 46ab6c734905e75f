"""Vectors of plain, CKKS and Paillier sums, and of CKKS encryption: seeds, encoding, keys and ciphertexts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from protocols.crypto.domain import digest
from protocols.crypto.keys import Keyring
from protocols.layout import TRAINED, Block, Route, Segment, VectorLayout, whole_route
from protocols.sums.base import Mechanism, SumPlan
from protocols.sums.ckks.encryption import load_secret_key, pack_blocks
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.plan import PARAMETER_SETS, SEED_BYTES, CkksPlan
from protocols.sums.ckks.seal_io import MemoryFile, seal_context
from protocols.sums.ckks.wire import WireBuffer, check_range, view_planes
from protocols.sums.paillier.mechanism import PAILLIER
from protocols.sums.plain import PLAIN
from tests.protocols.sums.paillier.cases import made_up_keyring, made_up_primes
from tests.vectors.ckks_lattice import Ring, expand_seed, noise, ternary
from tests.vectors.common import error_of, refusals

__all__ = ["ckks_fold", "ckks_keys", "ckks_seeds", "ckks_wire", "paillier", "plain"]


def fold_case(mechanism: Mechanism, plan: SumPlan, pieces: list[tuple[Route, bytes]]) -> dict[str, Any]:
    """Return a test case of one fold from an empty partial sum."""
    return {
        "contributions": [{"route": route, "body": body.hex()} for route, body in pieces],
        "partial": mechanism.fold(plan, None, pieces).hex(),
    }


def plain() -> dict[str, Any]:
    """Plain contributions along routes, their sum, and invalid contributions."""
    block = (Segment("values", 2, 0.5), Segment("counts", 1, 1.0, integral=True))
    layout = VectorLayout((Block("a", block), Block("b", block)), sum_class=TRAINED)
    plan, whole = PLAIN.plan({}, layout, 3), whole_route(layout)
    clients: list[tuple[Route, list[list[float]]]] = [
        (whole, [[0.5, -0.25, 1.0], [0.125, 0.0, 0.0]]),
        (((1, 0),), [[0.1, 0.2, 1.0]]),
        (((1,),), [[-0.5, -0.5, 1.0]]),
    ]
    pieces = [(route, PLAIN.seal(plan, route, [np.array(b) for b in blocks], None)) for route, blocks in clients]
    case = fold_case(PLAIN, plan, pieces)
    aggregate = PLAIN.release(plan, bytes.fromhex(case["partial"]))
    good = pieces[0][1]
    bad = {
        "short": good[:-1],
        "long": good + b"\0",
        "not a number": np.array([np.nan, 0, 0, 0, 0, 0], "<f4").tobytes(),
        "infinite": np.array([0, 0, 0, 0, -np.inf, 0], "<f4").tobytes(),
        "over its clip": np.array([0, 0.5001, 0, 0, 0, 0], "<f4").tobytes(),
    }
    return {
        "about": "contribution: float32 LE. partial: uint64 LE count, float64 LE sums. aggregate: float32 LE. Blocks a "
        "and b each hold 2 values of clip 0.5 and 1 count. A route lists the targets of each block sent.",
        "fold": [
            case
            | {"values": [blocks for _, blocks in clients], "aggregate": aggregate.hex()}
            | {"opened": PLAIN.open(plan, aggregate, 3, None).tolist()}
        ],
        "check": refusals(bad, lambda body: PLAIN.check(plan, whole, body)),
    }


def ckks_wire() -> dict[str, Any]:
    """Byte planes of known residues, and residues out of range."""
    cases, refused = [], []
    for name, parameter_set in PARAMETER_SETS.items():
        q = parameter_set.modulus
        residues = np.array([[[0, 1, q - 1, 0x01020304]], [[q // 2, 255, 65536, q - 2]]], np.uint64)
        wire = WireBuffer.empty(parameter_set, 2, 4, seeded=True)
        for index, row in enumerate(residues):
            wire.put(index, row)
        wire.seeds[:] = np.arange(2 * SEED_BYTES, dtype=np.uint8).reshape(2, SEED_BYTES)
        cases.append(
            {
                "set": name,
                "modulus": str(q),
                "degree": 4,
                "residues": [[str(r) for r in row.reshape(-1)] for row in residues],
                "seeds": [seed.tobytes().hex() for seed in wire.seeds],
                "body": bytes(wire.body).hex(),
            }
        )
        for bad in (q, q + 1, (1 << 8 * parameter_set.residue_bytes) - 1):
            wire = WireBuffer.empty(parameter_set, 2, 4, seeded=False)
            wire.put(1, np.array([0, 0, 0, bad, 1, 1, 1, 1], np.uint64))
            planes = view_planes(wire.body, parameter_set, 2, 2, 4)
            refused.append({"set": name, "body": bytes(wire.body).hex(), "ciphertext": check_range(planes, q)})
    return {
        "about": "Planes, lowest first (compact: u32; standard: u32, u8; precise: u32, u16, u8), each over all "
        "ciphertexts, polynomials and coefficients; then one 64-byte seed a ciphertext. `out_of_range`: expanded, 2 "
        "ciphertexts of degree 4, `ciphertext` holds the first residue that is not below the modulus.",
        "seeded": cases,
        "out_of_range": refused,
    }


def ckks_fold() -> dict[str, Any]:
    """A fold of known residues, which a rule gives, to keep the file small; checked coefficient by coefficient."""
    layout = VectorLayout(
        (Block("a", (Segment("values", 5, 0.1),)), Block("b", (Segment("values", 5, 0.1),))), sum_class=TRAINED
    )
    cases, refused = [], []
    for name in PARAMETER_SETS:
        plan = CKKS.plan({"set": name, "wire": "expanded"}, layout, 3)
        rules: list[tuple[Route, int, int]] = [(((0,), (1,)), 3, 1), (((1, 0),), 5, 7), (((1,),), -1, -1)]
        pieces = [(route, ruled_body(plan, route, factor, offset)) for route, factor, offset in rules]
        for route, body in pieces:
            CKKS.check(plan, route, body)
        partial = CKKS.fold(plan, None, pieces)
        cases.append(
            {
                "set": name,
                "modulus": str(plan.parameter_set.modulus),
                "degree": plan.degree,
                "rules": [{"route": r, "factor": f, "offset": o} for r, f, o in rules],
                "contribution_digests": [digest("vector", body).hex() for _, body in pieces],
                "partial_digest": digest("vector", partial).hex(),
                "count": partial[:8].hex(),
            }
        )
        good, route = bytearray(pieces[1][1]), pieces[1][0]
        bad = {"short": bytes(good[:-1]), "long": bytes(good) + b"\0", "all ones": b"\xff" * len(good)}
        bad["transparent"] = bytes(len(good))
        refused += [
            {"set": name, "what": what, "error": error_of(lambda b=b, p=plan, r=route: CKKS.check(p, r, b))}
            for what, b in bad.items()
        ]
    return {
        "about": "Residue i of a contribution (ciphertexts, 2 polynomials, degree, in this order, i from 0) is "
        "(factor * (i + 1) * 2654435761 + offset) mod modulus. Digests are digest('vector', body) of domain.json.",
        "fold": cases,
        "check": refused,
    }


def ruled_body(plan: CkksPlan, route: Route, factor: int, offset: int) -> bytes:
    """Return an expanded contribution whose residues follow the rule of `ckks_fold`."""
    count, q = plan.route_ciphertexts(route), plan.parameter_set.modulus
    residues = [(factor * (i + 1) * 2654435761 + offset) % q for i in range(count * 2 * plan.degree)]
    wire = WireBuffer.empty(plan.parameter_set, count, plan.degree, seeded=False)
    for index, row in enumerate(np.array(residues, np.uint64).reshape(count, -1)):
        wire.put(index, row)
    return bytes(wire.body)


def paillier() -> dict[str, Any]:
    """Packed contributions under a made-up key with made-up randomisers, their sum, and invalid contributions."""
    block = (Segment("values", 53, 0.5), Segment("counts", 2, 3.0, integral=True))
    layout = VectorLayout((Block("a", block), Block("b", block)), sum_class=TRAINED)
    plan, whole = PAILLIER.plan({"key_bits": 2048}, layout, 60), whole_route(layout)
    (p, q), keyring, packing = made_up_primes(2048), made_up_keyring(plan), plan.packings[0]
    n, route_back = p * q, ((1, 0),)
    clients: list[tuple[Route, list[list[float]]]] = [
        (whole, [[i / 128 - 0.2 for i in range(53)] + [3.0, -1.0], [-0.5] * 53 + [0.0, 2.0]]),
        (route_back, [[0.5 - i / 64 for i in range(53)] + [-3.0, 1.0]]),
    ]
    contributions: list[dict[str, Any]] = []
    pieces: list[tuple[Route, bytes]] = []
    for index, (route, blocks) in enumerate(clients):
        draws = [int.from_bytes(digest("vector randomiser", index, i) * 8, "big") % n for i in range(2 * len(blocks))]
        residues = iter([pow(r, n, n * n) for r in draws])
        vectors = [np.array(values) for values in blocks]
        body = PAILLIER.seal_ahead(
            plan, route, vectors, keyring, lambda count, residues=residues: [mpz(next(residues)) for _ in range(count)]
        )
        plaintexts = [str(m) for values in vectors for m in packing.pack(layout.blocks[0], values)]
        shown = {"route": route, "values": blocks, "plaintexts": plaintexts, "r": [f"{r:x}" for r in draws]}
        contributions.append(shown | {"body": body.hex()})
        pieces.append((route, body))
    partial = PAILLIER.fold(plan, None, pieces)
    aggregate = PAILLIER.release(plan, partial)
    slots = [
        [row, 2048 - run.offset - (slot + 1) * packing.codes[run.segment].width, packing.codes[run.segment].width]
        for run in packing.runs
        for row in range(run.first, run.first + run.rows)
        for slot in range(run.slots)
    ]
    good = pieces[1][1]
    bad = {
        "short": good[:-1],
        "long": good + b"\0",
        "no modulus": bytes(256) + good[256:],
        "even modulus": good[:255] + bytes([good[255] ^ 1]) + good[256:],
        "zero": good[:256] + bytes(512) + good[768:],
        "n^2": good[:256] + (n * n).to_bytes(512, "big") + good[768:],
        "not invertible": good[:256] + (5 * p).to_bytes(512, "big") + good[768:],
        "transparent": good[:256] + (1 + 5 * n).to_bytes(512, "big") + good[768:],
    }
    return {
        "about": "slots: [plaintext, p, w] of each value of a block: v = round half to even(value * scale) (counts: "
        "scale 1) adds v * 2^p. ciphertext = (1 + m n) r^n mod n^2. contribution: n and ciphertexts big-endian at "
        "full width. partial: uint64 LE count, n, products mod n^2. A route lists the targets of each block sent.",
        "p": f"{p:x}",
        "q": f"{q:x}",
        "scale": packing.codes[0].scale,
        "slots": slots,
        "contributions": contributions,
        "partial": partial.hex(),
        "opened": PAILLIER.open(plan, aggregate, 2, keyring).tolist(),
        "check": refusals(bad, lambda body: PAILLIER.check(plan, route_back, body)),
    }


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
            found = expand_seed(name, degree, seed)
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
    ring = Ring(plan.degree, chosen.modulus)
    secret = ring.residues(ternary("secret", plan.degree))
    state_key = digest("vector ckks", "state", 0)
    keyring = Keyring(plan.mechanism, plan.parameter_id, b"", _planes(secret, name), state_key)
    shown, bodies = [], []
    for client, values in enumerate(VALUES):
        coefficients = _encoded(ring, plan, np.array(values))
        seed = _seed(f"{name} client {client}")
        c1 = expand_seed(name, plan.degree, seed)
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
