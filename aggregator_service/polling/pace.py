"""When a client comes: the pauses that the server asks for in Retry-After of a poll's answer (`protocols.pace`)."""

from __future__ import annotations

import random
from math import ceil
from typing import Final

from aggregator_service.storage.schema import RoundRow, TaskRow
from protocols import pace
from protocols.messages import Schedule
from protocols.messages.stages import RoundState
from protocols.sums.registry import mechanism_entry

_RANDOM: Final = random.SystemRandom()


def seconds_to_window(task: TaskRow, round_: RoundRow, client_id: str, rate: float, now: float) -> int:
    """Return how many seconds before its window in the round a client is; 0 once it may begin.

    The client is one that the opening round awaits. rate: the setting `arrival_rate`. now: seconds since the epoch.
    """
    if round_.state != mechanism_entry(task.mechanism_name).opens_in:
        return 0
    after = pace.window(round_.seed, client_id, round_.cohort, rate, _opening_seconds(task))
    return max(0, ceil(round_.opened_at + after - now)) if after else 0


def seconds_to_rest(task: TaskRow, members: int, rate: float) -> int:
    """Return after how many seconds a client of a task of so many members asks again, if its poll finds no room."""
    return ceil(pace.rest(members, rate, _opening_seconds(task), _RANDOM.random()))


def _opening_seconds(task: TaskRow) -> float:
    schedule = Schedule.model_validate(task.schedule)
    collects = mechanism_entry(task.mechanism_name).opens_in == RoundState.COLLECTING
    return schedule.collect_seconds if collects else schedule.stage_seconds
