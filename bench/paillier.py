"""Packed Paillier sums beside phe with one value a ciphertext, in turn in one run: client, server, bytes, and the sum.

    .venv/bin/python bench/paillier.py [--quick] [--full] [--clients 60] [--json FILE]

The vector is the Top-K payload of ML-1M at 1/64: 3706 values, clipped to 0.1. phe is measured on some of the values and
scaled to all of them, for it takes minutes; `--full` measures every one. bench/README.md lists the keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from phe import EncryptedNumber, PaillierPrivateKey, PaillierPublicKey

from bench._report import Figure, Timing, arguments, bars, show, time_in_turn, write_figures
from bench.targets import verdicts
from protocols.crypto.keyring import Keyring
from protocols.layout import Block, Segment, VectorLayout, whole_route
from protocols.sums.paillier.keys import load_public_key, load_secret_key
from protocols.sums.paillier.mechanism import PAILLIER
from protocols.sums.paillier.planner import PaillierPlan
from protocols.sums.paillier.pool import RandomiserPool
from protocols.sums.paillier.randomisers import ShortExponentTable

VALUES, CLIP, PRECISION = 3706, 0.1, 2.0**-32
LAYOUT = VectorLayout((Block("top", (Segment("values", VALUES, CLIP),)),))
ROUTE = whole_route(LAYOUT)
KEY_BITS = (2048, 3072)
SAMPLE, SAMPLE_QUICK = 32, 16


class PhePeer:
    """phe as its documentation shows it, one value a ciphertext; what is sent is as short as it can be.

    The precision is fixed, so all exponents are equal: phe then adds without aligning them, which is its fastest way.
    A ciphertext is sent at its full width, the common exponent not at all (phe's documentation sends JSON).
    """

    def __init__(self, key: PaillierPrivateKey, values: NDArray[np.float64]) -> None:
        self._secret, self._public = key, key.public_key
        self._width = key.public_key.n.bit_length() // 4
        self._values = values.tolist()
        self._exponent = self._public.encrypt(self._values[0], precision=PRECISION).exponent
        self.bodies = self.seal()
        self._totals = [self._read(body) for body in self.bodies]

    def seal(self) -> list[bytes]:
        """Encode, encrypt and write every value."""
        encrypted = (self._public.encrypt(value, precision=PRECISION) for value in self._values)
        return [int(number.ciphertext(be_secure=False)).to_bytes(self._width, "big") for number in encrypted]

    def fold(self) -> None:
        """Read and add one contribution."""
        self._totals = [total + self._read(body) for total, body in zip(self._totals, self.bodies, strict=True)]

    def open(self) -> list[float]:
        """Decrypt every value of the sum."""
        return [self._secret.decrypt(total) for total in self._totals]

    def _read(self, body: bytes) -> EncryptedNumber:
        return EncryptedNumber(self._public, int.from_bytes(body, "big"), self._exponent)


@dataclass(frozen=True)
class Ours:
    """A packed sum: the holder's keys, and every client's contribution to one sum."""

    plan: PaillierPlan
    strict: PaillierPlan
    holder: Keyring
    contributions: tuple[bytes, ...]
    aggregate: bytes

    @classmethod
    def prepare(cls, bits: int, vectors: NDArray[np.float64], tick: Callable[[], object]) -> Ours:
        """Plans, keys, and the sum of `vectors`."""
        parameters: dict[str, Any] = {"key_bits": bits, "mode": "public"}
        plan, strict = (
            PAILLIER.plan(parameters | {"randomiser": way}, LAYOUT, len(vectors)) for way in ("short", "strict")
        )
        holder = PAILLIER.generate_keyring(plan)
        contributions = []
        for vector in vectors:
            contributions.append(PAILLIER.seal(plan, ROUTE, [vector], holder.without_secret_key()))
            tick()
        partial_sum = PAILLIER.fold(plan, None, ((ROUTE, body) for body in contributions))
        return cls(plan, strict, holder, tuple(contributions), PAILLIER.release(plan, partial_sum))

    def fold(self) -> bytes:
        """What the server does with a batch of every client's contribution."""
        return PAILLIER.fold(self.plan, None, ((ROUTE, body) for body in self.contributions))

    def open(self) -> NDArray[np.float64]:
        """What the holder does with the sum."""
        return PAILLIER.open(self.plan, self.aggregate, len(self.contributions), self.holder)

    def seals(self, vector: NDArray[np.float64]) -> dict[str, Callable[[], object]]:
        """Seals by where randomisers come from; the strict plan alone has a pool, so the others never take from it."""
        member = self.holder.without_secret_key()
        return {
            "table": lambda: PAILLIER.seal(self.plan, ROUTE, [vector], member),
            "crt": lambda: PAILLIER.seal(self.plan, ROUTE, [vector], self.holder),
            "pool": lambda: PAILLIER.seal(self.strict, ROUTE, [vector], member),
        }

    def phe_key(self) -> PaillierPrivateKey:
        """The same key as phe holds it."""
        key = load_secret_key(self.plan, self.holder)
        return PaillierPrivateKey(PaillierPublicKey(int(key.p * key.q)), int(key.p), int(key.q))

    def is_exact(self, vectors: NDArray[np.float64]) -> bool:
        """Whether the opened sum is, to the last bit, the sum of the clients' fixed-point values."""
        scale = self.plan.packings[0].codes[0].scale
        return bool(np.array_equal(self.open() * scale, np.rint(vectors * scale).sum(axis=0)))


def measure(bits: int, vectors: NDArray[np.float64], repetitions: int, sample: int) -> dict[str, Figure]:
    """Everything for one key size, `sample` values of phe's, as flat figures."""
    with bars() as progress:
        sealing = progress.add_task(f"{bits} bits: clients seal", total=len(vectors))
        ours = Ours.prepare(bits, vectors, partial(progress.advance, sealing))
        peer = PhePeer(ours.phe_key(), vectors[0][:sample])
        moves: dict[str, Callable[[], object]] = {
            **{f"encrypt_{name}": seal for name, seal in ours.seals(vectors[0]).items()},
            "encrypt_phe": peer.seal,
            "fold": ours.fold,
            "fold_phe": peer.fold,
            "check": lambda: PAILLIER.check(ours.plan, ROUTE, ours.contributions[0]),
            "decrypt": ours.open,
            "decrypt_phe": peer.open,
            "table": lambda: ShortExponentTable.build(load_public_key(ours.plan, ours.holder)),
        }
        timing = progress.add_task(f"{bits} bits: time, in turn", total=repetitions + 1)
        capacity = ours.plan.ciphertexts * (repetitions + 1)
        with RandomiserPool(ours.strict, ours.holder, capacity).fill():
            calls = {"check": 20, "fold_phe": max(1, len(vectors) * ours.plan.ciphertexts // sample)}
            times = time_in_turn(moves, repetitions, partial(progress.advance, timing), calls)
    return {f"bits{bits}.{key}": figure for key, figure in _figures(ours, peer, times, sample, vectors).items()}


def _figures(
    ours: Ours, peer: PhePeer, times: dict[str, Timing], sample: int, vectors: NDArray[np.float64]
) -> dict[str, Figure]:
    scaled = {step: times[f"{step}_phe"].median * VALUES / sample for step in ("encrypt", "fold", "decrypt")}
    phe_bytes = sum(len(body) for body in peer.bodies) * VALUES // sample
    figures: dict[str, Figure] = {
        **{f"encrypt_speedup_{w}": scaled["encrypt"] / times[f"encrypt_{w}"].median for w in ("table", "pool", "crt")},
        "bytes_ratio": phe_bytes / len(ours.contributions[0]),
        "fold_speedup": scaled["fold"] / (times["fold"].median / len(vectors)),
        "check_and_fold_speedup": scaled["fold"] / (times["fold"].median / len(vectors) + times["check"].median),
        "decrypt_speedup": scaled["decrypt"] / times["decrypt"].median,
        "table_seconds": times["table"].median,
        "exact": ours.is_exact(vectors),
        "max_error": float(np.abs(ours.open() - vectors.sum(axis=0)).max()),
        "predicted_error": ours.plan.predicted_error,
        "contribution_bytes": len(ours.contributions[0]),
        "phe_bytes": phe_bytes,
        "values_per_ciphertext": VALUES / ours.plan.ciphertexts,
        "ciphertexts": ours.plan.ciphertexts,
        "phe_values_measured": sample,
    }
    for step, seconds in scaled.items():
        figures[f"{step}_phe_seconds"] = seconds
    for name in ("encrypt_table", "encrypt_pool", "encrypt_crt", "check", "decrypt"):
        figures |= times[name].figures(name)
    return figures | times["fold"].figures("fold", len(vectors))


def main() -> None:
    """Measure both key sizes, show the promised figures beside their targets, write the JSON."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=60, help="contributions a sum (default 60)")
    parser.add_argument("--full", action="store_true", help="measure phe on every value, once: about ten minutes")
    given = parser.parse_args()
    rng = np.random.default_rng(20240513)
    vectors = np.clip(rng.normal(0.0, CLIP / 2, (given.clients, VALUES)), -CLIP, CLIP)
    repetitions = 1 if given.full else 5 if given.quick else 11
    sample = VALUES if given.full else SAMPLE_QUICK if given.quick else SAMPLE
    figures: dict[str, Figure] = {"clients": given.clients, "values": VALUES, "repetitions": repetitions}
    for bits in KEY_BITS:
        figures |= measure(bits, vectors, repetitions, sample)
    how = "every value measured" if given.full else f"{sample} of its values measured, scaled to {VALUES}"
    show(f"Paillier, {VALUES} values, {given.clients} clients, beside phe ({how})", verdicts("paillier", figures))
    beside = [f"bits{bits}.{key}" for bits in KEY_BITS for key in ("table_seconds", "exact", "values_per_ciphertext")]
    show("Beside them", {key: figures[key] for key in beside})
    write_figures(given.json, figures)


if __name__ == "__main__":
    main()
