"""Are the recommendations worth having? Recommended settings against popularity and against central baselines.

    python -m bench.quality --quick                             one seed, one small set, a few rounds
    python -m bench.quality --data-dir DATA                     all sets and seeds; can be interrupted and resumed
    python -m bench.quality --validation --only ml-100k.colr    on validation rows, to choose settings

A held-out item is ranked against 99 negatives. All settings were chosen on validation rows; test rows are only measured
(`bench.quality_parts.sets`). One measurement is kept in the work folder and not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, pstdev
from typing import Final

from rich.console import Console

from bench._report import Figure, bars, show, write_figures
from bench.quality_parts.central import BASELINES, best_of, measure
from bench.quality_parts.federated import ARMS, train_and_evaluate
from bench.quality_parts.sets import RANKING_SETS, Split, split_of
from client_sdk.evaluation.controls import popularity_control
from client_sdk.evaluation.leave_one_out import EvaluationResult
from protocols.errors import HushRecError

__all__ = ["figures_of", "main"]

QUICK_ROUNDS: Final = 12
Found = dict[str, dict[int, tuple[float, float]]]
"""`<set>.<name>` -> seed -> HR@10 and NDCG@10."""


def main(arguments: list[str] | None = None) -> int:
    """Measure what is asked and print the figures; 0 at the end, 1 if a data set is missing, 2 if nothing matches."""
    options = parse(arguments)
    rows = [row for row in _rows() if not options.only or any(part in row for part in options.only)]
    if options.quick:
        rows = [row for row in rows if row.startswith("filmtrust.")]
    if not rows:
        Console(stderr=True).print("nothing matches --only", style="red")
        return 2
    found: Found = {}
    try:
        with bars() as progress:
            for seed in options.seeds[:1] if options.quick else options.seeds:
                for row in rows:
                    bar = progress.add_task(f"{row} seed {seed}", total=None)
                    figures = _kept(
                        options,
                        row,
                        seed,
                        lambda n, bar=bar: progress.update(bar, completed=n),  # type: ignore[misc]
                    )
                    progress.remove_task(bar)
                    if figures is not None:
                        found.setdefault(row, {})[seed] = figures
    except HushRecError as error:
        Console(stderr=True).print(f"error: {error}", style="red", highlight=False)
        return 1
    figures = figures_of(found)
    show("validation rows" if options.validation else "test rows", figures)
    write_figures(options.json, figures)
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="folder of the data sets (default: data)")
    parser.add_argument("--quick", action="store_true", help="one seed of filmtrust, a few rounds; checks the code")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds (default: 0 1 2)")
    parser.add_argument("--only", nargs="*", default=[], help="only keys that contain one of these texts")
    parser.add_argument("--validation", action="store_true", help="measure on validation rows, to choose settings")
    parser.add_argument(
        "--work", type=Path, default=Path("bench/results/local/quality"), help="folder of finished measurements"
    )
    parser.add_argument("--json", type=Path, help="write the figures as one flat JSON object")
    return parser.parse_args(arguments)


def _rows() -> Iterator[str]:
    for dataset in RANKING_SETS:
        for name in ("popularity", *BASELINES, *ARMS):
            yield f"{dataset}.{name}"


def _kept(
    options: argparse.Namespace, row: str, seed: int, tick: Callable[[int], object]
) -> tuple[float, float] | None:
    """Return the figures of a finished measurement, or measure and keep them."""
    kind = "quick" if options.quick else "validation" if options.validation else "test"
    path: Path = options.work / kind / f"{row}.{seed}.json"
    if path.exists():
        hr, ndcg = json.loads(path.read_text())
        return hr, ndcg
    result = _measured(options, row, seed, tick)
    if result is None:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([result.hr, result.ndcg]))
    return result.hr, result.ndcg


def _measured(
    options: argparse.Namespace, row: str, seed: int, tick: Callable[[int], object]
) -> EvaluationResult | None:
    dataset, _, name = row.partition(".")

    def split(validation: bool) -> Split:
        return split_of(dataset, options.data_dir, seed, validation)

    asked = split(options.validation)
    if name == "popularity":
        return popularity_control(asked.data, asked.candidates)
    if name in ARMS:
        return train_and_evaluate(ARMS[name], asked, seed, tick, QUICK_ROUNDS if options.quick else None)
    chosen = split(True)

    def validated(settings: object) -> float | None:
        result = measure(name, settings, chosen, seed)  # type: ignore[arg-type]
        return None if result is None else result.hr

    return measure(name, best_of(name, validated), asked, seed)


def figures_of(found: Found) -> dict[str, Figure]:
    """Return means over the seeds, spreads, ratios to popularity, and the best federated / the best central HR@10."""
    figures: dict[str, Figure] = {}
    for row, by_seed in found.items():
        for place, metric in enumerate(("hr10", "ndcg10")):
            values = [pair[place] for pair in by_seed.values()]
            figures[f"{row}.{metric}"] = fmean(values)
            figures[f"{row}.{metric}_spread"] = pstdev(values)
        figures[f"{row}.seeds"] = len(by_seed)
    for dataset in {row.partition(".")[0] for row in found}:
        hits = {name: figures.get(f"{dataset}.{name}.hr10") for name in ("popularity", *BASELINES, *ARMS)}
        known = {name: value for name, value in hits.items() if isinstance(value, float)}
        for name in known.keys() & ARMS.keys() if "popularity" in known else ():
            figures[f"{dataset}.{name}.hr10_over_popularity"] = known[name] / known["popularity"]
        federated, central = ([value for name, value in known.items() if name in table] for table in (ARMS, BASELINES))
        if federated and central:
            figures[f"{dataset}.best_over_central"] = max(federated) / max(central)
    return figures


if __name__ == "__main__":
    sys.exit(main())
