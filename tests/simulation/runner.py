"""Run schedules on all cores, and shrink a failing one. A seed gives the same schedule in any process.

The commands `python -m tests.simulation` (faults) and `python -m tests.simulation.lying_server` (lies).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from typing import Final

from tests.simulation.lying_server.play import LiesError
from tests.simulation.lying_server.play import play as play_lies
from tests.simulation.lying_server.schedule import draw_schedule
from tests.simulation.machine import Disk, new_disk
from tests.simulation.plan import Plan, draw_plan
from tests.simulation.world import ScheduleError, play

__all__ = ["run_faults", "run_lies"]

_MOST_TRIES: Final = 60
_AT_A_TIME: Final = 25
_Found = tuple[list[tuple[int, str]], Counter[str]]
"""Seeds that failed, with their errors, and counts of what happened."""


def _shrink(plan: Plan, disk: Disk) -> tuple[Plan, str]:
    """Return a plan with fewer faults that also breaks an invariant, and its error. `plan` must fail."""
    shown, tries = _failure(plan, disk), 0
    smaller = True
    while smaller and tries < _MOST_TRIES:
        smaller = False
        for candidate in _with_less(plan):
            tries += 1
            found = _failure(candidate, disk)
            if found:
                plan, shown, smaller = candidate, found, True
                break
    return plan, shown


def _with_less(plan: Plan) -> Iterator[Plan]:
    if plan.silent:
        yield replace(plan, silent={})
    if plan.garbage:
        yield replace(plan, garbage=frozenset())
    if plan.chunks:
        yield replace(plan, chunks={})
    for fault in plan.faults:
        yield replace(plan, faults=tuple(one for one in plan.faults if one is not fault))
    if plan.processes > 1:
        yield replace(plan, processes=1)


def _failure(plan: Plan, disk: Disk) -> str:
    try:
        play(plan, disk)
    except ScheduleError as error:
        return str(error)
    return ""


def run_faults(arguments: Sequence[str]) -> int:
    """Run the command of the faults; return the exit status, 0 when every invariant held."""
    parser = _parser("python -m tests.simulation", "Play fault schedules.")
    parser.add_argument("--shrink", action="store_true", help="with --seed: leave away what it can fail without")
    given = parser.parse_args(arguments)
    if given.seed is None:
        return _many(given, _some_faults, "replay with: python -m tests.simulation --seed {} --shrink")
    with new_disk() as disk:
        plan = draw_plan(given.seed)
        try:
            world = play(plan, disk)
        except ScheduleError as error:
            print(_shrink(plan, disk)[1] if given.shrink else error)
            return 1
    ends = [f"round {number} is {state}" for number, state in sorted(world.ledger.ended.items())]
    print("\n".join([*plan.lines(), *world.trace, *ends]))
    return 0


def run_lies(arguments: Sequence[str]) -> int:
    """Run the command of the lies; return the exit status, 0 when both invariants held in every schedule."""
    given = _parser("python -m tests.simulation.lying_server", "Play a lying server.").parse_args(arguments)
    if given.seed is None:
        return _many(given, _some_lies, "replay with: python -m tests.simulation.lying_server --seed {}")
    schedule = draw_schedule(given.seed)
    try:
        outcome = play_lies(schedule)
    except LiesError as error:
        print(error)
        return 1
    print("\n".join([*schedule.lines(), *outcome.trace, f"{outcome.opened} sums opened"]))
    return 0


def _parser(program: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--schedules", type=int, default=2000, help="how many (default: 2000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--seed", type=int, help="play this one, and print what happened in it")
    return parser


def _many(given: argparse.Namespace, some: Callable[[Sequence[int]], _Found], again: str) -> int:
    """Run the schedules that the command asks for. some: runs these seeds in another process. again: for a seed."""
    started, failed, happened = time.monotonic(), list[tuple[int, str]](), Counter[str]()
    last = given.first + given.schedules
    chunks = [range(at, min(at + _AT_A_TIME, last)) for at in range(given.first, last, _AT_A_TIME)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.jobs, mp_context=spawn, initializer=_end_together) as pool:
        for done, ended in enumerate(as_completed([pool.submit(some, chunk) for chunk in chunks]), start=1):
            found, counted = ended.result()
            failed += found
            happened += counted
            for seed, text in found:
                print(f"seed {seed} fails:\n{text}\n", flush=True)
            if done % 10 == 0:
                print(f"{done * _AT_A_TIME} schedules, {time.monotonic() - started:.0f} s", flush=True)
    print(", ".join(f"{kind} {count}" for kind, count in sorted(happened.items())))
    print(f"{given.schedules} schedules, {len(failed)} failed, {time.monotonic() - started:.0f} s")
    for seed, _ in sorted(failed):
        print(again.format(seed))
    return 1 if failed else 0


def _end_together() -> None:
    """Make a worker exit when its runner is killed."""
    runner = multiprocessing.parent_process()
    assert runner is not None

    def follow() -> None:
        runner.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _some_faults(seeds: Sequence[int]) -> _Found:
    """Run these seeds; return the failures and the faults that happened."""
    failed, injected = list[tuple[int, str]](), Counter[str]()
    with new_disk() as disk:
        for seed in seeds:
            try:
                injected += play(draw_plan(seed), disk).injector.injected
            except ScheduleError as error:
                failed.append((seed, str(error)))
    return failed, injected


def _some_lies(seeds: Sequence[int]) -> _Found:
    """Play these seeds; return the failures and the number of opened sums."""
    failed, opened = list[tuple[int, str]](), Counter[str]()
    for seed in seeds:
        try:
            opened["sums opened"] += play_lies(draw_schedule(seed)).opened
        except LiesError as error:
            failed.append((seed, str(error)))
    return failed, opened
