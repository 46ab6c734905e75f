"""Writes the JSON test vectors: `python -m tests.vectors.generate`. It uses no secret key or randomness.

Every file is one object: `about`, and lists of cases. Bytes are lowercase hex, large integers are decimal strings,
floats are written so that they read back exactly. A case with `error` must be refused with an error of that name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from gmpy2 import mpz

from protocols.codec import b64decode, b64encode, pack
from protocols.crypto.aggregate_chain import AggregateChain
from protocols.crypto.certificates import certify, revoke
from protocols.crypto.domain import derive_key, digest, domain_tag
from protocols.crypto.envelope import EnvelopeSender, seal_envelope, seal_snapshot
from protocols.crypto.public_random import normals, permutation, uniforms, words
from protocols.crypto.round_key import RoundKeyPurpose, sign_round_key
from protocols.fixed_point import FixedPoint
from protocols.layout import Block, Route, Segment, VectorLayout, whole_route
from protocols.sums.base import Mechanism, SumPlan
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.parameters import PARAMETER_SETS
from protocols.sums.ckks.planner import SEED_BYTES, CkksPlan
from protocols.sums.ckks.wire import WireBuffer, check_range, view_planes
from protocols.sums.paillier.encryption import seal_blocks
from protocols.sums.paillier.mechanism import PAILLIER
from protocols.sums.plain import PLAIN
from tests.protocols.sums.paillier.cases import made_up_keyring, made_up_primes
from tests.vectors import chains, masked_rounds, masking, oneshot, requests, topk
from tests.vectors.common import SEED, error_of

__all__ = ["FILES", "render"]

FOLDER: Final = Path(__file__).parent


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
        "about": "Philox4x64-10, key = first 16 bytes of the seed's digest as two uint64 LE, counter from 0. "
        "Normals are exact to the last bits of the platform's log, cos and sin.",
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


def fold_case(mechanism: Mechanism, plan: SumPlan, pieces: list[tuple[Route, bytes]]) -> dict[str, Any]:
    """Return a test case of one fold from an empty partial sum."""
    return {
        "contributions": [{"route": route, "body": body.hex()} for route, body in pieces],
        "partial": mechanism.fold(plan, None, pieces).hex(),
    }


def plain() -> dict[str, Any]:
    """Plain contributions along routes, their sum, and invalid contributions."""
    block = (Segment("values", 2, 0.5), Segment("counts", 1, 1.0, integral=True))
    layout = VectorLayout((Block("a", block), Block("b", block)))
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
        "check": [
            {"what": what, "body": body.hex(), "error": error_of(lambda body=body: PLAIN.check(plan, whole, body))}
            for what, body in bad.items()
        ],
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
    layout = VectorLayout((Block("a", (Segment("values", 5, 0.1),)), Block("b", (Segment("values", 5, 0.1),))))
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
    layout = VectorLayout((Block("a", block), Block("b", block)))
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
        body = seal_blocks(plan, route, vectors, keyring, lambda residues=residues: mpz(next(residues)))
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
        "check": [
            {"what": what, "body": body.hex(), "error": error_of(lambda b=body: PAILLIER.check(plan, route_back, b))}
            for what, body in bad.items()
        ],
    }


def certificates() -> dict[str, Any]:
    """Membership certificates and revocation lists, those that hold and those that do not."""
    key = Ed25519PrivateKey.from_private_bytes(digest("vector organiser"))
    organiser, identity = key.public_key().public_bytes_raw(), digest("vector identity")
    mailbox = X25519PrivateKey.from_private_bytes(digest("vector mailbox")).public_key().public_bytes_raw()
    made = certify(key, "movies", identity, mailbox, role="member", serial=2**63 + 5, not_after=1_900_000_000)
    listed = revoke(key, "movies", [7, 2**63 + 5], 1_800_000_000)
    case = {
        "organiser_key": organiser.hex(),
        "scope": "movies",
        "identity_key": identity.hex(),
        "mailbox_key": mailbox.hex(),
        "certificate": made.encode().hex(),
        "now": 1_900_000_000,
    }
    other = made.encode()
    revoked = {"organiser_key": organiser.hex(), "scope": "movies", "list": listed.encode().hex()}
    return {
        "about": "certificate: role (0 member, 1 holder, 2 committee), serial and not_after (uint64 LE), Ed25519 over "
        "the domain tag of 'membership certificate', scope, role, identity key, mailbox key, serial, not_after. "
        "list: issued_at (uint64 LE), count (uint32 LE), serials ascending (uint64 LE), Ed25519 over the domain tag of "
        "'revoked certificates', scope, issued_at, the serials' bytes.",
        "certificates": [
            {**case, "role": "member", "serial": str(2**63 + 5), "not_after": 1_900_000_000},
            {**case, "now": 1_900_000_001, "error": "CertificateError"},
            {**case, "scope": "songs", "error": "CertificateError"},
            {**case, "mailbox_key": identity.hex(), "error": "CertificateError"},
            {**case, "certificate": (b"\x01" + other[1:]).hex(), "error": "CertificateError"},
            {**case, "certificate": (b"\x03" + other[1:]).hex(), "error": "CodecError"},
            {**case, "certificate": other[:-1].hex(), "error": "CodecError"},
        ],
        "revocations": [
            {**revoked, "serials": ["7", str(2**63 + 5)], "issued_at": 1_800_000_000},
            {**revoked, "scope": "songs", "error": "CertificateError"},
            {**revoked, "list": (listed.encode() + b"x").hex(), "error": "CodecError"},
        ],
    }


def envelope() -> dict[str, Any]:
    """Keyring envelopes and snapshots, sealed with made-up randomness."""
    secret, sender_key = digest("vector mailbox"), Ed25519PrivateKey.from_private_bytes(digest("vector holder"))
    public = X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    body, state, state_key = b"not a real keyring", bytes(range(16)), digest("vector state key")
    sender = EnvelopeSender(sender_key, b"m" * 32, bytes(range(81)))
    sealed = seal_envelope(body, public, "t_1", sender, lambda n: digest("vector randomness", n)[:n])
    chain = AggregateChain(digest("vector chain", 2), digest("vector chain", 3))
    snapshot = seal_snapshot(state, chain, state_key, "t_1", 3, lambda n: digest("vector randomness", n)[:n])
    flipped, flipped_snapshot = (bytes([*s[:-1], s[-1] ^ 1]) for s in (sealed, snapshot))
    altered = sealed[:100] + bytes([sealed[100] ^ 1]) + sealed[101:]
    opened = {"mailbox_secret": secret.hex(), "task": "t_1", "envelope": sealed.hex()}
    kept = {"state_key": state_key.hex(), "task": "t_1", "round": 3, "sealed": snapshot.hex()}
    return {
        "about": "sender's identity key (32), mailbox key (32), certificate (81), Ed25519 signature (64), ephemeral "
        "X25519 key (32), nonce (12), AES-256-GCM ciphertext under HKDF-SHA256 of the shared secret. The signature is "
        "over the domain tag of 'signed keyring envelope', task, recipient's key, the first 145 bytes, and all that "
        "follows the signature.",
        "envelopes": [
            {**opened, "body": body.hex(), "sender": sender_key.public_key().public_bytes_raw().hex()},
            {**opened, "task": "t_2", "error": "EnvelopeError"},
            {**opened, "envelope": flipped.hex(), "error": "EnvelopeError"},
            {**opened, "envelope": altered.hex(), "error": "EnvelopeError"},
        ],
        "snapshots": [
            {**kept, "state": state.hex(), "chain": chain.encode().hex()},
            {**kept, "round": 4, "error": "EnvelopeError"},
            {**kept, "sealed": flipped_snapshot.hex(), "error": "EnvelopeError"},
        ],
    }


def round_keys() -> dict[str, Any]:
    """Public keys of rounds, signed by a made-up key holder, those that hold and those that do not."""
    sender_key = Ed25519PrivateKey.from_private_bytes(digest("vector holder"))
    sender = EnvelopeSender(sender_key, b"m" * 32, bytes(range(81)))
    parameter_id, public_key = digest("vector parameters"), bytes(range(40))
    purpose = RoundKeyPurpose("t_1", 3, "ckks", parameter_id)
    document = sign_round_key(purpose, public_key, sender)
    given = {
        "task": "t_1",
        "round": 3,
        "mechanism": "ckks",
        "parameter_id": parameter_id.hex(),
        "public_key_bytes": len(public_key),
        "document": document.hex(),
    }

    def altered(place: int) -> str:
        return (document[:place] + bytes([document[place] ^ 1]) + document[place + 1 :]).hex()

    wrong: list[dict[str, Any]] = [
        {"task": "t_2"},
        {"round": 4},
        {"mechanism": "other"},
        {"parameter_id": digest("other parameters").hex()},
        {"public_key_bytes": 39},
        {"document": document[:-1].hex()},
        {"document": document.hex() + "00"},
        *({"document": altered(place)} for place in (0, 40, 100, 150, len(document) - 1)),
    ]
    return {
        "about": "holder's identity key (32), mailbox key (32), certificate (81), Ed25519 signature (64), public key. "
        "The signature is over the domain tag of 'round key', task, round, mechanism, parameter id, the first 145 "
        "bytes, and the public key.",
        "cases": [
            {**given, "public_key": public_key.hex(), "sender": sender_key.public_key().public_bytes_raw().hex()},
            *({**given, **change, "error": "RoundKeyError"} for change in wrong),
        ],
    }


FILES: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "codec.json": codec,
    "domain.json": domain,
    "expand.json": expand,
    "fixed_point.json": fixed_point,
    "plain.json": plain,
    "ckks_wire.json": ckks_wire,
    "ckks_fold.json": ckks_fold,
    "paillier.json": paillier,
    "certificates.json": certificates,
    "envelope.json": envelope,
    "round_keys.json": round_keys,
    "aggregate_chains.json": chains.aggregate_chains,
    "http_signature.json": requests.http_signature,
    "masked_keys.json": masked_rounds.masked_keys,
    "masked_round.json": masked_rounds.masked_round,
    "masks.json": masking.masks,
    "oneshot_ring.json": oneshot.oneshot_ring,
    "oneshot_round.json": oneshot.oneshot_round,
    "shamir.json": masking.shamir,
    "chosen.json": topk.chosen,
    "supports.json": topk.supports,
}
"""File name -> function that returns its content."""


def render(name: str) -> str:
    """Return the text of a vector file."""
    return json.dumps(FILES[name](), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for file_name in FILES:
        (FOLDER / file_name).write_text(render(file_name))
