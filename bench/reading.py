"""Time the reader of interactions on a CSV file of 10 million rows, beside polars' own query with the same result.

.venv/bin/python -m bench.reading [--quick] [--json FILE]

Two files of one shop: article numbers, and SKUs and customer numbers of text. The query reads the file (`scan_csv`, in
polars' streaming engine), keeps the latest row of each pair of user and item, and groups them by user in order of time.
It checks nothing, and its ids have no numbers yet. Each run is a process of its own; the two take turns.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np

from bench._report import Figure, arguments, bars
from bench.figures import run

ROWS, QUICK_ROWS, REPEATS = 10_000_000, 50_000, 3
KINDS = ("numbers", "text")


def measure(rows: int, repeats: int) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory() as folder, bars() as progress:
        bar = progress.add_task("reading", total=len(KINDS) * repeats * 2)
        for kind in KINDS:
            path = Path(folder) / f"{kind}.csv"
            write_orders(path, rows, kind)
            found: dict[str, list[tuple[float, float, int, int]]] = {"ours": [], "polars": []}
            for _ in range(repeats):
                for system, done in found.items():
                    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                        done.append(pool.submit(read, system, path).result())
                    progress.advance(bar)
            assert len({count for done in found.values() for *_, count in done}) == 1, "both have the same interactions"
            for system, done in found.items():
                for name, values in zip(
                    ("seconds", "cpu_seconds", "peak_bytes"), zip(*done, strict=True), strict=False
                ):
                    figures[f"{kind}.{system}.{name}"] = round(median(values), 3)
            ours, theirs = ([median(values) for values in zip(*done, strict=True)] for done in found.values())
            figures[f"{kind}.time_ratio"] = round(ours[0] / theirs[0], 3)
            figures[f"{kind}.cpu_ratio"] = round(ours[1] / theirs[1], 3)
            figures[f"{kind}.peak_bytes_per_row"] = round(ours[2] / rows, 1)
            figures[f"{kind}.peak_of_file"] = round(ours[2] / path.stat().st_size, 2)
    return figures | {"rows": rows}


def write_orders(path: Path, rows: int, kind: str) -> None:
    """Write orders in order of time, of users who buy about 70 articles each, few of them twice."""
    import polars as pl

    rng = np.random.default_rng(0)
    users, items = rng.integers(0, max(2, rows // 70), rows), (27_000 * rng.random(rows) ** 2).astype(np.int64)
    table = pl.DataFrame(
        {"user": users, "item": items, "rating": rng.integers(1, 11, rows) / 2}
        | {"timestamp": np.sort(rng.integers(1_500_000_000, 1_700_000_000, rows))}
    )
    if kind == "text":
        table = table.with_columns(pl.format("K-{}", "user").alias("user"), pl.format("SKU-{}-X", "item").alias("item"))
    table.write_csv(path)


def read(system: str, path: Path) -> tuple[float, float, int, int]:
    """Seconds, processor seconds, the peak of memory above that before, in bytes, and the number of interactions."""
    import polars as pl

    from client_sdk.lab.data.files import read_data_file

    Path("/proc/self/clear_refs").write_text("5")  # sets the peak to the present size
    before, started, cpu = _peak(), time.perf_counter(), time.process_time()
    if system == "ours":
        count = read_data_file(path).interactions.size
    else:
        latest = pl.col("rating", "timestamp").sort_by("timestamp").last()
        query = pl.scan_csv(path).group_by("user", "item").agg(latest)
        ordered = pl.col("item", "rating", "timestamp").sort_by("timestamp", "item")
        count = int(query.group_by("user").agg(ordered).collect(engine="streaming")["item"].list.len().sum())
    return time.perf_counter() - started, time.process_time() - cpu, _peak() - before, count


def _peak() -> int:
    """The peak of this process' memory since it was last set to the present size, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _sizes(options: argparse.Namespace) -> tuple[int, int]:
    return (QUICK_ROWS, 1) if options.quick else (ROWS, REPEATS)


if __name__ == "__main__":
    run("reading", arguments(__doc__), lambda options: measure(*_sizes(options)))
