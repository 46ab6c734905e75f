"""Run schedules of lies on all cores."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Final

from tests.simulation.lying_server.play import LiesError, play
from tests.simulation.lying_server.schedule import draw_schedule

__all__ = ["main"]

_AT_A_TIME: Final = 50


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status, 0 when both invariants held in every schedule."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.lying_server", description="Play a lying server.")
    parser.add_argument("--schedules", type=int, default=2000, help="how many (default: 2000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--seed", type=int, help="play this one, and print what happened in it")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        return _one(given.seed)
    started, last = time.monotonic(), given.first + given.schedules
    chunks = [range(first, min(first + _AT_A_TIME, last)) for first in range(given.first, last, _AT_A_TIME)]
    with ProcessPoolExecutor(given.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(_some, chunks))
    failed = [text for texts, _ in found for text in texts]
    print("\n\n".join(failed))
    opened = sum(count for _, count in found)
    seconds = time.monotonic() - started
    print(f"{given.schedules} schedules, {len(failed)} failed, {opened} sums opened, {seconds:.0f} s")
    return 1 if failed else 0


def _some(seeds: Sequence[int]) -> tuple[list[str], int]:
    """Play these seeds; return the failures and the number of opened sums."""
    failed, opened = [], 0
    for seed in seeds:
        try:
            opened += play(draw_schedule(seed)).opened
        except LiesError as error:
            failed.append(str(error))
    return failed, opened


def _one(seed: int) -> int:
    schedule = draw_schedule(seed)
    try:
        outcome = play(schedule)
    except LiesError as error:
        print(error)
        return 1
    print("\n".join([*schedule.lines(), *outcome.trace, f"{outcome.opened} sums opened"]))
    return 0
