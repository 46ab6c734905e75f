"""One step of a client's part in a task, where a test needs less than `take_part` and `serve` do."""

from __future__ import annotations

from client_sdk import RoundReport, Task
from client_sdk.rounds.events import Progress
from client_sdk.rounds.key_holder import Deliveries, KeyHolder
from client_sdk.rounds.loop import run_round
from protocols.messages import RoundView

__all__ = ["deliver_keys", "play_round"]


def play_round(task: Task, view: RoundView, interactions: object, progress: Progress | None = None) -> RoundReport:
    """Take part in one round, and raise the errors that `take_part` reports as events."""
    part = task.part
    part.seen = part.history(interactions)
    return task._driver.run(run_round(part, view, part.seen, progress))


def deliver_keys(task: Task, progress: Progress | None = None) -> Deliveries:
    """As the key holder, send the keyring to every member without one."""
    return task._driver.run(KeyHolder(task.part.member, progress).deliver())
