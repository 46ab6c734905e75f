"""Compare packed Paillier sums with phe at one value per ciphertext, in one run: client, server, bytes, and the sum.

    .venv/bin/python -m bench.paillier [--quick] [--full] [--json FILE]

The vector is the Top-K payload of ML-1M at 1/64: 3706 values, clipped to 0.1. phe takes minutes, so it is measured on
some of the values and scaled to all of them; `--full` measures every value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from phe import EncryptedNumber, PaillierPrivateKey, PaillierPublicKey

from bench._report import Figure, Timing, arguments, say, time_in_turn
from bench.registry import finish
from protocols.crypto.keys import Keyring
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.sums.paillier.keys import load_secret_key
from protocols.sums.paillier.mechanism import PAILLIER
from protocols.sums.paillier.plan import PaillierPlan

VALUES, CLIP, PRECISION = 3706, 0.1, 2.0**-32
LAYOUT = VectorLayout((Block("top", (Segment("values", VALUES, CLIP),)),), sum_class=TRAINED)
ROUTE = whole_route(LAYOUT)
KEY_BITS = (2048, 3072)
SAMPLE, SAMPLE_QUICK = 32, 2


class PhePeer:
    """The peer: phe as in its documentation, one value per ciphertext, with the shortest possible encoding.

    The precision is fixed, so all exponents are equal and phe adds without aligning them, which is its fastest way. A
    ciphertext is sent at its full width and the common exponent is not sent (phe's documentation sends JSON).
    """

    def __init__(self, key: PaillierPrivateKey, values: NDArray[np.float64]) -> None:
        self._secret, self._public = key, key.public_key
        self._width = key.public_key.n.bit_length() // 4
        self._values = values.tolist()
        self._exponent = self._public.encrypt(self._values[0], precision=PRECISION).exponent
        self.bodies = self.seal()
        self._totals = [self._read(body) for body in self.bodies]

    def seal(self) -> list[bytes]:
        """The ciphertext of every value as bytes."""
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
    """A packed sum: its plan, its keys, and all contributions."""

    plan: PaillierPlan
    keyring: Keyring
    contributions: tuple[bytes, ...]
    aggregate: bytes

    @classmethod
    def prepare(cls, bits: int, vectors: NDArray[np.float64]) -> Ours:
        """Make the plan, a key of `bits` bits, and the sum of `vectors`."""
        plan = PAILLIER.plan({"key_bits": bits}, LAYOUT, len(vectors))
        keyring = PAILLIER.generate_keyring(plan)
        contributions = [PAILLIER.seal(plan, ROUTE, [vector], keyring) for vector in vectors]
        partial_sum = PAILLIER.fold(plan, None, ((ROUTE, body) for body in contributions))
        return cls(plan, keyring, tuple(contributions), PAILLIER.release(plan, partial_sum))

    def fold(self) -> bytes:
        """The server's fold of one batch with the contributions of all clients."""
        return PAILLIER.fold(self.plan, None, ((ROUTE, body) for body in self.contributions))

    def open(self) -> NDArray[np.float64]:
        """The opened sum, float64 (values,)."""
        return PAILLIER.open(self.plan, self.aggregate, len(self.contributions), self.keyring)

    def seal(self, vector: NDArray[np.float64]) -> bytes:
        """The contribution of one client: the timed client step."""
        return PAILLIER.seal(self.plan, ROUTE, [vector], self.keyring)

    def phe_key(self) -> PaillierPrivateKey:
        """The same key as a phe object."""
        key = load_secret_key(self.plan, self.keyring)
        return PaillierPrivateKey(PaillierPublicKey(int(key.p * key.q)), int(key.p), int(key.q))

    def is_exact(self, vectors: NDArray[np.float64]) -> bool:
        """Whether the opened sum equals the sum of the clients' fixed-point values to the last bit."""
        scale = self.plan.packings[0].codes[0].scale
        return bool(np.array_equal(self.open() * scale, np.rint(vectors * scale).sum(axis=0)))


def measure(bits: int, vectors: NDArray[np.float64], repetitions: int, sample: int) -> dict[str, Figure]:
    """All figures of one key size; phe is measured on the first `sample` values."""
    say(f"{bits} bits: sealing contributions")
    ours = Ours.prepare(bits, vectors)
    say(f"{bits} bits: timing the steps")
    peer = PhePeer(ours.phe_key(), vectors[0][:sample])
    steps: dict[str, Callable[[], object]] = {
        "encrypt_crt": partial(ours.seal, vectors[0]),
        "encrypt_phe": peer.seal,
        "fold": ours.fold,
        "fold_phe": peer.fold,
        "check": lambda: PAILLIER.check(ours.plan, ROUTE, ours.contributions[0]),
        "decrypt": ours.open,
        "decrypt_phe": peer.open,
    }
    calls = {"check": 20, "fold_phe": max(1, len(vectors) * ours.plan.ciphertexts // sample)}
    times = time_in_turn(steps, repetitions, calls)
    ahead = [PAILLIER.make_piece(ours.plan, ours.keyring) for _ in range(ours.plan.ciphertexts * (repetitions + 1))]

    def pooled() -> bytes:
        taken = lambda wanted: [ahead.pop() for _ in range(wanted)]  # noqa: E731
        return PAILLIER.seal_ahead(ours.plan, ROUTE, [vectors[0]], ours.keyring, taken)

    times |= time_in_turn({"encrypt_pool": pooled}, repetitions)
    return {f"bits{bits}.{key}": figure for key, figure in _figures(ours, peer, times, sample, vectors).items()}


def _figures(
    ours: Ours, peer: PhePeer, times: dict[str, Timing], sample: int, vectors: NDArray[np.float64]
) -> dict[str, Figure]:
    scaled = {step: times[f"{step}_phe"].median * VALUES / sample for step in ("encrypt", "fold", "decrypt")}
    phe_bytes = sum(len(body) for body in peer.bodies) * VALUES // sample
    figures: dict[str, Figure] = {
        **{f"encrypt_speedup_{w}": scaled["encrypt"] / times[f"encrypt_{w}"].median for w in ("pool", "crt")},
        "bytes_ratio": phe_bytes / len(ours.contributions[0]),
        "fold_speedup": scaled["fold"] / (times["fold"].median / len(vectors)),
        "check_and_fold_speedup": scaled["fold"] / (times["fold"].median / len(vectors) + times["check"].median),
        "decrypt_speedup": scaled["decrypt"] / times["decrypt"].median,
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
    for name in ("encrypt_pool", "encrypt_crt", "check", "decrypt"):
        figures |= times[name].figures(name)
    return figures | times["fold"].figures("fold", len(vectors))


def main() -> None:
    """Measure both key sizes, print and write the figures."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--full", action="store_true", help="measure phe on every value, once; takes about ten minutes")
    options = parser.parse_args()
    rng, clients = np.random.default_rng(20240513), 2 if options.quick else 60
    vectors = np.clip(rng.normal(0.0, CLIP / 2, (clients, VALUES)), -CLIP, CLIP)
    repetitions = 1 if options.full or options.quick else 11
    sample = VALUES if options.full else SAMPLE_QUICK if options.quick else SAMPLE
    figures: dict[str, Figure] = {"clients": clients, "values": VALUES, "repetitions": repetitions}
    for bits in KEY_BITS:
        figures |= measure(bits, vectors, repetitions, sample)
    finish("paillier", figures, options.json)


if __name__ == "__main__":
    main()
