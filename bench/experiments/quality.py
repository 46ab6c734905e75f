"""Are the recommendations worth having? Recommended settings against popularity and against central baselines.

    python -m bench.experiments.quality --quick                             one seed, two rounds
    python -m bench.experiments.quality --data-dir DATA                     all sets and seeds; can be resumed
    python -m bench.experiments.quality --validation --only ml-100k.colr    on validation rows, to choose settings

A held-out item is ranked among all items that the user does not have (hr10_full, ndcg20, recall20), as on a screen, and
among 99 negatives (hr10, ndcg10), as in most papers. All settings were chosen on validation rows by ndcg20; test rows
are only measured (`bench.experiments.quality_models`). A finished row is kept in the work folder and not repeated.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np

from bench._report import Figure
from bench.experiments.quality_models import (
    ARMS,
    BASELINES,
    RANKING_SETS,
    Split,
    best_of,
    scorer_of,
    split_of,
    train_scorer,
)
from bench.experiments.rows import Found, Values, means, measure_seeds
from client_sdk.lab.evaluation.leave_one_out import FullScorer
from client_sdk.lab.measures import OneHeldOut

__all__ = ["figures_of", "main", "values_of"]

QUICK_ROUNDS: Final = 2
AUTO: Final = "privirec-k"
"""The recipe that `hushrec simulate --recipe auto` and `hushrec-server task advise` choose for sets like these."""
_KEYS: Final = {
    "HR@10 full": "hr10_full",
    "NDCG@20 full": "ndcg20",
    "HR@20 full": "recall20",
    "HR@10": "hr10",
    "NDCG@10": "ndcg10",
}


def main(arguments: list[str] | None = None) -> int:
    """Measure what is asked and print the figures; see `measure_seeds`."""
    names = ((dataset, name) for dataset in RANKING_SETS for name in ("popularity", *BASELINES, *ARMS))
    return measure_seeds(arguments, __doc__ or "", names, _measured, figures_of)


def _measured(dataset: str, name: str, seed: int, validation: bool, quick: bool, data_dir: Path) -> Values:
    asked = split_of(dataset, data_dir, seed, validation)
    if name == "popularity":
        degrees = asked.data.train.item_degrees().astype(np.float64)
        return values_of(lambda users: np.broadcast_to(degrees, (users.size, degrees.size)), asked)
    if name in ARMS:
        return values_of(train_scorer(ARMS[name], asked, seed, QUICK_ROUNDS if quick else None), asked)
    chosen = split_of(dataset, data_dir, seed, True)

    def validated(settings: object) -> float | None:
        scorer = scorer_of(name, settings, chosen, seed)  # type: ignore[arg-type]
        return None if scorer is None else values_of(scorer, chosen)["ndcg20"]

    scorer = scorer_of(name, best_of(name, validated), asked, seed)
    return {} if scorer is None else values_of(scorer, asked)


def values_of(scores: FullScorer, split: Split) -> Values:
    """Return the metrics of the scores, and the standard error of NDCG@20 of one seed."""
    measured = OneHeldOut(split.data, split.candidates).measured(scores)
    found = {_KEYS[name]: value for name, value in measured.values.items()}
    return found | {"ndcg20_error": float(measured.of_users.std() / np.sqrt(measured.of_users.size))}


def figures_of(found: Found) -> dict[str, Figure]:
    """Return means over the seeds, spreads, ratios to popularity, and the best federated / the best central.

    `best_over_central` compares HR@10 among 99 negatives; `best_over_central_full`, `auto_over_best_full` and
    `ndcg20_over_central` NDCG@20 over all items. ndcg20_error: the standard error of one seed's mean.
    """
    figures = means(found)
    for dataset in {row.partition(".")[0] for row in found}:
        own = {row.partition(".")[2]: by_seed for row, by_seed in found.items() if row.startswith(f"{dataset}.")}
        for name in own.keys() & ARMS.keys():
            for metric in ("hr10", "ndcg20"):
                if (ratio := _ratio(own, name, "popularity", metric)) is not None:
                    figures[f"{dataset}.{name}.{metric}_over_popularity"] = ratio
        for metric, key in (("hr10", "best_over_central"), ("ndcg20", "best_over_central_full")):
            means_ = {name: fmean(values[metric] for values in by_seed.values()) for name, by_seed in own.items()}
            ours, theirs = ([value for name, value in means_.items() if name in table] for table in (ARMS, BASELINES))
            if ours and theirs:
                figures[f"{dataset}.{key}"] = max(ours) / max(theirs)
            if metric == "ndcg20" and theirs:
                shares = {name: value / max(theirs) for name, value in means_.items() if name not in BASELINES}
                figures |= {f"{dataset}.{name}.ndcg20_over_central": share for name, share in shares.items()}
            if metric == "ndcg20" and AUTO in means_:
                figures[f"{dataset}.auto_over_best_full"] = means_[AUTO] / max(ours)
    return figures


def _ratio(own: Found, name: str, other: str, metric: str) -> float | None:
    """Return the metric of `name` / of `other`, means over the seeds that both have; None without such a seed."""
    seeds = own[name].keys() & own.get(other, {}).keys()
    if not seeds:
        return None
    return fmean(own[name][seed][metric] for seed in seeds) / fmean(own[other][seed][metric] for seed in seeds)


if __name__ == "__main__":
    sys.exit(main())
