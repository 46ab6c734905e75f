"""Compare CKKS sums with TenSEAL's usual pipeline in one run: bytes, client time, server time, and the error.

.venv/bin/python -m bench.ckks [--quick] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

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
    bodies = {"tenseal": peer.body, **{name: form.contributions[0] for name, form in forms.items()}}
    fold = {name: folds[name] / (clients if name in forms else 1) for name in bodies}
    figures: dict[str, Figure] = {"clients": clients, "values": VALUES, "repetitions": repetitions}
    for name, body in bodies.items():
        figures |= {f"encrypt_{name}_ms_median": 1e3 * seals[name], f"fold_{name}_ms_median": 1e3 * fold[name]}
        figures[f"upload_ratio_{name}"] = len(body) / (4 * VALUES)
    for name, form in forms.items():
        figures[f"check_{name}_ms_median"] = 1e3 * folds[f"check_{name}"]
        figures[f"max_error_{name}"] = float(np.abs(form.open() - vectors.sum(axis=0)).max())
        figures[f"predicted_error_{name}"] = form.plan.predicted_error
    expanded = fold["standard_expanded"]
    return figures | {
        "encrypt_speedup_seeded": seals["tenseal"] / seals["standard"],
        "fold_speedup_expanded": fold["tenseal"] / expanded,
        "fold_speedup_seeded": fold["tenseal"] / fold["standard"],
        "check_and_fold_speedup_expanded": fold["tenseal"] / (expanded + folds["check_standard_expanded"]),
    }


if __name__ == "__main__":
    run("ckks", arguments(__doc__), lambda options: measure(*((3, 1) if options.quick else (60, 21))))
