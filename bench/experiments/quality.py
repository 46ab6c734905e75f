"""Are the recommendations worth having? Recommended settings against popularity and against central baselines.

    python -m bench.experiments.quality --quick                             one seed, two rounds
    python -m bench.experiments.quality --data-dir DATA                     all sets and seeds; can be resumed
    python -m bench.experiments.quality --validation --only ml-100k.colr    on validation rows, to choose settings

A held-out item is ranked among all items that the user does not have (hr10_full, ndcg20, recall20), as on a screen, and
among 99 negatives (hr10, ndcg10), as in most papers. All settings were chosen on validation rows by ndcg20; test rows
are only measured (`bench.experiments.quality_models`). One measurement is kept in the work folder and not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev
from typing import Final

import numpy as np
from rich.console import Console

from bench._report import Figure, bars, show, write_figures
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
from client_sdk.lab.evaluation.leave_one_out import FullScorer
from client_sdk.lab.measures import OneHeldOut
from protocols.errors import HushRecError

__all__ = ["Found", "Measure", "Values", "figures_of", "main", "means", "measure_rows", "values_of"]


# --- Rows `<set>.<name>` that are measured with several seeds: command line, finished measurements, means, spread

Values = dict[str, float]
"""The figures of a row and a seed, by metric."""
Found = dict[str, dict[int, Values]]
"""Row -> seed -> figures."""
Measure = Callable[[argparse.Namespace, str, int, Callable[[int], object]], Values | None]
"""Measures a row with a seed, and calls the last argument with the rounds done; None where a library is missing."""


def measure_rows(
    arguments: list[str] | None,
    about: str,
    rows: Sequence[str],
    measure: Measure,
    figures_of: Callable[[Found], dict[str, Figure]],
) -> int:
    """Measure what is asked and print the figures; 0 at the end, 1 if a data set is missing, 2 if nothing matches.

    about: the help; the first script that it names, `python -m bench...`, names the folder of finished measurements.
    """
    options = _parse(arguments, about)
    asked = [row for row in rows if not options.only or any(part in row for part in options.only)]
    if not asked:
        Console(stderr=True).print("nothing matches --only", style="red")
        return 2
    try:
        found = _measured_row(options, asked, measure)
    except HushRecError as error:
        Console(stderr=True).print(f"error: {error}", style="red", highlight=False)
        return 1
    figures = figures_of(found)
    show("validation rows" if options.validation else "test rows", figures)
    write_figures(options.json, figures)
    return 0


def _parse(arguments: list[str] | None, about: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    work = Path("bench/results/local") / about.partition("python -m bench.")[2].split()[0].rpartition(".")[2]
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="folder of the data sets (default: data)")
    parser.add_argument("--quick", action="store_true", help="one seed and few rounds: checks that everything runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds (default: 0 1 2)")
    parser.add_argument("--only", nargs="*", default=[], help="only keys that contain one of these texts")
    parser.add_argument("--validation", action="store_true", help="measure on validation rows, to choose settings")
    parser.add_argument("--work", type=Path, default=work, help="folder of finished measurements")
    parser.add_argument("--json", type=Path, help="write the figures as one flat JSON object")
    return parser.parse_args(arguments)


def _measured_row(options: argparse.Namespace, rows: Sequence[str], measure: Measure) -> Found:
    found: Found = {}
    with bars() as progress:
        for seed in options.seeds[:1] if options.quick else options.seeds:
            for row in rows:
                bar = progress.add_task(f"{row} seed {seed}", total=None)

                def tick(done: int, bar: object = bar) -> None:
                    progress.update(bar, completed=done)  # type: ignore[arg-type]

                values = _kept(options, row, seed, partial(measure, options, row, seed, tick))
                progress.remove_task(bar)
                if values is not None:
                    found.setdefault(row, {})[seed] = values
    return found


def _kept(options: argparse.Namespace, row: str, seed: int, measure: Callable[[], Values | None]) -> Values | None:
    """Return the figures of a finished measurement, or measure and keep them."""
    kind = "quick" if options.quick else "validation" if options.validation else "test"
    path: Path = options.work / kind / f"{row}.{seed}.json"
    if path.exists():
        kept: Values = json.loads(path.read_text())
        return kept
    values = measure()
    if values is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    return values


def means(found: Found) -> dict[str, Figure]:
    """Return means over the seeds, spreads, and numbers of seeds."""
    figures: dict[str, Figure] = {}
    for row, by_seed in found.items():
        for metric in next(iter(by_seed.values())):
            values = [each[metric] for each in by_seed.values()]
            figures |= {f"{row}.{metric}": fmean(values), f"{row}.{metric}_spread": pstdev(values)}
        figures[f"{row}.seeds"] = len(by_seed)
    return figures


# ---

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
    """Measure what is asked and print the figures; see `measure_rows`."""
    return measure_rows(arguments, __doc__ or "", list(_rows()), _measured, figures_of)


def _rows() -> Iterator[str]:
    for dataset in RANKING_SETS:
        for name in ("popularity", *BASELINES, *ARMS):
            yield f"{dataset}.{name}"


def _measured(options: argparse.Namespace, row: str, seed: int, tick: Callable[[int], object]) -> Values | None:
    dataset, _, name = row.partition(".")

    def split(validation: bool) -> Split:
        return split_of(dataset, options.data_dir, seed, validation)

    asked = split(options.validation)
    if name == "popularity":
        degrees = asked.data.train.item_degrees().astype(np.float64)
        return values_of(lambda users: np.broadcast_to(degrees, (users.size, degrees.size)), asked)
    if name in ARMS:
        rounds = QUICK_ROUNDS if options.quick else None
        return values_of(train_scorer(ARMS[name], asked, seed, tick, rounds), asked)
    chosen = split(True)

    def validated(settings: object) -> float | None:
        scorer = scorer_of(name, settings, chosen, seed)  # type: ignore[arg-type]
        return None if scorer is None else values_of(scorer, chosen)["ndcg20"]

    scorer = scorer_of(name, best_of(name, validated), asked, seed)
    return None if scorer is None else values_of(scorer, asked)


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
