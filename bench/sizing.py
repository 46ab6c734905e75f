"""What a member and a round cost the server, by mechanism: processor time, memory, disk and log, for the sizing table.

    .venv/bin/python -m bench.sizing [--quick] [--only masked ckks ... kept] [--json FILE]

A real server with SQLite and a directory, and a fleet in this process. `<mechanism>.n<members>.m<values>.` has the cost
of enrolment for each member, and of the second round, in which all members contribute; keys and committees of the first
one are then made. Part `kept` lets six members play 1,000 masked rounds, and measures what is stored after 200 and
after 1,000, once the server has deleted what it keeps no longer.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import numpy as np

from bench._report import READY_SECONDS, Figure, Watch, arguments, say
from bench.figures import run
from bench.rounds import DrawnVectorSide, enrolled, measure_round, named, one_round
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
KEPT: Final = "kept"
_ROUNDS: Final = (200, 1_000)
_TIDYING_SECONDS: Final = 65.0
"""The server tidies up once a minute."""
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
                client.client_side = DrawnVectorSide(number, layout)
            one_round(fleet)
            before = _settled(Path(root))
            done = measure_round(server, fleet)
            after = _settled(Path(root))
        finally:
            opened.__exit__(None, None, None)
    growth = {name: after[name] - before[name] for name in before if name != "database_bytes"}
    figures = {"enrol_cpu_ms_per_member": 1000 * joining.cpu_seconds / members, **done.figures, **growth}
    return named(f"{mechanism}.n{members}.m{items * (DIM + 1)}", figures)


def kept(rounds: tuple[int, ...], items: int, pause: float) -> dict[str, Figure]:
    """Return what a server stores after so many rounds of one task, with the settings that it comes with.

    pause: seconds in which the server deletes what is due.
    """
    members, found = 6, dict[str, Figure]()
    schedule = Schedule(rounds=rounds[-1], cohort_size=members, min_clients=3, collect_seconds=3600.0)
    options = FleetOptions(downloads="once")
    given = ("fedmf", {"items": items, "dim": DIM, "clip": 1.0}, "masked", schedule, [[0]] * members, options)
    with (
        tempfile.TemporaryDirectory() as root,
        run_server(Path(root), READY_SECONDS) as server,
        enrolled(server, *given) as (fleet, _),
    ):
        layout = fleet.clients[0].member.terms.recipe.layout(1)
        for number, client in enumerate(fleet.clients):
            client.client_side = DrawnVectorSide(number, layout)
        done = 0
        for number in rounds:
            while done < number:
                one_round(fleet)
                done += 1
            time.sleep(pause)
            stored = _settled(Path(root))
            say(f"after {number} rounds: {stored}")
            found |= {
                f"{KEPT}.r{number}.{name}": stored[name] for name in ("database_bytes", "rows_bytes", "blobs_bytes")
            }
    first, last = rounds
    grown = float(found[f"{KEPT}.r{last}.rows_bytes"]) - float(found[f"{KEPT}.r{first}.rows_bytes"])
    return {**found, f"{KEPT}.bytes_per_round": grown / (last - first)}


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
    """Bytes of the database, of its pages in use, of the blobs, and of the log."""
    with closing(sqlite3.connect(f"{(root / 'hushrec.db').as_uri()}?mode=ro", uri=True)) as database:
        (pages,), (free,), (size,) = (
            database.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count", "page_size")
        )
    blobs = 0
    for path in (root / "blobs").rglob("*"):
        with suppress(FileNotFoundError):  # the server deletes what a round no longer needs meanwhile
            blobs += path.stat().st_size if path.is_file() else 0
    return {
        "database_bytes": pages * size,
        "rows_bytes": (pages - free) * size,
        "blobs_bytes": blobs,
        "log_bytes": (root / "server.log").stat().st_size,
    }


def measure(options: argparse.Namespace) -> dict[str, Figure]:
    """Figures of all sizes of the chosen mechanisms."""
    figures: dict[str, Figure] = {}
    for part in options.only:
        if part == KEPT:
            figures |= kept((1, 2), 20, 0.0) if options.quick else kept(_ROUNDS, 4_000, _TIDYING_SECONDS)
            continue
        for members, items in QUICK if options.quick else SIZES[part]:
            figures |= measured(part, members, items)
    return figures


if __name__ == "__main__":
    run("sizing", arguments(__doc__, parts=(*SIZES, KEPT)), measure)
