"""Run the benchmarks one after the other and write one HTML page of their results.

    python -m bench.run_all                       quick runs, into bench/results/local (as `make bench`)
    python -m bench.run_all --full --only ckks    full runs of some scripts, as for the committed results
    python -m bench.run_all --committed           run nothing: build the page of the results in bench/results

A script that fails does not stop the others: the page shows the end of its output, and the exit code is 1. A missed
target is shown and is not a failure, because targets may be missed on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.page import read_results, render, write_page
from bench.sections import Outcome
from bench.systems import SYSTEMS

__all__ = ["Job", "jobs", "main", "run"]

HERE: Final = Path(__file__).parent
COMMITTED: Final = HERE / "results"
PAGE: Final = "index.html"
_LAST_LINES: Final = 25
_TICK: Final = 0.2


@dataclass(frozen=True)
class Job:
    """A script and its command line.

    minutes: estimated duration of the quick run, for the time left. missing: a requirement that is not met, so that the
    script is skipped; empty if all are met.
    """

    name: str
    command: tuple[str, ...]
    minutes: float = 1.0
    missing: str = ""


def jobs(data_dir: Path, quick: bool, peer_python: Path | None = None) -> list[Job]:
    """The jobs of all benchmarks, in the order of the page.

    data_dir: folder of the data sets; scripts that need it are skipped if it does not exist. quick: add `--quick`.
    peer_python: an interpreter that can import flwr.
    """
    options = ("--quick",) if quick else ()
    scripts = (
        ("ckks", 0.5),
        ("paillier", 1.5),
        ("masked", 1.5),
        ("masked_round", 1.5),
        ("oneshot", 1.5),
        ("oneshot_round", 12.0),
        ("arrays", 3.0),
        ("federated_evaluation", 0.2),
        ("overhead", 2.5),
        ("memory", 0.5),
        ("service", 2.0),
        ("demo", 2.0),
        ("scaling", 1.0),
    )
    peer = () if peer_python is None else ("--peer-python", str(peer_python))
    peer_options = {"arrays": peer, "masked": peer}
    found = [
        Job(name, (sys.executable, str(HERE / f"{name}.py"), *options, *peer_options.get(name, ())), minutes)
        for name, minutes in scripts
        if (HERE / f"{name}.py").exists()
    ]
    on_data = {f"fidelity-{system}": ("fidelity.py", "--system", system) for system in sorted(SYSTEMS)}
    on_data["privirec-service"] = ("privirec_service.py",)
    on_data["quality"] = ("quality.py",)
    on_data["rating_quality"] = ("rating_quality.py",)
    on_data["training"] = ("training.py",)
    missing = "" if data_dir.is_dir() else f"data sets in {data_dir} (make bench DATA_DIR=folder)"
    for name, (script, *chosen) in on_data.items():
        command = (sys.executable, str(HERE / script), *chosen, "--data-dir", str(data_dir), *options)
        found.append(Job(name, command, 4.0, missing))
    return found


def run(job: Job, output: Path, tick: Callable[[float], object] = lambda _: None) -> Outcome:
    """Run one job; write its figures to `output/<name>.json` and its output to `output/<name>.log`.

    An older result is deleted first, so that a failed script never shows old figures. tick: called about five times per
    second with the seconds so far.
    """
    result, log = output / f"{job.name}.json", output / f"{job.name}.log"
    result.unlink(missing_ok=True)
    if job.missing:
        return Outcome(job.name, "skipped", note=f"needs {job.missing}")
    output.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with log.open("wb") as log_file, _running((*job.command, "--json", str(result)), log_file) as process:
        while True:
            try:
                code = process.wait(_TICK)
                break
            except subprocess.TimeoutExpired:
                tick(time.monotonic() - started)
    seconds = time.monotonic() - started
    if code == 0 and result.exists():
        return Outcome(job.name, "done", seconds)
    end = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
    reason = f"exit code {code}" if code else "the script wrote no results"
    return Outcome(job.name, "failed", seconds, "\n".join([*end, reason]))


@contextmanager
def _running(command: Sequence[str], log_file: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that is terminated if this one is interrupted."""
    in_order = {**os.environ, "PYTHONUNBUFFERED": "1"}  # the log ends with the error, not with what print had kept
    process = subprocess.Popen(command, stdout=log_file, stderr=subprocess.STDOUT, cwd=HERE.parent, env=in_order)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def run_all(chosen: Sequence[Job], output: Path, console: Console) -> list[Outcome]:
    """Run every job in turn and return the outcomes. A bar shows the script, the time taken and the time left."""
    outcomes = []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=sum(job.minutes for job in chosen), left="")
        for place, job in enumerate(chosen):
            before = sum(earlier.minutes for earlier in chosen[:place])
            after = sum(later.minutes for later in chosen[place + 1 :])
            progress.update(bar, description=f"{place + 1}/{len(chosen)} {job.name}", completed=before)

            def tick(seconds: float, job: Job = job, before: float = before, after: float = after) -> None:
                spent = min(seconds / 60, job.minutes)
                left = after + job.minutes - spent
                progress.update(bar, completed=before + spent, left=f"about {left:.0f} min left")

            tick(0.0)
            outcome = run(job, output, tick)
            outcomes.append(outcome)
            console.print(f"{job.name}: {_description(outcome)}", highlight=False, style=_STYLES[outcome.state])
        progress.update(bar, completed=sum(job.minutes for job in chosen), description="done", left="")
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
    every = jobs(options.data_dir, not options.full, options.peer_python)
    chosen = [job for job in every if not options.only or job.name in options.only]
    if not chosen:
        console.print(f"no such script; choose from: {', '.join(job.name for job in every)}", style="red")
        return 2
    outcomes = run_all(chosen, options.output, console)
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
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="folder of the data sets (default: data)")
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
