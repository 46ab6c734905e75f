"""Thousands of fault schedules, each from a seed, against the real routes, engine, database and blobs.

What must hold stands at the top of `tests/simulation/invariants.py`. docs/fuzzing.md says how to replay a seed.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Final

import pytest

from tests.simulation.plan import FAULTS, draw_plan
from tests.simulation.storage import Disk
from tests.simulation.world import play

SCHEDULES: Final = int(os.environ.get("HUSHREC_SCHEDULES", "200"))
SEED: Final = os.environ.get("HUSHREC_SEED")
_SOME: Final = 25


@pytest.mark.parametrize("first", [int(SEED)] if SEED else range(0, SCHEDULES, _SOME))
def test_schedules(disk: Disk, first: int) -> None:
    for seed in range(first, first + 1 if SEED else min(first + _SOME, SCHEDULES)):
        play(draw_plan(seed), disk)


def test_a_seed_is_one_schedule(disk: Disk) -> None:
    """What a seed showed once, it shows again."""
    for seed in (0, 4, 9):
        first, again = (play(draw_plan(seed), disk) for _ in range(2))
        assert first.trace == again.trace
        assert first.ledger.released == again.ledger.released


def test_every_fault_strikes_and_sums_are_released_all_the_same(disk: Disk) -> None:
    injected, outcomes = Counter[str](), Counter[tuple[str | None, str]]()
    for seed in range(40):
        world = play(draw_plan(seed), disk)
        injected += world.injected
        outcomes.update((world.plan.mode, outcome) for outcome in world.ledger.ended.values())
    assert set(injected) == set(FAULTS)
    assert outcomes[None, "failed"] and all(outcomes[mode, "complete"] for mode in (None, "curious", "semi-malicious"))
