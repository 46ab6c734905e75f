"""Shared by the benchmarks: command-line options, facts about the machine, interleaved timing, and the JSON output."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

__all__ = ["FACTS", "Figure", "Timing", "arguments", "bars", "machine_facts", "show", "time_in_turn", "write_figures"]

Figure = int | float | str | bool | None
FACTS = ("machine.", "version.")
"""Beginnings of the keys of `machine_facts`."""
_PACKAGES = ("hushrec", "numpy", "scipy", "tenseal", "cryptography", "zstandard", "phe", "gmpy2")


@dataclass(frozen=True)
class Timing:
    """Seconds of one timed step, one entry per repetition, in the order measured."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the repetitions in seconds: the figure to compare."""
        return median(self.seconds)

    def figures(self, prefix: str, per: int = 1) -> dict[str, Figure]:
        """`<prefix>_ms_median`, `_min` and `_max` in milliseconds, each divided by `per`."""
        values = {"median": self.median, "min": min(self.seconds), "max": max(self.seconds)}
        return {f"{prefix}_ms_{name}": 1e3 * value / per for name, value in values.items()}


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser with the options `--quick` and `--json FILE`; scripts add further options."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="the smallest sizes: checks that everything runs and writes its keys; the figures mean nothing",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as one flat JSON object")
    return parser


def bars() -> Progress:
    """A progress display on standard error: description, bar, count and elapsed time."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def time_in_turn(
    steps: Mapping[str, Callable[[], object]],
    repetitions: int,
    tick: Callable[[], object] = lambda: None,
    calls: Mapping[str, int] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time every step once per repetition, one after the other, so that other load on the machine affects all alike.

    calls: how often a short step is called within a repetition (default 1), so that it lasts about as long as the
    others; its time is that of one call. tick: called after every repetition. clock: pass `time.process_time` to
    exclude the time of other processes. The first of the `repetitions` + 1 repetitions is a warm-up and not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for repetition in range(repetitions + 1):
        for name, step in steps.items():
            times = (calls or {}).get(name, 1)
            start = clock()
            for _ in range(times):
                step()
            elapsed = clock() - start
            if repetition:
                seconds[name].append(elapsed / times)
        tick()
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def machine_facts() -> dict[str, Figure]:
    """Processor, cores, system, load average and library versions, with keys `machine.*` and `version.*`.

    A benchmark alone causes a load of about 1. A much higher load means that other processes affected the figures. The
    version of a package that is not installed is None.
    """
    facts: dict[str, Figure] = {
        "machine.processor": _processor(),
        "machine.cores": os.cpu_count(),
        "machine.system": platform.platform(),
        "machine.load_1m": os.getloadavg()[0],
        "version.python": platform.python_version(),
    }
    for package in _PACKAGES:
        try:
            facts[f"version.{package}"] = version(package)
        except PackageNotFoundError:
            facts[f"version.{package}"] = None
    return facts


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def write_figures(path: Path | None, figures: Mapping[str, Figure]) -> None:
    """Write `figures` and `machine_facts()` to `path` as one flat JSON object with sorted keys; skip if it is None."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dict(figures) | machine_facts(), indent=2, sort_keys=True) + "\n")


def show(title: str, rows: Mapping[str, Figure]) -> None:
    """Print `rows` as a table with the columns figure and value."""
    table = Table("figure", "value", title=title)
    for name, value in rows.items():
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    Console().print(table)
