"""CoLR and SCoLR on MovieLens-1M, with the settings of the released code (60 clients, 1,000 rounds, d = 64)."""

from __future__ import annotations

from typing import Any, Final

from bench.systems.base import Run
from client_sdk.training.mf import MFConfig
from protocols.advice import parameters_for

__all__ = ["colr_runs"]

DIM: Final = 64
CLIP: Final = 4.0
RANKS: Final = (1, 4, 16)
TRAINING: Final = MFConfig(learning_rate=0.5, epochs=2, batch_size=256, weight_decay=5e-4, negatives=4)

SCOLR_TABLE: Final = {
    64: (0.6386, 0.3704),
    32: (0.6329, 0.3634),
    16: (0.6206, 0.3563),
    8: (0.6102, 0.3477),
    4: (0.5987, 0.3389),
    2: (0.5784, 0.3258),
}
"""Nguyen et al. (WWW 2024), Table 4: HR@10 and NDCG@10 by shared rank."""


def colr_runs(*, quick: bool, protocol: str, seed: int = 0) -> list[Run]:
    """Runs of FedMF, of CoLR at ranks 1, 4 and 16 over plain and CKKS sums, and of SCoLR's table over plain sums."""
    rounds = 2 if quick else 1000

    def run(
        key: str,
        recipe: str,
        mechanism: str,
        parameters: dict[str, Any],
        published: dict[str, float],
        rounds: int = rounds,
    ) -> Run:
        return Run(
            key=f"ml1m.{key}.{mechanism}" + (f".seed{seed}" if seed else ""),
            dataset="ml-1m",
            recipe=recipe,
            recipe_parameters=parameters_for(recipe, {"dim": DIM, "clip": CLIP, **parameters}, "paper"),
            mechanism=mechanism,
            mechanism_parameters={"set": "standard"} if mechanism == "ckks" else {},
            training=TRAINING,
            cohort_size=60,
            rounds=rounds,
            protocol=protocol,
            seed=seed,
            evaluate_every=min(100, rounds),
            published={} if quick else published,
        )

    runs = [run("fedmf", "fedmf", "plain", {}, {})]
    for rank in (4,) if quick else RANKS:
        runs += [run(f"colr.rank{rank}", "colr", how, {"rank": rank}, {}) for how in ("plain", "ckks")]
    for rank, (hr, ndcg) in SCOLR_TABLE.items():
        if rank == 8 or not quick:
            runs.append(run(f"scolr.rank{rank}", "scolr", "plain", {"rank": rank}, {"hr10": hr, "ndcg10": ndcg}))
    if not quick:
        # with 237,184 values per contribution the encrypted run takes most of an hour, so a shorter pair is run too
        runs += [run("fedmf.rounds200", "fedmf", how, {}, {}, rounds=200) for how in ("plain", "ckks")]
        runs += [run("fedmf", "fedmf", "ckks", {}, {})]
    return runs
