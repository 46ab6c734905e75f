"""Top-K and SVD compression on MovieLens-1M: what the CoLR paper compares with, and what a shared support costs.

Shares of the N*d entries as in the paper (1/64 to 16/64), the settings of its released code otherwise. Fewer rounds
than its 1,000: the paper prints no figure for these baselines on MovieLens-1M, only curves, so the runs compare with
each other, and with FedMF and CoLR after as many rounds.
"""

from __future__ import annotations

from typing import Any, Final

from bench.systems.base import Run
from bench.systems.colr import CLIP, DIM, TRAINING

__all__ = ["topk_runs"]

ROUNDS: Final = 300
SIXTY_FOURTHS: Final = (1, 2, 4, 8, 16)
SVD_RANKS: Final = (1, 4, 16)
OWN: Final = {"support": "own", "reveal_indices": True}


def topk_runs(*, quick: bool, protocol: str, seed: int = 0) -> list[Run]:
    """Own and shared support at every share with and without error feedback, SVD, and FedMF and CoLR beside them.

    Shared supports are made from the last sum, at one share from a vote, too.
    """
    rounds = 30 if quick else ROUNDS

    def run(key: str, recipe: str, parameters: dict[str, Any], mechanism: str = "plain") -> Run:
        return Run(
            key=f"ml1m.{key}.rounds{rounds}.{mechanism}" + (f".seed{seed}" if seed else ""),
            dataset="ml-1m",
            recipe=recipe,
            recipe_parameters={"dim": DIM, "clip": CLIP, **parameters},
            mechanism=mechanism,
            mechanism_parameters={},
            training=TRAINING,
            cohort_size=60,
            rounds=rounds,
            protocol=protocol,
            seed=seed,
            evaluate_every=100,
        )

    runs = [run("fedmf", "fedmf", {}), run("colr.rank4", "colr", {"rank": 4})]
    for share in (4,) if quick else SIXTY_FOURTHS:
        for support, wanted in (("own", OWN), ("shared", {})):
            for feedback in (False, True):
                key = f"topk.{support}.share{share}of64" + (".feedback" if feedback else "")
                runs.append(run(key, "topk", {**wanted, "share": share / 64, "error_feedback": feedback}))
    runs.append(run("topk.vote.share4of64", "topk", {"support_from": "vote", "share": 4 / 64}))
    for rank in (4,) if quick else SVD_RANKS:
        runs.append(run(f"svd.rank{rank}", "svd", {"rank": rank}))
    return runs
