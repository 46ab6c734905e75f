"""Run the benchmarks and write one HTML page of their results.

    python -m bench.run_all                       quick runs on made-up data, into bench/results/local (as `make bench`)
    python -m bench.run_all --full --only ckks    full runs of some scripts, as for the committed results
    python -m bench.run_all --committed           run nothing: build the page of the results in bench/results

A script fails if it does not write the keys that its committed results, targets and key table name. It does not stop
the others: the page shows the end of its output, and the exit code is 1. A missed target is shown and is
not a failure, because targets may be missed on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench._report import FACTS
from bench.key_tables import rows_of
from bench.keys import faults
from bench.made_data import write_data
from bench.page import read_results, render, write_page
from bench.sections import Outcome
from bench.systems import SYSTEMS
from bench.targets import TARGETS

__all__ = ["Job", "jobs", "main", "run"]

HERE: Final = Path(__file__).parent
COMMITTED: Final = HERE / "results"
PAGE: Final = "index.html"
TOOLS: Final = frozenset({"flower_peer", "privirec_plot", "readme", "run_all", "which_recipe"})
"""Modules that can be run and measure nothing themselves."""
BESIDE_FLOWER: Final = frozenset({"arrays", "masked"})
ON_DATA: Final = frozenset({"fidelity", "privirec_service", "quality", "rating_quality", "training"})
RESUMED: Final = frozenset({"fidelity", "quality", "rating_quality"})
"""Scripts that keep finished runs in a folder, and do not repeat them."""
NOT_QUICK: Final = ("flower", "setup.seconds", ".diverged_at")
"""Parts of keys that only some runs have: with Flower's interpreter, in full, where training diverges."""
AT_ONCE: Final = 2
"""Quick runs at the same time, whose times mean nothing."""
_LAST_LINES: Final = 25


@dataclass(frozen=True)
class Job:
    """A script and its command line.

    missing: a requirement that is not met, so that the script is skipped; empty if all are met.
    """

    name: str
    command: tuple[str, ...]
    missing: str = ""


def benchmarks() -> dict[str, tuple[str, ...]]:
    """Script and fixed options of every benchmark in the folder, by the name of its results.

    Every module that can be run is one, except `TOOLS`.
    """
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted(HERE.glob("*.py")):
        if 'if __name__ == "__main__"' not in path.read_text(encoding="utf-8") or path.stem in TOOLS:
            continue
        if path.stem == "fidelity":
            found |= {f"fidelity-{system}": (str(path), "--system", system) for system in sorted(SYSTEMS)}
        else:
            found[path.stem] = (str(path),)
    return found


def jobs(data_dir: Path | None, quick: bool, peer_python: Path | None = None, work: Path | None = None) -> list[Job]:
    """The jobs of all benchmarks.

    data_dir: folder of the data sets, None if there is none; scripts that need it are then skipped. quick: add
    `--quick`. peer_python: an interpreter that can import flwr. work: folder for what a script keeps of finished runs.
    """
    found = []
    for name, command in benchmarks().items():
        options, missing, script = ["--quick"] if quick else [], "", Path(command[0]).stem
        if peer_python is not None and script in BESIDE_FLOWER:
            options += ["--peer-python", str(peer_python)]
        if script in ON_DATA:
            missing = "" if data_dir is not None else "data sets (make bench DATA_DIR=folder)"
            options += ["--data-dir", str(data_dir)]
        if script in RESUMED and work is not None:
            options += ["--work", str(work)]
        found.append(Job(name, (sys.executable, *command, *options), missing))
    return found


def run(job: Job, output: Path) -> Outcome:
    """Run one job; write its figures to `output/<name>.json` and its output to `output/<name>.log`.

    An older result is deleted first, so that a failed script never shows old figures.
    """
    result, log = output / f"{job.name}.json", output / f"{job.name}.log"
    result.unlink(missing_ok=True)
    if job.missing:
        return Outcome(job.name, "skipped", note=f"needs {job.missing}")
    output.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    command = (*job.command, "--json", str(result))
    in_order = {**os.environ, "PYTHONUNBUFFERED": "1"}  # the log ends with the error, not with what print had kept
    with log.open("wb") as log_file:
        done = subprocess.run(
            command, stdout=log_file, stderr=subprocess.STDOUT, cwd=HERE.parent, env=in_order, check=False
        )
    seconds = time.monotonic() - started
    if done.returncode == 0 and result.exists():
        wrong = key_faults(job.name, json.loads(result.read_text(encoding="utf-8")))
        return Outcome(job.name, "failed" if wrong else "done", seconds, "\n".join(wrong))
    end = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
    reason = f"exit code {done.returncode}" if done.returncode else "the script wrote no results"
    return Outcome(job.name, "failed", seconds, "\n".join([*end, reason]))


def key_faults(name: str, figures: Iterable[str]) -> list[str]:
    """What is wrong with the keys that a script wrote, beside its committed results, its targets and its table."""
    committed = COMMITTED / f"{name}.json"
    if not committed.exists():
        return [f"{committed.relative_to(HERE.parent)} is missing: a benchmark has committed results and a key table"]
    named = {*json.loads(committed.read_text(encoding="utf-8")), *(target.key for target in TARGETS.get(name, ()))}
    named = {key for key in named if not key.startswith(FACTS) and not any(part in key for part in NOT_QUICK)}
    return faults([key for key in figures if not key.startswith(FACTS)], sorted(named), rows_of(name))


def run_all(chosen: Sequence[Job], output: Path, console: Console, at_once: int) -> list[Outcome]:
    """Run the jobs, `at_once` at a time, and return the outcomes. A bar shows how many are done."""
    outcomes = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(at_once) as pool:
        bar = progress.add_task("benchmarks", total=len(chosen))
        for job, outcome in zip(chosen, pool.map(lambda job: run(job, output), chosen), strict=True):
            outcomes.append(outcome)
            progress.advance(bar)
            console.print(f"{job.name}: {_description(outcome)}", highlight=False, style=_STYLES[outcome.state])
    return outcomes


_STYLES: Final = {"done": "green", "failed": "red", "skipped": "yellow"}


def _description(outcome: Outcome) -> str:
    if outcome.state == "skipped":
        return f"skipped, {outcome.note}"
    return f"{outcome.state}, {outcome.seconds:.0f} s"


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen jobs and write the page. Returns 1 if a script failed, 2 if no job was chosen, else 0."""
    options = _parse(arguments)
    console = Console()
    if options.committed:
        page = options.output / PAGE
        write_page(page, render(read_results(options.output), subtitle="The committed results."))
        console.print(f"page: {page}", soft_wrap=True)
        return 0
    quick = not options.full
    with TemporaryDirectory() as made:
        if options.data_dir is None and quick:
            write_data(Path(made))
            options.data_dir = Path(made)
        every = jobs(options.data_dir, quick, options.peer_python, Path(made) / "work" if quick else None)
        chosen = [job for job in every if not options.only or job.name in options.only]
        if not chosen:
            console.print(f"no such script; choose from: {', '.join(job.name for job in every)}", style="red")
            return 2
        outcomes = run_all(chosen, options.output, console, AT_ONCE if quick else 1)
    for outcome in outcomes:
        if outcome.state == "failed":
            console.print(f"{outcome.script} failed:\n{outcome.note}", highlight=False, markup=False, soft_wrap=True)
    kind = "full" if options.full else "quick"
    subtitle = f"A {kind} run of {time.strftime('%Y-%m-%d %H:%M')}."
    if kind == "quick":
        subtitle += " Quick runs only check that everything works; for reliable figures run a script without --quick."
    names = {job.name for job in chosen}
    results = {name: figures for name, figures in read_results(options.output).items() if name in names}
    page = options.output / PAGE
    write_page(page, render(results, outcomes, subtitle))
    console.print(f"page: {page}", soft_wrap=True)
    return 1 if any(outcome.state == "failed" for outcome in outcomes) else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="full runs, as for the committed results; takes hours")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="run only these scripts, for example: ckks overhead"
    )
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets; quick runs make up data without it")
    parser.add_argument("--peer-python", type=Path, help="interpreter that can import flwr (default: this one)")
    parser.add_argument(
        "--output", type=Path, help="folder for results, logs and the page (default: bench/results/local)"
    )
    parser.add_argument("--committed", action="store_true", help="run nothing; build the page of bench/results")
    options = parser.parse_args(arguments)
    if options.output is None:
        options.output = COMMITTED if options.committed else COMMITTED / "local"
    return options


if __name__ == "__main__":
    sys.exit(main())
