"""Every benchmark, one after the other, and one HTML page of what they found.

    python -m bench.run_all                       the quick way, into bench/results/local (what `make bench` does)
    python -m bench.run_all --full --only ckks    as measured for the record, some scripts only
    python -m bench.run_all --committed           runs nothing: the page of the results in bench/results

A script that fails does not stop the others: the page has the end of what it said, and the exit code is 1. Targets that
are missed are shown and do not fail: on a busy machine they may be.
"""

from __future__ import annotations

import argparse
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
    """A script and what it is called with. `minutes`: about how long its quick run takes, for the time left.

    `lacks`: what it needs and is not here, so that it is skipped; empty when nothing is.
    """

    name: str
    command: tuple[str, ...]
    minutes: float = 1.0
    lacks: str = ""


def jobs(data_dir: Path, quick: bool, peer_python: Path | None = None) -> list[Job]:
    """Every benchmark that is here, in the order of the page. `peer_python`: an interpreter that imports flwr."""
    how = ("--quick",) if quick else ()
    scripts = (
        ("ckks", 0.5),
        ("paillier", 1.5),
        ("masked", 1.5),
        ("masked_round", 1.5),
        ("overhead", 2.5),
        ("memory", 0.5),
        ("service", 2.0),
        ("scaling", 1.0),
    )
    beside = {"masked": ("--peer-python", str(peer_python))} if peer_python is not None else {}
    found = [
        Job(name, (sys.executable, str(HERE / f"{name}.py"), *how, *beside.get(name, ())), minutes)
        for name, minutes in scripts
        if (HERE / f"{name}.py").exists()
    ]
    on_data = {f"fidelity-{system}": ("fidelity.py", "--system", system) for system in sorted(SYSTEMS)}
    on_data["privirec-service"] = ("privirec_service.py",)
    on_data["training"] = ("training.py",)
    lacks = "" if data_dir.is_dir() else f"data sets in {data_dir} (make bench DATA_DIR=folder)"
    for name, (script, *chosen) in on_data.items():
        command = (sys.executable, str(HERE / script), *chosen, "--data-dir", str(data_dir), *how)
        found.append(Job(name, command, 4.0, lacks))
    return found


def run(job: Job, output: Path, tick: Callable[[float], object] = lambda _: None) -> Outcome:
    """Run one job, its figures into `output/<name>.json` and what it says into `output/<name>.log`.

    An older result goes first, so that a script that fails never shows yesterday's figures. `tick` hears the seconds so
    far, about five times a second.
    """
    result, log = output / f"{job.name}.json", output / f"{job.name}.log"
    result.unlink(missing_ok=True)
    if job.lacks:
        return Outcome(job.name, "skipped", note=f"it needs {job.lacks}")
    output.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with log.open("wb") as said, _started((*job.command, "--json", str(result)), said) as process:
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
    reason = f"exit code {code}" if code else "it wrote no results"
    return Outcome(job.name, "failed", seconds, "\n".join([*end, reason]))


@contextmanager
def _started(command: Sequence[str], said: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends when this one is interrupted."""
    process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, cwd=HERE.parent)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def run_all(chosen: Sequence[Job], output: Path, console: Console) -> list[Outcome]:
    """Every job in turn under one bar: which script, time taken, time left."""
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
            console.print(f"{job.name}: {_words(outcome)}", highlight=False, style=_STYLES[outcome.state])
        progress.update(bar, completed=sum(job.minutes for job in chosen), description="done", left="")
    return outcomes


_STYLES: Final = {"done": "green", "failed": "red", "skipped": "yellow"}


def _words(outcome: Outcome) -> str:
    if outcome.state == "skipped":
        return f"skipped, {outcome.note}"
    return f"{outcome.state}, {outcome.seconds:.0f} s"


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for and write the page; 1 when a script failed, 2 when there is nothing to do."""
    given = _parse(arguments)
    console = Console()
    if given.committed:
        page = given.output / PAGE
        write_page(page, render(read_results(given.output), subtitle="The results that are committed with the code."))
        console.print(f"page: {page}", soft_wrap=True)
        return 0
    every = jobs(given.data_dir, not given.full, given.peer_python)
    chosen = [job for job in every if not given.only or job.name in given.only]
    if not chosen:
        console.print(f"nothing to run; there are: {', '.join(job.name for job in every)}", style="red")
        return 2
    outcomes = run_all(chosen, given.output, console)
    kind = "full" if given.full else "quick"
    subtitle = f"A {kind} run of {time.strftime('%Y-%m-%d %H:%M')}."
    if kind == "quick":
        subtitle += " Quick runs check that everything works; for figures to rely on, run a script without --quick."
    names = {job.name for job in chosen}
    results = {name: figures for name, figures in read_results(given.output).items() if name in names}
    page = given.output / PAGE
    write_page(page, render(results, outcomes, subtitle))
    console.print(f"page: {page}", soft_wrap=True)
    return 1 if any(outcome.state == "failed" for outcome in outcomes) else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="without --quick: as measured for the record, hours")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="some scripts, by name: ckks overhead ..."
    )
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="folder that holds the data sets")
    parser.add_argument("--peer-python", type=Path, help="interpreter that imports flwr, where this one does not")
    parser.add_argument("--output", type=Path, help="where results, logs and the page go (bench/results/local)")
    parser.add_argument("--committed", action="store_true", help="run nothing: the page of bench/results")
    given = parser.parse_args(arguments)
    if given.output is None:
        given.output = COMMITTED if given.committed else COMMITTED / "local"
    return given


if __name__ == "__main__":
    sys.exit(main())
