"""Rows of an experiment: measured in processes, each kept in a file, so that an interrupted run can be resumed."""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from bench._report import Figure, arguments, bars, write_figures
from bench.figures import shown
from protocols.errors import HushRecError

Values = dict[str, Any]
"""Figures of a row by name."""


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    key: str
    """Its name and that of its file."""
    measure: Callable[..., Values]
    """Maps the folder of the data sets, after what the experiment fills in, to the figures. Another process calls it,
    so it is a function of a module, or a `partial` of one. It returns nothing where a library is missing."""
    published: Mapping[str, float] = field(default_factory=dict)
    """The paper's figures, with the same names as ours."""
    prefix: str = ""
    """What the keys of its figures begin with, if it is not `key`."""


def options_of(about: str, seeds: Sequence[int]) -> argparse.ArgumentParser:
    """A parser with the options of all experiments that have rows.

    about: the help; the first script that it names, `python -m bench...`, names the folder of finished rows.
    """
    parser = arguments(about)
    work = Path("bench/results/local") / about.partition("python -m bench.")[2].split()[0].rpartition(".")[2]
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="folder of the data sets (default: data)")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(seeds), help="seeds (default: %(default)s)")
    parser.add_argument("--only", nargs="*", default=[], help="only rows whose key contains one of these texts")
    parser.add_argument("--jobs", type=int, default=2, help="number of rows measured at the same time (default: 2)")
    parser.add_argument("--work", type=Path, default=work, help="folder of finished rows")
    return parser


def measured(rows: Sequence[Row], options: argparse.Namespace, kind: str) -> dict[str, Values]:
    """Measure the rows that are asked for and not finished; the figures of all of them by key, with their `seconds`.

    kind: name of the folder of these rows, below that of the experiment. Raises what a row raises.
    """
    folder: Path = options.work / kind
    folder.mkdir(parents=True, exist_ok=True)
    asked = [row for row in rows if not options.only or any(part in row.key for part in options.only)]
    waiting = [row for row in asked if not (folder / f"{row.key}.json").exists()]
    with bars() as progress, ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        started = [pool.submit(_measure, row, options.data_dir, folder) for row in waiting]
        for done in progress.track(as_completed(started), len(started), description="rows"):
            done.result()
    kept = {row.key: folder / f"{row.key}.json" for row in asked}
    return {key: json.loads(path.read_text()) for key, path in kept.items() if path.exists()}


def _measure(row: Row, data_dir: Path, folder: Path) -> None:
    started = perf_counter()
    values = row.measure(data_dir)
    if values:
        partial = folder / f"{row.key}.partial"  # an interrupted run leaves no half file
        partial.write_text(json.dumps({**values, "seconds": perf_counter() - started}, indent=1))
        partial.replace(folder / f"{row.key}.json")


def report(
    rows: Sequence[Row],
    options: argparse.Namespace,
    kind: str,
    figures_of: Callable[[dict[str, Values]], dict[str, Figure]],
) -> int:
    """Measure the rows, and show and write the figures that follow; 1 if a data set is missing, 2 if nothing matches.

    kind: see `measured`.
    """
    console = Console(stderr=True)
    try:
        kept = measured(rows, options, kind)
    except HushRecError as error:
        console.print(f"error: {error}", style="red", highlight=False)
        return 1
    if not kept:
        console.print("no row matches --only", style="red")
        return 2
    figures = figures_of(kept)
    table = Table("figure", "value", title=kind)
    for name, value in figures.items():
        table.add_row(name, shown(value))
    Console().print(table)
    write_figures(options.json, figures)
    return 0


def flat(rows: Sequence[Row], found: Mapping[str, Values]) -> Values:
    """All figures by `<prefix>.<name>`, and the published ones by `<prefix>.paper.<name>`."""
    figures: Values = {}
    for row in rows:
        if row.key in found:
            prefix, own = row.prefix or row.key, found[row.key]
            figures |= {f"{prefix}.{name}": value for name, value in own.items() if name != "seconds"}
            figures |= {f"{prefix}.paper.{name}": value for name, value in row.published.items()}
            figures[f"{row.key}.seconds"] = own["seconds"]
    return figures


# --- Rows `<set>.<name>` that are measured with several seeds, on test or validation rows: means and spreads

Found = dict[str, dict[int, Values]]
"""Row -> seed -> figures."""
Measure = Callable[[str, str, int, bool, bool, Path], Values]
"""Measures (data set, name, seed, whether on validation rows, whether quickly, folder of the data sets)."""


def measure_seeds(
    about: str,
    names: Iterable[tuple[str, str]],
    measure: Measure,
    figures_of: Callable[[Found], dict[str, Figure]],
) -> int:
    """Measure the pairs of data set and name that are asked for, and print the figures; the exit code as of `report`.

    about: the help, as of `options_of`.
    """
    parser = options_of(about, (0, 1, 2))
    parser.add_argument("--validation", action="store_true", help="measure on validation rows, to choose settings")
    options = parser.parse_args()
    kind = "quick" if options.quick else "validation" if options.validation else "test"
    seeds, names = options.seeds[:1] if options.quick else options.seeds, list(names)
    rows = [
        Row(f"{data}.{name}.{seed}", partial(measure, data, name, seed, options.validation, options.quick))
        for seed in seeds
        for data, name in names
    ]

    def by_row(kept: dict[str, Values]) -> dict[str, Figure]:
        found: Found = {}
        for key, values in kept.items():
            row, _, seed = key.rpartition(".")
            found.setdefault(row, {})[int(seed)] = {name: value for name, value in values.items() if name != "seconds"}
        return figures_of(found)

    return report(rows, options, kind, by_row)


def means(found: Found) -> dict[str, Figure]:
    """Return means over the seeds, spreads, and numbers of seeds."""
    figures: dict[str, Figure] = {}
    for row, by_seed in found.items():
        for metric in next(iter(by_seed.values())):
            values = [each[metric] for each in by_seed.values()]
            figures |= {f"{row}.{metric}": fmean(values), f"{row}.{metric}_spread": pstdev(values)}
        figures[f"{row}.seeds"] = len(by_seed)
    return figures
