"""What a member and a round cost the server, by mechanism: processor time, memory, disk and log, for the sizing table.

    .venv/bin/python -m bench.sizing [--quick] [--only masked ckks ...] [--json FILE]

A real server with SQLite and a directory, and a fleet in this process. `<mechanism>.n<members>.m<values>.` has the cost
of enrolment for each member, and of the second round, in which all members contribute; keys and committees of the first
one are then made.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np

from bench._report import Figure, Watch, arguments, say
from bench.figures import run
from bench.rounds import READY_SECONDS, DrawnVectorHalf, enrolled, measure_round, named, one_round
from client_sdk.lab.fleet_rounds import FleetOptions
from client_sdk.lab.local_server import run_server
from protocols.messages import Schedule

DIM: Final = 9
"""Values of an item, besides its count."""
SIZES: Final = {
    "plain": ((50, 1_000), (200, 1_000), (200, 10_000)),
    "ckks": ((50, 1_000), (200, 1_000), (200, 10_000)),
    "oneshot": ((20, 1_000), (60, 1_000), (60, 10_000)),
    "masked": ((20, 1_000), (60, 1_000), (60, 10_000)),
    "paillier": ((20, 100), (60, 100), (20, 1_000)),
}
"""Members and items. Paillier takes a member a second for about 1,000 values, so its sums are short."""
QUICK: Final = ((10, 20),)
_MOST_LOOKS: Final = 20


def measured(mechanism: str, members: int, items: int) -> dict[str, Figure]:
    """Return the figures of one federation, `<mechanism>.n<members>.m<values>.*`."""
    say(f"{mechanism}, {members} members, {items * (DIM + 1)} values")
    schedule = Schedule(
        rounds=2, cohort_size=members, min_clients=members // 2, collect_seconds=3600.0, stage_seconds=3600.0
    )
    options = FleetOptions(downloads="once", dropout_rng=np.random.default_rng(5))
    parameters = {"items": items, "dim": DIM, "clip": 1.0}
    with tempfile.TemporaryDirectory() as root, run_server(Path(root), READY_SECONDS) as server:
        joining = Watch(server.pid)
        with joining:
            opened = enrolled(server, "fedmf", parameters, mechanism, schedule, [[0]] * members, options)
            fleet, _ = opened.__enter__()
        try:
            layout = fleet.clients[0].member.terms.recipe.layout(1)
            for number, client in enumerate(fleet.clients):
                client.half = DrawnVectorHalf(number, layout)
            one_round(fleet)
            before = _settled(Path(root))
            done = measure_round(server, fleet)
            after = _settled(Path(root))
        finally:
            opened.__exit__(None, None, None)
    growth = {name: after[name] - before[name] for name in before}
    figures = {"enrol_cpu_ms_per_member": 1000 * joining.cpu_seconds / members, **done.figures, **growth}
    return named(f"{mechanism}.n{members}.m{items * (DIM + 1)}", figures)


def _settled(root: Path) -> dict[str, int]:
    """Return what is stored once nothing changes any more: contributions are deleted after a round."""
    found = _stored(root)
    for _ in range(_MOST_LOOKS):
        time.sleep(1.0)
        again = _stored(root)
        if again == found:
            break
        found = again
    return found


def _stored(root: Path) -> dict[str, int]:
    """Bytes of the database's pages, of the blobs, and of the log."""
    with closing(sqlite3.connect(f"{(root / 'hushrec.db').as_uri()}?mode=ro", uri=True)) as database:
        (pages,), (free,), (size,) = (
            database.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count", "page_size")
        )
    blobs = sum(path.stat().st_size for path in (root / "blobs").rglob("*") if path.is_file())
    return {
        "rows_bytes": (pages - free) * size,
        "blobs_bytes": blobs,
        "log_bytes": (root / "server.log").stat().st_size,
    }


def measure(options: argparse.Namespace) -> dict[str, Figure]:
    """Figures of all sizes of the chosen mechanisms."""
    figures: dict[str, Figure] = {}
    for mechanism in options.only:
        for members, items in QUICK if options.quick else SIZES[mechanism]:
            figures |= measured(mechanism, members, items)
    return figures


if __name__ == "__main__":
    run("sizing", arguments(__doc__, parts=tuple(SIZES)), measure)
