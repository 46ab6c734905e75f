"""Shrink a failing schedule to the faults that it needs to fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.simulation.plan import Plan
from tests.simulation.storage import Disk
from tests.simulation.world import ScheduleError, play

__all__ = ["shrink"]

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
