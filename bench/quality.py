"""Are the recommendations worth having? Recommended settings against popularity and against central baselines.

    python -m bench.quality --quick                             one seed, two rounds
    python -m bench.quality --data-dir DATA                     all sets and seeds; can be interrupted and resumed
    python -m bench.quality --validation --only ml-100k.colr    on validation rows, to choose settings

A held-out item is ranked against 99 negatives. All settings were chosen on validation rows; test rows are only measured
(`bench.quality_parts.sets`). One measurement is kept in the work folder and not repeated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from statistics import fmean
from typing import Final

from bench._report import Figure
from bench.quality_parts.central import BASELINES, best_of, measure
from bench.quality_parts.federated import ARMS, train_and_evaluate
from bench.quality_parts.rows import Found, Pair, means, measure_rows
from bench.quality_parts.sets import RANKING_SETS, Split, split_of
from client_sdk.evaluation.controls import popularity_control
from client_sdk.evaluation.leave_one_out import EvaluationResult

__all__ = ["figures_of", "main"]

QUICK_ROUNDS: Final = 2


def main(arguments: list[str] | None = None) -> int:
    """Measure what is asked and print the figures; see `measure_rows`."""
    return measure_rows(arguments, __doc__ or "", list(_rows()), _measured, figures_of)


def _rows() -> Iterator[str]:
    for dataset in RANKING_SETS:
        for name in ("popularity", *BASELINES, *ARMS):
            yield f"{dataset}.{name}"


def _measured(options: argparse.Namespace, row: str, seed: int, tick: Callable[[int], object]) -> Pair | None:
    result = _evaluated(options, row, seed, tick)
    return None if result is None else (result.hr, result.ndcg)


def _evaluated(
    options: argparse.Namespace, row: str, seed: int, tick: Callable[[int], object]
) -> EvaluationResult | None:
    dataset, _, name = row.partition(".")

    def split(validation: bool) -> Split:
        return split_of(dataset, options.data_dir, seed, validation)

    asked = split(options.validation)
    if name == "popularity":
        return popularity_control(asked.data, asked.candidates)
    if name in ARMS:
        return train_and_evaluate(ARMS[name], dataset, asked, seed, tick, QUICK_ROUNDS if options.quick else None)
    chosen = split(True)

    def validated(settings: object) -> float | None:
        result = measure(name, settings, chosen, seed)  # type: ignore[arg-type]
        return None if result is None else result.hr

    return measure(name, best_of(name, validated), asked, seed)


def figures_of(found: Found) -> dict[str, Figure]:
    """Return means over the seeds, spreads, ratios to popularity, and the best federated / the best central HR@10."""
    figures = means(found, ("hr10", "ndcg10"))
    for dataset in {row.partition(".")[0] for row in found}:
        own = {row.partition(".")[2]: by_seed for row, by_seed in found.items() if row.startswith(f"{dataset}.")}
        for name in own.keys() & ARMS.keys():
            for other, key in (("popularity", "hr10_over_popularity"), ("privirec-k", "hr10_over_privirec-k")):
                if other != name and (ratio := _ratio(own, name, other)) is not None:
                    figures[f"{dataset}.{name}.{key}"] = ratio
        hits = {name: fmean(hr for hr, _ in by_seed.values()) for name, by_seed in own.items()}
        federated, central = ([value for name, value in hits.items() if name in table] for table in (ARMS, BASELINES))
        if federated and central:
            figures[f"{dataset}.best_over_central"] = max(federated) / max(central)
    return figures


def _ratio(own: Found, name: str, other: str) -> float | None:
    """Return HR@10 of `name` / of `other`, means over the seeds that both have; None without such a seed."""
    seeds = own[name].keys() & own.get(other, {}).keys()
    if not seeds:
        return None
    return fmean(own[name][seed][0] for seed in seeds) / fmean(own[other][seed][0] for seed in seeds)


if __name__ == "__main__":
    sys.exit(main())
