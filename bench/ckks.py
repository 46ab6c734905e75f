"""Compare CKKS sums with TenSEAL's usual pipeline in one run: bytes, client time, server time, and the error.

    .venv/bin/python -m bench.ckks [--quick] [--json FILE]

The vector is the item matrix of ML-1M at d=64 (3706 x 64 values, clipped to 0.1). The peer is `ts.ckks_vector` with
N=8192, moduli of 60-40-40-60 bits and scale 2^40: serialise, deserialise and add.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench._report import Figure, arguments, say, time_in_turn
from bench.figures import run
from bench.peers import TenSealPeer
from bench.sums import PreparedSum, updates
from protocols.sums.ckks.mechanism import CKKS

VALUES: Final = 3706 * 64
FORMS: Final[dict[str, dict[str, Any]]] = {
    "compact": {"set": "compact"},
    "standard": {"set": "standard"},
    "precise": {"set": "precise"},
    "standard_expanded": {"set": "standard", "wire": "expanded"},
}
"""Task parameters by form."""


def errors(name: str, form: PreparedSum, truth: NDArray[np.float64]) -> dict[str, Figure]:
    """Largest, root mean square and predicted error of the opened sum, compared with `truth`."""
    difference = form.open() - truth
    return {
        f"max_error_{name}": float(np.abs(difference).max()),
        f"rms_error_{name}": float(np.sqrt(np.mean(difference**2))),
        f"predicted_error_{name}": form.plan.predicted_error,
    }


def measure(clients: int, repetitions: int) -> dict[str, Figure]:
    """All figures of a sum over `clients` contributions, each step timed `repetitions` times."""
    vectors = updates(clients, VALUES)
    peer = TenSealPeer(vectors[0])
    say("sealing contributions")
    forms = {name: PreparedSum.of(CKKS, parameters, vectors) for name, parameters in FORMS.items()}
    say("timing the client")
    steps: dict[str, Callable[[], object]] = {"tenseal": peer.seal}
    steps |= {name: partial(form.seal, vectors[0]) for name, form in forms.items()}
    seals = time_in_turn(steps, repetitions, dict.fromkeys(forms, 8))
    say("timing the server")
    folds = time_in_turn(
        {"tenseal": peer.fold} | {name: form.fold for name, form in forms.items()}
        | {f"check_{name}": form.check for name, form in forms.items()},
        repetitions,
        {"tenseal": 8},
    )  # fmt: skip
    figures: dict[str, Figure] = {"clients": clients, "values": VALUES, "repetitions": repetitions}
    for name, timing in seals.items():
        figures |= timing.figures(f"encrypt_{name}")
    for name, timing in folds.items():
        is_check = name.startswith("check_")
        figures |= timing.figures(name if is_check else f"fold_{name}", clients if name in forms else 1)
    bodies = {"tenseal": peer.body, **{name: form.contributions[0] for name, form in forms.items()}}
    figures |= {f"upload_ratio_{name}": len(body) / (4 * VALUES) for name, body in bodies.items()}
    for name, form in forms.items():
        figures |= errors(name, form, vectors.sum(axis=0))
    fold = {name: folds[name].median / (clients if name in forms else 1) for name in bodies}
    return figures | {
        "encrypt_speedup_seeded": seals["tenseal"].median / seals["standard"].median,
        "encrypt_speedup_compact": seals["tenseal"].median / seals["compact"].median,
        "encrypt_speedup_precise": seals["tenseal"].median / seals["precise"].median,
        "fold_speedup_expanded": fold["tenseal"] / fold["standard_expanded"],
        "fold_speedup_seeded": fold["tenseal"] / fold["standard"],
        "check_and_fold_speedup_expanded": fold["tenseal"]
        / (fold["standard_expanded"] + folds["check_standard_expanded"].median),
        "fold_expanded_gigabytes_per_second": len(bodies["standard_expanded"]) / fold["standard_expanded"] / 1e9,
    }


if __name__ == "__main__":
    run("ckks", arguments(__doc__), lambda options: measure(*((3, 1) if options.quick else (60, 21))))
