"""Fault schedules, each from a seed, against the real routes, engine, database and blobs.

The invariants are listed in `tests/simulation/invariants.py`; docs/testing.md describes how to replay a seed. CI runs
thousands of schedules with `python -m tests.simulation`; the tests here run a few.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from itertools import count, islice, product
from typing import Final, get_args

import pytest

from tests.simulation.faults import FAULTS
from tests.simulation.plan import Job, draw_plan
from tests.simulation.storage import Disk
from tests.simulation.world import World, play

SCHEDULES: Final = int(os.environ.get("HUSHREC_SCHEDULES", "25"))
SEED: Final = os.environ.get("HUSHREC_SEED")
_SOME: Final = 25
_REPEATED: Final = (0, 2, 4, 9, 13)


@pytest.mark.parametrize("first", [int(SEED)] if SEED else range(0, SCHEDULES, _SOME))
def test_schedules(disk: Disk, first: int) -> None:
    for seed in range(first, first + 1 if SEED else min(first + _SOME, SCHEDULES)):
        play(draw_plan(seed), disk)


def traces(disk: Disk) -> str:
    """Run a few schedules; return the digest of their traces."""

    def lines(world: World) -> list[str]:
        return [*world.trace, str(sorted(world.ledger.released)), str(sorted(world.ledger.acknowledged))]

    text = "\n".join(line for seed in _REPEATED for line in lines(play(draw_plan(seed), disk)))
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_seed_repeats_its_schedule(disk: Disk) -> None:
    """A seed gives the same trace, whatever ran before, also in another process with other hash seeds."""
    elsewhere = (
        "from tests.simulation.storage import new_disk\n"
        "from tests.simulation.test_simulation import traces\n"
        "with new_disk() as disk: print(traces(disk))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    found = subprocess.run(
        [sys.executable, "-c", elsewhere], env=environment, capture_output=True, text=True, check=True
    )
    assert traces(disk) == traces(disk) == found.stdout.strip()


def test_every_fault_happens_and_sums_are_released(disk: Disk) -> None:
    ends = (seed for seed in count(190) if any(fault.kind == "closed" for fault in draw_plan(seed).faults))
    missing = {*FAULTS, *product(get_args(Job), ("complete", "failed"))}
    for seed in (*islice(ends, 3), *range(100, 190)):  # the closing of a task is too rare to happen in a few schedules
        world = play(draw_plan(seed), disk)
        assert set(world.injector.injected) <= set(FAULTS)
        missing -= {*world.injector.injected, *((world.plan.job, end) for end in world.ledger.ended.values())}
        if not missing:
            break
    assert not missing
