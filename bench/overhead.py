"""The cost of encryption: the HE table of the CoLR paper for ML-1M, with published figures, the usual way and ours.

    .venv/bin/python -m bench.overhead [--quick | --full] [--json bench/results/overhead.json]

Rows: FedMF, Top-K at 1/64 to 16/64, CoLR at ranks 1 to 32. The usual way is TenSEAL's usual CKKS set, and for
Top-K phe with one value per ciphertext, which is measured on a sample and multiplied unless `--full` is given. With
`--json`, a Markdown table and the plots are written beside the JSON. bench/README.md lists the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

REPETITIONS, QUICK_REPETITIONS = 15, 1
SAMPLE, QUICK_SAMPLE = 32, 2
CLIENTS, QUICK_CLIENTS = 60, 20
QUICK_ROWS = tuple(row for row in ROWS if row.share == 1 or row.family == "fedmf")


def measure(
    chosen: Sequence[tuple[Row, Way]], clients: int, repetitions: int, tick: Callable[[int, str], object]
) -> dict[str, Figure]:
    """Figures of the chosen rows and ways.

    tick: called before each measurement with the number done so far and a description of the next.
    """
    figures: dict[str, Figure] = dict(published_figures(ROWS))
    for done, (row, way) in enumerate(chosen):
        tick(done, f"{row.label}, {way.key}")
        figures |= figures_of(row, way.key, way.measure(row, clients, repetitions))
    return figures


def pairs(chosen: Sequence[Way], rows: Sequence[Row]) -> list[tuple[Row, Way]]:
    """Every row in every way that can carry it, row by row."""
    return [(row, way) for row in rows for way in chosen if row.family in way.families]


def write_all(path: Path, figures: dict[str, Figure]) -> list[Path]:
    """Write the JSON, and the plots and the Markdown page beside it; return the paths."""
    write_figures(path, figures)
    plots = write_plots(figures, path.with_suffix(""))
    page = path.with_suffix(".md")
    page.write_text(markdown(figures | machine_facts(), [plot.name for plot in plots]), encoding="utf-8")
    return [path, page, *plots]


def _advance(progress: Progress, bar: TaskID, done: int, what: str) -> None:
    progress.update(bar, completed=done, description=what)


def main() -> None:
    """Measure, print the tables, and write the files."""
    parser = arguments((__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--full", action="store_true", help="measure phe on every value instead of a sample; takes hours"
    )
    options = parser.parse_args()
    sample = None if options.full else QUICK_SAMPLE if options.quick else SAMPLE
    repetitions = QUICK_REPETITIONS if options.quick else REPETITIONS
    clients = QUICK_CLIENTS if options.quick else CLIENTS
    chosen = pairs(ways(sample), QUICK_ROWS if options.quick else ROWS)
    started = perf_counter()
    with bars() as progress:
        bar = progress.add_task("", total=len(chosen))
        figures = measure(chosen, clients, repetitions, partial(_advance, progress, bar))
    figures |= {
        "clients": clients,
        "repetitions": repetitions,
        "phe_key_bits": KEY_BITS,
        "phe_sample": sample,
        "seconds": perf_counter() - started,
    }
    shown(figures)
    if options.json is not None:
        for path in write_all(options.json, figures):
            print(path)


if __name__ == "__main__":
    main()
