"""Vectors of plain, CKKS and Paillier sums, and of CKKS encryption: seeds, encoding, keys and ciphertexts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, Final

import numpy as np
from gmpy2 import mpz

from protocols.crypto.keys import Keyring, digest
from protocols.layout import TRAINED, Block, Route, Segment, VectorLayout, whole_route
from protocols.sums.ckks.mechanism import CKKS, load_secret_key, pack_blocks
from protocols.sums.ckks.plan import PARAMETER_SETS, CkksPlan
from protocols.sums.ckks.wire import MemoryFile, WireBuffer, check_range, seal_context, view_planes
from protocols.sums.paillier.mechanism import PAILLIER
from protocols.sums.plain import PLAIN
from tests.protocols.sums.paillier.cases import made_up_keyring, made_up_primes
from tests.vectors.ckks_lattice import Ring, expand_seed, noise, ternary
from tests.vectors.common import Outputs, again, facts, targets_of, unhex, vectors

_ROWS: Final = (Segment("values", 2, 0.5), Segment("counts", 1, 1.0, integral=True))
_PLAIN: Final = VectorLayout((Block("a", _ROWS), Block("b", _ROWS)), sum_class=TRAINED)
_PLAIN_PLAN: Final = PLAIN.plan({}, _PLAIN, 3)


@vectors("plain.json", "fold")
def _plain(contributions: Any, values: list[list[list[float]]]) -> Outputs:
    routes = [len(one["route"]) for one in contributions]
    vectors_of = [[np.array(block) for block in blocks] for blocks in values]
    bodies = [PLAIN.seal(_PLAIN_PLAN, route, sent, None) for route, sent in zip(routes, vectors_of, strict=True)]
    partial = PLAIN.fold(_PLAIN_PLAN, None, list(zip(routes, bodies, strict=True)))
    aggregate = PLAIN.release(_PLAIN_PLAN, partial)
    return {
        "contributions": [{"route": targets_of(n), "body": body} for n, body in zip(routes, bodies, strict=True)],
        "partial": partial,
        "aggregate": aggregate,
        "opened": PLAIN.open(_PLAIN_PLAN, aggregate, len(bodies), None),
    }


@vectors("plain.json", "check")
def _not_plain(body: str) -> None:
    PLAIN.check(_PLAIN_PLAN, whole_route(_PLAIN), unhex(body))


_ENTRY: Final = Block("entry", (Segment("update", 1, 2.0), Segment("touched", 1, 1.0, integral=True)))
_CHOSEN_PLAN: Final = PLAIN.plan({}, VectorLayout((_ENTRY,) * 5, chosen=2, sum_class=TRAINED), 4)


@vectors("chosen.json")
def _chosen(contributions: Any) -> Outputs:
    def sealed(numbers: list[int], values: list[float]) -> Outputs:
        return {
            "body": PLAIN.seal(_CHOSEN_PLAN, 0, [np.array(numbers, np.float64), np.array(values, np.float64)], None)
        }

    sent = again(contributions, sealed)
    partial = PLAIN.fold(_CHOSEN_PLAN, None, [(0, one["body"]) for one in sent])
    opened = PLAIN.open(_CHOSEN_PLAN, PLAIN.release(_CHOSEN_PLAN, partial), len(sent), None)
    blocks = len(_CHOSEN_PLAN.layout.blocks)
    return {"blocks": blocks, "contributions": sent, "partial": partial, "opened": opened}


@vectors("chosen.json", "refused")
def _not_chosen(body: str) -> None:
    PLAIN.check(_CHOSEN_PLAN, 0, unhex(body))


@vectors("ckks_wire.json", "seeded")
def _planes_of(set: str, residues: list[list[str]], seeds: list[str]) -> Outputs:
    chosen, degree = PARAMETER_SETS[set], len(residues[0])
    wire = WireBuffer.empty(chosen, len(residues), degree, seeded=True)
    for index, row in enumerate(residues):
        wire.put(index, np.array(list(map(int, row)), np.uint64))
    wire.seeds[:] = [list(unhex(seed)) for seed in seeds]
    return {"modulus": str(chosen.modulus), "degree": degree, "body": bytes(wire.body)}


@vectors("ckks_wire.json", "out_of_range")
def _out_of_range(set: str, body: str) -> Outputs:
    chosen = PARAMETER_SETS[set]
    planes = view_planes(unhex(body), chosen, 2, 2, 4)
    return {"ciphertext": check_range(planes, chosen.modulus)}


_TWO: Final = VectorLayout(
    (Block("a", (Segment("values", 5, 0.1),)), Block("b", (Segment("values", 5, 0.1),))), sum_class=TRAINED
)


@cache
def _ruled(set: str, route: Route, factor: int, offset: int) -> tuple[CkksPlan, bytes]:
    """Return a plan, and an expanded contribution whose residues follow a rule, to keep the file small."""
    plan = CKKS.plan({"set": set, "wire": "expanded"}, _TWO, 3)
    count, q = plan.route_ciphertexts(route), plan.parameter_set.modulus
    residues = [(factor * (i + 1) * 2654435761 + offset) % q for i in range(count * 2 * plan.degree)]
    wire = WireBuffer.empty(plan.parameter_set, count, plan.degree, seeded=False)
    for index, row in enumerate(np.array(residues, np.uint64).reshape(count, -1)):
        wire.put(index, row)
    return plan, bytes(wire.body)


@vectors("ckks_fold.json", "fold")
def _folded(set: str, rules: Any) -> Outputs:
    pieces = []
    for rule in rules:
        plan, body = _ruled(set, route := len(rule["route"]), rule["factor"], rule["offset"])
        CKKS.check(plan, route, body)
        pieces.append((route, body))
    partial = CKKS.fold(plan, None, pieces)
    return {
        "modulus": str(plan.parameter_set.modulus),
        "degree": plan.degree,
        "contribution_digests": [digest("vector", body) for _, body in pieces],
        "partial_digest": digest("vector", partial),
        "count": partial[:8],
    }


@vectors("ckks_fold.json", "check")
def _not_folded(set: str, what: str) -> None:
    plan, good = _ruled(set, 1, 5, 7)
    bad = {"short": good[:-1], "long": good + b"\0", "all ones": b"\xff" * len(good), "transparent": bytes(len(good))}
    CKKS.check(plan, 1, bad[what])


_PACKED: Final = (Segment("values", 53, 0.5), Segment("counts", 2, 3.0, integral=True))
_PAILLIER: Final = VectorLayout((Block("a", _PACKED), Block("b", _PACKED)), sum_class=TRAINED)
_PAILLIER_PLAN: Final = PAILLIER.plan({"key_bits": 2048}, _PAILLIER, 60)


@vectors("paillier.json")
def _paillier(contributions: Any) -> Outputs:
    plan, (p, q), packing = _PAILLIER_PLAN, made_up_primes(2048), _PAILLIER_PLAN.packings[0]
    keyring, n = made_up_keyring(plan), p * q

    def sealed(route: Any, values: list[list[float]], r: list[str]) -> Outputs:
        residues, blocks = iter([pow(int(one, 16), n, n * n) for one in r]), [np.array(block) for block in values]
        body = PAILLIER.seal_ahead(
            plan, len(route), blocks, keyring, lambda count: [mpz(next(residues)) for _ in range(count)]
        )
        plaintexts = [str(m) for block in blocks for m in packing.pack(_PAILLIER.blocks[0], block)]
        return {"plaintexts": plaintexts, "body": body}

    sent = again(contributions, sealed)
    partial = PAILLIER.fold(plan, None, [(len(one["route"]), one["body"]) for one in sent])
    return {
        "p": f"{p:x}",
        "q": f"{q:x}",
        "scale": packing.codes[0].scale,
        "slots": [
            [row, 2048 - run.offset - (slot + 1) * packing.codes[run.segment].width, packing.codes[run.segment].width]
            for run in packing.runs
            for row in range(run.first, run.first + run.rows)
            for slot in range(run.slots)
        ],
        "contributions": sent,
        "partial": partial,
        "opened": PAILLIER.open(plan, PAILLIER.release(plan, partial), len(sent), keyring),
    }


@vectors("paillier.json", "check")
def _not_paillier(body: str) -> None:
    PAILLIER.check(_PAILLIER_PLAN, 1, unhex(body))


_LAYOUT: Final = VectorLayout(
    (Block("items", (Segment("update", 6, 0.5), Segment("touched", 3, 1.0, integral=True))),), sum_class=TRAINED
)


def _planes(residues: list[int], name: str) -> bytes:
    wire = WireBuffer.empty(PARAMETER_SETS[name], 1, len(residues), seeded=True)
    wire.put(0, np.array(residues, np.uint64))
    return bytes(wire.body[: len(residues) * PARAMETER_SETS[name].residue_bytes])


@vectors("ckks_seeds.json", "roots")
def _root(set: str, degree: int) -> Outputs:
    return {"root": str(Ring(degree, PARAMETER_SETS[set].modulus).root)}


@vectors("ckks_seeds.json", "cases")
def _expanded(set: str, degree: int, seed: str) -> Outputs:
    found = expand_seed(set, degree, unhex(seed))
    return {
        "limit": str(2**64 - 1 - (2**64 - 1) % PARAMETER_SETS[set].modulus - 1),
        "first": [str(residue) for residue in found[:4]],
        "last": [str(residue) for residue in found[-4:]],
        "digest": digest("vector", _planes(found, set)),
    }


@vectors("ckks_keys.json")
def _layout() -> Outputs:
    return {"layout": [facts(segment, "name length clip integral") for segment in _LAYOUT.blocks[0].segments]}


@vectors("ckks_keys.json", "cases")
def _ckks(set: str, clients: Any, refused: Any) -> Outputs:
    plan, route = CKKS.plan({"set": set, "wire": "seeded", "degree": 2048}, _LAYOUT, 4), whole_route(_LAYOUT)
    ring, q = Ring(plan.degree, plan.parameter_set.modulus), plan.parameter_set.modulus
    secret = ring.residues(ternary("secret", plan.degree))
    state_key = digest("vector ckks", "state", 0)
    keyring = Keyring(plan.mechanism, plan.parameter_id, b"", _planes(secret, set), state_key)

    def sealed(place: int, values: list[float], seed: str) -> Outputs:
        (slots,) = pack_blocks(_LAYOUT.blocks, [np.array(values)], plan.degree)
        coefficients = ring.encode(slots, plan.scale)
        noisy = [m + e for m, e in zip(coefficients, noise(f"client {place}", plan.degree), strict=True)]
        c1 = expand_seed(set, plan.degree, unhex(seed))
        c0 = [(m - a * s) % q for m, a, s in zip(ring.residues(noisy), c1, secret, strict=True)]
        body = _planes(c0, set) + unhex(seed)
        CKKS.check(plan, route, body)
        return {"coefficients": [str(c) for c in coefficients[:8]], "body": body}

    sent = [again([client], sealed, {"place": place})[0] for place, client in enumerate(clients)]
    aggregate = CKKS.release(plan, CKKS.fold(plan, None, [(route, one["body"]) for one in sent]))

    def wrong(what: str, body: int | None = None) -> None:
        good, size = sent[0]["body"], plan.degree * plan.parameter_set.residue_bytes
        keys = {"short": keyring.secret_key[:-1], "residues not below q": b"\xff" * size}
        bodies = {"short": good[:-1], "long": good + b"\0", "residues not below q": b"\xff" * size + good[size:]}
        if what.startswith("a secret key, "):
            bad = replace(keyring, secret_key=keys[what.removeprefix("a secret key, ")])
            with MemoryFile() as file:
                load_secret_key(plan, seal_context(set, plan.degree), file, bad)
        elif what == "an aggregate whose second polynomial is zero":
            half = len(aggregate) // 2
            CKKS.open(plan, aggregate[:half] + bytes(len(aggregate) - half), 2, keyring)
        else:
            assert len(bodies[what]) == body
            CKKS.check(plan, route, bodies[what])

    return {
        "contributions": plan.max_contributions,
        **facts(plan, "degree scale parameter_id"),
        "secret_key": keyring.secret_key,
        "clients": sent,
        "aggregate_digest": digest("vector", aggregate),
        "opened": np.round(CKKS.open(plan, aggregate, 2, keyring), 3) + 0.0,  # + 0.0: no negative zero
        "refused": again(refused, wrong),
    }
