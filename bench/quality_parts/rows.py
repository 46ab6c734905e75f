"""Rows `<set>.<name>` that are measured with several seeds: command line, finished measurements, means and spreads."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev

from rich.console import Console

from bench._report import Figure, bars, show, write_figures
from protocols.errors import HushRecError

__all__ = ["Found", "Measure", "Values", "means", "measure_rows"]

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

    about: the help; its first word after `python -m bench.` names the folder of finished measurements.
    """
    options = _parse(arguments, about)
    asked = [row for row in rows if not options.only or any(part in row for part in options.only)]
    if not asked:
        Console(stderr=True).print("nothing matches --only", style="red")
        return 2
    try:
        found = _measured(options, asked, measure)
    except HushRecError as error:
        Console(stderr=True).print(f"error: {error}", style="red", highlight=False)
        return 1
    figures = figures_of(found)
    show("validation rows" if options.validation else "test rows", figures)
    write_figures(options.json, figures)
    return 0


def _parse(arguments: list[str] | None, about: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    work = Path("bench/results/local") / about.partition("python -m bench.")[2].split()[0]
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="folder of the data sets (default: data)")
    parser.add_argument("--quick", action="store_true", help="one seed and few rounds: checks that everything runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds (default: 0 1 2)")
    parser.add_argument("--only", nargs="*", default=[], help="only keys that contain one of these texts")
    parser.add_argument("--validation", action="store_true", help="measure on validation rows, to choose settings")
    parser.add_argument("--work", type=Path, default=work, help="folder of finished measurements")
    parser.add_argument("--json", type=Path, help="write the figures as one flat JSON object")
    return parser.parse_args(arguments)


def _measured(options: argparse.Namespace, rows: Sequence[str], measure: Measure) -> Found:
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
