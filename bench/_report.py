"""Shared by the benchmarks: options, facts about the machine, timing, memory and processor time of processes, JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self, TypeVar

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Figure = int | float | str | bool | None
MIB = 2**20
READY_SECONDS = 120.0
"""Within which a server must listen; a busy machine takes long to import it."""
T = TypeVar("T")
_PACKAGES = ("hushrec", "numpy", "scipy", "tenseal", "cryptography", "zstandard", "phe", "gmpy2")


# --- Options and output


def arguments(about: str | None, peer: bool = False, parts: Sequence[str] = ()) -> argparse.ArgumentParser:
    """A parser with the options `--quick` and `--json FILE`; scripts add further options.

    about: the help. peer: add `--peer-python`, the interpreter of an environment with Flower. parts: add `--only PART`.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="the smallest sizes: checks that everything runs and writes its keys; the figures mean nothing",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as one flat JSON object")
    if peer:
        here = Path(sys.executable) if find_spec("flwr") else None
        parser.add_argument("--peer-python", type=Path, default=here, help="interpreter with flwr (default: this one)")
    if parts:
        parser.add_argument("--only", nargs="+", choices=parts, default=parts, metavar="PART", help="only these parts")
    return parser


def bars() -> Progress:
    """A progress display on standard error: description, bar, count and elapsed time."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def say(text: str) -> None:
    """Tell on standard error what is measured next, with the time."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def write_figures(path: Path | None, figures: Mapping[str, Figure]) -> None:
    """Write `figures` and `machine_facts()` to `path` as one flat JSON object with sorted keys; skip if it is None."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dict(figures) | machine_facts(), indent=2, sort_keys=True) + "\n")


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


# --- Timing


def ratio(figures: Mapping[str, Figure], above: str, below: str) -> float:
    """The figure `above` / the figure `below`, both of which are numbers."""
    return float(figures[above] or 0) / float(figures[below] or "nan")


def in_turn(steps: Mapping[str, Callable[[], T]], repetitions: int, warm: bool = True) -> dict[str, list[T]]:
    """What every step returned, once per repetition, one after the other, so that other load affects all alike.

    warm: run one repetition first that does not count.
    """
    found: dict[str, list[T]] = {name: [] for name in steps}
    for repetition in range(repetitions + warm):
        for name, step in steps.items():
            result = step()
            if repetition >= warm:
                found[name].append(result)
    return found


def time_in_turn(
    steps: Mapping[str, Callable[[], object]],
    repetitions: int,
    calls: Mapping[str, int] | int = 1,
    clock: Callable[[], float] = time.perf_counter,
    warm: bool = True,
) -> dict[str, float]:
    """The median seconds of every step, which take turns as in `in_turn`.

    calls: how often a short step is called within a repetition (1 if it is not named), so that it lasts about as long
    as the others; its time is that of one call. clock: pass `time.process_time` to exclude the time of other processes.
    """

    def seconds(step: Callable[[], object], times: int) -> float:
        start = clock()
        for _ in range(times):
            step()
        return (clock() - start) / times

    times = dict.fromkeys(steps, calls) if isinstance(calls, int) else {name: calls.get(name, 1) for name in steps}
    timed = {name: partial(seconds, step, times[name]) for name, step in steps.items()}
    return {name: median(found) for name, found in in_turn(timed, repetitions, warm).items()}


# --- Other processes


def wait_for(port: int, seconds: float = 120.0) -> None:
    """Wait until something accepts connections on the loopback port; `SystemExit` after `seconds`."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise SystemExit(f"nothing accepts connections on port {port} after {seconds:.0f} s")


def processor_seconds(pid: int) -> float:
    """User and system time so far of a process and all that it started, also of those that have ended."""
    process, spent = psutil.Process(pid), 0.0
    for each in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            spent += times.user + times.system + times.children_user + times.children_system
    return spent


@dataclass
class Watch:
    """Context manager that samples the memory of a process and its children every 20 ms."""

    pid: int
    total: int = 0
    """Peak resident memory of all of them in bytes. Shared pages count in each process, so it is an upper bound."""
    cpu_seconds: float = 0.0
    """`processor_seconds` while the context was open, set on exit."""
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self.cpu_seconds = -processor_seconds(self.pid)
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        self.cpu_seconds += processor_seconds(self.pid)

    def _sample(self) -> None:
        server = psutil.Process(self.pid)
        while True:
            resident = server.memory_info().rss
            for child in server.children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    resident += child.memory_info().rss
            self.total = max(self.total, resident)
            if self._stop.wait(0.02):
                return
