"""Run schedules on all cores, and shrink a failing one. A seed gives the same schedule in any process."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from typing import Final

from tests.simulation.plan import Plan, draw_plan
from tests.simulation.storage import Disk, new_disk
from tests.simulation.world import ScheduleError, play

__all__ = ["main", "shrink"]


_MOST_TRIES = 60


def shrink(plan: Plan, disk: Disk) -> tuple[Plan, str]:
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


_AT_A_TIME: Final = 25

Found = tuple[list[tuple[int, str]], Counter[str]]


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status, 0 when every invariant held."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Play fault schedules.")
    parser.add_argument("--schedules", type=int, default=2000, help="how many (default: 2000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--seed", type=int, help="replay this one, and print what happened in it")
    parser.add_argument("--shrink", action="store_true", help="with --seed: leave away what it can fail without")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        return _replay(given.seed, smaller=given.shrink)
    return _many(given.first, given.schedules, given.jobs)


def _many(first: int, schedules: int, jobs: int) -> int:
    started, failed, injected = time.monotonic(), list[tuple[int, str]](), Counter[str]()
    chunks = [range(at, min(at + _AT_A_TIME, first + schedules)) for at in range(first, first + schedules, _AT_A_TIME)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_end_together) as pool:
        for done, ended in enumerate(as_completed([pool.submit(_some, chunk) for chunk in chunks]), start=1):
            found, counted = ended.result()
            failed += found
            injected += counted
            for seed, text in found:
                print(f"seed {seed} fails:\n{text}\n", flush=True)
            if done % 10 == 0:
                print(f"{done * _AT_A_TIME} schedules, {time.monotonic() - started:.0f} s", flush=True)
    print(", ".join(f"{kind} {count}" for kind, count in sorted(injected.items())))
    print(f"{schedules} schedules, {len(failed)} failed, {time.monotonic() - started:.0f} s")
    for seed, _ in sorted(failed):
        print(f"replay with: python -m tests.simulation --seed {seed} --shrink")
    return 1 if failed else 0


def _end_together() -> None:
    """Make a worker exit when its runner is killed."""
    runner = multiprocessing.parent_process()
    assert runner is not None

    def follow() -> None:
        runner.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _some(seeds: Sequence[int]) -> Found:
    """Run these seeds; return the failures and the faults that happened."""
    failed, injected = list[tuple[int, str]](), Counter[str]()
    with new_disk() as disk:
        for seed in seeds:
            try:
                injected += play(draw_plan(seed), disk).injector.injected
            except ScheduleError as error:
                failed.append((seed, str(error)))
    return failed, injected


def _replay(seed: int, *, smaller: bool) -> int:
    with new_disk() as disk:
        plan = draw_plan(seed)
        try:
            world = play(plan, disk)
        except ScheduleError as error:
            print(shrink(plan, disk)[1] if smaller else error)
            return 1
        print("\n".join([*plan.lines(), *world.trace, *_outcome(world.ledger.ended)]))
        return 0


def _outcome(ended: dict[int, str]) -> list[str]:
    return [f"round {number} is {state}" for number, state in sorted(ended.items())]
