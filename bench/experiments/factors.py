"""Top-K and SVD compression on MovieLens: the baselines of the CoLR paper, and the cost of a shared support.

Shares of the N*d entries are those of the paper (1/64 to 16/64); other settings are those of its released code. ML-1M
runs for fewer rounds than the paper's 1,000: the paper prints only curves for these baselines, so the runs are compared
with each other, and with FedMF and CoLR after as many rounds. ML-100K runs until every client took part about ten
times, as in 1,000 rounds on ML-1M: error feedback needs clients that come back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from bench.experiments.runs import Run
from client_sdk.training.mf import MFConfig
from protocols.advice import parameters_for

__all__ = ["colr_runs", "topk_runs"]


# --- CoLR and SCoLR on MovieLens-1M, with the settings of the released code (60 clients, 1,000 rounds, d = 64)

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


# ---

DATASETS: Final = {"ml-1m": 300, "ml-100k": 160}
"""Number of rounds by data set."""
SIXTY_FOURTHS: Final = (1, 2, 4, 8, 16)
SVD_RANKS: Final = (1, 4, 16)
OWN: Final = {"support": "own", "reveal_indices": True}


@dataclass(frozen=True)
class Setting:
    """The common settings of the runs of one table."""

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
            recipe_parameters=parameters_for(recipe, {"dim": DIM, "clip": CLIP, **parameters}, "paper"),
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
    """Runs of own and shared support at every share with and without error feedback, SVD, FedMF and CoLR.

    Shared supports come from the last sum; at one share also from a vote. quick: 2 rounds of ML-100K, one share.
    """
    if quick:
        return _runs(Setting("ml-100k", 2, protocol, seed), (4,), (4,))
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
    vote = {"support_from": "vote", "reveal_touched": True, "share": 4 / 64}
    runs.append(setting.run("topk.vote.share4of64", "topk", vote))
    return runs + [setting.run(f"svd.rank{rank}", "svd", {"rank": rank}) for rank in ranks]
