"""Top-K and SVD compression on MovieLens: what the CoLR paper compares with, and what a shared support costs.

Shares of the N*d entries as in the paper (1/64 to 16/64), the settings of its released code otherwise, on two sets. On
ML-1M for fewer rounds than its 1,000: the paper prints no figure for these baselines there, only curves, so the runs
compare with each other, and with FedMF and CoLR after as many rounds. On ML-100K for so many rounds that every client
takes part about ten times, as it does in the paper's 1,000 on ML-1M: error feedback needs clients that come back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from bench.systems.base import Run
from bench.systems.colr import CLIP, DIM, TRAINING

__all__ = ["topk_runs"]

DATASETS: Final = {"ml-1m": 300, "ml-100k": 160}
"""Name -> rounds."""
SIXTY_FOURTHS: Final = (1, 2, 4, 8, 16)
SVD_RANKS: Final = (1, 4, 16)
OWN: Final = {"support": "own", "reveal_indices": True}


@dataclass(frozen=True)
class Setting:
    """What the runs of one table have in common."""

    dataset: str
    rounds: int
    protocol: str
    seed: int

    def run(self, key: str, recipe: str, parameters: dict[str, Any]) -> Run:
        """One run in plain sums, with the round count in its key."""
        prefix, seed = self.dataset.replace("-", ""), f".seed{self.seed}" if self.seed else ""
        return Run(
            key=f"{prefix}.{key}.rounds{self.rounds}.plain{seed}",
            dataset=self.dataset,
            recipe=recipe,
            recipe_parameters={"dim": DIM, "clip": CLIP, **parameters},
            mechanism="plain",
            mechanism_parameters={},
            training=TRAINING,
            cohort_size=60,
            rounds=self.rounds,
            protocol=self.protocol,
            seed=self.seed,
            evaluate_every=100,
        )


def topk_runs(*, quick: bool, protocol: str, seed: int = 0) -> list[Run]:
    """Own and shared support at every share with and without error feedback, SVD, and FedMF and CoLR beside them.

    Shared supports are made from the last sum, at one share from a vote, too. `quick`: 30 rounds of ML-100K, one share.
    """
    if quick:
        return _runs(Setting("ml-100k", 30, protocol, seed), (4,), (4,))
    settings = [Setting(name, rounds, protocol, seed) for name, rounds in DATASETS.items()]
    return [run for setting in settings for run in _runs(setting, SIXTY_FOURTHS, SVD_RANKS)]


def _runs(setting: Setting, shares: tuple[int, ...], ranks: tuple[int, ...]) -> list[Run]:
    runs = [setting.run("fedmf", "fedmf", {}), setting.run("colr.rank4", "colr", {"rank": 4})]
    for share in shares:
        for support, wanted in (("own", OWN), ("shared", {})):
            for feedback in (False, True):
                key = f"topk.{support}.share{share}of64" + (".feedback" if feedback else "")
                parameters = {**wanted, "share": share / 64, "error_feedback": feedback}
                runs.append(setting.run(key, "topk", parameters))
    runs.append(setting.run("topk.vote.share4of64", "topk", {"support_from": "vote", "share": 4 / 64}))
    return runs + [setting.run(f"svd.rank{rank}", "svd", {"rank": rank}) for rank in ranks]
