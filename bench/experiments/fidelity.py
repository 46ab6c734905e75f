"""Train each published system on real data and compare our figures with the paper's.

    python -m bench.experiments.fidelity --system colr --quick             fewer and shorter runs; a few minutes
    python -m bench.experiments.fidelity --system colr --data-dir DATA     the full table; can be resumed
    python -m bench.experiments.fidelity --system colr --list              print the names of the runs
    python -m bench.experiments.fidelity --system rfrec --dataset my.csv --columns user=0,item=1,rating=2

Every run is one federation in one process (`client_sdk.lab.federation`): training, sealing, folding and opening
are real, only HTTP is left out. A finished run is kept in the work folder and not repeated. Below every table are
controls on the same data (popularity, chance, and a ranker that only counts training negatives), measured once per
data set.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench._report import write_figures
from bench.experiments.factors import colr_runs, topk_runs
from bench.experiments.fair import fair_flat, fair_runs, fair_table
from bench.experiments.leaks import LEAK_WARNING
from bench.experiments.pfedclr import pfedclr_controls, pfedclr_flat, pfedclr_runs, pfedclr_table
from bench.experiments.privirec import privirec_flat, privirec_runs, privirec_table
from bench.experiments.rfrec import rfrec_flat, rfrec_runs, rfrec_table, rfrecf_runs
from bench.experiments.runs import (
    Job,
    JobResult,
    System,
    controls_table,
    flat,
    flat_controls,
    full_ranking_controls,
    measured,
    path_of,
    prefix_of,
    rating_mean_controls,
    table,
)
from client_sdk.lab.data.columns import Columns, parse_columns
from client_sdk.lab.data.published import load_dataset, load_interactions
from protocols.errors import HushRecError

__all__ = ["SYSTEMS"]


# --- The published systems whose tables `bench.experiments.fidelity` regenerates: `SYSTEMS`, by name

SYSTEMS: Final[dict[str, System]] = {
    "colr": System(colr_runs, table, flat),
    "fair": System(fair_runs, fair_table, fair_flat, full_ranking_controls),
    "pfedclr": System(pfedclr_runs, pfedclr_table, pfedclr_flat, pfedclr_controls),
    "privirec": System(privirec_runs, privirec_table, privirec_flat, full_ranking_controls),
    "rfrec": System(rfrec_runs, rfrec_table, rfrec_flat, rating_mean_controls),
    "rfrecf": System(rfrecf_runs, rfrec_table, rfrec_flat, rating_mean_controls),
    "topk": System(topk_runs, table, flat),
}


# ---

console = Console()


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen system's table and print it.

    Returns 0 if every run finished, 1 if a run or the data set failed, 2 if no run matches the options.
    """
    options = parse(arguments)
    system = SYSTEMS[options.system]
    try:
        columns = None if options.columns is None else parse_columns(options.columns)
    except HushRecError as error:
        return failed(error)
    runs: list[Job] = [
        run for seed in options.seeds for run in system.runs(quick=options.quick, protocol=options.protocol, seed=seed)
    ]
    if options.dataset is not None:
        runs = on_dataset(runs, options.dataset, columns)
    runs = [run for run in runs if not options.only or any(part in run.key for part in options.only)]
    if options.list:
        for run in runs:
            console.print(f"{run.key}  {run.rounds} steps")
        return 0
    folder = options.work / ("quick" if options.quick else "full") / options.protocol
    if options.dataset is not None:
        folder /= f"data-{fingerprint(options.dataset, columns)}"
    if options.finished:
        runs = [run for run in runs if path_of(run, folder).exists()]
    if not runs:
        console.print("no run matches the options, or can use another data set; --list prints the names", style="red")
        return 2
    try:
        if options.dataset is None:
            load_dataset(runs[0].dataset, options.data_dir)
        else:
            load_interactions(options.dataset, options.data_dir, columns, say)
        results = list(run_all(runs, options.data_dir, folder, options.jobs))
    except HushRecError as error:
        return failed(error)
    console.print(system.table(results))
    if options.dataset is None:
        found = measured(system.controls, [run.dataset for run in runs], options.data_dir, options.work / "controls")
    else:
        found = {prefix_of(options.dataset): system.controls(options.dataset, options.data_dir, columns)}
    console.print(controls_table(found))
    if any(getattr(run, "protocol", "") == "paper_protocol" for run in runs):
        console.print(LEAK_WARNING, style="yellow")
    if options.json:
        write_figures(options.json, system.flat(results) | flat_controls(found))
    return 0


def failed(error: HushRecError) -> int:
    """Print an expected error; return the exit code."""
    console.print(f"error: {error}", style="red", highlight=False)
    return 1


def say(text: str) -> None:
    """Print what was found in a file."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def on_dataset(runs: Iterable[Job], dataset: str, columns: Columns | None) -> list[Job]:
    """The runs that can use another data set (CoLR, Top-K, RFRec), on `dataset`; each key once."""
    moved = [run.on(dataset, columns) for run in runs if hasattr(run, "on")]
    return list({run.key: run for run in moved}.values())


def fingerprint(dataset: str, columns: Columns | None) -> str:
    """A name for the results on a data set: another one when the file or the columns change."""
    path = Path(dataset)
    stat = path.stat() if path.exists() else None
    facts = f"{path.resolve()} {columns} {stat and (stat.st_size, stat.st_mtime_ns)}"
    return hashlib.sha256(facts.encode()).hexdigest()[:12]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", choices=sorted(SYSTEMS), default="colr", help="the system (default: colr)")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="folder of the data sets (default: data)")
    parser.add_argument("--dataset", help="run on this data set, file or folder instead (colr, topk, rfrec, rfrecf)")
    parser.add_argument("--columns", help="columns of the file, such as user=0,item=1,rating=2,time=3")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs; checks the code, not the paper")
    parser.add_argument(
        "--protocol", choices=["clean", "paper"], default="clean",
        help="training negatives: drawn from all items outside the training items, or as in the released code",
    )  # fmt: skip
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="seeds (default: 0); another seed is part of the key"
    )
    parser.add_argument("--only", nargs="*", default=[], help="run only the runs whose key contains one of these texts")
    parser.add_argument("--jobs", type=int, default=2, help="number of runs in parallel (default: 2)")
    parser.add_argument(
        "--work", type=Path, default=Path("bench/results/local/fidelity"), help="folder of finished runs"
    )
    parser.add_argument("--json", type=Path, help="write the figures as one flat JSON object")
    parser.add_argument("--finished", action="store_true", help="run nothing; print the table of the finished runs")
    parser.add_argument("--list", action="store_true", help="print the names of the runs and exit")
    return parser.parse_args(arguments)


def run_all(runs: list[Job], data_dir: Path, folder: Path, jobs: int) -> Iterator[JobResult]:
    """Run what is not finished, `jobs` runs at a time with one bar each, and yield every run's result."""
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, progress_bars() as progress:
        ticks = manager.dict()
        waiting = [run for run in runs if not path_of(run, folder).exists()]
        bars = {run.key: progress.add_task(run.key, total=run.rounds) for run in waiting}
        with ProcessPoolExecutor(jobs, mp_context=context) as pool:
            pending: set[Future[None]] = {pool.submit(run.execute, data_dir, folder, ticks) for run in waiting}
            while pending:
                done, pending = wait(pending, timeout=1.0, return_when=FIRST_COMPLETED)
                for key, number in ticks.items():
                    progress.update(bars[key], completed=number)
                for future in done:
                    future.result()
    for run in runs:
        yield JobResult(run, json.loads(path_of(run, folder).read_text()))


def progress_bars() -> Progress:
    """Progress bars on standard error with the time taken and the time left."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        console=Console(stderr=True),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
