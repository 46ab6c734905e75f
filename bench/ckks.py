"""Compare CKKS sums with TenSEAL's usual pipeline in one run: bytes, client time, server time, and the error.

    .venv/bin/python -m bench.ckks [--quick] [--json FILE]

The vector is the item matrix of ML-1M at d=64 (3706 x 64 values, clipped to 0.1). The peer is `ts.ckks_vector` with
N=8192, moduli of 60-40-40-60 bits and scale 2^40: serialise, deserialise and add.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tenseal as ts
from numpy.typing import NDArray

from bench._report import Figure, Timing, arguments, say, time_in_turn
from bench.registry import finish
from protocols.crypto.keys import Keyring
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.plan import CkksPlan

ITEMS, DIM, CLIP = 3706, 64, 0.1
LAYOUT = VectorLayout((Block("items", (Segment("item_factors", ITEMS * DIM, CLIP),)),), sum_class=TRAINED)
ROUTE = whole_route(LAYOUT)
PLAIN_BYTES = 4 * LAYOUT.length

FORMS: dict[str, dict[str, Any]] = {
    "compact": {"set": "compact"},
    "standard": {"set": "standard"},
    "precise": {"set": "precise"},
    "standard_expanded": {"set": "standard", "wire": "expanded"},
}
"""Task parameters by form."""


@dataclass(frozen=True)
class Form:
    """One form of sum: its plan, its keys and the sealed contributions of all clients."""

    plan: CkksPlan
    keyring: Keyring
    contributions: tuple[bytes, ...]

    def seal(self, vector: NDArray[np.float64]) -> bytes:
        """The contribution of one client: the timed client step."""
        return CKKS.seal(self.plan, ROUTE, [vector], self.keyring)

    def check(self) -> None:
        """The server's check of one contribution on arrival."""
        CKKS.check(self.plan, ROUTE, self.contributions[0])

    def fold(self) -> bytes:
        """The server's fold of one batch with the contributions of all clients."""
        return CKKS.fold(self.plan, None, ((ROUTE, body) for body in self.contributions))


def prepare(parameters: dict[str, Any], vectors: NDArray[np.float64]) -> Form:
    """Make the plan, the keys, and one contribution per vector."""
    plan = CKKS.plan(parameters, LAYOUT, len(vectors))
    keyring = CKKS.generate_keyring(plan)
    return Form(plan, keyring, tuple(CKKS.seal(plan, ROUTE, [vector], keyring) for vector in vectors))


def errors(name: str, form: Form, truth: NDArray[np.float64]) -> dict[str, Figure]:
    """Largest, root mean square and predicted error of the opened sum, compared with `truth`."""
    opened = CKKS.open(form.plan, CKKS.release(form.plan, form.fold()), len(form.contributions), form.keyring)
    difference = opened - truth
    return {
        f"max_error_{name}": float(np.abs(difference).max()),
        f"rms_error_{name}": float(np.sqrt(np.mean(difference**2))),
        f"predicted_error_{name}": form.plan.predicted_error,
    }


class TenSealPeer:
    """The peer: TenSEAL's usual pipeline for one vector."""

    def __init__(self, vector: NDArray[np.float64]) -> None:
        self._context = ts.context(ts.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40, 60])
        self._context.global_scale = 2**40
        self._vector = vector
        self.body = self.seal()
        self._total = ts.ckks_vector_from(self._context, self.body)

    def seal(self) -> bytes:
        """Encrypt and serialise the vector. TenSEAL prints a warning each time, which is suppressed."""
        with contextlib.redirect_stdout(io.StringIO()):
            return bytes(ts.ckks_vector(self._context, self._vector).serialize())

    def open(self) -> list[float]:
        """Deserialise and decrypt a sum of one contribution."""
        return list(ts.ckks_vector_from(self._context, self.body).decrypt())

    def fold(self) -> None:
        """Deserialise and add one contribution."""
        self._total += ts.ckks_vector_from(self._context, self.body)


def ratios(forms: dict[str, Form], seals: dict[str, Timing], folds: dict[str, Timing]) -> dict[str, Figure]:
    """Upload ratios and speed-ups, most of which have targets."""
    clients = len(forms["standard"].contributions)
    fold_peer = folds["tenseal"].median
    return {
        **{f"upload_ratio_{n}": len(f.contributions[0]) / PLAIN_BYTES for n, f in forms.items()},
        "encrypt_speedup_seeded": seals["tenseal"].median / seals["standard"].median,
        "encrypt_speedup_compact": seals["tenseal"].median / seals["compact"].median,
        "encrypt_speedup_precise": seals["tenseal"].median / seals["precise"].median,
        "fold_speedup_expanded": fold_peer / (folds["standard_expanded"].median / clients),
        "fold_speedup_seeded": fold_peer / (folds["standard"].median / clients),
        "check_and_fold_speedup_expanded": fold_peer
        / (folds["standard_expanded"].median / clients + folds["check standard_expanded"].median),
    }


def measure(clients: int, repetitions: int) -> dict[str, Figure]:
    """All figures of a sum over `clients` contributions, each step timed `repetitions` times."""
    rng = np.random.default_rng(20240513)
    vectors = np.clip(rng.normal(0.0, CLIP / 2, (clients, LAYOUT.length)), -CLIP, CLIP)
    peer = TenSealPeer(vectors[0])
    say("sealing contributions")
    forms = {name: prepare(parameters, vectors) for name, parameters in FORMS.items()}
    say("timing the client")
    steps: dict[str, Callable[[], object]] = {"tenseal": peer.seal}
    steps |= {name: partial(form.seal, vectors[0]) for name, form in forms.items()}
    seals = time_in_turn(steps, repetitions, dict.fromkeys(forms, 8))
    say("timing the server")
    steps = {"tenseal": peer.fold} | {name: form.fold for name, form in forms.items()}
    steps |= {f"check {name}": form.check for name, form in forms.items()}
    folds = time_in_turn(steps, repetitions, {"tenseal": 8})
    figures: dict[str, Figure] = {"clients": clients, "values": LAYOUT.length, "repetitions": repetitions}
    figures |= ratios(forms, seals, folds)
    figures |= {"upload_ratio_tenseal": len(peer.body) / PLAIN_BYTES}
    for name, timing_of in seals.items():
        figures |= timing_of.figures(f"encrypt_{name}")
    for name, timing_of in folds.items():
        batch = name in forms
        figures |= timing_of.figures(name.replace(" ", "_") if " " in name else f"fold_{name}", clients if batch else 1)
    expanded = forms["standard_expanded"]
    figures["fold_expanded_gigabytes_per_second"] = (
        clients * len(expanded.contributions[0]) / folds["standard_expanded"].median / 1e9
    )
    for name, form in forms.items():
        figures |= errors(name, form, vectors.sum(axis=0))
    return figures


if __name__ == "__main__":
    options = arguments(__doc__ or "").parse_args()
    finish("ckks", measure(*((3, 1) if options.quick else (60, 21))), options.json)
