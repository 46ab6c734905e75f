"""Compare packed Paillier sums with phe at one value per ciphertext, in one run: client, server, bytes, and the sum.

.venv/bin/python -m bench.paillier [--quick] [--full] [--json FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray
from phe import PaillierPrivateKey, PaillierPublicKey

from bench._report import Figure, arguments, say, time_in_turn
from bench.figures import run
from bench.peers import PhePeer
from bench.sums import PreparedSum, updates
from protocols.sums.paillier.mechanism import PAILLIER, load_secret_key

VALUES: Final = 3706
PRECISION: Final = 2.0**-32
KEY_BITS: Final = (2048, 3072)
SAMPLE, SAMPLE_QUICK = 32, 2


def phe_key(ours: PreparedSum) -> PaillierPrivateKey:
    """Our key as a phe object."""
    assert ours.keys is not None
    key = load_secret_key(ours.plan, ours.keys)
    return PaillierPrivateKey(PaillierPublicKey(int(key.p * key.q)), int(key.p), int(key.q))


def measure(bits: int, vectors: NDArray[np.float64], repetitions: int, sample: int) -> dict[str, Figure]:
    """All figures of one key size; phe is measured on the first `sample` values."""
    say(f"{bits} bits: sealing contributions")
    ours, clients = PreparedSum.of(PAILLIER, {"key_bits": bits}, vectors), len(vectors)
    plan, keys = ours.plan, ours.keys
    assert keys is not None
    say(f"{bits} bits: timing the steps")
    peer = PhePeer(phe_key(ours), vectors[0][:sample], PRECISION)
    scale = plan.packings[0].codes[0].scale
    exact = np.array_equal(ours.open() * scale, np.rint(vectors * scale).sum(axis=0))  # in steps, to the last bit
    steps: dict[str, Callable[[], object]] = {
        "encrypt_crt": partial(ours.seal, vectors[0]),
        "encrypt_phe": peer.seal,
        "fold": ours.fold,
        "fold_phe": peer.fold,
        "check": ours.check,
        "decrypt": ours.open,
        "decrypt_phe": peer.open,
    }
    calls = {"check": 20, "fold_phe": max(1, clients * plan.ciphertexts // sample)}
    times = time_in_turn(steps, repetitions, calls)
    ahead = [PAILLIER.make_piece(plan, keys) for _ in range(plan.ciphertexts * (repetitions + 1))]

    def pooled() -> bytes:
        taken = lambda wanted: [ahead.pop() for _ in range(wanted)]  # noqa: E731
        return PAILLIER.seal_ahead(plan, ours.route, [vectors[0]], keys, taken)

    times |= time_in_turn({"encrypt_pool": pooled}, repetitions)
    phe = {step: times[f"{step}_phe"] * VALUES / sample for step in ("encrypt", "fold", "decrypt")}
    ours_ms = {name: 1e3 * times[name] for name in ("encrypt_pool", "encrypt_crt", "check", "decrypt")}
    ours_ms["fold"] = 1e3 * times["fold"] / clients
    own_bytes, phe_bytes = len(ours.contributions[0]), sum(map(len, peer.bodies)) * VALUES // sample
    figures: dict[str, Figure] = {
        **{f"encrypt_speedup_{way}": phe["encrypt"] / times[f"encrypt_{way}"] for way in ("pool", "crt")},
        "bytes_ratio": phe_bytes / own_bytes,
        "fold_speedup": 1e3 * phe["fold"] / ours_ms["fold"],
        "decrypt_speedup": phe["decrypt"] / times["decrypt"],
        "exact": bool(exact),
        "contribution_bytes": own_bytes,
        "phe_bytes": phe_bytes,
        "ciphertexts": plan.ciphertexts,
        "phe_values_measured": sample,
        **{f"{step}_phe_seconds": seconds for step, seconds in phe.items()},
        **{f"{name}_ms_median": milliseconds for name, milliseconds in ours_ms.items()},
    }
    return {f"bits{bits}.{key}": figure for key, figure in figures.items()}


def measure_all(options: argparse.Namespace) -> dict[str, Figure]:
    vectors = updates(2 if options.quick else 60, VALUES)
    repetitions = 1 if options.full or options.quick else 11
    sample = VALUES if options.full else SAMPLE_QUICK if options.quick else SAMPLE
    figures: dict[str, Figure] = {"clients": len(vectors), "values": VALUES, "repetitions": repetitions}
    for bits in KEY_BITS:
        figures |= measure(bits, vectors, repetitions, sample)
    return figures


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--full", action="store_true", help="measure phe on every value, once; takes about ten minutes")
    run("paillier", parser, measure_all)
