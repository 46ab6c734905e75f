"""Run drawn schedules on all cores, replay one, and shrink a failing one: the commands of the simulations.

`python -m tests.simulation` (faults) and `python -m tests.simulation.lying_server` (lies) differ only in their `Game`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

_MOST_TRIES: Final = 60
_AT_A_TIME: Final = 25


class ScheduleError(AssertionError):
    """An invariant does not hold. The text says which, and lists the schedule and what happened last."""

    def __init__(self, violations: Iterable[str], schedule: Any, trace: Sequence[str]) -> None:
        super().__init__("\n".join([*violations, *schedule.lines(), *trace[-60:]]))


Play = Callable[[Any], Any]
"""Plays a schedule; the outcome has `trace`, the events in order, and `counts`, how often what happened."""


@dataclass(frozen=True)
class Game:
    """A kind of schedules.

    A schedule has `lines()`, to be read, and `smaller()`: the schedules that lack one thing of it.
    Playing raises `ScheduleError` when an invariant does not hold.
    """

    module: str
    """What runs it."""
    draw: Callable[[int], Any]
    """Returns the schedule of a seed."""
    playing: Callable[[], AbstractContextManager[Play]]
    """Yields what plays them."""


def failure(play: Play, schedule: Any) -> str:
    """Return the error of a schedule, "" when every invariant holds."""
    try:
        play(schedule)
    except ScheduleError as error:
        return str(error)
    return ""


def _shrink(play: Play, schedule: Any, shown: str) -> str:
    """Return the error of a smaller schedule that breaks an invariant too. shown: the error of this one."""
    for _, candidate in zip(range(_MOST_TRIES), schedule.smaller(), strict=False):
        if found := failure(play, candidate):
            return _shrink(play, candidate, found)
    return shown


def run(game: Game, arguments: Sequence[str]) -> int:
    """Run the command of a game; return the exit status, 0 when every invariant held."""
    parser = argparse.ArgumentParser(prog=f"python -m {game.module}", description="Play drawn schedules.")
    parser.add_argument("--schedules", type=int, default=2000, help="how many (default: 2000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--seed", type=int, help="play this one, and print what happened in it")
    parser.add_argument("--shrink", action="store_true", help="with --seed: leave away what it can fail without")
    given = parser.parse_args(arguments)
    if given.seed is None:
        return _many(game, given)
    schedule = game.draw(given.seed)
    with game.playing() as play:
        try:
            outcome = play(schedule)
        except ScheduleError as error:
            print(_shrink(play, schedule, str(error)) if given.shrink else error)
            return 1
    print("\n".join([*schedule.lines(), *outcome.trace, _listed(outcome.counts)]))
    return 0


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))


def _many(game: Game, given: argparse.Namespace) -> int:
    """Run the schedules that the command asks for, and show what fails as soon as it does."""
    started, failed, counts = time.monotonic(), list[int](), Counter[str]()
    last = given.first + given.schedules
    chunks = [range(at, min(at + _AT_A_TIME, last)) for at in range(given.first, last, _AT_A_TIME)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.jobs, mp_context=spawn, initializer=_end_together) as pool:
        for done, ended in enumerate(as_completed([pool.submit(_some, game, chunk) for chunk in chunks]), start=1):
            found, counted = ended.result()
            counts += counted
            failed += [seed for seed, _ in found]
            for seed, text in found:
                print(f"seed {seed} fails:\n{text}\n", flush=True)
            if done % 10 == 0:
                print(f"{done * _AT_A_TIME} schedules, {time.monotonic() - started:.0f} s", flush=True)
    print(_listed(counts))
    print(f"{given.schedules} schedules, {len(failed)} failed, {time.monotonic() - started:.0f} s")
    for seed in sorted(failed):
        print(f"replay with: python -m {game.module} --seed {seed} --shrink")
    return 1 if failed else 0


def _some(game: Game, seeds: Sequence[int]) -> tuple[list[tuple[int, str]], Counter[str]]:
    """Play these seeds, in a worker process; return those that failed, with their errors, and the counts."""
    failed, counts = list[tuple[int, str]](), Counter[str]()
    with game.playing() as play:
        for seed in seeds:
            try:
                counts += play(game.draw(seed)).counts
            except ScheduleError as error:
                failed.append((seed, str(error)))
            except Exception:  # of the simulation itself: one that depends on keys is hard to find without its schedule
                failed.append((seed, "\n".join([traceback.format_exc(), *game.draw(seed).lines()])))
    return failed, counts


def _end_together() -> None:
    """Make a worker exit when its runner is killed."""
    runner = multiprocessing.parent_process()

    def follow() -> None:
        runner.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
