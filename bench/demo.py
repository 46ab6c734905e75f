"""Measure what a newcomer waits for: set-up, the command's start, and the demo, each as whole processes.

    .venv/bin/python -m bench.demo [--quick] [--json FILE]

Every figure is a median over the repetitions.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

from bench._report import Figure, arguments, say
from bench.figures import run

ROOT: Final = Path(__file__).parent.parent
ARMS: Final = ("encrypted", "plain", "fedmf", "popularity")


def seconds_of(command: Sequence[str | Path], folder: Path = ROOT) -> float:
    """Run a command and return its seconds. Raises `RuntimeError` with the end of its output when it fails."""
    started = perf_counter()
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    seconds = perf_counter() - started
    if done.returncode:
        end = done.stdout.decode("utf-8", "replace")[-2000:]
        raise RuntimeError(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{end}")
    return seconds


def measure_setup() -> float:
    """Seconds of `make setup` in a fresh clone of the committed state."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        seconds_of(("git", "clone", "--quiet", ROOT, clone))
        return seconds_of(("make", "setup"), clone)


def measure_help() -> float:
    return 1e3 * seconds_of((Path(sys.executable).parent / "hushrec", "--help"))


def measure_demo(rounds: int | None) -> tuple[float, dict[str, Any]]:
    """Seconds of `make demo`, and the figures that it writes."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = () if rounds is None else (f"ROUNDS={rounds}",)
        seconds = seconds_of(("make", "demo", f"DEMO_ARGS=--seed 0 --output {folder}", *chosen))
        return seconds, json.loads((Path(folder) / "colr-synthetic.json").read_text(encoding="utf-8"))


def demo_figures(runs: Sequence[tuple[float, dict[str, Any]]]) -> dict[str, Figure]:
    """The figures of all runs of the demo: medians of times, and the quality, which must be the same in every run."""
    results = [dict(zip(ARMS, result["arms"], strict=True)) for _, result in runs]
    qualities = [{arm: run[arm]["values"]["HR@10"] for arm in ARMS} for run in results]
    if any(quality != qualities[0] for quality in qualities):
        raise RuntimeError(f"runs with the same seed gave different figures: {qualities}")
    first = runs[0][1]
    plain = [1e3 * run["plain"]["seconds"] / run["plain"]["contributions"] for run in results]
    enrolment = [1e3 * run["encrypted"]["enrol_seconds"] / first["users"] for run in results]
    return {
        "demo.seconds": median(seconds for seconds, _ in runs),
        "demo.contribution_ms": median(plain),
        "demo.enrol_ms_per_client": median(enrolment),
        **{f"demo.hr10.{arm}": value for arm, value in qualities[0].items()},
        "demo.clients": first["users"],
        "demo.rounds": first["rounds"],
        "demo.cohort": first["cohort"],
        "demo.runs": len(runs),
    }


def measure(quick: bool) -> dict[str, Figure]:
    setups, helps, demos, rounds = (0, 1, 1, 1) if quick else (3, 30, 3, None)

    def repeated(what: str, measurement: Callable[[], Any], count: int) -> list[Any]:
        say(f"{what}, {count} times")
        return [measurement() for _ in range(count)]

    figures: dict[str, Figure] = {"cli.help_ms": median(repeated("--help", measure_help, helps))}
    figures |= demo_figures(repeated("the demo", lambda: measure_demo(rounds), demos))
    if setups:
        figures["setup.seconds"] = median(repeated("set-up", measure_setup, setups))
    return figures


if __name__ == "__main__":
    run("demo", arguments(__doc__), lambda options: measure(options.quick))
