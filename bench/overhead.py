"""What encryption costs: the HE table of the CoLR paper for ML-1M, its figures beside the ordinary way and ours.

    .venv/bin/python bench/overhead.py [--quick | --full] [--json bench/results/overhead.json]

Rows: FedMF, Top-K at 1/64 to 16/64, CoLR at ranks 1 to 32. The ordinary way is TenSEAL's usual CKKS set, and phe with
one value a ciphertext for Top-K, which is measured on a sample and multiplied unless `--full`. With `--json`, a
Markdown table and the plots are written beside the JSON. bench/README.md lists the keys.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

from rich.progress import Progress, TaskID

from bench._report import Figure, arguments, bars, machine_facts, write_figures
from bench.overhead_parts.console import shown
from bench.overhead_parts.plots import write_plots
from bench.overhead_parts.rows import ROWS, Row
from bench.overhead_parts.steps import Way, figures_of, published_figures
from bench.overhead_parts.table import markdown
from bench.overhead_parts.ways import KEY_BITS, ways

REPETITIONS, QUICK_REPETITIONS = 15, 3
SAMPLE, QUICK_SAMPLE = 32, 8


def measure(
    chosen: tuple[Way, ...], clients: int, repetitions: int, tick: Callable[[int, str], object]
) -> dict[str, Figure]:
    """Every row in every way that can carry it, as flat figures; `tick` hears how many are done and what comes."""
    figures: dict[str, Figure] = dict(published_figures(ROWS))
    for done, (row, way) in enumerate(pairs(chosen)):
        tick(done, f"{row.label}, {way.key}")
        figures |= figures_of(row, way.key, way.measure(row, clients, repetitions))
    return figures


def pairs(chosen: tuple[Way, ...]) -> list[tuple[Row, Way]]:
    """What there is to measure, the ways of one row one after the other."""
    return [(row, way) for row in ROWS for way in chosen if row.family in way.families]


def write_all(path: Path, figures: dict[str, Figure]) -> list[Path]:
    """The JSON, and beside it the plots and the Markdown page."""
    write_figures(path, figures)
    plots = write_plots(figures, path.with_suffix(""))
    page = path.with_suffix(".md")
    page.write_text(markdown(figures | machine_facts(), [plot.name for plot in plots]), encoding="utf-8")
    return [path, page, *plots]


def _advance(progress: Progress, bar: TaskID, done: int, what: str) -> None:
    progress.update(bar, completed=done, description=what)


def main() -> None:
    """Measure, show the table, write the files."""
    parser = arguments((__doc__ or "").partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="phe on every value: hours instead of a sample")
    parser.add_argument("--clients", type=int, default=60, help="contributions a sum (default 60)")
    given = parser.parse_args()
    sample = None if given.full else QUICK_SAMPLE if given.quick else SAMPLE
    repetitions = QUICK_REPETITIONS if given.quick else REPETITIONS
    chosen = ways(sample)
    started = perf_counter()
    with bars() as progress:
        bar = progress.add_task("", total=len(pairs(chosen)))
        figures = measure(chosen, given.clients, repetitions, partial(_advance, progress, bar))
    figures |= {
        "clients": given.clients,
        "repetitions": repetitions,
        "phe_key_bits": KEY_BITS,
        "phe_sample": sample,
        "seconds": perf_counter() - started,
    }
    shown(figures)
    if given.json is not None:
        for path in write_all(given.json, figures):
            print(path)


if __name__ == "__main__":
    main()
